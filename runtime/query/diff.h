/// diff: where two recorded runs part, told cause from victim.
///
/// Groups are matched by name and compared step by step: what came in (which message, with which
/// content), then what went out. A group whose inputs were equal up to a step and whose output at
/// that step differs is a cause; one that was handed something else is a victim of its sender.
/// Records that are not there (a cut tail, a gap, damage, a missing segment) are said apart: they
/// hide differences, they are none. Equal stretches are skipped by the digests of the indices.
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
  kOutcome,  // equal inputs, but the handler failed in one alone
  kSchema,   // the message type was declared otherwise
  kCount,    // one run went on where the other had ended
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
  std::string victim_of;  // "rollout.main:88", when it is not
};

/// Steps that only one of the two has although both runs took them.
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
  std::vector<GroupDifference> differences;  // causes first, then by time; at most one a group
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

/// "members[0].reward: 0.25 in a, 0.75 in b" for each value that differs, at most `max`.
std::vector<std::string> value_differences(const Json& a, const Json& b, size_t max);
/// Values of the resolved graph that differ: "node.trainer.lr: 0.1 in a, 0.2 in b".
std::vector<std::string> option_differences(const std::string& a_toml, const std::string& b_toml);

}  // namespace primerl
