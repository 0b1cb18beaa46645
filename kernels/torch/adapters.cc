#include "kernels/torch/adapters.h"

#include <algorithm>
#include <utility>

namespace primerl {

AdapterWeights::AdapterWeights(AdapterTable table, DecoderWeights::Use use)
    : table_(std::move(table)), weights_(table_.tensors(), Numerics::kInvariant, use) {
  for (const auto& linear : table_.linears()) {
    ranges_.resize(std::max(ranges_.size(), linear.parameter + 1));
    Range& range = ranges_[linear.parameter];
    if (range.per_group == 0) range.first = parts_.size();
    if (linear.group == 0) ++range.per_group;
    parts_.push_back(
        {linear.column, weights_.matrix(linear.a), weights_.matrix(linear.b), nullptr, nullptr});
  }
}

std::span<const AdapterWeights::Part> AdapterWeights::parts(size_t parameter, int64_t group) const {
  if (parameter >= ranges_.size()) return {};
  const Range range = ranges_[parameter];
  return std::span(parts_).subspan(range.first + static_cast<size_t>(group) * range.per_group,
                                   range.per_group);
}

void AdapterWeights::bind_gradients(float* flat) {
  const auto parameters = table_.tensors().parameters();
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].da = flat + parameters[table_.linears()[i].a].offset;
    parts_[i].db = flat + parameters[table_.linears()[i].b].offset;
  }
}

void AdapterProducts::set(int32_t slot, const AdapterWeights* adapter) {
  const auto index = static_cast<size_t>(slot);
  if (index >= slots_.size()) slots_.resize(index + 1, nullptr);
  slots_[index] = adapter;
}

void AdapterProducts::begin(const RowBatch& batch) {
  runs_.clear();
  for (const auto& span : batch.spans) {
    const int32_t slot = span.adapter;
    if (slot < 0 || static_cast<size_t>(slot) >= slots_.size()) continue;
    if (slots_[static_cast<size_t>(slot)] == nullptr) continue;
    if (!runs_.empty() && runs_.back().slot == slot &&
        runs_.back().first + runs_.back().rows == span.query_begin)
      runs_.back().rows += span.num_queries;
    else
      runs_.push_back({slot, 0, span.query_begin, span.num_queries});
  }
  if (runs_.empty()) return;
  kinds_.assign(static_cast<size_t>(batch.num_rows()), 0);
  for (const auto& run : runs_) std::fill_n(kinds_.begin() + run.first, run.rows, run.slot + 1);
}

void AdapterProducts::list_jobs(const Matrix& weight, std::span<const AdapterRun> runs,
                                bool is_backward) {
  jobs_.clear();
  int64_t count = 0;
  for (const auto& run : runs) {
    const AdapterWeights& adapter = *slots_[static_cast<size_t>(run.slot)];
    size_t index = 0;
    for (const auto& part : adapter.parts(weight.parameter, run.group)) {
      jobs_.push_back({run, &part, adapter.scaling(), index++, nullptr, nullptr});
      count += run.rows * part.a.columns;
    }
  }
  const auto wanted = static_cast<size_t>(is_backward ? 2 * count : count);
  if (room_.size() < wanted) room_.resize(wanted);
  float* next = room_.data();
  for (auto& job : jobs_) {
    job.u = next;
    job.du = is_backward ? next + count : nullptr;
    next += job.run.rows * job.part->a.columns;
  }
}

void AdapterProducts::scale(bool is_backward) {
  for (const auto& job : jobs_)
    for (int64_t i = 0; i < job.run.rows * job.part->a.columns; ++i) {
      job.u[i] *= job.scaling;
      if (is_backward) job.du[i] *= job.scaling;
    }
}

void AdapterProducts::forward(const Matrix& weight, std::span<const AdapterRun> runs,
                              const float* x, float* y) {
  list_jobs(weight, runs, false);
  if (jobs_.empty()) return;
  tasks_.clear();
  for (const auto& [run, part, scaling, index, u, du] : jobs_)
    tasks_.push_back(forward_args(run.rows, x + run.first * weight.terms, part->a, 0, u));
  products_.run(tasks_);
  scale(false);
  tasks_.clear();
  for (const auto& [run, part, scaling, index, u, du] : jobs_) {
    float* to = y + run.first * weight.columns + part->column;
    LinearRowsArgs& args = tasks_.emplace_back(forward_args(run.rows, u, part->b, 0, to));
    args.y_stride = args.residual_stride = weight.columns;
    args.residual = to;
  }
  products_.run(tasks_);
}

void AdapterProducts::backward(const Matrix& weight, std::span<const AdapterRun> runs,
                               const float* x, const float* dy, float* dx) {
  list_jobs(weight, runs, true);
  if (jobs_.empty()) return;
  // u = scaling * x A' once more, and du = scaling * dy B.
  tasks_.clear();
  size_t parts_max = 0;
  for (const auto& [run, part, scaling, index, u, du] : jobs_) {
    const float* from = dy + run.first * weight.columns + part->column;
    tasks_.push_back(forward_args(run.rows, x + run.first * weight.terms, part->a, 0, u));
    tasks_.push_back(input_args(run.rows, from, part->b, 0, du));
    tasks_.back().x_stride = weight.columns;
    parts_max = std::max(parts_max, index + 1);
  }
  products_.run(tasks_);
  scale(true);
  // dA += du' x, dB += dy' u.
  tasks_.clear();
  for (const auto& [run, part, scaling, index, u, du] : jobs_) {
    const float* from = dy + run.first * weight.columns + part->column;
    tasks_.push_back(weight_args(run.rows, du, x + run.first * weight.terms, part->a, part->da));
    tasks_.push_back(weight_args(run.rows, from, u, part->b, part->db));
    tasks_.back().x_term_stride = weight.columns;
  }
  products_.run(tasks_);
  // dx += du A: the parts of a run add to the same rows, one after the other.
  for (size_t i = 0; i < parts_max; ++i) {
    tasks_.clear();
    for (const auto& [run, part, scaling, index, u, du] : jobs_) {
      if (index != i) continue;
      float* to = dx + run.first * weight.terms;
      LinearRowsArgs& args = tasks_.emplace_back(input_args(run.rows, du, part->a, 0, to));
      args.residual = to;
      args.residual_stride = weight.terms;
    }
    products_.run(tasks_);
  }
}

}  // namespace primerl
