/// diff: where two recorded runs first differ, with causes told apart from victims.
///
/// Groups are matched by name and compared step by step: its input (which message, with which
/// content), then its emissions. A group whose inputs were equal up to a step and whose output at
/// that step differs is a cause; one that received something else is a victim of its sender.
/// Missing records (a cut tail, a gap, damage, a missing segment) are reported separately: they
/// hide differences, but are not differences. Equal ranges are skipped with the digests of the
/// indices.
///
/// Pure functions over two open traces.
#pragma once

#include <string>
#include <vector>

#include "runtime/trace/read/trace.h"

namespace primerl {

enum class DifferenceKind {
  kContent,  // the same message with another content
  kOrder,    // another input came first
  kOutput,   // equal inputs, but other or more or fewer emissions
  kOutcome,  // equal inputs, but the handler failed in only one
  kSchema,   // the message type was declared differently
  kCount,    // one run continued after the end of the other
};
std::string_view to_string(DifferenceKind kind);

/// The first difference of one group.
struct GroupDifference {
  DifferenceKind kind = DifferenceKind::kContent;
  GroupId group;  // of a
  uint64_t step = 0;
  Time began;                        // in a, or in b when a has no such step
  std::string what;                  // one sentence
  std::vector<std::string> details;  // "members[0].reward: 0.25 in a, 0.75 in b"
  bool is_cause = false;
  std::string victim_of;  // "rollout.main:88", when it is not a cause
};

/// Steps that only one of the two traces has although both runs took them.
struct MissingRecords {
  TraceFault::Kind kind = TraceFault::Kind::kMissingStep;
  bool in_a = false;  // the trace that lacks them
  GroupId group;      // of a
  uint64_t first = 0, last = 0;
  std::string text;
};

struct TraceDiff {
  std::vector<std::string> options;          // "node.trainer.lr: 0.1 in a, 0.2 in b"
  std::vector<std::string> schemas;          // "Group.reward: f64 in a, f32 in b"
  std::vector<std::string> tables;           // "no node 'judge' in b"
  std::vector<GroupDifference> differences;  // causes first, then by time; at most one per group
  std::vector<MissingRecords> missing;
  std::vector<std::string> notes;  // what could not be compared
  uint64_t num_steps = 0;          // compared
  /// The same graph, steps and content, nothing missing.
  bool is_equal() const {
    return options.empty() && schemas.empty() && tables.empty() && differences.empty() &&
           missing.empty();
  }
};

TraceDiff diff_traces(const Trace& a, const Trace& b);
std::string to_text(const Trace& a, const TraceDiff& diff);
Json to_json(const Trace& a, const TraceDiff& diff);

/// Values of the resolved graph that differ: "node.trainer.lr: 0.1 in a, 0.2 in b".
std::vector<std::string> option_differences(const std::string& a_toml, const std::string& b_toml);

}  // namespace primerl
