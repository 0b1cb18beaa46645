/// The buffers that a stage of a layer writes on the CPU: what forward keeps, and the gradients
/// that backward needs. One table: the stages allocate by it and the memory plan counts by it.
/// Independent of torch; plain functions, any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/models/config.h"

namespace primerl {

/// One activation of a stage: [rows, width].
struct BufferSpec {
  std::string_view name;
  int64_t width = 0;
  bool is_integer = false;           // int32, else fp32
  bool is_attention_output = false;  // expensive to compute again

  friend bool operator==(const BufferSpec&, const BufferSpec&) = default;
};

/// The activations of a stage, in the order of the stage's own list.
std::vector<BufferSpec> activations_of(const StageSpec& stage, int64_t hidden_size);
/// The gradient buffers that backward needs; their contents are lost between two calls.
std::vector<BufferSpec> gradients_of(const StageSpec& stage, int64_t hidden_size);

/// Elements of one row of all `specs`; 4 bytes each.
int64_t width_of(const std::vector<BufferSpec>& specs);

}  // namespace primerl
