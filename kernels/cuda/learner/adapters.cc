#include "kernels/cuda/learner/adapters.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "graph/base/random.h"
#include "kernels/cuda/learner/optimizer_device.h"

namespace primerl {
namespace {

constexpr size_t kRunsOneByOneMax = 4;    // beyond this, launches cost more than redundant
                                          // additions
constexpr int64_t kWidthUnit = 8;         // _grouped_mm reads 16 bytes at a time
constexpr int64_t kExpertWidthUnit = 16;  // K size of add_low_rank_gemms()

std::vector<AdapterConfig> configs_of(std::span<const AdapterTraining> adapters) {
  std::vector<AdapterConfig> configs;
  for (const auto& training : adapters) configs.push_back(training.adapter);
  return configs;
}

bool are_experts(const TensorTable& model, size_t parameter) {
  return model.parameters()[parameter].kind == ParameterKind::kExperts;
}

bool has_experts(const TensorTable& model, const PaddedAdapters& padded) {
  for (size_t i = 0; i < model.parameters().size(); ++i)
    if (are_experts(model, i) && padded.matrix(i) != nullptr) return true;
  return false;
}

/// Input and output widths of the linears of a model, except those specific to attention.
std::vector<int64_t> widths_of(const ModelConfig& config) {
  std::vector<int64_t> widths = {config.hidden_size, config.mlp.width};
  if (!config.moe.has_value()) return widths;
  widths.insert(widths.end(), {config.moe->width, config.moe->shared_width});
  return widths;
}

}  // namespace

LearnerAdapters::LearnerAdapters(const TensorTable& model,
                                 std::span<const AdapterTraining> adapters, at::ScalarType type,
                                 const CudaStream& stream)
    : type_(type),
      stream_(stream),
      padded_(model, configs_of(adapters)),
      rank_(padded_.rank()),
      has_experts_(has_experts(model, padded_)),
      weights_(at::zeros({std::ssize(adapters), padded_.tensors().count()},
                         at::TensorOptions(stream.device()).dtype(type))),
      gradients_(at::zeros(weights_.sizes(), weights_.options().dtype(at::kFloat))) {
  adapters_.resize(adapters.size());
  for (size_t slot = 0; slot < adapters.size(); ++slot)
    if (!adapters[slot].is_free) begin(slot, model, adapters[slot]);
}

void LearnerAdapters::begin(size_t slot, const TensorTable& model,
                            const AdapterTraining& training) {
  const AdapterConfig& config = training.adapter;
  auto one = std::make_unique<Adapter>(AdapterTable(model, config), nullptr,
                                       static_cast<float>(scaling_of(config)));
  const auto at = static_cast<int64_t>(slot);
  one->trained = std::make_unique<CudaTrainedWeights>(padded_, one->table, weights_.select(0, at),
                                                      gradients_.select(0, at),
                                                      training.rules.optimizer, stream_);
  adapters_[slot] = std::move(one);
}

void LearnerAdapters::end(size_t slot) {
  adapters_[slot].reset();
  weights_.select(0, static_cast<int64_t>(slot)).zero_();
}

Status LearnerAdapters::can_train(const ModelConfig& config) {
  const int64_t unit = config.moe.has_value() ? kExpertWidthUnit : kWidthUnit;
  for (const int64_t width : widths_of(config))
    if (width % unit != 0)
      return error(Code::kUnavailable,
                   "adapters of a model with a width of {} cannot be trained on a CUDA device: "
                   "widths must be multiples of {}",
                   width, unit)
          .note("place the learner on \"cpu\"");
  return ok();
}

double LearnerAdapters::bytes_needed(const TensorTable& model,
                                     std::span<const AdapterTraining> adapters,
                                     at::ScalarType type) {
  const PaddedAdapters padded(model, configs_of(adapters));
  double bytes = static_cast<double>(adapters.size()) *
                 static_cast<double>(padded.tensors().count()) *
                 CudaTrainedWeights::bytes_of_parameter(type);
  for (const AdapterTraining& training : adapters)
    bytes += CudaOptimizerDevice::bytes_needed(training.rules.optimizer, padded.tensors());
  return bytes;
}

/// Bytes of u for all matrices. For the widest one also: its gradients, their sum, and x after
/// dropout. For experts nothing is kept. The weights of the slots are copied side by side for their
/// GEMMs, and so are gradients before they are added.
double LearnerAdapters::bytes_of_rows(const TensorTable& model,
                                      std::span<const AdapterTraining> adapters,
                                      at::ScalarType type, int64_t rows,
                                      int32_t experts_per_token) {
  const PaddedAdapters padded(model, configs_of(adapters));
  const bool has_dropout = std::ranges::any_of(
      adapters, [](const AdapterTraining& one) { return one.adapter.dropout > 0; });
  int64_t width = 0, kept = 0, of_experts = 0;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Matrix* matrix = padded.matrix(i);
    if (matrix == nullptr) continue;
    const int64_t ranks = std::ssize(matrix->parts) * padded.rank();
    const int64_t dropped = has_dropout ? 2 * matrix->inputs : 0;
    if (!are_experts(model, i)) {
      width = std::max(width, 3 * ranks + dropped + matrix->inputs);
      kept += ranks;
      continue;
    }
    width = std::max(width, experts_per_token * (3 * ranks + dropped + matrix->inputs));
    int64_t numbers = matrix->a_stride;
    for (const Part& part : matrix->parts) numbers += part.outputs * padded.rank();
    of_experts = std::max(of_experts, 2 * std::ssize(adapters) * matrix->groups * numbers);
  }
  return static_cast<double>(rows * (kept + width) + of_experts) *
         static_cast<double>(at::elementSize(type));
}

Status LearnerAdapters::begin(const RowBatch& batch) {
  release();
  runs_.clear();
  for (const RowSpan& span : batch.spans) {
    if (runs_.empty() || runs_.back().slot != span.adapter) {
      const int64_t last = runs_.empty() ? kNoAdapter : runs_.back().slot;
      if (span.adapter <= last || span.adapter >= std::ssize(adapters_))
        return error(Code::kInternal, "rows of adapter {} follow those of {}, of {} adapters",
                     span.adapter, last, adapters_.size());
      runs_.push_back({span.adapter, span.query_begin, 0});
    }
    runs_.back().rows += span.num_queries;
  }
  name_rows(batch);
  is_together_ = type_ != at::kFloat && runs_.size() > kRunsOneByOneMax;
  if (is_together_) begin_together();
  if (has_experts_) begin_experts();
  return ok();
}

void LearnerAdapters::begin_together() {
  slot_ranges_.clear();
  std::vector<int32_t> ends, run_ends, scalings;
  std::vector<cuda::AdapterTile> tiles;
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Run& run = runs_[i];
    const bool follows = i > 0 && runs_[i - 1].slot + 1 == run.slot;
    if (!follows) slot_ranges_.push_back({static_cast<int64_t>(i), run.slot, 0});
    ++slot_ranges_.back().count;
    // Slots between two runs have no rows.
    ends.resize(static_cast<size_t>(run.slot - runs_.front().slot), ends.empty() ? 0 : ends.back());
    ends.push_back(static_cast<int32_t>(run.first + run.rows));
    run_ends.push_back(ends.back());
    for (int64_t first = 0; first < run.rows; first += cuda::kLowRankTileRows)
      tiles.push_back(
          {.first = static_cast<int32_t>(run.first + first),
           .rows = static_cast<int32_t>(std::min(cuda::kLowRankTileRows, run.rows - first)),
           .slot = static_cast<int32_t>(run.slot)});
    const float scaling = adapters_[static_cast<size_t>(run.slot)]->scaling;
    scalings.insert(scalings.end(), static_cast<size_t>(run.rows), std::bit_cast<int32_t>(scaling));
  }
  ends_ = stream_.ints(ends);
  run_ends_ = stream_.ints(run_ends);
  tiles_ = stream_.values(std::span<const cuda::AdapterTile>(tiles));
  scalings_ = stream_.ints(scalings).view(at::kFloat).unsqueeze(1);
}

void LearnerAdapters::name_rows(const RowBatch& batch) {
  dropped_.reset();
  const auto dropout_of_run = [&](const Run& run) -> const AdapterDropout& {
    return adapters_[static_cast<size_t>(run.slot)]->dropout;
  };
  if (std::ranges::none_of(runs_, [&](const Run& run) { return dropout_of_run(run).is_there(); }))
    return;
  std::vector<cuda::DropRow> rows;
  for (const Run& run : runs_) {
    const AdapterDropout& dropout = dropout_of_run(run);
    for (int64_t i = run.first; i < run.first + run.rows; ++i)
      rows.push_back({mix(dropout.key, batch.draws[static_cast<size_t>(i)]),
                      dropout_scale(dropout.rate), dropout_threshold(dropout.rate)});
  }
  dropped_ = stream_.values(std::span<const cuda::DropRow>(rows));
}

std::vector<LearnerAdapters::Matrix> LearnerAdapters::apart(const Matrix& matrix) const {
  if (!dropped_.defined()) return {matrix};
  std::vector<Matrix> parts;
  for (const Part& part : matrix.parts) {
    const int64_t a = matrix.a + std::ssize(parts) * rank_ * matrix.inputs;
    parts.push_back({matrix.parameter, matrix.groups, matrix.inputs, a, matrix.a_stride, {part}});
  }
  return parts;
}

at::Tensor LearnerAdapters::left_of(const Matrix& matrix, const at::Tensor& dropped, int64_t first,
                                    const at::Tensor& x) const {
  if (!dropped.defined()) return x;
  const at::Tensor left = at::empty(x.sizes(), x.options());
  drop_rows(matrix, dropped, first, x, left, false);
  return left;
}

void LearnerAdapters::drop_rows(const Matrix& matrix, const at::Tensor& dropped, int64_t first,
                                const at::Tensor& x, const at::Tensor& y, bool adds) const {
  const auto* rows = static_cast<const cuda::DropRow*>(dropped.const_data_ptr());
  const cuda::Outcome outcome =
      cuda::drop_rows({.rows = x.size(0),
                       .width = x.size(1),
                       .type = op_type(type_),
                       .module = stable_hash(matrix.parts.front().modules.front()),
                       .dropped = rows + first,
                       .x = x.const_data_ptr(),
                       .y = y.mutable_data_ptr(),
                       .adds = adds},
                      stream_.raw());
  TORCH_CHECK(outcome.is_ok(), "dropout of adapters: ", outcome.fault);
}

at::Tensor LearnerAdapters::of_slots(const at::Tensor& flat, int64_t offset, int64_t rows,
                                     int64_t width) const {
  return flat.narrow(1, offset, rows * width).unflatten(1, {rows, width});
}

at::Tensor LearnerAdapters::of_pass(int64_t offset, int64_t rows, int64_t width) const {
  const int64_t first = runs_.front().slot;
  return of_slots(weights_, offset, rows, width).narrow(0, first, runs_.back().slot - first + 1);
}

void LearnerAdapters::forward(const Matrix& matrix, const at::Tensor& x, const at::Tensor& y) {
  for (const Matrix& part : apart(matrix)) {
    if (is_together_) forward_together(part, x, y);
    for (const Run& run : one_by_one())
      forward_one(run, part, dropped_, x.narrow(0, run.first, run.rows),
                  y.narrow(0, run.first, run.rows));
  }
}

/// The runs that are computed one by one.
std::span<const LearnerAdapters::Run> LearnerAdapters::one_by_one() const {
  return is_together_ ? std::span<const Run>() : runs_;
}

void LearnerAdapters::backward(const Matrix& matrix, const at::Tensor& x, const at::Tensor& dy,
                               const at::Tensor& dx) {
  for (const Matrix& part : apart(matrix)) {
    if (is_together_) backward_together(part, x, dy, dx);
    for (const Run& run : one_by_one())
      backward_one(run, part, dropped_, x.narrow(0, run.first, run.rows),
                   dy.narrow(0, run.first, run.rows), dx.narrow(0, run.first, run.rows));
  }
}

int64_t LearnerAdapters::slot_of(int32_t row) const {
  const auto after = std::ranges::upper_bound(runs_, int64_t{row}, {}, &Run::first);
  return std::prev(after)->slot;
}

LearnerAdapters::PickedRows LearnerAdapters::pick(std::span<const int32_t> rows) const {
  PickedRows picked;
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    const int64_t slot = slot_of(rows[static_cast<size_t>(i)]);
    if (picked.runs.empty() || picked.runs.back().slot != slot) picked.runs.push_back({slot, i, 0});
    ++picked.runs.back().rows;
  }
  if (!dropped_.defined()) return picked;
  const std::vector<int64_t> sources(rows.begin(), rows.end());
  const at::Tensor indices = stream_.values(std::span(sources)).view(at::kLong);
  picked.dropped =
      dropped_.view({-1, int64_t{sizeof(cuda::DropRow)}}).index_select(0, indices.view({-1}));
  return picked;
}

void LearnerAdapters::forward(const Matrix& matrix, const PickedRows& picked, const at::Tensor& x,
                              const at::Tensor& y) const {
  for (const Run& run : picked.runs)
    forward_one(run, matrix, picked.dropped, x.narrow(0, run.first, run.rows),
                y.narrow(0, run.first, run.rows));
}

void LearnerAdapters::backward(const Matrix& matrix, const PickedRows& picked, const at::Tensor& x,
                               const at::Tensor& dy, const at::Tensor& dx) const {
  for (const Run& run : picked.runs)
    backward_one(run, matrix, picked.dropped, x.narrow(0, run.first, run.rows),
                 dy.narrow(0, run.first, run.rows), dx.narrow(0, run.first, run.rows));
}

void LearnerAdapters::forward_one(const Run& run, const Matrix& matrix, const at::Tensor& dropped,
                                  const at::Tensor& x, const at::Tensor& y) const {
  const double scaling = adapters_[static_cast<size_t>(run.slot)]->scaling;
  const at::Tensor a =
      of_slots(weights_, matrix.a, width_of(matrix), matrix.inputs).select(0, run.slot);
  const at::Tensor u = at::mm(left_of(matrix, dropped, run.first, x), a.t());
  int64_t at = 0;
  for (const auto& part : matrix.parts) {
    const at::Tensor b = of_slots(weights_, part.b, part.outputs, rank_).select(0, run.slot);
    at::Tensor to = y.narrow(1, part.column, part.outputs);
    if (y.scalar_type() == at::kFloat)
      add_gemm(to, u.narrow(1, at, rank_), b.t(), scaling);
    else
      at::addmm_out(to, to, u.narrow(1, at, rank_), b.t(), 1, scaling);
    at += rank_;
  }
}

void LearnerAdapters::backward_one(const Run& run, const Matrix& matrix, const at::Tensor& dropped,
                                   const at::Tensor& x, const at::Tensor& dy,
                                   const at::Tensor& dx) const {
  const double scaling = adapters_[static_cast<size_t>(run.slot)]->scaling;
  const auto mine = [&](const at::Tensor& flat, int64_t offset, int64_t rows, int64_t width) {
    return of_slots(flat, offset, rows, width).select(0, run.slot);
  };
  const int64_t width = width_of(matrix);
  const at::Tensor a = mine(weights_, matrix.a, width, matrix.inputs);
  const at::Tensor left = left_of(matrix, dropped, run.first, x);
  const at::Tensor u = at::mm(left, a.t());
  const at::Tensor du = at::empty(u.sizes(), u.options());
  int64_t at = 0;
  for (const auto& part : matrix.parts) {
    const at::Tensor grad = dy.narrow(1, part.column, part.outputs);
    at::Tensor to = du.narrow(1, at, rank_);
    at::mm_out(to, grad, mine(weights_, part.b, part.outputs, rank_));
    add_gemm(mine(gradients_, part.b, part.outputs, rank_), grad.t(), u.narrow(1, at, rank_),
             scaling);
    at += rank_;
  }
  add_gemm(mine(gradients_, matrix.a, width, matrix.inputs), du.t(), left, scaling);
  at::Tensor to = dx;
  if (!dropped.defined())
    at::addmm_out(to, to, du, a, 1, scaling);
  else
    drop_rows(matrix, dropped, run.first, at::mm(du, a).mul_(scaling), dx, true);
}

void LearnerAdapters::add_gemm(const at::Tensor& gradient, const at::Tensor& a, const at::Tensor& b,
                               double scaling) const {
  at::Tensor to = gradient;
  if (type_ == at::kFloat)
    at::addmm_out(to, to, a, b, 1, scaling);
  else
    at::addmm_out(to, to, a, b, at::kFloat, 1, scaling);
}

void LearnerAdapters::forward_together(const Matrix& matrix, const at::Tensor& x,
                                       const at::Tensor& y) {
  const at::Tensor a = of_pass(matrix.a, width_of(matrix), matrix.inputs);
  const at::Tensor u =
      at::_grouped_mm(left_of(matrix, dropped_, 0, x), a.transpose(1, 2), ends_).mul_(scalings_);
  between_[matrix.a] = u;
  int64_t at = 0;
  for (const auto& part : matrix.parts) {
    add_low_rank(tiles_, block_of(part), false, u.narrow(1, at, rank_),
                 y.narrow(1, part.column, part.outputs));
    at += rank_;
  }
}

/// Errors are thrown, as libtorch does for the GEMMs around it.
void LearnerAdapters::add_low_rank(const at::Tensor& tiles, const Block& block, bool is_transposed,
                                   const at::Tensor& x, const at::Tensor& y) const {
  const auto* weights = static_cast<const c10::BFloat16*>(weights_.const_data_ptr());
  const auto* all = static_cast<const cuda::AdapterTile*>(tiles.const_data_ptr());
  const cuda::Outcome outcome = cuda::add_low_rank_gemms(
      {.terms = x.size(1),
       .columns = y.size(1),
       .num_tiles = tiles.numel() / static_cast<int64_t>(sizeof(cuda::AdapterTile)),
       .tiles = all,
       .x = x.const_data_ptr(),
       .x_stride = x.stride(0),
       .weights = weights + block.offset,
       .slot_stride = weights_.stride(0),
       .group_stride = block.stride,
       .is_transposed = is_transposed,
       .y = y.mutable_data_ptr(),
       .y_stride = y.stride(0)},
      stream_.raw());
  TORCH_CHECK(outcome.is_ok(), "what adapters add: ", outcome.fault);
}

void LearnerAdapters::backward_together(const Matrix& matrix, const at::Tensor& x,
                                        const at::Tensor& dy, const at::Tensor& dx) {
  const int64_t width = width_of(matrix);
  const at::Tensor a = of_pass(matrix.a, width, matrix.inputs);
  const at::Tensor left = left_of(matrix, dropped_, 0, x);
  const at::Tensor u = std::exchange(between_[matrix.a], at::Tensor());
  // One GEMM for all parts; the blocks that combine one part's gradients with another's u are not
  // used.
  const int64_t first = matrix.parts.front().column;
  const int64_t end = matrix.parts.back().column + matrix.parts.back().outputs;
  const at::Tensor made = at::_grouped_mm(dy.narrow(1, first, end - first).t(), u, run_ends_);
  std::vector<at::Tensor> grads;  // each [rows, rank]
  for (const auto& part : matrix.parts) {
    add_gradients(part.b, part.outputs, rank_,
                  made.narrow(1, part.column - first, part.outputs)
                      .narrow(2, std::ssize(grads) * rank_, rank_));
    grads.push_back(at::_grouped_mm(dy.narrow(1, part.column, part.outputs),
                                    of_pass(part.b, part.outputs, rank_), ends_));
  }
  const at::Tensor du = (grads.size() == 1 ? grads.front() : at::cat(grads, 1)).mul_(scalings_);
  add_gradients(matrix.a, width, matrix.inputs, at::_grouped_mm(du.t(), left, run_ends_));
  if (!dropped_.defined()) return add_low_rank(tiles_, block_of(matrix), true, du, dx);
  const at::Tensor added = at::zeros(dx.sizes(), dx.options());
  add_low_rank(tiles_, block_of(matrix), true, du, added);
  drop_rows(matrix, dropped_, 0, added, dx, true);
}

void LearnerAdapters::add_gradients(int64_t offset, int64_t rows, int64_t width,
                                    const at::Tensor& made) const {
  const at::Tensor all = of_slots(gradients_, offset, rows, width);
  for (const SlotRange& some : slot_ranges_)
    all.narrow(0, some.first_slot, some.count).add_(made.narrow(0, some.first_run, some.count));
}

}  // namespace primerl
