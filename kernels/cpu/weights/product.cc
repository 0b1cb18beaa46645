#include "kernels/cpu/weights/product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <array>

#include "kernels/common/parallel.h"

namespace primerl {
namespace {

constexpr int64_t kRowsOfPart = 48;     // a whole number of tiles
constexpr int64_t kWorkOfRounding = 4;  // of a number, in multiply-adds

int64_t work_of(const LinearRowsArgs& args) {
  return args.rows * args.columns * std::max<int64_t>(args.terms, 1);
}

/// Divides a GEMM into about `wanted` parts: by rows if it has more rows than columns, else by
/// panels.
void cut(const LinearRowsArgs& args, int64_t wanted, std::vector<LinearRowsArgs>& parts) {
  const bool by_rows = args.rows > args.columns;
  const int64_t unit = by_rows ? kRowsOfPart : 1;
  const int64_t units = ((by_rows ? args.rows : args.panel_end) + unit - 1) / unit;
  const int64_t step = std::max<int64_t>(1, (units + wanted - 1) / std::max<int64_t>(wanted, 1));
  for (int64_t begin = 0; begin < units; begin += step) {
    LinearRowsArgs part = args;
    const int64_t first = begin * unit, end = (begin + step) * unit;
    if (by_rows) {
      part.rows = std::min(end, args.rows) - first;
      part.x += first * args.x_stride;
      part.y += first * args.y_stride;
      if (part.residual != nullptr) part.residual += first * args.residual_stride;
    } else {
      part.panel_begin = first;
      part.panel_end = std::min(end, args.panel_end);
    }
    parts.push_back(part);
  }
}

at::Tensor view(const float* data, int64_t rows, int64_t columns) {
  return at::from_blob(const_cast<float*>(data), {rows, columns}, at::kFloat);
}

/// Calls body(group, first row, number of rows) for each group that has rows.
template <class Body>
void for_groups(GroupEnds ends, Body&& body) {
  int64_t begin = 0;
  for (size_t group = 0; group < ends.size(); begin = ends[group++])
    if (ends[group] > begin) body(static_cast<int64_t>(group), begin, ends[group] - begin);
}

at::Tensor weight_view(const Matrix& weight, int64_t group) {
  return view(weight.plain + group * weight.columns * weight.terms, weight.columns, weight.terms);
}

}  // namespace

LinearRowsArgs forward_args(int64_t rows, const float* x, const Matrix& weight, int64_t group,
                            float* y) {
  LinearRowsArgs args;
  args.rows = rows;
  args.columns = weight.columns;
  args.terms = weight.terms;
  args.panel_end = linear_panels_of(weight.columns);
  args.x = x;
  args.x_stride = weight.terms;
  args.is_bf16 = weight.is_bf16;
  if (weight.packed_bf16 != nullptr)
    args.packed_bf16 = weight.packed_bf16 + group * packed_bf16_count(weight.columns, weight.terms);
  else if (weight.packed != nullptr)
    args.packed = weight.packed + group * packed_linear_floats(weight.columns, weight.terms);
  else
    args.weights = {weight.plain + group * weight.columns * weight.terms, weight.terms, 1};
  args.y = y;
  args.y_stride = weight.columns;
  return args;
}

LinearRowsArgs input_args(int64_t rows, const float* dy, const Matrix& weight, int64_t group,
                          float* dx) {
  LinearRowsArgs args;
  args.rows = rows;
  args.columns = weight.terms;
  args.terms = weight.columns;
  args.panel_end = linear_panels_of(weight.terms);
  args.x = dy;
  args.x_stride = weight.columns;
  args.is_bf16 = weight.is_bf16;
  // A tied embedding is packed too; its rounded numbers are the same.
  if (weight.packed_bf16 != nullptr)
    args.packed_bf16_transposed =
        weight.packed_bf16 + group * packed_bf16_count(weight.columns, weight.terms);
  else if (weight.plain == nullptr)
    args.packed_transposed =
        weight.packed + group * packed_linear_floats(weight.columns, weight.terms);
  else
    args.weights = {weight.plain + group * weight.columns * weight.terms, 1, weight.terms};
  args.y = dx;
  args.y_stride = weight.terms;
  return args;
}

LinearRowsArgs weight_args(int64_t rows, const float* dy, const float* x, const Matrix& weight,
                           float* dweight) {
  LinearRowsArgs args;
  args.rows = weight.columns;
  args.columns = weight.terms;
  args.terms = rows;
  args.panel_end = linear_panels_of(weight.terms);
  args.x = dy;
  args.x_stride = 1;
  args.x_term_stride = weight.columns;
  args.is_bf16 = weight.is_bf16;
  args.weights = {x, 1, weight.terms};
  args.residual = dweight;
  args.residual_stride = weight.terms;
  args.y = dweight;
  args.y_stride = weight.terms;
  return args;
}

void Gemms::run(const std::vector<LinearRowsArgs>& tasks) {
  int64_t work = 0;
  for (const auto& task : tasks) work += work_of(task);
  const int64_t num_threads = threads_for(work, work);
  if (num_threads < 2) {
    for (const auto& task : tasks) compute(task);
    return;
  }
  parts_.clear();
  // With several GEMMs the parts differ in size: a few more parts balance that.
  const int64_t wanted = tasks.size() > 1 ? 4 * num_threads : num_threads;
  for (const auto& task : tasks) cut(task, (work_of(task) * wanted + work / 2) / work, parts_);
  share_tasks(static_cast<int64_t>(parts_.size()), work,
              [&](int64_t i) { compute(parts_[static_cast<size_t>(i)]); });
}

const float* Gemms::read(int64_t rows, const float* x, const Matrix& weight) {
  if (!weight.is_fp8) return x;
  const auto count = static_cast<size_t>(rows * weight.terms);
  if (rounded_.size() < count) rounded_.resize(count);
  share(rows, rows * weight.terms * kWorkOfRounding, [&](int64_t begin, int64_t end) {
    ops_.round_fp8_rows({.rows = end - begin,
                         .width = weight.terms,
                         .x = x + begin * weight.terms,
                         .y = rounded_.data() + begin * weight.terms});
  });
  return rounded_.data();
}

void Gemms::linear(int64_t rows, const float* x, const Matrix& weight, const float* bias,
                   const float* residual, float* y) {
  x = read(rows, x, weight);
  if (uses_vendor_gemm(weight)) {
    at::Tensor out = view(y, rows, weight.columns);
    const at::Tensor transposed = weight_view(weight, 0).t(), input = view(x, rows, weight.terms);
    if (residual != nullptr)
      at::addmm_out(out, view(residual, rows, weight.columns), input, transposed);
    else
      at::mm_out(out, input, transposed);
    if (bias != nullptr) out.add_(view(bias, 1, weight.columns));
    return;
  }
  LinearRowsArgs args = forward_args(rows, x, weight, 0, y);
  args.bias = bias;
  args.residual = residual;
  args.residual_stride = weight.columns;
  tasks_.assign(1, args);
  run(tasks_);
}

void Gemms::grouped(GroupEnds ends, const float* x, const Matrix& weight, float* y) {
  x = read(ends.back(), x, weight);
  tasks_.clear();
  for_groups(ends, [&](int64_t group, int64_t first, int64_t rows) {
    const float* from = x + first * weight.terms;
    float* to = y + first * weight.columns;
    if (uses_vendor_gemm(weight)) {
      at::Tensor out = view(to, rows, weight.columns);
      at::mm_out(out, view(from, rows, weight.terms), weight_view(weight, group).t());
      return;
    }
    tasks_.push_back(forward_args(rows, from, weight, group, to));
  });
  run(tasks_);
}

void Gemms::input_gradient(int64_t rows, const float* dy, const Matrix& weight, float* dx,
                           bool adds) {
  if (uses_vendor_gemm(weight)) {
    at::Tensor out = view(dx, rows, weight.terms);
    const at::Tensor gradient = view(dy, rows, weight.columns);
    if (adds)
      out.addmm_(gradient, weight_view(weight, 0));
    else
      at::mm_out(out, gradient, weight_view(weight, 0));
    return;
  }
  LinearRowsArgs args = input_args(rows, dy, weight, 0, dx);
  if (adds) {
    args.residual = dx;
    args.residual_stride = weight.terms;
  }
  tasks_.assign(1, args);
  run(tasks_);
}

void Gemms::grouped_input_gradient(GroupEnds ends, const float* dy, const Matrix& weight,
                                   float* dx) {
  tasks_.clear();
  for_groups(ends, [&](int64_t group, int64_t first, int64_t rows) {
    const float* from = dy + first * weight.columns;
    float* to = dx + first * weight.terms;
    if (uses_vendor_gemm(weight)) {
      at::Tensor out = view(to, rows, weight.terms);
      at::mm_out(out, view(from, rows, weight.columns), weight_view(weight, group));
      return;
    }
    tasks_.push_back(input_args(rows, from, weight, group, to));
  });
  run(tasks_);
}

void Gemms::weight_gradient(int64_t rows, const float* dy, const float* x, const Matrix& weight,
                            float* dweight) {
  const std::array<int64_t, 1> ends = {rows};
  grouped_weight_gradient(ends, dy, x, weight, dweight);
}

void Gemms::grouped_weight_gradient(GroupEnds ends, const float* dy, const float* x,
                                    const Matrix& weight, float* dweight) {
  x = read(ends.back(), x, weight);
  tasks_.clear();
  for_groups(ends, [&](int64_t group, int64_t first, int64_t rows) {
    const float* gradient = dy + first * weight.columns;
    const float* input = x + first * weight.terms;
    float* to = dweight + group * weight.columns * weight.terms;
    if (uses_vendor_gemm(weight)) {
      at::Tensor out = view(to, weight.columns, weight.terms);
      out.addmm_(view(gradient, rows, weight.columns).t(), view(input, rows, weight.terms));
      return;
    }
    tasks_.push_back(weight_args(rows, gradient, input, weight, to));
  });
  run(tasks_);
}

void Gemms::bias_gradient(int64_t rows, int64_t columns, const float* dy, float* dbias) {
  share_sums(rows, columns, rows * columns, sums_, dbias,
             [&](int64_t begin, int64_t end, float* to) {
               ops_.column_sums({.rows = end - begin,
                                 .columns = columns,
                                 .x = dy + begin * columns,
                                 .x_stride = columns,
                                 .sums = to});
             });
}

}  // namespace primerl
