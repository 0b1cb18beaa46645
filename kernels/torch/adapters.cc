#include "kernels/torch/adapters.h"

#include <algorithm>
#include <utility>

#include "graph/base/random.h"
#include "kernels/torch/parallel.h"

namespace primerl {
namespace {

constexpr int64_t kWorkOfDraw = 16;  // of leaving a number out or not, in multiply-adds

}  // namespace

AdapterWeights::AdapterWeights(AdapterTable table, DecoderWeights::Use use)
    : table_(std::move(table)), weights_(table_.tensors(), Numerics::kInvariant, use) {
  for (const auto& linear : table_.linears()) {
    ranges_.resize(std::max(ranges_.size(), linear.parameter + 1));
    Range& range = ranges_[linear.parameter];
    if (range.per_group == 0) range.first = parts_.size();
    if (linear.group == 0) ++range.per_group;
    parts_.push_back({linear.column, weights_.matrix(linear.a), weights_.matrix(linear.b), nullptr,
                      nullptr, stable_hash(linear.module)});
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

void AdapterProducts::set(int32_t slot, const AdapterWeights* adapter, AdapterDropout dropout) {
  const auto index = static_cast<size_t>(slot);
  if (index >= slots_.size()) slots_.resize(index + 1);
  slots_[index] = {adapter, dropout};
}

void AdapterProducts::begin(const RowBatch& batch) {
  runs_.clear();
  draws_.clear();
  bool has_dropout = false;
  for (const auto& span : batch.spans) {
    const int32_t slot = span.adapter;
    if (slot < 0 || static_cast<size_t>(slot) >= slots_.size()) continue;
    const Slot& held = slots_[static_cast<size_t>(slot)];
    if (held.adapter == nullptr) continue;
    has_dropout = has_dropout || held.dropout.is_there();
    if (!runs_.empty() && runs_.back().slot == slot &&
        runs_.back().first + runs_.back().rows == span.query_begin)
      runs_.back().rows += span.num_queries;
    else
      runs_.push_back({slot, 0, span.query_begin, span.num_queries});
  }
  if (runs_.empty()) return;
  if (has_dropout) {
    CHECK(batch.draws.size() == batch.tokens.size(), "rows with dropout have no names");
    draws_ = batch.draws;
  }
  kinds_.assign(static_cast<size_t>(batch.num_rows()), 0);
  for (const auto& run : runs_) std::fill_n(kinds_.begin() + run.first, run.rows, run.slot + 1);
}

void AdapterProducts::list_jobs(const Matrix& weight, std::span<const AdapterRun> runs,
                                const float* x, const int32_t* sources, bool is_backward) {
  jobs_.clear();
  int64_t count = 0;
  bool has_dropout = false;
  for (const auto& run : runs) {
    const Slot& slot = slots_[static_cast<size_t>(run.slot)];
    size_t index = 0;
    for (const auto& part : slot.adapter->parts(weight.parameter, run.group)) {
      Job& job = jobs_.emplace_back();
      job.run = run;
      job.part = &part;
      job.scaling = slot.adapter->scaling();
      job.index = index++;
      job.dropout = slot.dropout;
      job.x = x + run.first * weight.terms;
      has_dropout = has_dropout || slot.dropout.is_there();
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
  if (has_dropout) list_dropped(weight.terms, sources);
}

void AdapterProducts::list_dropped(int64_t terms, const int32_t* sources) {
  int64_t count = 0;
  for (const auto& job : jobs_) count += job.dropout.is_there() ? job.run.rows : 0;
  names_.resize(static_cast<size_t>(count));
  if (left_.size() < static_cast<size_t>(count * terms))
    left_.resize(static_cast<size_t>(count * terms));
  uint64_t* name = names_.data();
  float* left = left_.data();
  for (auto& job : jobs_) {
    if (!job.dropout.is_there()) continue;
    job.names = name;
    job.left = left;
    for (int64_t i = job.run.first; i < job.run.first + job.run.rows; ++i)
      *name++ = draws_[static_cast<size_t>(sources == nullptr ? i : sources[i])];
    left += job.run.rows * terms;
    drop(job, terms, std::exchange(job.x, job.left), job.left, false);
  }
}

void AdapterProducts::drop(const Job& job, int64_t terms, const float* x, float* y, bool adds) {
  share(job.run.rows, job.run.rows * terms * kWorkOfDraw, [&](int64_t begin, int64_t end) {
    drop_out(job.dropout, job.part->module, {job.names + begin, static_cast<size_t>(end - begin)},
             terms, x + begin * terms, y + begin * terms, adds);
  });
}

void AdapterProducts::scale(bool is_backward) {
  for (const auto& job : jobs_)
    for (int64_t i = 0; i < job.run.rows * job.part->a.columns; ++i) {
      job.u[i] *= job.scaling;
      if (is_backward) job.du[i] *= job.scaling;
    }
}

void AdapterProducts::forward(const Matrix& weight, std::span<const AdapterRun> runs,
                              const float* x, float* y, const int32_t* sources) {
  list_jobs(weight, runs, x, sources, false);
  if (jobs_.empty()) return;
  tasks_.clear();
  for (const Job& job : jobs_)
    tasks_.push_back(forward_args(job.run.rows, job.x, job.part->a, 0, job.u));
  products_.run(tasks_);
  scale(false);
  tasks_.clear();
  for (const Job& job : jobs_) {
    float* to = y + job.run.first * weight.columns + job.part->column;
    LinearRowsArgs& args =
        tasks_.emplace_back(forward_args(job.run.rows, job.u, job.part->b, 0, to));
    args.y_stride = args.residual_stride = weight.columns;
    args.residual = to;
  }
  products_.run(tasks_);
}

void AdapterProducts::backward(const Matrix& weight, std::span<const AdapterRun> runs,
                               const float* x, const float* dy, float* dx, const int32_t* sources) {
  list_jobs(weight, runs, x, sources, true);
  if (jobs_.empty()) return;
  // u = scaling * x A' once more, and du = scaling * dy B.
  tasks_.clear();
  size_t parts_max = 0;
  for (const Job& job : jobs_) {
    const float* from = dy + job.run.first * weight.columns + job.part->column;
    tasks_.push_back(forward_args(job.run.rows, job.x, job.part->a, 0, job.u));
    tasks_.push_back(input_args(job.run.rows, from, job.part->b, 0, job.du));
    tasks_.back().x_stride = weight.columns;
    parts_max = std::max(parts_max, job.index + 1);
  }
  products_.run(tasks_);
  scale(true);
  // dA += du' x, dB += dy' u.
  tasks_.clear();
  for (const Job& job : jobs_) {
    const float* from = dy + job.run.first * weight.columns + job.part->column;
    tasks_.push_back(weight_args(job.run.rows, job.du, job.x, job.part->a, job.part->da));
    tasks_.push_back(weight_args(job.run.rows, from, job.u, job.part->b, job.part->db));
    tasks_.back().x_term_stride = weight.columns;
  }
  products_.run(tasks_);
  // dx += du A: the parts of a run add to the same rows, one after the other. What A did not read
  // has no gradient.
  for (size_t i = 0; i < parts_max; ++i) {
    tasks_.clear();
    for (const Job& job : jobs_) {
      if (job.index != i) continue;
      const bool is_dropped = job.dropout.is_there();
      float* to = is_dropped ? job.left : dx + job.run.first * weight.terms;
      LinearRowsArgs& args =
          tasks_.emplace_back(input_args(job.run.rows, job.du, job.part->a, 0, to));
      if (is_dropped) continue;
      args.residual = to;
      args.residual_stride = weight.terms;
    }
    products_.run(tasks_);
    for (const Job& job : jobs_)
      if (job.index == i && job.dropout.is_there())
        drop(job, weight.terms, job.left, dx + job.run.first * weight.terms, true);
  }
}

}  // namespace primerl
