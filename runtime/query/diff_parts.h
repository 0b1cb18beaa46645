/// The parts of diff_traces(): tables, steps, causes. Used only by its sources.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "runtime/query/diff.h"
#include "runtime/query/step_text.h"

namespace primerl {

/// Translates the numbers of b to those of a, by name; UINT32_MAX when a has no such item.
struct Numbers {
  Numbers(const TraceCatalog& a, const TraceCatalog& b);
  std::vector<uint32_t> groups;  // the other direction: numbers of a to those of b
  std::vector<uint32_t> instances, types, links, tenants;
  std::set<uint32_t> changed_types;  // types of a that are declared differently in b
  bool is_identity = false;          // digests of both are comparable
  bool has_same_policies = true;     // then digests of payloads are comparable, too
};

void compare_tables(const TraceCatalog& a, const TraceCatalog& b, TraceDiff& diff);

/// Both traces with the data that all comparisons need.
struct Pair {
  const Trace& a;
  const Trace& b;
  const Numbers numbers;
  /// A step of b, with the numbers of a.
  TraceStep in_a(TraceStep step) const;
  MessageKey in_b(MessageKey key) const;  // none() link when b has no such link
};

/// The first difference of a group of a, and its missing records; causes are not known yet.
std::optional<GroupDifference> first_difference(const Pair& pair, GroupId group, TraceDiff& diff);
/// Sentences and details for one step.
std::optional<GroupDifference> step_difference(const Pair& pair, const TraceStep& a,
                                               const TraceStep& b);
/// Separates causes from victims, finds causes that only the receivers' inputs show, and sorts.
void find_causes(const Pair& pair, TraceDiff& diff);

}  // namespace primerl
