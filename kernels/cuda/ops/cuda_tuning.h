/// How operations are cut into parts that fill a device. The interfaces of the operations do not
/// depend on it; callers choose the parts with these functions.
#pragma once

#include <algorithm>

#include "kernels/cuda/ops/cuda_gemms.h"

namespace primerl::cuda {

/// One device. All figures but its size were measured on one H200 (132 multiprocessors, compute
/// capability 9.0).
struct Tuning {
  int32_t num_processors = 0;  // multiprocessors of the device
  /// decode_attention(): blocks that a multiprocessor runs at once, and keys of a split. With fewer
  /// keys, combining the splits takes longer than it saves.
  int32_t decode_blocks = 4;
  int64_t decode_keys_min = 256;
  /// small_m_gemm(): terms of a part. A block requests all its input at once; that input fits the
  /// shared memory of a multiprocessor.
  int64_t small_m_terms_max = 768;
};

/// How many splits fill the device for contexts of up to `length_max` tokens.
inline int32_t decode_splits(const Tuning& tuning, int64_t rows, const HeadShape& heads,
                             int64_t length_max) {
  const int64_t blocks = std::max<int64_t>(1, rows) * std::max(1, heads.num_kv_heads);
  const int64_t all = int64_t{tuning.decode_blocks} * tuning.num_processors;
  const int64_t wanted = (all + blocks - 1) / blocks;
  const int64_t useful = std::max<int64_t>(1, length_max / tuning.decode_keys_min);
  return static_cast<int32_t>(std::min({wanted, useful, int64_t{kSplitsMax}}));
}

/// The number of parts of small_m_gemm() that fills the device best. All blocks must be resident at
/// once, and each must request all its input at once: then this GEMM is faster than the library's.
/// 0: no number of parts meets both conditions.
inline int32_t small_m_parts(const Tuning& tuning, int64_t terms, int64_t columns) {
  if (terms < 1 || columns % kSmallMColumns != 0) return 0;
  for (int32_t parts = kSmallMPartsMax; parts > 0; --parts)
    if (columns / kSmallMColumns * parts <= tuning.num_processors &&
        terms % (kSmallMTerms * parts) == 0 && terms / parts <= tuning.small_m_terms_max)
      return parts;
  return 0;
}

}  // namespace primerl::cuda
