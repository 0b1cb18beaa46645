/// Kept sets: for each sampled token, the ids that top_k, top_p and min_p left to choose from.
///
/// A log-probability of a truncated distribution has no meaning without its set. The learner
/// renormalises over the same ids; otherwise the truncation would look like a change of the policy.
/// The engine writes the sets and messages carry them as one Blob. Readers must check them.
///
/// The bytes are one entry per sampled token, in order; the entries of a later turn are appended. A
/// number is stored with seven bits per byte, lowest first; bit 7 is set on all bytes but the last.
///
///   entry = number n, then
///     n = 0     nothing: every token was kept
///     n odd     (n + 1) / 2 ids, rising: the first, then how many ids lie between it and the next
///     n even    n / 2 bytes: bit b of byte i stands for token 8 i + b; the last byte is not 0
///
/// The engine writes the shorter of the last two forms. Pure values, no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

struct SamplingParams;

/// Most bytes of the kept sets of one sequence or trajectory; a sequence that would need more
/// fails.
inline constexpr size_t kKeptBytesMax = size_t{64} << 20;

/// Whether tokens sampled with these options have kept sets, even if a set contains every token.
bool has_kept_sets(double temperature, int64_t top_k, double top_p, double min_p);
bool has_kept_sets(const SamplingParams& sampling);

/// Appends the entry of `ids`, which rise and are in [0, vocab_size).
void append_kept(std::span<const int32_t> ids, int32_t vocab_size, std::vector<std::byte>& bytes);
/// Appends `count` entries which say that every token was kept.
void append_all_kept(size_t count, std::vector<std::byte>& bytes);

/// One entry; a view of the bytes it was read from.
class KeptSet {
 public:
  /// The set of all tokens.
  KeptSet() = default;
  bool keeps_all() const { return bytes_.empty(); }
  /// The greatest id in the set; -1 if every token was kept.
  int32_t largest() const { return largest_; }
  bool contains(int32_t token) const;
  /// Fills `ids` with the ids, rising; leaves it empty if every token was kept.
  void list(std::vector<int32_t>& ids) const;

 private:
  friend class KeptReader;
  std::span<const std::byte> bytes_;  // the ids, or the bitmap
  int32_t num_listed_ = 0;            // 0: a bitmap
  int32_t largest_ = -1;
};

/// Reads the entries one after the other.
class KeptReader {
 public:
  explicit KeptReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  bool is_at_end() const { return rest_.empty(); }
  /// Bytes of the entries that were not read yet.
  size_t num_bytes_left() const { return rest_.size(); }
  /// The next entry; kCorrupt if the bytes end inside it or are malformed.
  Result<KeptSet> next();

 private:
  std::span<const std::byte> rest_;
};

/// Checks that `bytes` are exactly the sets of `tokens`, in order: one entry each, ids below
/// `vocab_size`, every token in its own set, at most kKeptBytesMax. The error names the first wrong
/// token.
Status check_kept(std::span<const std::byte> bytes, std::span<const int32_t> tokens,
                  int32_t vocab_size);

}  // namespace primerl
