#include "kernels/torch/cuda/card_adapters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "graph/base/real_clock.h"
#include "kernels/torch/boundary.h"

namespace primerl {
namespace {

constexpr int64_t kAlignment = 8;                          // elements
constexpr auto kFreePoll = std::chrono::microseconds(20);  // a step takes 1 ms or more

int64_t aligned(int64_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

/// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string_view leaf_of(std::string_view module) {
  return module.substr(module.rfind('.') + 1);
}

AdapterTable table_of_rank_one(const TensorTable& model) {
  return AdapterTable(model, {.rank = 1, .alpha = 1});
}

bool is_of_experts(const TensorTable& model, const AdapterLinear& linear) {
  return model.parameters()[linear.parameter].kind == ParameterKind::kExperts;
}

}  // namespace

Status CardAdapters::check(const TensorTable& model, const EngineOptions& options) {
  if (options.max_adapter_rank > cuda::kAdapterRowsRankMax)
    return error(Code::kUnavailable, "adapters may have rank {}: engines on {} take ranks up to {}",
                 options.max_adapter_rank, options.device, cuda::kAdapterRowsRankMax)
        .note("train adapters of a smaller 'rank', or place the engine on \"cpu\"");
  const AdapterTable table = table_of_rank_one(model);
  for (const AdapterLinear& linear : table.linears())
    if (linear.inputs % kAlignment != 0)
      return error(Code::kUnavailable,
                   "'{}' reads {} numbers: on {} an adapter's linear reads a multiple of {}",
                   linear.module, linear.inputs, options.device, kAlignment)
          .note("place the engine on \"cpu\"");
  return ok();
}

double CardAdapters::bytes_needed(const TensorTable& model, const EngineOptions& options,
                                  int64_t element_size) {
  double of_rank = 0;
  int64_t columns = 0;
  const AdapterTable table = table_of_rank_one(model);
  for (const AdapterLinear& linear : table.linears())
    if (!is_of_experts(model, linear)) {
      of_rank += static_cast<double>(linear.inputs + aligned(linear.outputs));
      columns = std::max(columns, model.parameters()[linear.parameter].shape.front());
    }
  const double sums = static_cast<double>(options.max_running) * static_cast<double>(columns);
  return (options.adapter_slots + 1.0) * options.max_adapter_rank * of_rank *
             static_cast<double>(element_size) +
         sums * sizeof(float) + WeightUpload::bytes_needed();
}

CardAdapters::CardAdapters(const TensorTable& model, const EngineOptions& options,
                           at::ScalarType type, const CardStream& stream)
    : model_(model),
      type_(type),
      stream_(stream),
      slots_(static_cast<size_t>(options.adapter_slots)),
      spare_(options.adapter_slots),
      side_(stream.device().index(), CardStream::Urgency::kLow),
      upload_(type, stream.device()) {
  lay_out(table_of_rank_one(model));
  places_ = at::zeros({options.adapter_slots + 1, elements_of_rank_ * options.max_adapter_rank},
                      at::TensorOptions(stream.device()).dtype(type));
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].place = static_cast<int32_t>(i);
  for (auto& [parameter, linear] : linears_) {
    linear.rank_max = options.max_adapter_rank;
    linear.slots = places_.const_data_ptr();
    linear.slot_stride = places_.stride(0);
  }
  make_room(options.max_running);
}

/// Of the matrix that needs most.
void CardAdapters::make_room(int64_t rows) {
  int64_t columns = 0, floats = 0;
  for (const auto& [parameter, linear] : linears_) {
    Linear args = linear;
    args.num_tiles = num_tiles(rows);
    columns = std::max(columns, linear.columns);
    floats = std::max(floats, cuda::adapters_workspace(args));
  }
  const auto on_card = at::TensorOptions(stream_.device()).dtype(at::kFloat);
  sums_ = at::empty({rows, columns}, on_card);
  workspace_ = at::empty({floats}, on_card);
}

CardAdapters::~CardAdapters() {
  thread_.request_stop();
  static_cast<void>(wait());
}

/// All A of a matrix, then all B. No matrix is made of more linears than q, k and v.
void CardAdapters::lay_out(const AdapterTable& largest) {
  const auto linears = largest.linears();
  Linear* before = nullptr;  // its pass comes before the one that is laid out
  for (size_t first = 0; first < linears.size();) {
    size_t end = first;
    while (end < linears.size() && linears[end].parameter == linears[first].parameter) ++end;
    const auto of_matrix = linears.subspan(first, end - first);
    first = end;
    if (is_of_experts(model_, of_matrix.front())) continue;
    Linear made;
    made.terms = of_matrix.front().inputs;
    made.columns = model_.parameters()[of_matrix.front().parameter].shape.front();
    made.type = type_ == at::kFloat ? cuda::Type::kFloat32 : cuda::Type::kBfloat16;
    int64_t a = elements_of_rank_, b = a + std::ssize(of_matrix) * made.terms;
    for (const AdapterLinear& linear : of_matrix) {
      const auto leaf = leaf_of(linear.module);
      auto known = std::ranges::find(targets_, leaf);
      if (known == targets_.end()) known = targets_.emplace(known, leaf);
      const uint32_t target = 1U << static_cast<uint32_t>(known - targets_.begin());
      layout_.push_back({linear.parameter, linear.column, target, a, b});
      made.parts[made.num_parts++] = {linear.column, linear.outputs, a, b, target};
      a += linear.inputs;
      b += aligned(linear.outputs);
    }
    linears_[of_matrix.front().parameter] = made;
    if (before != nullptr) before->next_size = b - elements_of_rank_;
    before = &linears_[of_matrix.front().parameter];
    before->next = elements_of_rank_ = b;
  }
}

const CardAdapters::Linear* CardAdapters::find(std::string_view matrix) const {
  const Parameter* parameter = model_.find(matrix);
  if (parameter == nullptr) return nullptr;
  const auto found = linears_.find(static_cast<size_t>(parameter - model_.parameters().data()));
  return found == linears_.end() ? nullptr : &found->second;
}

/// The tensors' own table names them; they go where this engine's layout says.
Result<CardAdapters::Held> CardAdapters::match(const AdapterConfig& config,
                                               const WeightSnapshot& snapshot) {
  const AdapterTable table(model_, config);
  ASSIGN_OR_RETURN(const TensorMatch named, match_tensors(table.tensors(), snapshot.tensors));
  Held held{.rank = config.rank};
  std::vector<int64_t> offsets(table.tensors().parameters().size(), -1);
  for (const AdapterLinear& linear : table.linears()) {
    const auto place = std::ranges::find_if(layout_, [&](const Place& one) {
      return one.parameter == linear.parameter && one.column == linear.column;
    });
    if (place == layout_.end())
      return error(Code::kUnavailable, "the adapter of {} adds to '{}', an expert's linear",
                   snapshot.key, linear.module)
          .note("engines on a CUDA device add to the others only; place this one on \"cpu\"");
    held.targets |= place->target;
    offsets[linear.a] = place->a * config.rank;
    offsets[linear.b] = place->b * config.rank;
  }
  slices_.clear();
  slices_.reserve(named.sources.size());
  match_ = {};
  for (const auto& [tensor, slice] : named.sources) {
    if (offsets[slice->parameter] < 0) {
      convert_to_f32(*tensor, 0, 1, &held.scaling);
      continue;
    }
    slices_.push_back(*slice);
    slices_.back().offset = offsets[slice->parameter];
    match_.sources.push_back({tensor, &slices_.back()});
  }
  return held;
}

Status CardAdapters::begin(std::optional<int32_t> slot, const AdapterConfig& config,
                           std::shared_ptr<const WeightSnapshot> snapshot) {
  static_cast<void>(wait());
  snapshot_ = nullptr;
  ASSIGN_OR_RETURN(coming_, match(config, *snapshot));
  is_for_spare_ = !slot.has_value();
  coming_.place = spare_;
  if (slot.has_value()) {
    Held& before = slots_[static_cast<size_t>(*slot)];
    before.rank = 0;
    coming_.place = before.place;
  }
  snapshot_ = std::move(snapshot);
  stream_.record(is_free_);
  is_done_.store(false, std::memory_order_release);
  thread_ = std::jthread([this](const std::stop_token& stop) {
    outcome_ = at_boundary("a new adapter", [&]() -> Status {
      const auto deadline = deadline_after(kCardWaitMax);
      while (!is_free_.query()) {
        if (std::chrono::steady_clock::now() >= deadline)
          return error(Code::kDeadline, "the device has been busy with one step for {} s",
                       kCardWaitMax.to_seconds());
        std::this_thread::sleep_for(kFreePoll);
      }
      return upload_.run(match_, numbers(coming_.place), stop);
    });
    is_done_.store(true, std::memory_order_release);
  });
  return ok();
}

bool CardAdapters::holds(const WeightSnapshot& snapshot) const {
  const auto bytes = [](const WeightTensor& tensor) { return tensor.bytes.bytes().data(); };
  return snapshot_ != nullptr && is_for_spare_ && snapshot_->name() == snapshot.name() &&
         std::ranges::equal(snapshot_->tensors, snapshot.tensors, {}, bytes, bytes);
}

/// The thread ends by itself: each of its waits has a deadline.
Status CardAdapters::wait() {
  if (thread_.joinable()) thread_.join();
  return std::exchange(outcome_, ok());
}

Status CardAdapters::take(int32_t slot) {
  const Status there = wait();
  snapshot_ = nullptr;
  RETURN_IF_ERROR(there);
  Held& held = slots_[static_cast<size_t>(slot)];
  if (is_for_spare_) spare_ = held.place;
  held = coming_;
  return ok();
}

/// Each adapter has up to one tile that is not full, so have rows without one and those that pad,
/// and each tile has a row.
int64_t CardAdapters::num_tiles(int64_t rows) const {
  return std::min(rows, rows / kDecodeTileRows + std::ssize(slots_) + 2);
}

/// Rows of one adapter that follow each other share tiles.
void CardAdapters::begin_step(const RowBatch& batch, int64_t tile_rows) {
  tiles_.clear();
  int32_t last = -1;  // whose the last tile is
  for (const RowSpan& span : batch.spans) {
    if (span.adapter < 0 || slots_[static_cast<size_t>(span.adapter)].rank == 0) continue;
    const Held& held = slots_[static_cast<size_t>(span.adapter)];
    for (int32_t row = span.query_begin; row < span.query_begin + span.num_queries; ++row) {
      const cuda::AdapterTile* tile = tiles_.empty() ? nullptr : &tiles_.back();
      const bool is_next = tile != nullptr && last == span.adapter && tile->rows < tile_rows &&
                           tile->first + tile->rows == row;
      if (!is_next) tiles_.push_back({row, 0, held.place, held.rank, held.targets, held.scaling});
      ++tiles_.back().rows;
      last = span.adapter;
    }
  }
}

void CardAdapters::cover(int64_t rows) {
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

Status CardAdapters::add(const Linear& linear, const CardAdapterRows& rows, const at::Tensor& x,
                         const at::Tensor& y) const {
  Linear args = linear;
  args.num_tiles = rows.num_tiles;
  args.tiles = rows.tiles;
  args.x = x.const_data_ptr();
  args.y = y.mutable_data_ptr();
  // Freed once this returns: what gets the memory next comes later on the stream.
  const at::Tensor workspace = at::empty({cuda::adapters_workspace(args)}, workspace_.options());
  args.workspace = workspace.mutable_data_ptr<float>();
  return launched(cuda::add_adapters(args, stream_.raw()), "add_adapters");
}

Result<const float*> CardAdapters::sums(const Linear& linear, const CardAdapterRows& rows,
                                        const at::Tensor& x) {
  Linear args = linear;
  args.num_tiles = rows.num_tiles;
  args.tiles = rows.tiles;
  args.tile_rows = kDecodeTileRows;
  args.x = x.const_data_ptr();
  args.sums = sums_.mutable_data_ptr<float>();
  args.workspace = workspace_.mutable_data_ptr<float>();
  side_.wait_for(x_is_there_);
  RETURN_IF_ERROR(launched(cuda::add_adapters(args, side_.raw()), "add_adapters"));
  side_.record(sums_are_there_);
  stream_.wait_for(sums_are_there_);
  return args.sums;
}

}  // namespace primerl
