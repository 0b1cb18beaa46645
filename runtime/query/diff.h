/// diff: the first differences between two recorded runs, separated into causes and consequences.
///
/// Groups are matched by name and compared step by step: the input (which message, which content),
/// then the emissions. A group is a cause if its inputs were equal up to a step and its output at
/// that step differs. A group that received something different is a victim of its sender. Missing
/// records (a truncated tail, a gap, damage, a missing segment) are reported separately: they hide
/// differences, but are not differences. Equal ranges are skipped with the digests of the indices.
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
  kOutput,   // equal inputs, but other emissions, or another number of them
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
  std::string victim_of;  // "rollout.main:88", if it is not a cause
};

/// Steps that only one of the two traces has although both runs made them.
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
  std::vector<std::string> notes;  // parts that could not be compared
  uint64_t num_steps = 0;          // number of compared steps
  /// The same graph, steps and content, and nothing is missing.
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
