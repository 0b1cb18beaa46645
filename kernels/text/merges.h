/// The merge rules of byte-pair encoding, and the merging itself.
///
/// Immutable once filled, safe from any thread. Cost: O(n log n) for n symbols.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace primerl {

class Merges {
 public:
  /// The adjacent symbols `left` `right` become `merged`; a lower rank is applied first. A repeated
  /// pair keeps its last rule, as in the `tokenizers` package.
  void add(int32_t left, int32_t right, uint32_t rank, int32_t merged);
  /// Merges the symbols of one piece until no rule applies. `ids` are the symbols' tokens.
  void apply(std::vector<int32_t>& ids) const;

 private:
  struct Rule {
    uint32_t rank = 0;
    int32_t merged = 0;
  };
  const Rule* find(int32_t left, int32_t right) const;

  std::unordered_map<uint64_t, Rule> rules_;  // by (left, right)
};

}  // namespace primerl
