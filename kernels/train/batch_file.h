/// A training batch as a safetensors file, so that one step can be repeated outside of its run
/// (`primerl-graph train-step`). Deterministic: equal batches give equal bytes.
///
///   tokens         I32 [T]   of all samples, one after the other
///   sample_tokens  I64 [S]   number of tokens of each sample
///   loss_mask      U8  [T]   1 where the policy sampled the token
///   logprobs       F32 [T]   at sampling, 0 where loss_mask is 0; absent for "cross_entropy"
///   advantages     F32 [T]   absent for "cross_entropy"
///   temperatures   F32 [S]   of sampling
///   kept           U8  [K]   kept sets (kept_sets.h), one sample after the other; may be absent
///   kept_bytes     I64 [S]   number of `kept` bytes of each sample; absent with `kept`
///   loss           U8  [1]   0: rollouts, for the learner's objective; 1: cross-entropy
///
/// Pure functions of a file; any thread.
#pragma once

#include <filesystem>

#include "kernels/train/learner.h"

namespace primerl {

/// Writes the file and syncs it.
Status write_train_batch(const std::filesystem::path& file, const TrainBatch& batch);

/// Errors name the file and the tensor. The values are untrusted: the learner checks them like
/// those of any batch.
Result<TrainBatch> read_train_batch(const std::filesystem::path& file);

}  // namespace primerl
