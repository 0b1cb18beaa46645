// GEMMs of few terms that add to y: one block per tile of rows and 128 columns, on tensor cores.
// Reading and writing y bounds the speed.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/ops/mma.cuh"
#include "kernels/cuda/ops/pipeline.cuh"

namespace primerl::cuda {
namespace {

constexpr int kRows = kLowRankTileRows;
constexpr int kColumns = 128;
constexpr int kTerms = 64;  // at a time
constexpr int kWarps = kRows / kMmaRows;
constexpr int kThreads = kWarps * kWarp;
constexpr int kNumbers = kVector<Bf16>;  // in 16 bytes
// Rows of shared memory begin at other banks, at multiples of 16 bytes.
constexpr int kTermsStride = kTerms + 8;
constexpr int kColumnsStride = kColumns + 8;
constexpr int kSumsStride = kColumns + 4;
using OfX = PaddedTile<kRows, kTerms, kTermsStride>;
template <bool kIsTransposed>
using OfWeights = std::conditional_t<kIsTransposed, PaddedTile<kTerms, kColumns, kColumnsStride>,
                                     PaddedTile<kColumns, kTerms, kTermsStride>>;

struct Operands {
  Bf16 x[OfX::kSize];
  Bf16 weights[std::max(OfWeights<false>::kSize, OfWeights<true>::kSize)];
};
union Shared {
  Operands operands;
  float sums[kRows * kSumsStride];
};

/// The sums of a warp: 16 rows, all columns.
using Sums = MmaTile<1, kColumns / kMmaRows>;

template <bool kIsTransposed>
__device__ __forceinline__ void multiply(const Operands& operands, int64_t terms, Sums& sums) {
  const int row = static_cast<int>(threadIdx.x) / kWarp * kMmaRows + Sums::row_of_a();
  const Bf16* x = operands.x + row * kTermsStride + Sums::term_of_a();
  const int column = Sums::column_of_b<kIsTransposed>(), term = Sums::term_of_b<kIsTransposed>();
  const Bf16* weights = operands.weights + (kIsTransposed ? term * kColumnsStride + column
                                                          : column * kTermsStride + term);
  for (int t = 0; t < kTerms && t < terms; t += kMmaTerms)
    sums.add<kIsTransposed>([&](int) { return x + t; },
                            [&](int j) {
                              return weights + (kIsTransposed ? t * kColumnsStride + j * kMmaRows
                                                              : j * kMmaRows * kTermsStride + t);
                            });
}

template <bool kIsTransposed>
__global__ void __launch_bounds__(kThreads) low_rank_gemm_kernel(LowRankGemmArgs args) {
  __shared__ alignas(32) Shared shared;
  const AdapterTile tile = args.tiles[blockIdx.x];
  if (tile.rows == 0) return;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kColumns;
  const int64_t num_columns = args.columns - column < kColumns ? args.columns - column : kColumns;
  const Bf16* x = static_cast<const Bf16*>(args.x) + tile.first * args.x_stride;
  const Bf16* weights = static_cast<const Bf16*>(args.weights) + tile.slot * args.slot_stride +
                        tile.group * args.group_stride;
  Sums sums;
  for (int64_t t = 0; t < args.terms; t += kTerms) {
    const int64_t terms = args.terms - t;
    __syncthreads();
    OfX::copy<kThreads>(x + t, args.x_stride, tile.rows, terms, shared.operands.x);
    if constexpr (kIsTransposed)
      OfWeights<true>::copy<kThreads>(weights + t * args.columns + column, args.columns, terms,
                                      num_columns, shared.operands.weights);
    else
      OfWeights<false>::copy<kThreads>(weights + column * args.terms + t, args.terms, num_columns,
                                       terms, shared.operands.weights);
    __syncthreads();
    multiply<kIsTransposed>(shared.operands, terms, sums);
  }
  __syncthreads();
  const int first = static_cast<int>(threadIdx.x) / kWarp * kMmaRows;
  sums.write([&](int row, int of_column) {
    return shared.sums + (first + row) * kSumsStride + of_column;
  });
  __syncthreads();
  Bf16* y = static_cast<Bf16*>(args.y) + tile.first * args.y_stride + column;
  constexpr int kVectors = kColumns / kNumbers;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors; i += kThreads) {
    const int row = i / kVectors, at = i % kVectors * kNumbers;
    if (row >= tile.rows || at >= num_columns) continue;
    float numbers[kNumbers];
    load(y + row * args.y_stride + at, numbers);
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) numbers[j] += shared.sums[row * kSumsStride + at + j];
    store(y + row * args.y_stride + at, numbers);
  }
}

}  // namespace

Outcome add_low_rank_gemms(const LowRankGemmArgs& args, Stream stream) {
  if (args.num_tiles == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const dim3 blocks(static_cast<unsigned>(args.num_tiles),
                    static_cast<unsigned>(divide_up(args.columns, kColumns)));
  if (args.is_transposed)
    low_rank_gemm_kernel<true><<<blocks, kThreads, 0, stream>>>(args);
  else
    low_rank_gemm_kernel<false><<<blocks, kThreads, 0, stream>>>(args);
  return launched();
}

}  // namespace primerl::cuda
