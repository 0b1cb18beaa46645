/// The adapters of an engine on a CUDA device, and the LoRA deltas that they add to a decoder's
/// GEMMs.
///
/// Owns their memory, which has fixed addresses, so that captured graphs see new versions: a buffer
/// for each slot and a spare one, each large enough for the largest rank. A thread uploads a new
/// version to the spare buffer while steps continue; take() then exchanges the two buffers. An
/// adapter for an empty slot is uploaded to that slot's buffer. One upload runs at a time.
///
/// Adds y += scaling * (x A') B', in tiles of rows with one adapter (add_adapters() of cuda_ops.h).
/// In a decode step a second stream computes u = A x while the GEMM runs, and the operation that
/// reads y adds B u. Not thread-safe: one thread, under a CudaStream::Use, beside the thread that
/// it owns.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/cuda/memory/weight_upload.h"
#include "kernels/cuda/ops/cuda_adapters.h"
#include "kernels/engine/options.h"
#include "kernels/engine/row_batch.h"
#include "kernels/models/adapter.h"

namespace primerl {

/// The adapters of the rows of a pass.
struct CudaAdapterRows {
  const cuda::AdapterTile* tiles = nullptr;  // device memory, [num_tiles]
  int64_t num_tiles = 0;
  /// In a decode step, in which all rows have tiles: the adapter of each row.
  const cuda::AdapterRow* rows = nullptr;  // device memory, [num_rows]
  int64_t num_rows = 0;
  /// If some add to experts: rows of one adapter each, ascending (ExpertTilesArgs::runs).
  const cuda::AdapterTile* expert_runs = nullptr;  // device memory, [num_expert_runs]
  int64_t num_expert_runs = 0;
  std::span<const cuda::AdapterTile> known_runs =
      {};  // the same on the host, except in decode steps

  bool applies_adapters() const { return num_tiles > 0; }
};

/// Rows of a mixture that are computed at a time.
int64_t expert_rows_max(int64_t rows_max, int32_t experts_per_token);
/// Rows of a tile of expert rows, and the largest number of tiles for up to `rows_max` rows.
int64_t expert_tile_rows(int64_t num_pairs, int32_t num_experts);
int64_t expert_tiles_max(int64_t rows_max, int32_t experts_per_token, int32_t num_experts,
                         int64_t num_runs);

/// Rows of a decode step's tiles: those of one tensor core instruction.
inline constexpr int64_t kDecodeTileRows = 8;

class CudaAdapterSlots {
 public:
  /// The linears of one matrix of the model, as the operation takes them; A of all parts lie
  /// together.
  using Linear = cuda::AddAdaptersArgs;

  /// Refuses options of an engine with adapter slots that a device does not support.
  static Status check(const TensorTable& model, const EngineOptions& options);
  /// Bytes that it allocates on the device.
  static double bytes_needed(const TensorTable& model, const EngineOptions& options,
                             int64_t element_size, int32_t experts_per_token);

  /// check() was ok, and there are slots. All arguments must stay valid while it exists; `type` is
  /// kFloat or kBFloat16.
  CudaAdapterSlots(const TensorTable& model, const EngineOptions& options, at::ScalarType type,
                   const CudaStream& stream);
  ~CudaAdapterSlots();

  /// The linear of the matrix with our name; null: it cannot have an adapter.
  const Linear* find(std::string_view matrix) const;

  // Uploads.
  /// Whether an upload is running.
  bool is_busy() const { return !is_done_.load(std::memory_order_acquire); }
  /// Begins the upload of an adapter to the spare buffer, or to the buffer of a slot whose adapter
  /// is unused. Waits for a running upload first, and discards the content of the spare buffer.
  Status begin(std::optional<int32_t> slot, const AdapterConfig& config,
               std::shared_ptr<const WeightSnapshot> snapshot);
  /// Whether the spare buffer contains, or is receiving, the content of `snapshot`, by its memory.
  bool holds(const WeightSnapshot& snapshot) const;
  /// Waits for the upload. It is the adapter of `slot` from the next step on.
  Status take(int32_t slot);

  // A step.
  /// Tiles of a graph of `rows` rows, each of which has one.
  int64_t num_tiles(int64_t rows) const;
  /// The tiles of a batch, of up to `tile_rows` rows each.
  void begin_step(const RowBatch& batch, int64_t tile_rows);
  /// Rows [0, rows) without a tile get tiles without an adapter.
  void cover(int64_t rows);
  /// The tiles of some rows of the batch of begin_step(), in the order of `rows`: for the head.
  std::vector<cuda::AdapterTile> tiles_of(const RowBatch& batch,
                                          std::span<const int32_t> rows) const;
  const std::vector<cuda::AdapterTile>& tiles() const { return tiles_; }
  /// Adjacent rows of one adapter of the batch; empty if no adapter of the batch adds to experts.
  const std::vector<cuda::AdapterTile>& expert_runs() const { return expert_runs_; }
  /// The number of runs of a graph of `rows` rows, in which rows of an adapter are adjacent.
  int64_t num_expert_runs(int64_t rows) const { return std::min(rows, std::ssize(slots_)); }

  /// y += the LoRA delta of x, for the adapters of `rows`.
  Status add(const Linear& linear, const CudaAdapterRows& rows, const at::Tensor& x,
             const at::Tensor& y) const;
  /// The same for y in fp32, whatever the type of weights: the logits of the head.
  Status add_to_logits(const Linear& linear, const CudaAdapterRows& rows, const at::Tensor& x,
                       const at::Tensor& logits) const;
  /// Records that x of the next lora_delta() is ready when the stream has finished its work so far.
  void mark_input() { stream_.record(x_is_there_); }
  /// The LoRA delta of x in a decode step, valid until the next lora_delta(). u is computed in
  /// parallel to the work launched since mark_input(), and the stream waits for it. The GEMM is
  /// launched first, so that it gets its multiprocessors.
  Result<cuda::LoraDelta> lora_delta(const Linear& linear, const CudaAdapterRows& rows,
                                     const at::Tensor& x);

 private:
  /// An adapter in a buffer.
  struct LoadedAdapter {
    int32_t buffer_index = 0;
    int32_t rank = 0;  // 0: none
    uint32_t targets = 0;
    float scaling = 0;
  };
  /// One of a model's linears that can have an adapter.
  struct LinearLayout {
    size_t parameter = 0;
    int64_t group = 0;  // expert
    int64_t column = 0;
    uint32_t target = 0;
    int64_t a = 0, b = 0;  // for each rank
  };

  void lay_out(const AdapterTable& largest);
  uint32_t target_of(const AdapterLinear& linear);
  void reserve_u(int64_t rows);
  void begin_experts(const RowBatch& batch);
  /// Maps the tensors of `snapshot` to offsets of a buffer.
  Result<LoadedAdapter> match(const AdapterConfig& config, const WeightSnapshot& snapshot);
  Status wait();
  at::Tensor numbers(int32_t buffer_index) const { return buffers_.select(0, buffer_index); }

  const TensorTable& model_;
  const at::ScalarType type_;
  const CudaStream& stream_;
  // Constant after construction.
  std::vector<LinearLayout> layout_;  // sorted as AdapterTable::linears()
  std::map<size_t, Linear> linears_;  // by parameter of the model
  std::vector<std::string> targets_;  // by bit: "q_proj"
  uint32_t expert_targets_ = 0;       // those that experts have
  int64_t elements_of_rank_ = 0;      // of an adapter, for each rank
  at::Tensor buffers_;                // [slots + 1, elements]
  // The buffers of the slots.
  std::vector<LoadedAdapter> slots_;
  int32_t spare_ = 0;
  // For decode steps.
  const CudaStream side_;
  c10::Event x_is_there_{c10::DeviceType::CUDA}, u_is_there_{c10::DeviceType::CUDA};
  at::Tensor u_;  // of any matrix
  // The running upload, or the last one to the spare buffer.
  WeightUpload upload_;
  std::shared_ptr<const WeightSnapshot> snapshot_;
  std::vector<TensorSlice> slices_;
  TensorMatch match_;
  LoadedAdapter coming_;
  bool is_for_spare_ = false;
  c10::Event is_free_{c10::DeviceType::CUDA};  // earlier launches no longer read the buffer
  std::atomic<bool> is_done_ = true;
  Status outcome_;  // of the thread, once it is done
  std::jthread thread_;
  // For the current step.
  std::vector<cuda::AdapterTile> tiles_;
  std::vector<cuda::AdapterTile> expert_runs_;
};

}  // namespace primerl
