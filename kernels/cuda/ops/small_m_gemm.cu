// GEMMs of up to 64 rows in parts: a block has a few columns and the terms of a part, chunk by
// chunk. It loads the first chunks of its matrix before the rows, which the kernel before this one
// may still be writing. Eight warps: two halves of the rows, four quarters of the terms of each
// chunk; their sums are added in order.
#include <algorithm>

#include "kernels/cuda/ops/launch.cuh"
#include "kernels/cuda/ops/mma.cuh"

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

/// Pieces of a row are permuted so that eight rows use different banks.
__device__ __forceinline__ int swizzled(int row, int piece) {
  return row * kPieces + (piece ^ (row % 8));
}

/// Starts copying the chunk that begins with term `first` to `memory`.
__device__ __forceinline__ void ask_weights(const SmallMGemmArgs& args, int64_t first,
                                            uint4* memory) {
  const Bf16* weight = static_cast<const Bf16*>(args.weight) +
                       static_cast<int64_t>(blockIdx.x) * kColumns * args.terms + first;
#pragma unroll
  for (int i = threadIdx.x; i < kColumns * kPieces; i += kThreads) {
    const int column = i / kPieces, piece = i % kPieces;
    cp_async(memory + swizzled(column, piece),
             weight + column * args.terms + piece * kVector<Bf16>);
  }
}
__device__ __forceinline__ void ask_rows(const SmallMGemmArgs& args, int64_t first, uint4* memory) {
  const Bf16* x = static_cast<const Bf16*>(args.x) + first;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    // Rows after the last keep old values; no row's result depends on another row.
    if (row < args.rows)
      cp_async(memory + swizzled(row, piece), x + row * args.terms + piece * kVector<Bf16>);
  }
}

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

template <int kStages>
__global__ void __launch_bounds__(kThreads) small_m_kernel(SmallMGemmArgs args) {
  constexpr int kStage = (kColumns + kRows) * kPieces;  // pieces: weights, then rows
  extern __shared__ uint4 memory[];
  const int64_t terms = args.terms / gridDim.y, first = blockIdx.y * terms;
  const int num_chunks = static_cast<int>(terms / kChunk);
  const auto stage = [&](int chunk) { return memory + chunk % kStages * kStage; };
  const auto ask_weights_of = [&](int chunk) {
    if (chunk < num_chunks) ask_weights(args, first + chunk * kChunk, stage(chunk));
  };
  const auto ask_rows_of = [&](int chunk) {
    if (chunk < num_chunks)
      ask_rows(args, first + chunk * kChunk, stage(chunk) + kColumns * kPieces);
  };
  start_next_kernel();
#pragma unroll 1
  for (int chunk = 0; chunk < kStages; ++chunk) ask_weights_of(chunk);
  wait_for_last_kernel();
#pragma unroll 1
  for (int chunk = 0; chunk < kStages; ++chunk) {
    ask_rows_of(chunk);
    cp_async_commit();
  }

  const int warp = threadIdx.x / kWarp, half = warp % 2, quarter = warp / 2;
  using Sums = MmaTile<kHalfRows / kMmaRows, kColumns / kMmaRows>;
  Sums sums;
  const int row = half * kHalfRows + Sums::row_of_a(), column = Sums::column_of_b<false>();
  const int row_piece = Sums::term_of_a() / kVector<Bf16>;
  const int column_piece = Sums::term_of_b<false>() / kVector<Bf16>;
#pragma unroll 1
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    if (chunk > 0) {  // all threads have used the previous chunk
      ask_weights_of(chunk + kStages - 1);
      ask_rows_of(chunk + kStages - 1);
      cp_async_commit();
    }
    const uint4* weights = stage(chunk);
    const uint4* rows = weights + kColumns * kPieces;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int piece = (quarter * kSteps + step) * 2;
      sums.add<false>(
          [&](int i) { return rows + swizzled(row + i * kMmaRows, piece + row_piece); },
          [&](int j) { return weights + swizzled(column + j * kMmaRows, piece + column_piece); });
    }
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
  constexpr size_t kStageBytes = sizeof(uint4) * (kColumns + kRows) * kPieces;
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
