/// Kept sets: for each sampled token, the ids that top_k, top_p and min_p left to choose from.
///
/// A log-probability of a truncated distribution means nothing without its set: the learner
/// renormalises over the same ids, or it would take the truncation for a change of the policy. The
/// engine writes the sets, messages carry them as one Blob, and whoever reads them trusts nothing.
///
/// The bytes are one entry per sampled token, in order; the entries of a later turn are appended.
/// A number is seven bits a byte, lowest first, bit 7 set on all but the last byte.
///
///   entry = number n, then
///     n = 0     nothing: every token was kept
///     n odd     (n + 1) / 2 ids, rising: the first, then how many ids lie between it and the next
///     n even    n / 2 bytes: bit b of byte i stands for token 8 i + b; the last byte is not 0
///
/// Of the last two the engine writes the shorter. Pure values, no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

struct SamplingParams;

/// Most bytes of the kept sets of one sequence or trajectory; what would have more fails.
inline constexpr size_t kKeptBytesMax = size_t{64} << 20;

/// Whether tokens sampled so have kept sets, even where a set turns out to hold every token.
bool has_kept_sets(double temperature, int64_t top_k, double top_p, double min_p);
bool has_kept_sets(const SamplingParams& sampling);

/// Appends the entry of `ids`, which rise and lie in [0, vocab_size).
void append_kept(std::span<const int32_t> ids, int32_t vocab_size, std::vector<std::byte>& bytes);
/// Appends `count` entries that say: every token was kept.
void append_all_kept(size_t count, std::vector<std::byte>& bytes);

/// One entry; views the bytes it was read from.
class KeptSet {
 public:
  /// Every token.
  KeptSet() = default;
  bool keeps_all() const { return bytes_.empty(); }
  /// The greatest id that is named; -1 when every token was kept.
  int32_t largest() const { return largest_; }
  bool contains(int32_t token) const;
  /// Fills `ids` with the ids, rising; with nothing when every token was kept.
  void list(std::vector<int32_t>& ids) const;

 private:
  friend class KeptReader;
  std::span<const std::byte> bytes_;  // of the ids, or of the bitmap
  int32_t num_listed_ = 0;            // 0: a bitmap
  int32_t largest_ = -1;
};

/// Reads one entry after the other.
class KeptReader {
 public:
  explicit KeptReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  bool is_at_end() const { return rest_.empty(); }
  /// The next entry; kCorrupt when the bytes end within it or are none.
  Result<KeptSet> next();

 private:
  std::span<const std::byte> rest_;
};

/// Whether `bytes` are just the sets of `tokens`, in order: one entry each, ids below `vocab_size`,
/// every token in its own set, not more than kKeptBytesMax. Names the token that is not.
Status check_kept(std::span<const std::byte> bytes, std::span<const int32_t> tokens,
                  int32_t vocab_size);

}  // namespace primerl
