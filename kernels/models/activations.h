/// The rows that a stage of a layer writes on the CPU: what forward keeps, and what backward needs
/// beside it. One table, which the stages allocate by and the memory plan counts by. Torch-free,
/// plain functions, any thread.
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
  bool is_attention_output = false;  // dear to compute again

  friend bool operator==(const BufferSpec&, const BufferSpec&) = default;
};

/// The activations of a stage, in the order in which it names them.
std::vector<BufferSpec> activations_of(const StageSpec& stage, int64_t hidden_size);
/// The gradients that backward needs rows for; their contents are lost between two calls.
std::vector<BufferSpec> gradients_of(const StageSpec& stage, int64_t hidden_size);

/// Elements of one row of all of `specs`, of 4 bytes each.
int64_t width_of(const std::vector<BufferSpec>& specs);

}  // namespace primerl
