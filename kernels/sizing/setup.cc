#include "kernels/sizing/setup.h"

#include <cstdint>
#include <limits>

#include "kernels/models/adapter.h"

namespace primerl {
namespace {

/// The dtype and GEMM type of an engine or a learner on its device.
template <class Options>
Status check_numbers(const Options& options, std::string_view what) {
  if (options.device != "cpu") {
    if (options.products == "bf16")
      return error(Code::kInvalid, "'products' is \"bf16\", which {} on {} does not have", what,
                   options.device)
          .note("leave 'products' out: with dtype = \"bfloat16\" matmuls there read bf16 numbers");
    if (options.numerics == "fast") return ok();
    return error(Code::kInvalid, "'numerics' is \"{}\", which {} on {} does not support",
                 options.numerics, what, options.device)
        .note("GEMMs there are not bitwise equal to those of the CPU; write numerics = \"fast\"");
  }
  if (options.dtype == "bfloat16")
    return error(Code::kInvalid, "'dtype' is \"bfloat16\": {} on the CPU computes in float32", what)
        .note(
            "leave 'dtype' out, or place it on a CUDA device; products = \"bf16\" is for matmuls "
            "of "
            "the CPU");
  return ok();
}

}  // namespace

Status check_engine_setup(const EngineOptions& options, const ModelConfig& config) {
  RETURN_IF_ERROR(check_numbers(options, "an engine"));
  if (options.max_sequence_tokens > config.max_positions)
    return error(Code::kInvalid, "'max_sequence_tokens' {} is beyond the {} positions of the model",
                 options.max_sequence_tokens, config.max_positions);
  if (int64_t{options.kv_blocks} * options.block_size > std::numeric_limits<int32_t>::max())
    return error(Code::kInvalid,
                 "'kv_blocks' {} of 'block_size' {} are more than 2147483647 tokens",
                 options.kv_blocks, options.block_size)
        .note("lower 'kv_blocks' or 'block_size' of the engine");
  return ok();
}

Status check_learner_setup(const LearnerOptions& options) {
  RETURN_IF_ERROR(check_numbers(options, "a learner"));
  if (options.device == "cpu" && options.optimizer.moments_on == "host")
    return error(Code::kInvalid,
                 "'optimizer.moments_on' is \"host\": a learner on the CPU has no "
                 "other memory")
        .note("leave it out, or place the learner on a CUDA device");
  return ok();
}

}  // namespace primerl
