#include "kernels/cuda/layers/supported_model.h"

namespace primerl {
namespace {

constexpr int32_t kCudaHeadDimMax = 256;
constexpr int32_t kCudaExpertsMax = 1023;  // groups of libtorch's grouped GEMMs

}  // namespace

Status check_cuda_model(const ModelConfig& config) {
  if (config.moe.has_value() && config.moe->num_experts > kCudaExpertsMax)
    return error(
        Code::kUnavailable,
        "a mixture of {} experts cannot be computed on a CUDA device: at most {} are supported",
        config.moe->num_experts, kCudaExpertsMax);
  if (config.moe.has_value() && (config.hidden_size % 8 != 0 || config.moe->width % 8 != 0))
    return error(Code::kUnavailable,
                 "a mixture of widths {} and {} cannot be computed on a CUDA device: widths must "
                 "be multiples of 8",
                 config.hidden_size, config.moe->width);
  if (config.attention.head_dim % 8 != 0 || config.attention.head_dim > kCudaHeadDimMax)
    return error(
        Code::kUnavailable,
        "head_dim {} cannot be computed on a CUDA device: it must be a multiple of 8, at most {}",
        config.attention.head_dim, kCudaHeadDimMax);
  return ok();
}

}  // namespace primerl
