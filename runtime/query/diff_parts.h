/// The parts of diff_traces(): tables, steps, causes. Used by its sources alone.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "runtime/query/diff.h"
#include "runtime/query/step_text.h"

namespace primerl {

/// What the numbers of b are in a, by name; UINT32_MAX where a has no such thing.
struct Numbers {
  Numbers(const TraceCatalog& a, const TraceCatalog& b);
  std::vector<uint32_t> groups;  // the other way round: of a in b
  std::vector<uint32_t> instances, types, links, tenants;
  std::set<uint32_t> changed_types;  // of a: declared otherwise in b
  bool is_identity = false;          // digests of both mean the same
  bool has_same_policies = true;     // and so do those of payloads
};

void compare_tables(const TraceCatalog& a, const TraceCatalog& b, TraceDiff& diff);

/// Both traces with what is common to every comparison.
struct Pair {
  const Trace& a;
  const Trace& b;
  const Numbers numbers;
  /// A step of b with a's numbers.
  TraceStep in_a(TraceStep step) const;
  MessageKey in_b(MessageKey key) const;  // none() link when b has no such link
};

/// The first difference of a group of a, and what is missing; no word yet on causes.
std::optional<GroupDifference> first_difference(const Pair& pair, GroupId group, TraceDiff& diff);
/// Sentences and details for one step.
std::optional<GroupDifference> step_difference(const Pair& pair, const TraceStep& a,
                                               const TraceStep& b);
/// Tells causes from victims, finds causes that show only in what others received, and sorts.
void find_causes(const Pair& pair, TraceDiff& diff);

}  // namespace primerl
