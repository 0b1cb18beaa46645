/// The table of all CPU operations. Compiled once per instruction set.
#pragma once

#include "kernels/ops/attention_backward_kernels.h"
#include "kernels/ops/attention_kernels.h"
#include "kernels/ops/bf16_kernels.h"
#include "kernels/ops/dropout_kernels.h"
#include "kernels/ops/expert_kernels.h"
#include "kernels/ops/fp8_kernels.h"
#include "kernels/ops/linear_kernels.h"
#include "kernels/ops/row_kernels.h"

namespace primerl::PRIMERL_OPS_TARGET {

constexpr CpuOps table(const char* name) {
  return {name,
          rms_norm,
          rms_norm_backward,
          column_sums,
          rotary,
          rotary_backward,
          attention,
          attention_backward,
          swiglu,
          swiglu_backward,
          route,
          route_backward,
          gather_rows,
          combine_rows,
          dot_rows,
          softmax,
          softmax_backward,
          adamw,
          draw,
          apply_dropout,
          sum_of_squares,
          pack_linear,
          linear_rows,
          pack_bf16,
          linear_bf16,
          round_fp8_block,
          round_fp8_rows};
}

}  // namespace primerl::PRIMERL_OPS_TARGET
