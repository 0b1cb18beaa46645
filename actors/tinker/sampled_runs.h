/// SampledRuns: which update of the weights made the tokens that a tenant sampled. So a datum with
/// such tokens has an age: the updates since then (docs/design/tinker.md).
///
/// It keeps a hash of the first tokens of a sequence, for the newest kRunsMax sequences. Equal
/// tokens of several updates have the newest. A value; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "actors/common/recent_table.h"
#include "kernels/train/loss_batch.h"

namespace primerl::tinker {

class SampledRuns {
 public:
  static constexpr size_t kRunsMax = 16384;
  static constexpr size_t kHashedTokens = 16;  // of a sequence; a shorter one is hashed whole

  /// A sequence whose first token was made after `update` updates.
  void add(std::span<const int32_t> tokens, int64_t update);
  /// The update that made the oldest known sequence of the datum. A sequence is a run of targets
  /// that train or have a log-probability. None: no run of it is known, or it has several targets
  /// of a token.
  std::optional<int64_t> oldest_update(const LossDatum& datum) const;
  size_t size() const { return runs_.size(); }

  template <class F>
  static void fields(F& f) {
    f("runs", &SampledRuns::runs_);
  }

 private:
  struct Hash {
    uint64_t operator()(uint64_t name) const { return name; }
  };
  RecentTable<uint64_t, int64_t, Hash> runs_;
};

}  // namespace primerl::tinker
