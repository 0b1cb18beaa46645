/// Where every tensor of a decoder lies in one flat fp32 buffer, and its Hugging Face name.
///
/// One buffer for all weights (and one of the same layout for gradients and each moment) makes the
/// optimizer, the clip and a snapshot one pass over memory. Matrices that one product uses lie side
/// by side: q, k, v are one [(heads + 2 kv_heads) * head_dim, hidden] matrix, gate and up one [2
/// intermediate, hidden]. Torch-free; immutable after construction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/torch/model_config.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// One Hugging Face tensor inside the buffer.
struct ParameterSlice {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // in floats
  int64_t count = 0;
};

constexpr int64_t kNoParameter = -1;

/// Offsets of one layer; kNoParameter where the model has none.
struct LayerOffsets {
  int64_t input_norm = kNoParameter;
  int64_t qkv = kNoParameter;
  int64_t qkv_bias = kNoParameter;
  int64_t q_norm = kNoParameter;
  int64_t k_norm = kNoParameter;
  int64_t out = kNoParameter;
  int64_t out_bias = kNoParameter;
  int64_t mlp_norm = kNoParameter;
  int64_t gate_up = kNoParameter;
  int64_t gate_up_bias = kNoParameter;
  int64_t down = kNoParameter;
  int64_t down_bias = kNoParameter;
};

struct DecoderLayout {
  explicit DecoderLayout(const ModelConfig& config);

  std::vector<ParameterSlice> slices;  // sorted by name
  std::vector<LayerOffsets> layers;
  int64_t embedding = 0;
  int64_t final_norm = 0;
  int64_t head = 0;   // = embedding when tied
  int64_t count = 0;  // floats of the buffer
};

/// Copies `tensors` (sorted by name) into a buffer of this layout, as fp32. All or nothing:
/// missing, unknown and misshapen tensors are errors that name them and both shapes. A
/// `lm_head.weight` that a tied model carries anyway is ignored.
Status fill_parameters(const DecoderLayout& layout, const std::vector<WeightTensor>& tensors,
                       float* buffer);

/// Random weights of a seed: matrices normal with deviation `deviation`, norms 1, biases 0. A pure
/// function of seed, tensor name and place in it.
void randomize_parameters(const DecoderLayout& layout, uint64_t seed, double deviation,
                          float* buffer);

/// The tensors of a buffer as views of one shared copy of it.
std::vector<WeightTensor> copy_parameters(const DecoderLayout& layout, const float* buffer);

}  // namespace primerl
