// Grouped GEMM of e4m3 codes with block scales, for Hopper. A block has 128 rows of a group and 128
// columns. One warp copies tiles of 128 terms to a ring in shared memory. Two warpgroups compute 64
// rows each: the tensor cores add 128 terms, whose sum is multiplied by its two scales and added in
// fp32. With an even number of column tiles, two blocks form a cluster: they have the same rows,
// each copies half of them for both. Otherwise the L2 cache would limit the speed. Blocks stay and
// take one tile after the other.
#include <algorithm>

#include "kernels/cuda/ops/hopper.cuh"
#include "kernels/cuda/ops/mma.cuh"

namespace primerl::cuda {
namespace {

constexpr int kSide = static_cast<int>(kFp8Block);  // rows, columns and terms of a tile
constexpr int kHalf = kSide / 2;                    // rows of a warpgroup
constexpr int kTileBytes = kSide * kSide;
constexpr int kStages = 6;
constexpr int kStageBytes = 2 * kTileBytes;
constexpr int kSwizzleBytes = 1024;
constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kTermsOfWgmma = 32;
constexpr int kSharedBytes = kStages * kStageBytes + kSwizzleBytes;

struct Maps {
  CUtensorMap rows;    // [rows, terms], boxes of 64 rows
  CUtensorMap matrix;  // [any, any], boxes of 128 rows
};

/// One tile of the result.
struct Tile {
  int group = 0;
  int first_row = 0, end_row = 0;  // end_row: of the group
  int column_tile = 0;
};

/// Tiles in order, group after group; all roles of a block walk alike. Within a group, the column
/// tiles of a tile of rows are adjacent.
class Tiles {
 public:
  __device__ __forceinline__ Tiles(const GroupedFp8Args& args, const int32_t* ends)
      : args_(args), ends_(ends), across_(static_cast<int>(args.columns / kSide)) {}

  /// The tile `index`, which rises from call to call; false: there is none.
  __device__ __forceinline__ bool find(int index, Tile& tile) {
    for (; group_ < args_.num_groups; ++group_) {
      const int begin = group_ == 0 ? 0 : ends_[group_ - 1], end = ends_[group_];
      const int count = (end - begin + kSide - 1) / kSide * across_;
      if (index < before_ + count) {
        const int mine = index - before_;
        tile = {group_, begin + mine / across_ * kSide, end, mine % across_};
        return true;
      }
      before_ += count;
    }
    return false;
  }

 private:
  const GroupedFp8Args& args_;
  const int32_t* ends_;
  const int across_;
  int group_ = 0, before_ = 0;
};

/// The position in the ring, which continues from tile to tile.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

/// Addresses in shared memory.
struct Shared {
  uint32_t ring, full, empty;

  __device__ __forceinline__ uint32_t rows(int stage) const { return ring + stage * kStageBytes; }
  __device__ __forceinline__ uint32_t matrix(int stage) const { return rows(stage) + kTileBytes; }
  __device__ __forceinline__ uint32_t is_full(int stage) const { return full + 8 * stage; }
  __device__ __forceinline__ uint32_t is_empty(int stage) const { return empty + 8 * stage; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kBlocks>
__device__ void produce(const GroupedFp8Args& args, const Maps& maps, const Shared& shared,
                        const int32_t* ends, int first, int step) {
  Tiles tiles(args, ends);
  Tile tile;
  Ring ring;
  const int steps = static_cast<int>(args.terms / kSide);
  const int rank = kBlocks > 1 ? hopper::cluster_rank() : 0;
  for (int index = first; tiles.find(index, tile); index += step) {
    const int y = static_cast<int>(tile.group * args.group_rows) + tile.column_tile * kSide;
    const int x = static_cast<int>(tile.group * args.group_terms);
    for (int k = 0; k < steps; ++k, ring.next()) {
      const uint32_t full = shared.is_full(ring.stage), rows = shared.rows(ring.stage);
      hopper::wait(shared.is_empty(ring.stage), ring.parity ^ 1);
      hopper::arrive_and_expect(full, kStageBytes);
      hopper::copy_tile(shared.matrix(ring.stage), &maps.matrix, x + k * kSide, y, full);
      if constexpr (kBlocks == 1) {
        hopper::copy_tile(rows, &maps.rows, k * kSide, tile.first_row, full);
        hopper::copy_tile(rows + kTileBytes / 2, &maps.rows, k * kSide, tile.first_row + kHalf,
                          full);
      } else {
        hopper::copy_tile_to_all(rows + rank * kTileBytes / 2, &maps.rows, k * kSide,
                                 tile.first_row + rank * kHalf, full, (1U << kBlocks) - 1);
      }
    }
  }
}

/// p[i] of lane l of four becomes p[l] of lane i.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&p)[4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool is_upper = (threadIdx.x & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t got = __shfl_xor_sync(kAllLanes, is_upper ? p[i] : p[i | bit], bit);
      if (is_upper)
        p[i] = got;
      else
        p[i | bit] = got;
    }
  }
}

/// Writes the two rows of a lane, which have 16 bytes of every fourth 8 columns.
__device__ __forceinline__ void write_rows(const GroupedFp8Args& args, const Tile& tile, int row,
                                           const float (&sums)[64]) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int low = 0; low < 2; ++low) {
    const int64_t at = row + 8 * low;
    Bf16* y = static_cast<Bf16*>(args.y) + at * args.columns + tile.column_tile * kSide;
#pragma unroll
    for (int j = 0; j < kSide / 8; j += 4) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(sums[4 * (j + i) + 2 * low],
                                                          sums[4 * (j + i) + 2 * low + 1]);
        packed[i] = *reinterpret_cast<const uint32_t*>(&pair);
      }
      transpose_in_quad(packed);
      if (at < tile.end_row)
        *reinterpret_cast<uint4*>(y + 8 * (j + lane)) = {packed[0], packed[1], packed[2],
                                                         packed[3]};
    }
  }
}

template <int kBlocks>
__device__ void consume(const GroupedFp8Args& args, const Shared& shared, const int32_t* ends,
                        int first, int step, int warpgroup) {
  Tiles tiles(args, ends);
  Tile tile;
  Ring ring;
  const int steps = static_cast<int>(args.terms / kSide), lane = threadIdx.x % kWarp;
  const int warp_row = threadIdx.x % kWarpgroup / kWarp * 16 + lane / 4;
  for (int index = first; tiles.find(index, tile); index += step) {
    const int row = tile.first_row + warpgroup * kHalf + warp_row;
    const float* of_rows = args.x_scales + row;
    const float* of_matrix =
        args.scales +
        (tile.group * args.group_rows / kSide + tile.column_tile) * args.scale_stride +
        tile.group * args.group_terms / kSide;
    float sums[64] = {}, some[64];
    const auto scale_at = [&](int k, int more) {
      return row + more < tile.end_row ? of_rows[k * args.x_scale_stride + more] : 0.0F;
    };
    float high = scale_at(0, 0), low = scale_at(0, 8), block = of_matrix[0];
    for (int k = 0; k < steps; ++k) {
      hopper::wait(shared.is_full(ring.stage), ring.parity);
      const uint32_t a = shared.rows(ring.stage) + warpgroup * kTileBytes / 2;
      const uint32_t b = shared.matrix(ring.stage);
      hopper::fence_wgmma();
#pragma unroll
      for (int i = 0; i < kSide / kTermsOfWgmma; ++i)
        hopper::wgmma_e4m3(some, hopper::operand(a + i * kTermsOfWgmma),
                           hopper::operand(b + i * kTermsOfWgmma), i > 0);
      hopper::commit_wgmma();
      const float of_high = high * block, of_low = low * block;
      if (k + 1 < steps) {
        high = scale_at(k + 1, 0);
        low = scale_at(k + 1, 8);
        block = of_matrix[k + 1];
      }
      hopper::wait_wgmma();
      if (lane < kBlocks) hopper::arrive_at(shared.is_empty(ring.stage), lane);
#pragma unroll
      for (int i = 0; i < 64; i += 4) {
        sums[i] += some[i] * of_high;
        sums[i + 1] += some[i + 1] * of_high;
        sums[i + 2] += some[i + 2] * of_low;
        sums[i + 3] += some[i + 3] * of_low;
      }
      ring.next();
    }
    write_rows(args, tile, row, sums);
  }
}

#endif

template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_fp8_kernel(GroupedFp8Args args, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char bytes[];
  __shared__ alignas(8) uint64_t barriers[2 * kStages];
  __shared__ int32_t ends[kGroupedFp8GroupsMax];
  const uint32_t begin = hopper::shared_address(bytes);
  const Shared shared = {(begin + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes,
                         hopper::shared_address(barriers),
                         hopper::shared_address(barriers + kStages)};
  for (int i = threadIdx.x; i < args.num_groups; i += kThreads) ends[i] = args.ends[i];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::init_barrier(shared.is_full(i), 1);
      hopper::init_barrier(shared.is_empty(i), kBlocks * kConsumers * kWarpgroup / kWarp);
    }
    hopper::fence_barriers();
  }
  __syncthreads();
  hopper::cluster_sync();
  // The blocks of a cluster have adjacent tiles, so they take as many steps.
  const auto first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (warpgroup == kConsumers) {
    hopper::lower_registers<40>();
    if (threadIdx.x % kWarpgroup == 0) produce<kBlocks>(args, maps, shared, ends, first, step);
  } else {
    hopper::raise_registers<232>();
    consume<kBlocks>(args, shared, ends, first, step, warpgroup);
  }
  // A block stays until no other writes to its shared memory.
  __syncwarp();
  hopper::cluster_sync();
#endif
}

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = {};
  constexpr unsigned kVersion = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &found, kVersion, cudaEnableDefault, &result);
  const bool is_there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return is_there ? reinterpret_cast<Encode>(found) : nullptr;
}

/// Boxes of `box_rows` rows and 128 columns of `codes` [rows, stride], of which `width` are read.
bool encode(Encode encoded, const void* codes, int64_t rows, int64_t width, int64_t stride,
            int box_rows, CUtensorMap& map) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[] = {kSide, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  return encoded(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(codes), sizes, strides,
                 box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int kBlocks>
void start(const GroupedFp8Args& args, const Maps& maps, int multiprocessors, Stream stream) {
  const auto kernel = grouped_fp8_kernel<kBlocks>;
  static_cast<void>(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  // Each group has up to one tile of rows that is not full.
  const int64_t tiles =
      (args.rows / kSide + args.num_groups) * (args.columns / kSide) / kBlocks * kBlocks;
  const int64_t blocks = std::min<int64_t>(tiles, multiprocessors / kBlocks * kBlocks);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args, maps));
}

}  // namespace

Outcome grouped_fp8_gemm(const GroupedFp8Args& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  int device = 0, major = 0, multiprocessors = 0;
  static_cast<void>(cudaGetDevice(&device));
  static_cast<void>(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  static_cast<void>(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  if (major != 9) return {"grouped FP8 GEMMs need a device of compute capability 9.0"};
  const Encode encoded = encoder();
  Maps maps = {};
  const int64_t all_rows =
      args.group_rows > 0 ? args.num_groups * args.group_rows : args.columns;
  const int64_t all_terms =
      args.group_terms > 0 ? args.num_groups * args.group_terms : args.terms;
  if (encoded == nullptr ||
      !encode(encoded, args.x_codes, args.rows, args.terms, args.x_code_stride, kHalf, maps.rows) ||
      !encode(encoded, args.codes, all_rows, all_terms, args.code_stride, kSide, maps.matrix))
    return {"the driver does not describe tiles of these matrices"};
  if (args.columns / kSide % 2 == 0)
    start<2>(args, maps, multiprocessors, stream);
  else
    start<1>(args, maps, multiprocessors, stream);
  return launched();
}

}  // namespace primerl::cuda
