#include "kernels/cpu/weights/adapters.h"

#include <algorithm>
#include <utility>

#include "graph/base/random.h"
#include "kernels/common/parallel.h"

namespace primerl {
namespace {

constexpr int64_t kWorkOfDraw = 8;  // cost per element of dropout, in multiply-adds

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

void AdapterGemms::set(int32_t slot, const AdapterWeights* adapter, AdapterDropout dropout) {
  const auto index = static_cast<size_t>(slot);
  if (index >= slots_.size()) slots_.resize(index + 1);
  slots_[index] = {adapter, dropout};
}

void AdapterGemms::begin(const RowBatch& batch) {
  runs_.clear();
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
  if (has_dropout) make_keys(batch);
  kinds_.assign(static_cast<size_t>(batch.num_rows()), 0);
  for (const auto& run : runs_) std::fill_n(kinds_.begin() + run.first, run.rows, run.slot + 1);
}

std::span<const AdapterRun> AdapterGemms::gathered(std::span<const int32_t> rows) {
  gathered_.clear();
  if (runs_.empty()) return gathered_;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto slot = static_cast<int32_t>(kind_of(rows[i])) - 1;
    if (slot < 0) continue;
    const auto row = static_cast<int64_t>(i);
    if (!gathered_.empty() && gathered_.back().slot == slot &&
        gathered_.back().first + gathered_.back().rows == row)
      ++gathered_.back().rows;
    else
      gathered_.push_back({slot, 0, row, 1});
  }
  return gathered_;
}

void AdapterGemms::make_keys(const RowBatch& batch) {
  CHECK(batch.draws.size() == batch.tokens.size(), "rows with dropout need random keys");
  keys_.resize(batch.draws.size());
  for (const auto& run : runs_) {
    const AdapterDropout& dropout = slots_[static_cast<size_t>(run.slot)].dropout;
    if (!dropout.is_there()) continue;
    const auto first = static_cast<size_t>(run.first), end = first + static_cast<size_t>(run.rows);
    for (size_t i = first; i < end; ++i) keys_[i] = row_key(dropout, batch.draws[i]);
  }
}

void AdapterGemms::list_jobs(const Matrix& weight, std::span<const AdapterRun> runs, const float* x,
                             const int32_t* sources, bool is_backward) {
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

void AdapterGemms::list_dropped(int64_t terms, const int32_t* sources) {
  const auto grow = [](auto& values, int64_t count) {
    if (values.size() < static_cast<size_t>(count)) values.resize(static_cast<size_t>(count));
  };
  int64_t count = 0;
  for (const auto& job : jobs_) count += job.dropout.is_there() ? job.run.rows : 0;
  grow(keys_of_jobs_, count);
  grow(draws_, count * drawn_columns(terms));
  grow(left_, count * terms);
  int64_t row = 0;
  for (auto& job : jobs_) {
    if (!job.dropout.is_there()) continue;
    job.keys = keys_of_jobs_.data() + row;
    job.draws = draws_.data() + row * drawn_columns(terms);
    job.left = left_.data() + row * terms;
    row += job.run.rows;
    const float* x = std::exchange(job.x, job.left);
    share(job.run.rows, job.run.rows * terms * kWorkOfDraw, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t place = job.run.first + i;
        job.keys[i] = keys_[static_cast<size_t>(sources == nullptr ? place : sources[place])];
      }
      uint16_t* draws = job.draws + begin * drawn_columns(terms);
      draw_dropout(job.part->module, {job.keys + begin, static_cast<size_t>(end - begin)}, terms,
                   draws);
      apply_dropout(job.dropout, end - begin, terms, draws, x + begin * terms,
                    job.left + begin * terms, false);
    });
  }
}

void AdapterGemms::add_left(const Job& job, int64_t terms, float* dx) {
  share(job.run.rows, job.run.rows * terms, [&](int64_t begin, int64_t end) {
    apply_dropout(job.dropout, end - begin, terms, job.draws + begin * drawn_columns(terms),
                  job.left + begin * terms, dx + begin * terms, true);
  });
}

void AdapterGemms::scale(bool is_backward) {
  for (const auto& job : jobs_)
    for (int64_t i = 0; i < job.run.rows * job.part->a.columns; ++i) {
      job.u[i] *= job.scaling;
      if (is_backward) job.du[i] *= job.scaling;
    }
}

void AdapterGemms::forward(const Matrix& weight, std::span<const AdapterRun> runs, const float* x,
                           float* y, const int32_t* sources) {
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

void AdapterGemms::backward(const Matrix& weight, std::span<const AdapterRun> runs, const float* x,
                            const float* dy, float* dx, const int32_t* sources) {
  list_jobs(weight, runs, x, sources, true);
  if (jobs_.empty()) return;
  // Recomputes u = scaling * x A', and computes du = scaling * dy B.
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
  // dx += du A: the parts of a run add to the same rows, one after the other. Dropped elements get
  // no gradient.
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
        add_left(job, weight.terms, dx + job.run.first * weight.terms);
  }
}

}  // namespace primerl
