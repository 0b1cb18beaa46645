// SwiGLU, forward and backward: one thread per vector. If adapters add to gate and up, a block has
// the rows of a tile and some columns; their B is read once for all rows, in bf16 by tensor cores.
#include "kernels/cuda/ops/adapters.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluArgs args) {
  const int64_t vectors = args.width / kVec;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.rows * vectors) return;
  const int64_t row = quotient(i, vectors), at = (i - row * vectors) * kVec;
  const T* gates = static_cast<const T*>(args.gate_up.data) + row * 2 * args.width + at;
  float gate[kVec], up[kVec];
  load(gates, gate);
  load(gates + args.width, up);
#pragma unroll
  for (int j = 0; j < kVec; ++j) gate[j] = gate[j] * sigmoid(gate[j]) * up[j];
  store(static_cast<T*>(args.activated) + row * args.width + at, gate);
}

constexpr int kTileThreads = 64;
constexpr int kTileColumns = kTileThreads / kWarp * kWarpColumns;

/// The row of a tile for row j of a lane's ColumnSums; chosen so that the first four rows belong to
/// different lanes.
__device__ __forceinline__ int row_of_sums(int quarter, int j) { return quarter + 4 * j; }
__device__ __forceinline__ int row_of_mma(int row) { return row_of_sums(row / 2, row % 2); }

/// Each lane computes eight columns of two rows. The rank must be a multiple of 4, the width of 8.
__device__ void activate_by_mma(const SwigluArgs& args, const LoraDelta& lora_delta,
                                const AdapterTile& tile) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, quarter = lane % 4;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTileColumns + warp * kWarpColumns +
                         lane / 4 * kLaneColumns;
  const int count = column < args.width ? kLaneColumns : 0;
  // Lanes after the last column load a part of u for the others.
  const AdaptedColumns<Bf16> halves[2] = {{lora_delta.of, tile, 0},
                                          {lora_delta.of, tile, args.width}};
  LaneColumns b[2];
  const auto load_b = [&](int first) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      load_columns(halves[half].b + column * tile.rank, first + 4 * quarter, tile.rank,
                   halves[half].applies_adapters() ? count : 0, b[half]);
  };
  load_b(0);
  wait_for_last_kernel();
  for (int begin_row = 0; begin_row < tile.rows; begin_row += kGroupRows) {
    uint4 read[2][2] = {};  // [row][half]
    const Bf16* from = static_cast<const Bf16*>(args.gate_up.data) + column;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (const int row = begin_row + row_of_sums(quarter, j); row < tile.rows && count > 0)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          read[j][half] =
              *reinterpret_cast<const uint4*>(from + (2 * (tile.first + row) + half) * args.width);
    const int row_of_u = begin_row + row_of_mma(lane / 4);
    const auto u_of_half = [&](int half) -> LoraShrinkRow {
      const int part = row_of_u < tile.rows ? halves[half].part : -1;
      return {lora_delta, part, tile.first + row_of_u, tile.scaling};
    };
    const LoraShrinkRow u[2] = {u_of_half(0), u_of_half(1)};
    ColumnSums sums[2];
    for (int first = 0; first < tile.rank; first += kShrinkRanks) {
      if (tile.rank > kShrinkRanks && (first > 0 || begin_row > 0)) load_b(first);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        sums[half].add(b[half], u[half].of_lane(first / kShrinkRanks));
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = begin_row + row_of_sums(quarter, j);
      if (row >= tile.rows || count == 0) continue;
      float gate[kLaneColumns], up[kLaneColumns], added[2][kLaneColumns];
      load(reinterpret_cast<const Bf16*>(&read[j][0]), gate);
      load(reinterpret_cast<const Bf16*>(&read[j][1]), up);
      sums[0].of_row(j, added[0]);
      sums[1].of_row(j, added[1]);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        gate[i] += added[0][i];
        gate[i] = gate[i] * sigmoid(gate[i]) * (up[i] + added[1][i]);
      }
      store(static_cast<Bf16*>(args.activated) + (tile.first + row) * args.width + column, gate);
    }
  }
}

/// One thread per column; ranks are added in order.
template <class T>
__device__ void activate(const SwigluArgs& args, const LoraDelta& lora_delta,
                         const AdapterTile& tile) {
  wait_for_last_kernel();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTileColumns;
  const int64_t end = min(begin + kTileColumns, args.width);
  for (int64_t column = begin + threadIdx.x; column < end; column += kTileThreads) {
    const AdaptedColumns<T> halves[2] = {{lora_delta.of, tile, column},
                                         {lora_delta.of, tile, args.width + column}};
    for (int64_t row = tile.first; row < tile.first + tile.rows; ++row) {
      const T* from = static_cast<const T*>(args.gate_up.data) + 2 * row * args.width + column;
      float sums[2] = {to_float(from[0]), to_float(from[args.width])};
      for (int half = 0; half < 2; ++half) {
        if (!halves[half].applies_adapters()) continue;
        float sum[1] = {sums[half]};
        const LoraShrinkRow u(lora_delta, halves[half].part, row, tile.scaling);
        add_columns(halves[half].b, tile.rank, 1, 1, u, sum);
        sums[half] = sum[0];
      }
      static_cast<T*>(args.activated)[row * args.width + column] =
          from_float<T>(sums[0] * sigmoid(sums[0]) * sums[1]);
    }
  }
}

/// The result of a row does not depend on its tile.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    adapted_swiglu_kernel(SwigluArgs args, const __grid_constant__ LoraDelta lora_delta,
                          bool is_aligned) {
  start_next_kernel();
  const AdapterTile tile = lora_delta.of.tiles[blockIdx.y];
  if (tile.rows == 0) return;
  if constexpr (sizeof(T) == sizeof(Bf16))
    if (is_aligned && tile.rank % 4 == 0) return activate_by_mma(args, lora_delta, tile);
  activate<T>(args, lora_delta, tile);
}

template <class T>
void start_adapted(const SwigluArgs& args, bool is_aligned, Stream stream) {
  const LoraDelta& lora_delta = *args.gate_up.lora_delta;
  const dim3 grid(static_cast<unsigned>(divide_up(args.width, kTileColumns)),
                  static_cast<unsigned>(lora_delta.of.num_tiles));
  launch(adapted_swiglu_kernel<T>, grid, kTileThreads, 0, stream, args, lora_delta,
         is_aligned && args.width % kLaneColumns == 0);
}

template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(SwigluBackwardArgs args) {
  const int64_t vectors = args.width / kVec;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.rows * vectors) return;
  const int64_t row = quotient(i, vectors), at = (i - row * vectors) * kVec;
  const int64_t begin = row * 2 * args.width + at;
  const T* gates = static_cast<const T*>(args.gate_up) + begin;
  float gate[kVec], up[kVec], d[kVec];
  load(gates, gate);
  load(gates + args.width, up);
  load(static_cast<const T*>(args.dactivated) + row * args.width + at, d);
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    const float g = gate[j], s = sigmoid(g);
    gate[j] = d[j] * up[j] * s * (1.0F + g * (1.0F - s));
    up[j] = d[j] * g * s;
  }
  T* dgates = static_cast<T*>(args.dgate_up) + begin;
  store(dgates, gate);
  store(dgates + args.width, up);
}

template <class T, int kVec>
void start(const SwigluArgs& args, Stream stream) {
  const int64_t blocks = divide_up(args.rows * (args.width / kVec), kThreads);
  swiglu_kernel<T, kVec><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}
template <class T, int kVec>
void start(const SwigluBackwardArgs& args, Stream stream) {
  const int64_t blocks = divide_up(args.rows * (args.width / kVec), kThreads);
  swiglu_backward_kernel<T, kVec><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}

template <class Args>
Outcome start_some(const Args& args, bool is_aligned, Stream stream) {
  return start_by_vectors(args, is_aligned,
                          [&]<class T, int kVec>() { start<T, kVec>(args, stream); });
}

}  // namespace

Outcome swiglu(const SwigluArgs& args, Stream stream) {
  const bool is_aligned = are_aligned(args.gate_up.data, args.activated);
  if (args.rows == 0 || args.gate_up.lora_delta == nullptr)
    return start_some(args, is_aligned, stream);
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  args.type == Type::kFloat32 ? start_adapted<float>(args, is_aligned, stream)
                              : start_adapted<Bf16>(args, is_aligned, stream);
  return launched();
}

Outcome swiglu_backward(const SwigluBackwardArgs& args, Stream stream) {
  return start_some(args, are_aligned(args.gate_up, args.dactivated, args.dgate_up), stream);
}

}  // namespace primerl::cuda
