#include "kernels/cuda/engine/adapter_slots.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "graph/base/real_clock.h"
#include "kernels/common/boundary.h"
#include "kernels/cuda/ops/cuda_expert_tiles.h"

namespace primerl {
namespace {

constexpr int64_t kAlignment = 8;           // elements
constexpr int64_t kExpertRows = 4096;       // of 128 experts and 8 a token, each has 256
constexpr int64_t kExpertTilesMax = 65535;  // of add_adapters()
constexpr int64_t kRowsOfWideTiles = 32;    // average rows of an expert
constexpr auto kFreePoll = std::chrono::microseconds(20);  // a step takes 1 ms or more

int64_t aligned(int64_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

/// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string_view leaf_of(std::string_view module) { return module.substr(module.rfind('.') + 1); }

/// The table of all linears that adapters of the engine may have.
AdapterTable table_of_rank_one(const TensorTable& model, const EngineOptions& options) {
  AdapterConfig config{.rank = 1, .alpha = 1};
  if (!options.adapter_targets.empty()) config.targets = options.adapter_targets;
  return {model, config};
}

bool is_of_experts(const TensorTable& model, const AdapterLinear& linear) {
  return model.parameters()[linear.parameter].kind == ParameterKind::kExperts;
}

}  // namespace

/// Tiles of 8 sorted rows, or of 64 if experts have many rows each.
int64_t expert_tile_rows(int64_t num_pairs, int32_t num_experts) {
  return num_pairs < kRowsOfWideTiles * num_experts ? kDecodeTileRows : cuda::kAdapterTileRows;
}

int64_t expert_rows_max(int64_t rows_max, int32_t experts_per_token) {
  return std::min({rows_max, kExpertRows, kExpertTilesMax / experts_per_token});
}

/// The larger count of the two tile sizes.
int64_t expert_tiles_max(int64_t rows_max, int32_t experts_per_token, int32_t num_experts,
                         int64_t num_runs) {
  const int64_t num_pairs = expert_rows_max(rows_max, experts_per_token) * experts_per_token;
  const int64_t small = std::min(num_pairs, kRowsOfWideTiles * num_experts - 1);
  return std::max(cuda::num_expert_tiles_of(small, num_experts, num_runs, kDecodeTileRows),
                  cuda::num_expert_tiles_of(num_pairs, num_experts, num_runs,
                                            expert_tile_rows(num_pairs, num_experts)));
}

Status CudaAdapterSlots::check(const TensorTable& model, const EngineOptions& options) {
  if (options.max_adapter_rank > cuda::kAdapterRowsRankMax)
    return error(Code::kUnavailable, "adapters may have rank {}: engines on {} take ranks up to {}",
                 options.max_adapter_rank, options.device, cuda::kAdapterRowsRankMax)
        .note("train adapters of a smaller 'rank', or place the engine on \"cpu\"");
  const AdapterTable table = table_of_rank_one(model, options);
  for (const AdapterLinear& linear : table.linears())
    if (linear.inputs % kAlignment != 0)
      return error(Code::kUnavailable,
                   "'{}' reads {} numbers: on {} an adapter's linear reads a multiple of {}",
                   linear.module, linear.inputs, options.device, kAlignment)
          .note("place the engine on \"cpu\"");
  return ok();
}

/// Bytes of u between A and B, for tiles of experts and for the rows of a decode step.
double CudaAdapterSlots::bytes_needed(const TensorTable& model, const EngineOptions& options,
                                      int64_t element_size, int32_t experts_per_token) {
  double of_rank = 0, between = 0, decoded = 0;
  const AdapterTable table = table_of_rank_one(model, options);
  for (const AdapterLinear& linear : table.linears()) {
    const auto& shape = model.parameters()[linear.parameter].shape;
    of_rank += static_cast<double>(linear.inputs + aligned(linear.outputs));
    if (!is_of_experts(model, linear)) {
      const cuda::AddAdaptersArgs any{.terms = linear.inputs,
                                      .rank_max = options.max_adapter_rank,
                                      .num_parts = cuda::kAdapterPartsMax};
      decoded = std::max(
          decoded,
          static_cast<double>(cuda::lora_delta_workspace({any, options.max_running, nullptr})));
      continue;
    }
    const int64_t rows = std::max(options.max_batched_tokens, options.max_running);
    const cuda::AddAdaptersArgs args{
        .terms = linear.inputs,
        .num_tiles = expert_tiles_max(rows, experts_per_token, static_cast<int32_t>(shape.front()),
                                      options.adapter_slots),
        .rank_max = options.max_adapter_rank,
        .num_parts = 2};
    between = std::max(between, static_cast<double>(cuda::adapters_workspace(args)));
  }
  return (options.adapter_slots + 1.0) * options.max_adapter_rank * of_rank *
             static_cast<double>(element_size) +
         (decoded + between) * sizeof(float) + WeightUpload::bytes_needed();
}

CudaAdapterSlots::CudaAdapterSlots(const TensorTable& model, const EngineOptions& options,
                                   at::ScalarType type, const CudaStream& stream)
    : model_(model),
      type_(type),
      stream_(stream),
      slots_(static_cast<size_t>(options.adapter_slots)),
      spare_(options.adapter_slots),
      side_(stream.device().index(), CudaStream::Urgency::kLow),
      upload_(type, stream.device()) {
  lay_out(table_of_rank_one(model, options));
  buffers_ = at::zeros({options.adapter_slots + 1, elements_of_rank_ * options.max_adapter_rank},
                       at::TensorOptions(stream.device()).dtype(type));
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].buffer_index = static_cast<int32_t>(i);
  for (auto& [parameter, linear] : linears_) {
    linear.rank_max = options.max_adapter_rank;
    linear.slots = buffers_.const_data_ptr();
    linear.slot_stride = buffers_.stride(0);
  }
  reserve_u(options.max_running);
}

/// Allocates u for the matrix that needs most, experts excluded.
void CudaAdapterSlots::reserve_u(int64_t rows) {
  int64_t floats = 0;
  for (const auto& [parameter, linear] : linears_)
    if (linear.group_stride == 0)
      floats = std::max(floats, cuda::lora_delta_workspace({linear, rows, nullptr}));
  u_ = at::empty({floats}, at::TensorOptions(stream_.device()).dtype(at::kFloat));
}

CudaAdapterSlots::~CudaAdapterSlots() {
  thread_.request_stop();
  static_cast<void>(wait());
}

uint32_t CudaAdapterSlots::target_of(const AdapterLinear& linear) {
  const auto leaf = leaf_of(linear.module);
  auto known = std::ranges::find(targets_, leaf);
  if (known == targets_.end()) known = targets_.emplace(known, leaf);
  const uint32_t target = 1U << static_cast<uint32_t>(known - targets_.begin());
  if (is_of_experts(model_, linear)) expert_targets_ |= target;
  return target;
}

/// For each matrix all A, then all B; for experts, one expert after the other. The widest matrix
/// combines three linears: q, k and v.
void CudaAdapterSlots::lay_out(const AdapterTable& largest) {
  Linear *made = nullptr, *before = nullptr;  // the linear before the current one in a pass
  for (auto rest = largest.linears(); !rest.empty();) {
    const auto is_beside = [&](const AdapterLinear& linear) {
      return linear.parameter == rest.front().parameter && linear.group == rest.front().group;
    };
    const auto count = std::ranges::find_if_not(rest, is_beside) - rest.begin();
    const auto of_group = rest.first(static_cast<size_t>(count));
    rest = rest.subspan(of_group.size());
    const AdapterLinear& first = of_group.front();
    const auto& shape = model_.parameters()[first.parameter].shape;
    if (first.group == 0) {
      made = &linears_[first.parameter];
      made->terms = first.inputs;
      made->columns = shape[shape.size() - 2];
      made->type = op_type(type_);
    }
    int64_t a = elements_of_rank_, b = a + count * first.inputs;
    for (const AdapterLinear& linear : of_group) {
      const uint32_t target = target_of(linear);
      layout_.push_back({linear.parameter, linear.group, linear.column, target, a, b});
      if (first.group == 0)
        made->parts[made->num_parts++] = {linear.column, linear.outputs, a, b, target};
      a += linear.inputs;
      b += aligned(linear.outputs);
    }
    const int64_t begin = std::exchange(elements_of_rank_, b);
    if (is_of_experts(model_, first)) {
      made->group_stride = b - begin;
      before = nullptr;  // the next expert is unknown
      continue;
    }
    // B of a matrix, and then A of the next one: they are adjacent.
    made->next = begin + count * first.inputs;
    made->next_size = b - made->next;
    if (before != nullptr) before->next_size += count * first.inputs;
    before = made;
  }
}

const CudaAdapterSlots::Linear* CudaAdapterSlots::find(std::string_view matrix) const {
  const Parameter* parameter = model_.find(matrix);
  if (parameter == nullptr) return nullptr;
  const auto found = linears_.find(static_cast<size_t>(parameter - model_.parameters().data()));
  return found == linears_.end() ? nullptr : &found->second;
}

/// Names come from the snapshot's tensors; offsets come from this engine's layout.
Result<CudaAdapterSlots::LoadedAdapter> CudaAdapterSlots::match(const AdapterConfig& config,
                                                                const WeightSnapshot& snapshot) {
  const AdapterTable table(model_, config);
  ASSIGN_OR_RETURN(const TensorMatch named, match_tensors(table.tensors(), snapshot.tensors));
  LoadedAdapter loaded{.rank = config.rank};
  std::vector<int64_t> offsets(table.tensors().parameters().size(), -1);
  for (const AdapterLinear& linear : table.linears()) {
    const auto where_is = [](const auto& one) {
      return std::tuple(one.parameter, one.group, one.column);
    };
    const auto buffer_index = std::ranges::lower_bound(layout_, where_is(linear), {}, where_is);
    if (buffer_index == layout_.end() || where_is(*buffer_index) != where_is(linear))
      return error(Code::kInvalid,
                   "the adapter of {} adds to '{}', which this engine has no space for",
                   snapshot.key, linear.module)
          .note(fmt::format("its adapters add to {}", fmt::join(targets_, ", ")));
    loaded.targets |= buffer_index->target;
    offsets[linear.a] = buffer_index->a * config.rank;
    offsets[linear.b] = buffer_index->b * config.rank;
  }
  slices_.clear();
  slices_.reserve(named.sources.size());
  match_ = {};
  for (const auto& [tensor, slice] : named.sources) {
    if (offsets[slice->parameter] < 0) {
      convert_to_f32(*tensor, 0, 1, &loaded.scaling);
      continue;
    }
    slices_.push_back(*slice);
    slices_.back().offset = offsets[slice->parameter];
    match_.sources.push_back({tensor, &slices_.back()});
  }
  return loaded;
}

Status CudaAdapterSlots::begin(std::optional<int32_t> slot, const AdapterConfig& config,
                               std::shared_ptr<const WeightSnapshot> snapshot) {
  static_cast<void>(wait());
  snapshot_ = nullptr;
  ASSIGN_OR_RETURN(coming_, match(config, *snapshot));
  is_for_spare_ = !slot.has_value();
  coming_.buffer_index = spare_;
  if (slot.has_value()) {
    LoadedAdapter& before = slots_[static_cast<size_t>(*slot)];
    before.rank = 0;
    coming_.buffer_index = before.buffer_index;
  }
  snapshot_ = std::move(snapshot);
  stream_.record(is_free_);
  is_done_.store(false, std::memory_order_release);
  thread_ = std::jthread([this](const std::stop_token& stop) {
    outcome_ = at_boundary("a new adapter", [&]() -> Status {
      const auto deadline = deadline_after(kCudaWaitMax);
      while (!is_free_.query()) {
        if (std::chrono::steady_clock::now() >= deadline)
          return error(Code::kDeadline, "the device has been busy with one step for {} s",
                       kCudaWaitMax.to_seconds());
        std::this_thread::sleep_for(kFreePoll);
      }
      return upload_.run(match_, numbers(coming_.buffer_index), stop);
    });
    is_done_.store(true, std::memory_order_release);
  });
  return ok();
}

bool CudaAdapterSlots::holds(const WeightSnapshot& snapshot) const {
  const auto bytes = [](const WeightTensor& tensor) { return tensor.bytes.bytes().data(); };
  return snapshot_ != nullptr && is_for_spare_ && snapshot_->name() == snapshot.name() &&
         std::ranges::equal(snapshot_->tensors, snapshot.tensors, {}, bytes, bytes);
}

/// The thread always ends: each of its waits has a deadline.
Status CudaAdapterSlots::wait() {
  if (thread_.joinable()) thread_.join();
  return std::exchange(outcome_, ok());
}

Status CudaAdapterSlots::take(int32_t slot) {
  const Status there = wait();
  snapshot_ = nullptr;
  RETURN_IF_ERROR(there);
  LoadedAdapter& loaded = slots_[static_cast<size_t>(slot)];
  if (is_for_spare_) spare_ = loaded.buffer_index;
  loaded = coming_;
  return ok();
}

/// Each adapter has up to one tile that is not full. The same holds for rows without an adapter and
/// for padding rows. Each tile has a row.
int64_t CudaAdapterSlots::num_tiles(int64_t rows) const {
  return std::min(rows, rows / kDecodeTileRows + std::ssize(slots_) + 2);
}

void CudaAdapterSlots::begin_experts(const RowBatch& batch) {
  expert_runs_.clear();
  bool adds_to_experts = false;
  int32_t last = -1;  // slot of the last run
  for (const RowSpan& span : batch.spans) {
    if (span.adapter < 0 || slots_[static_cast<size_t>(span.adapter)].rank == 0) continue;
    const LoadedAdapter& loaded = slots_[static_cast<size_t>(span.adapter)];
    adds_to_experts = adds_to_experts || (loaded.targets & expert_targets_) != 0;
    const cuda::AdapterTile* run = expert_runs_.empty() ? nullptr : &expert_runs_.back();
    if (run == nullptr || last != span.adapter || run->first + run->rows != span.query_begin)
      expert_runs_.push_back(
          {span.query_begin, 0, loaded.buffer_index, loaded.rank, loaded.targets, loaded.scaling});
    expert_runs_.back().rows += span.num_queries;
    last = span.adapter;
  }
  if (!adds_to_experts) expert_runs_.clear();
}

/// Adjacent rows of one adapter share tiles.
void CudaAdapterSlots::begin_step(const RowBatch& batch, int64_t tile_rows) {
  begin_experts(batch);
  tiles_.clear();
  int32_t last = -1;  // slot of the last tile
  for (const RowSpan& span : batch.spans) {
    if (span.adapter < 0 || slots_[static_cast<size_t>(span.adapter)].rank == 0) continue;
    const LoadedAdapter& loaded = slots_[static_cast<size_t>(span.adapter)];
    for (int32_t row = span.query_begin; row < span.query_begin + span.num_queries; ++row) {
      const cuda::AdapterTile* tile = tiles_.empty() ? nullptr : &tiles_.back();
      const bool is_next = tile != nullptr && last == span.adapter && tile->rows < tile_rows &&
                           tile->first + tile->rows == row;
      if (!is_next)
        tiles_.push_back(
            {row, 0, loaded.buffer_index, loaded.rank, loaded.targets, loaded.scaling});
      ++tiles_.back().rows;
      last = span.adapter;
    }
  }
}

std::vector<cuda::AdapterTile> CudaAdapterSlots::tiles_of(const RowBatch& batch,
                                                          std::span<const int32_t> rows) const {
  std::vector<cuda::AdapterTile> tiles;
  int32_t last = -1;  // slot of the last tile
  for (int32_t i = 0; std::cmp_less(i, rows.size()); ++i) {
    const auto after = std::ranges::upper_bound(batch.spans, rows[static_cast<size_t>(i)], {},
                                                &RowSpan::query_begin);
    const int32_t slot = std::prev(after)->adapter;
    const bool has_one = slot >= 0 && slots_[static_cast<size_t>(slot)].rank > 0;
    if (has_one && (slot != last || tiles.back().rows == cuda::kAdapterTileRows)) {
      const LoadedAdapter& loaded = slots_[static_cast<size_t>(slot)];
      tiles.push_back({i, 0, loaded.buffer_index, loaded.rank, loaded.targets, loaded.scaling});
    }
    if (has_one) ++tiles.back().rows;
    last = has_one ? slot : -1;
  }
  return tiles;
}

void CudaAdapterSlots::cover(int64_t rows) {
  std::vector<cuda::AdapterTile> all;
  int64_t next = 0;
  const auto skip_to = [&](int64_t end) {
    for (; next < end; next += all.back().rows)
      all.push_back({static_cast<int32_t>(next),
                     static_cast<int32_t>(std::min(end - next, kDecodeTileRows))});
  };
  for (const cuda::AdapterTile& tile : tiles_) {
    skip_to(tile.first);
    all.push_back(tile);
    next += tile.rows;
  }
  skip_to(rows);
  tiles_ = std::move(all);
}

Status CudaAdapterSlots::add(const Linear& linear, const CudaAdapterRows& rows, const at::Tensor& x,
                             const at::Tensor& y) const {
  Linear args = linear;
  args.num_tiles = rows.num_tiles;
  args.tiles = rows.tiles;
  args.x = x.const_data_ptr();
  args.y = y.mutable_data_ptr();
  // Freed when this returns: the next user of the memory comes later on the stream.
  const at::Tensor workspace = at::empty({cuda::adapters_workspace(args)}, u_.options());
  args.workspace = workspace.mutable_data_ptr<float>();
  return launched(cuda::add_adapters(args, stream_.raw()), "add_adapters");
}

Status CudaAdapterSlots::add_to_logits(const Linear& linear, const CudaAdapterRows& rows,
                                       const at::Tensor& x, const at::Tensor& logits) const {
  Linear of_logits = linear;
  of_logits.has_fp32_y = true;
  return add(of_logits, rows, x, logits);
}

Result<cuda::LoraDelta> CudaAdapterSlots::lora_delta(const Linear& linear,
                                                     const CudaAdapterRows& rows,
                                                     const at::Tensor& x) {
  cuda::LoraDelta made{linear, rows.num_rows, rows.rows};
  made.of.num_tiles = rows.num_tiles;
  made.of.tiles = rows.tiles;
  made.of.x = x.const_data_ptr();
  made.of.workspace = u_.mutable_data_ptr<float>();
  side_.wait_for(x_is_there_);
  RETURN_IF_ERROR(launched(cuda::shrink_adapters(made, side_.raw()), "shrink_adapters"));
  side_.record(u_is_there_);
  stream_.wait_for(u_is_there_);
  return made;
}

}  // namespace primerl
