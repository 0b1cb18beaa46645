/// Bisect: the first step of a recorded run at which a predicate holds.
///
/// A predicate is about a metric that a node publishes (`trainer.mismatch_kl > 0.1`), found by
/// replaying that node at depth `control`, or about a field of the messages it sends
/// (`env.observation.reward < 0`), read from the trace. Steps are checked in the record's order, so
/// the answer is the first step at which it holds, not merely a change.
#pragma once

#include <optional>
#include <string>

#include "runtime/trace/read/trace.h"

namespace primerl {

struct Predicate {
  std::string node;
  std::string path;        // "mismatch_kl", or "observation.reward"
  std::string comparison;  // > >= < <= == !=
  double number = 0;
  bool holds(double value) const;
};
/// Parses "trainer.mismatch_kl > 0.1"; the error shows the form of a predicate.
Result<Predicate> parse_predicate(const std::string& text);

struct Found {
  GroupId group;
  uint64_t step = 0;  // of the group: input of `trace why`
  double value = 0;
  std::string what;  // "mismatch_kl/all/mean of training step 12"
};

struct BisectResult {
  std::optional<Found> found;
  uint64_t num_looked_at = 0;  // metric lines or messages
  std::vector<std::string> notes;
};

Result<BisectResult> bisect(const std::string& run, const Predicate& predicate);

}  // namespace primerl
