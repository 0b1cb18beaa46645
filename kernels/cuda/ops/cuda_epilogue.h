/// The epilogue of a GEMM: what remains to be added to its output. The operation that reads the
/// output adds it, so there is no further launch, write or read.
#pragma once

#include <cstdint>
#include <variant>

namespace primerl::cuda {

struct LoraDelta;  // kernels/cuda/ops/cuda_adapters.h

/// An output [rows, columns].
struct GemmOutput {
  const void* data = nullptr;
  const LoraDelta* lora_delta = nullptr;  // host; added in fp32. Null: none
};

/// An output as split-K parts, of small_m_gemm(). They are added in order, then rounded to the type
/// of the operation.
struct SplitKOutput {
  const float* parts = nullptr;  // [num_parts, rows, columns]
  int32_t num_parts = 0;         // 1 or more
  const LoraDelta* lora_delta = nullptr;
};

using Epilogue = std::variant<GemmOutput, SplitKOutput>;

inline const LoraDelta* lora_delta_of(const Epilogue& epilogue) {
  return std::visit([](const auto& output) { return output.lora_delta; }, epilogue);
}

/// The addresses of an output, for checks of alignment.
inline const void* address_of(const Epilogue& epilogue) {
  if (const auto* parts = std::get_if<SplitKOutput>(&epilogue)) return parts->parts;
  return std::get<GemmOutput>(epilogue).data;
}

}  // namespace primerl::cuda
