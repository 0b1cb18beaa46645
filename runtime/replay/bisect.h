/// Bisect: finds the first step of a recorded run at which a predicate holds.
///
/// A predicate may be about a metric that a node publishes (`trainer.mismatch_kl > 0.1`). Then that
/// node is replayed at depth `control`. Or it is about a field of the node's messages
/// (`env.observation.reward < 0`), which is read from the trace. Steps are checked in the record's
/// order. So the answer is the first step at which the predicate holds, not only a step where it
/// changes.
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
  uint64_t step = 0;  // number of the group's step, for `trace why`
  double value = 0;
  std::string what;  // "mismatch_kl/all/mean of training step 12"
};

struct BisectResult {
  std::optional<Found> found;
  uint64_t num_looked_at = 0;  // number of metric lines or messages checked
  std::vector<std::string> notes;
};

Result<BisectResult> bisect(const std::string& run, const Predicate& predicate);

}  // namespace primerl
