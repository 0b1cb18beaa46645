// GEMMs in FP8 beside bf16 on a CUDA device, without the rest of a step: 16,384 rows, and for a
// mixture eight experts of 128 for each, unevenly chosen.
//
// Prints for each matrix and direction: the bf16 GEMM, the GEMM of codes, and the codes of its rows
// beside it, in ms and TFLOP/s. The tensor cores of a Hopper GPU do twice as many operations in
// FP8; 128 x 128 tiles read 128 bytes from the L2 cache for 16k operations, or 96 where two blocks
// share rows. Codes of rows read two bytes a number and write one. Medians of 15, [least, most].
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <functional>
#include <vector>

#include "bench/device/timing.h"
#include "kernels/cuda/layers/fp8.h"

namespace primerl::bench {
namespace {

constexpr int64_t kRows = 16384, kChosen = 8;
constexpr int32_t kExperts = 128;
constexpr int kTimes = 15, kInARow = 5;

std::string time_of(const CudaStream& stream, double flop, const std::function<void()>& body) {
  std::vector<double> all;
  body();
  for (int i = 0; i < kTimes; ++i) {
    CHECK(stream.wait().ok(), "the device");
    all.push_back(1e3 / kInARow * seconds_of([&] {
                    for (int j = 0; j < kInARow; ++j) body();
                    CHECK(stream.wait().ok(), "the device");
                  }));
  }
  const auto [least, most] = std::ranges::minmax_element(all);
  const double middle = median(all);
  const std::string rate = flop == 0 ? "" : fmt::format(" {:>5.0f}", flop / middle / 1e9);
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]{}", middle, *least, *most, rate);
}

at::Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
}

void dense(const CudaStream& stream, const char* name, int64_t columns, int64_t terms) {
  const at::Tensor x = random({kRows, terms}), weight = random({columns, terms});
  at::Tensor y = at::empty({kRows, columns}, x.options());
  Fp8Weights all;
  const auto codes = all.add(weight, false);
  CHECK(all.quantise_all(stream).ok(), "codes");
  const double flop = 2.0 * kRows * static_cast<double>(columns * terms);
  fmt::print("{:<16} bf16 {}, FP8 with codes {}, codes of rows {}, of the matrix {}\n", name,
             time_of(stream, flop, [&] { at::mm_out(y, x, weight.t()); }),
             time_of(stream, flop, [&] { fp8_gemm(kRows, x, codes->forward, y, stream); }),
             time_of(stream, 0, [&] { quantised_rows(kRows, x, stream); }),
             time_of(stream, 0, [&] { CHECK(all.quantise_all(stream).ok(), "codes"); }));
}

void grouped(const CudaStream& stream, const char* name, int64_t columns, int64_t terms,
             const at::Tensor& ends) {
  constexpr int64_t kPairs = kRows * kChosen;
  const at::Tensor weight = random({kExperts, columns, terms});
  Fp8Weights all;
  const auto experts = all.add_experts(weight, true);
  CHECK(all.quantise_all(stream).ok(), "codes");
  const double flop = 2.0 * kPairs * static_cast<double>(columns * terms);
  for (const bool is_backward : {false, true}) {
    const at::Tensor x = random({kPairs, is_backward ? columns : terms});
    const at::Tensor matrix = is_backward ? weight : weight.transpose(1, 2);
    const Fp8Rows codes = quantised_rows(kPairs, x, stream);
    const auto by_codes = [&] { grouped_fp8(codes, *experts, ends, is_backward, stream); };
    fmt::print("{:<10} {:<5} bf16 {}, FP8 {}, codes of rows {}\n", name, is_backward ? "back" : "",
               time_of(stream, flop, [&] { at::_grouped_mm(x, matrix, ends); }),
               time_of(stream, flop, by_codes),
               time_of(stream, 0, [&] { quantised_rows(kPairs, x, stream); }));
  }
  fmt::print("{:<16} codes of the matrices {}\n", name,
             time_of(stream, 0, [&] { CHECK(all.quantise_all(stream).ok(), "codes"); }));
}

}  // namespace

int run() {
  const c10::InferenceMode no_gradients;
  const CudaStream stream(0);
  const CudaStream::Use use(stream);
  dense(stream, "8B qkv", 6144, 4096);
  dense(stream, "8B out", 4096, 4096);
  dense(stream, "8B gate and up", 24576, 4096);
  dense(stream, "8B down", 4096, 12288);
  // Expert i has a share of 1 + i % 4.
  std::vector<int32_t> ends;
  for (int32_t i = 0; i < kExperts; ++i)
    ends.push_back((ends.empty() ? 0 : ends.back()) +
                   static_cast<int32_t>(kRows * kChosen / kExperts * 2 * (1 + i % 4) / 5));
  ends.back() = static_cast<int32_t>(kRows * kChosen);
  const at::Tensor on_device = stream.ints(ends);
  grouped(stream, "gate and up", 1536, 2048, on_device);
  grouped(stream, "down", 2048, 768, on_device);
  return 0;
}

}  // namespace primerl::bench

int main() { return primerl::bench::run(); }
