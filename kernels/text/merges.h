/// The merge rules of byte-pair encoding, and the merging itself.
///
/// Immutable once filled, safe from any thread. Cost: O(n log n) for n symbols; short pieces, which
/// are nearly all, are merged in place.
#pragma once

#include <cstddef>
#include <cstdint>
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
  static constexpr uint64_t kFree = UINT64_MAX;
  /// An entry of a table with open addressing.
  struct Rule {
    uint64_t pair = kFree;  // (left, right)
    uint32_t rank = 0;
    int32_t merged = 0;
  };
  const Rule* find(int32_t left, int32_t right) const;
  size_t slot_of(uint64_t pair) const;
  void grow();
  void apply_short(std::vector<int32_t>& ids) const;
  void apply_long(std::vector<int32_t>& ids) const;

  std::vector<Rule> rules_;  // a power of two of them, at most three quarters used
  size_t num_rules_ = 0;
};

}  // namespace primerl
