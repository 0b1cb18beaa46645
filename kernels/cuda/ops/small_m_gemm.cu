// GEMMs of up to 64 rows in parts: a block has a few columns and the terms of a part, chunk by
// chunk. It loads the first chunks of its matrix before the rows, which the kernel before this one
// may still be writing. Eight warps: two halves of the rows, four quarters of the terms of each
// chunk; their sums are added in order.
#include <algorithm>

#include "kernels/cuda/ops/cuda_tuning.h"
#include "kernels/cuda/ops/launch.cuh"
#include "kernels/cuda/ops/mma.cuh"
#include "kernels/cuda/ops/pipeline.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = static_cast<int>(kSmallMRowsMax);
constexpr int kHalfRows = kRows / 2;
constexpr int kColumns = static_cast<int>(kSmallMColumns);
constexpr int kChunk = static_cast<int>(kSmallMTerms);
constexpr int kPieces = kChunk / kVector<Bf16>;  // pieces of 16 bytes in a row of a chunk
constexpr int kQuarters = 4;
constexpr int kSteps = kChunk / kMmaTerms / kQuarters;  // of a quarter
// Chunks in flight: all input of a block if small_m_parts() chose the parts. With less shared
// memory (compute capability 8.6, for example) it is the smaller number.
constexpr int kStagesMost = 6;
constexpr int kStagesFewest = 4;
static_assert(kStagesMost * kChunk == Tuning{}.small_m_terms_max);

using OfWeights = SwizzledTile<kColumns, kPieces>;
using OfRows = SwizzledTile<kRows, kPieces>;

/// Chunks of a block's part of the terms. A stage has the weights of a chunk, then the rows.
struct Chunks {
  static constexpr int kSize = OfWeights::kSize + OfRows::kSize;

  const SmallMGemmArgs& args;
  const int64_t terms = args.terms / gridDim.y, first = blockIdx.y * terms;
  const int count = static_cast<int>(terms / kChunk);

  __device__ __forceinline__ explicit Chunks(const SmallMGemmArgs& of) : args(of) {}
  /// Starts to copy the weights of a chunk.
  __device__ __forceinline__ void copy_weights(int chunk, uint4* stage) const {
    if (chunk >= count) return;
    const Bf16* weight = static_cast<const Bf16*>(args.weight) +
                         static_cast<int64_t>(blockIdx.x) * kColumns * args.terms;
    OfWeights::copy<kThreads>(weight + first + chunk * kChunk, args.terms, kColumns, stage);
  }
  /// Rows after the last keep old values; the result of a row does not depend on another row.
  __device__ __forceinline__ void copy_rows(int chunk, uint4* stage) const {
    if (chunk >= count) return;
    OfRows::copy<kThreads>(static_cast<const Bf16*>(args.x) + first + chunk * kChunk, args.terms,
                           args.rows, stage + OfWeights::kSize);
  }
};

/// The address of the sums of a block's quarters: [kQuarters, kRows, kColumns]. The row stride lets
/// the lanes of a warp write to different banks.
constexpr int kSumStride = kColumns + 8;
constexpr size_t kSumBytes = sizeof(float) * kQuarters * kRows * kSumStride;
__device__ __forceinline__ float* sums_at(float* memory, int quarter, int row, int column) {
  return memory + (quarter * kRows + row) * kSumStride + column;
}

/// Adds the quarters in order and writes the result.
__device__ __forceinline__ void write(const SmallMGemmArgs& args, float* sums) {
  constexpr int kVec = 4, kVectors = kColumns / kVec;
  for (int i = threadIdx.x; i < static_cast<int>(args.rows) * kVectors; i += kThreads) {
    const int row = i / kVectors, column = i % kVectors * kVec;
    float total[kVec];
    load(sums_at(sums, 0, row, column), total);
#pragma unroll
    for (int quarter = 1; quarter < kQuarters; ++quarter) {
      float more[kVec];
      load(sums_at(sums, quarter, row, column), more);
#pragma unroll
      for (int j = 0; j < kVec; ++j) total[j] += more[j];
    }
    store(args.parts + (blockIdx.y * args.rows + row) * args.columns +
              static_cast<int64_t>(blockIdx.x) * kColumns + column,
          total);
  }
}

using Sums = MmaTile<kHalfRows / kMmaRows, kColumns / kMmaRows>;

/// Adds a quarter of a chunk's terms for one half of the rows.
__device__ __forceinline__ void add_chunk(const uint4* stage, int half, int quarter, Sums& sums) {
  const uint4* rows = stage + OfWeights::kSize;
  const int row = half * kHalfRows + Sums::row_of_a(), column = Sums::column_of_b<false>();
  const int row_piece = Sums::term_of_a() / kVector<Bf16>;
  const int column_piece = Sums::term_of_b<false>() / kVector<Bf16>;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int piece = (quarter * kSteps + step) * 2;
    sums.add<false>(
        [&](int i) { return rows + OfRows::index(row + i * kMmaRows, piece + row_piece); },
        [&](int j) {
          return stage + OfWeights::index(column + j * kMmaRows, piece + column_piece);
        });
  }
}

template <int kStages>
__global__ void __launch_bounds__(kThreads) small_m_kernel(SmallMGemmArgs args) {
  extern __shared__ uint4 memory[];
  using Ring = StageRing<kStages, Chunks::kSize>;
  const Ring ring(memory);
  const Chunks chunks(args);
  start_next_kernel();
#pragma unroll 1
  for (int chunk = 0; chunk < kStages; ++chunk) chunks.copy_weights(chunk, ring.at(chunk));
  wait_for_last_kernel();
#pragma unroll 1
  for (int chunk = 0; chunk < kStages; ++chunk) {
    chunks.copy_rows(chunk, ring.at(chunk));
    cp_async_commit();
  }

  const int warp = threadIdx.x / kWarp, half = warp % 2, quarter = warp / 2;
  Sums sums;
  int stage = 0, used = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks.count; ++chunk) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    if (chunk > 0) {  // all threads have used the previous chunk
      const int next = chunk + kStages - 1;
      chunks.copy_weights(next, ring.at(used));
      chunks.copy_rows(next, ring.at(used));
      cp_async_commit();
    }
    add_chunk(ring.at(stage), half, quarter, sums);
    used = stage;
    stage = Ring::next(stage);
  }
  __syncthreads();  // shared memory is no longer read

  auto* const all = reinterpret_cast<float*>(memory);
  sums.write([&](int of_row, int of_column) {
    return sums_at(all, quarter, half * kHalfRows + of_row, of_column);
  });
  __syncthreads();
  write(args, all);
}

template <int kStages>
Outcome start(const SmallMGemmArgs& args, Stream stream) {
  constexpr size_t kStageBytes = sizeof(uint4) * Chunks::kSize;
  constexpr size_t kBytesMax = std::max(kStages * kStageBytes, kSumBytes);
  const int64_t chunks = args.terms / args.num_parts / kChunk;
  const auto stages = static_cast<size_t>(std::min<int64_t>(kStages, chunks));
  // The limit is the same for all shapes, since other threads may launch this kernel for other
  // shapes.
  const cudaError_t has_space = cudaFuncSetAttribute(
      small_m_kernel<kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytesMax);
  if (has_space != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    if constexpr (kStages > kStagesFewest) return start<kStagesFewest>(args, stream);
    return {"the device has too little shared memory for a small-M GEMM"};
  }
  const dim3 blocks(static_cast<unsigned>(args.columns / kColumns),
                    static_cast<unsigned>(args.num_parts));
  launch(small_m_kernel<kStages>, blocks, kThreads, std::max(stages * kStageBytes, kSumBytes),
         stream, args);
  return launched();
}

}  // namespace

Outcome small_m_gemm(const SmallMGemmArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  return start<kStagesMost>(args, stream);
}

}  // namespace primerl::cuda
