/// The adapters of an engine on a CUDA device: what they add to the products of a decoder.
///
/// Owns the memory of their numbers, which has fixed addresses, so that captured graphs see new
/// versions: a place for each slot and a spare one, each large enough for the largest rank. A new
/// version is brought into the spare place on a thread of its own while steps go on; take() then
/// exchanges the two. An adapter that comes into a slot where nobody is goes straight to its place.
/// One adapter is on its way at a time.
///
/// Adds y += scaling * (x A') B', in tiles of rows with one adapter (add_adapters() of cuda_ops.h).
/// In a decode step u = A x is made on a second stream while the product runs, and who reads y adds
/// B u. One thread, under a CardStream::Use, but for the one that it owns.
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

#include "kernels/engine/options.h"
#include "kernels/models/adapter.h"
#include "kernels/ops/cuda_adapters.h"
#include "kernels/torch/adapters.h"
#include "kernels/torch/cuda/weight_upload.h"

namespace primerl {

/// Whose adapters add to the rows of a pass.
struct CardAdapterRows {
  const cuda::AdapterTile* tiles = nullptr;  // device memory, [num_tiles]
  int64_t num_tiles = 0;
  /// In a decode step, of which tiles have all rows: whose each is.
  const cuda::AdapterRow* rows = nullptr;  // device memory, [num_rows]
  int64_t num_rows = 0;
  /// Where some add to experts: rows of one adapter each, rising (TilePlacesArgs::runs).
  const cuda::AdapterTile* expert_runs = nullptr;  // device memory, [num_expert_runs]
  int64_t num_expert_runs = 0;
  std::span<const cuda::AdapterTile> known_runs = {};  // the same on the host, but in decode steps

  bool are_there() const { return num_tiles > 0; }
};

/// Rows of a mixture that are computed at a time.
int64_t expert_rows_max(int64_t rows_max, int32_t experts_per_token);
/// Rows of a tile of experts' places, and how many tiles there may be for up to `rows_max` rows.
int64_t expert_tile_rows(int64_t places, int32_t num_experts);
int64_t expert_tiles_max(int64_t rows_max, int32_t experts_per_token, int32_t num_experts,
                         int64_t num_runs);

/// Of a decode step's tiles: what a product of the tensor cores has.
inline constexpr int64_t kDecodeTileRows = 8;

class CardAdapters {
 public:
  /// The linears of one matrix of the model, as the operation takes them; A of all parts lie
  /// together.
  using Linear = cuda::AddAdaptersArgs;

  /// What a device cannot do of the options of an engine with adapter slots.
  static Status check(const TensorTable& model, const EngineOptions& options);
  /// Bytes that it allocates on the device.
  static double bytes_needed(const TensorTable& model, const EngineOptions& options,
                             int64_t element_size, int32_t experts_per_token);

  /// check() was ok, and there are slots. All outlive it; `type` is kFloat or kBFloat16.
  CardAdapters(const TensorTable& model, const EngineOptions& options, at::ScalarType type,
               const CardStream& stream);
  ~CardAdapters();

  /// Of the matrix with our name; null: no linear of it can have an adapter.
  const Linear* find(std::string_view matrix) const;

  // Numbers come.
  /// Whether an adapter is on its way.
  bool is_busy() const { return !is_done_.load(std::memory_order_acquire); }
  /// Begins to bring an adapter into the spare place, or into that of a slot whose adapter nobody
  /// computes with any more. Waits for what is on its way, and gives up what is in the spare place.
  Status begin(std::optional<int32_t> slot, const AdapterConfig& config,
               std::shared_ptr<const WeightSnapshot> snapshot);
  /// Whether the spare place has, or gets, what `snapshot` holds, in the same memory.
  bool holds(const WeightSnapshot& snapshot) const;
  /// Until what was begun is there: it is the adapter of `slot` from the next step on.
  Status take(int32_t slot);

  // A step.
  /// Tiles of a graph of `rows` rows, each of which has one.
  int64_t num_tiles(int64_t rows) const;
  /// The tiles of a batch, of up to `tile_rows` rows each.
  void begin_step(const RowBatch& batch, int64_t tile_rows);
  /// Rows [0, rows) that have no tile get tiles of nobody.
  void cover(int64_t rows);
  const std::vector<cuda::AdapterTile>& tiles() const { return tiles_; }
  /// Rows of one adapter of the batch that follow each other; none where no adapter of the batch
  /// adds to experts.
  const std::vector<cuda::AdapterTile>& expert_runs() const { return expert_runs_; }
  /// Of a graph of `rows` rows, in which those of an adapter follow each other.
  int64_t num_expert_runs(int64_t rows) const { return std::min(rows, std::ssize(slots_)); }

  /// y += what the adapters of `rows` add to x times the matrix.
  Status add(const Linear& linear, const CardAdapterRows& rows, const at::Tensor& x,
             const at::Tensor& y) const;
  /// x of the next addend() is there once the stream has done what it was given so far.
  void mark_input() { stream_.record(x_is_there_); }
  /// What the adapters of a decode step's `rows` add to x times the matrix, until the next
  /// addend(): u is made beside what the stream was given since mark_input(), and the stream waits.
  /// The product is launched first, so that it has the processors that it wants.
  Result<cuda::AdapterAddend> addend(const Linear& linear, const CardAdapterRows& rows,
                                     const at::Tensor& x);

 private:
  /// An adapter's numbers, and where they lie.
  struct Held {
    int32_t place = 0;
    int32_t rank = 0;  // 0: none
    uint32_t targets = 0;
    float scaling = 0;
  };
  /// One of a model's linears that can have an adapter.
  struct Place {
    size_t parameter = 0;
    int64_t group = 0;  // expert
    int64_t column = 0;
    uint32_t target = 0;
    int64_t a = 0, b = 0;  // for each rank
  };

  void lay_out(const AdapterTable& largest);
  uint32_t target_of(const AdapterLinear& linear);
  void make_room(int64_t rows);
  void begin_experts(const RowBatch& batch);
  /// What is read of `snapshot`, and where it goes.
  Result<Held> match(const AdapterConfig& config, const WeightSnapshot& snapshot);
  Status wait();
  at::Tensor numbers(int32_t place) const { return places_.select(0, place); }

  const TensorTable& model_;
  const at::ScalarType type_;
  const CardStream& stream_;
  // Constant after construction.
  std::vector<Place> layout_;            // sorted as AdapterTable::linears()
  std::map<size_t, Linear> linears_;     // by parameter of the model
  std::vector<std::string> targets_;     // by bit: "q_proj"
  uint32_t expert_targets_ = 0;          // those that experts have
  int64_t elements_of_rank_ = 0;         // of an adapter, for each rank
  at::Tensor places_;                    // [slots + 1, elements]
  // Who lies where.
  std::vector<Held> slots_;
  int32_t spare_ = 0;
  // Of decode steps.
  const CardStream side_;
  c10::Event x_is_there_{c10::DeviceType::CUDA}, u_is_there_{c10::DeviceType::CUDA};
  at::Tensor u_;  // of any matrix
  // What is on its way, or came last into the spare place.
  WeightUpload upload_;
  std::shared_ptr<const WeightSnapshot> snapshot_;
  std::vector<TensorSlice> slices_;
  TensorMatch match_;
  Held coming_;
  bool is_for_spare_ = false;
  c10::Event is_free_{c10::DeviceType::CUDA};  // what was launched before reads the place no more
  std::atomic<bool> is_done_ = true;
  Status outcome_;  // of the thread, once it is done
  std::jthread thread_;
  // Of the step.
  std::vector<cuda::AdapterTile> tiles_;
  std::vector<cuda::AdapterTile> expert_runs_;
};

}  // namespace primerl
