#include "kernels/torch/cuda/card_adapters.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "graph/base/real_clock.h"
#include "kernels/torch/boundary.h"

namespace primerl {
namespace {

constexpr int64_t kAlignment = 8;                          // elements
constexpr int64_t kRunRows = 128;                          // so many are a product of their own
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
  const AdapterTable table = table_of_rank_one(model);
  for (const AdapterLinear& linear : table.linears())
    if (!is_of_experts(model, linear))
      of_rank += static_cast<double>(linear.inputs + aligned(linear.outputs));
  return (options.adapter_slots + 1.0) * options.max_adapter_rank * of_rank *
             static_cast<double>(element_size) +
         WeightUpload::bytes_needed();
}

CardAdapters::CardAdapters(const TensorTable& model, const EngineOptions& options,
                           at::ScalarType type, const CardStream& stream)
    : model_(model),
      type_(type),
      stream_(stream),
      slots_(static_cast<size_t>(options.adapter_slots)),
      spare_(options.adapter_slots),
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
}

CardAdapters::~CardAdapters() {
  thread_.request_stop();
  static_cast<void>(wait());
}

/// All A of a matrix, then all B. No matrix is made of more linears than q, k and v.
void CardAdapters::lay_out(const AdapterTable& largest) {
  const auto linears = largest.linears();
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
    elements_of_rank_ = b;
    linears_[of_matrix.front().parameter] = made;
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

/// Each adapter has up to one tile that is not full, and each tile a row.
int64_t CardAdapters::num_tiles(int64_t rows) const {
  return std::min(rows, rows / cuda::kAdapterTileRows + std::ssize(slots_));
}

void CardAdapters::begin_step(const RowBatch& batch, bool has_runs) {
  runs_.clear();
  tiles_.clear();
  for (const RowSpan& span : batch.spans) {
    if (span.adapter < 0 || slots_[static_cast<size_t>(span.adapter)].rank == 0) continue;
    AdapterRun* last = runs_.empty() ? nullptr : &runs_.back();
    if (last != nullptr && last->slot == span.adapter &&
        last->first + last->rows == span.query_begin)
      last->rows += span.num_queries;
    else
      runs_.push_back({span.adapter, 0, span.query_begin, span.num_queries});
  }
  const auto is_tiled = [&](const AdapterRun& run) { return !has_runs || run.rows < kRunRows; };
  for (const AdapterRun& run : runs_) {
    const Held& held = slots_[static_cast<size_t>(run.slot)];
    for (int64_t at = 0; is_tiled(run) && at < run.rows; at += cuda::kAdapterTileRows)
      tiles_.push_back({static_cast<int32_t>(run.first + at),
                        static_cast<int32_t>(std::min(run.rows - at, cuda::kAdapterTileRows)),
                        held.place, held.rank, held.targets, held.scaling});
  }
  std::erase_if(runs_, is_tiled);
}

Status CardAdapters::add(const Linear& linear, const CardAdapterRows& rows, const at::Tensor& x,
                         const at::Tensor& y) const {
  for (const AdapterRun& run : rows.runs) multiply(linear, run, x, y);
  if (rows.num_tiles == 0) return ok();
  Linear args = linear;
  args.num_tiles = rows.num_tiles;
  args.tiles = rows.tiles;
  args.x = x.const_data_ptr();
  args.y = y.mutable_data_ptr();
  return launched(cuda::add_adapters(args, stream_.raw()), "add_adapters");
}

/// One product makes u of all parts; what the adapter has no A of is not read.
void CardAdapters::multiply(const Linear& linear, const AdapterRun& run, const at::Tensor& x,
                            const at::Tensor& y) const {
  const Held& held = slots_[static_cast<size_t>(run.slot)];
  const at::Tensor all = numbers(held.place);
  const int64_t rank = held.rank, num_ranks = linear.num_parts * rank;
  const at::Tensor a = all.narrow(0, linear.parts[0].a * rank, num_ranks * linear.terms)
                           .view({num_ranks, linear.terms});
  const at::Tensor u = at::mm(x.narrow(0, run.first, run.rows), a.t());
  for (int64_t i = 0; i < linear.num_parts; ++i) {
    const cuda::AdapterPart& part = linear.parts[i];
    if ((held.targets & part.target) == 0) continue;
    const at::Tensor b =
        all.narrow(0, part.b * rank, part.columns * rank).view({part.columns, rank});
    at::Tensor to = y.narrow(0, run.first, run.rows).narrow(1, part.column, part.columns);
    at::addmm_out(to, to, u.narrow(1, i * rank, rank), b.t(), 1, held.scaling);
  }
}

}  // namespace primerl
