#include "kernels/cpu/learner/optimizer_device.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>

#include "kernels/common/memory.h"
#include "kernels/common/parallel.h"
#include "kernels/ops/ops.h"

namespace primerl {
namespace {

constexpr int64_t kPartOfSquares = int64_t{1} << 16;  // sums of parts are added in order
constexpr int64_t kRowsOfTile = 96;                   // a whole number of tiles of linear_rows

/// Copies what is below the diagonal of [size, size] above it, block by block.
void mirror(float* values, int64_t size) {
  constexpr int64_t kBlock = 32;
  for (int64_t top = 0; top < size; top += kBlock)
    for (int64_t left = top; left < size; left += kBlock)
      for (int64_t row = top; row < std::min(top + kBlock, size); ++row)
        for (int64_t column = std::max(left, row + 1); column < std::min(left + kBlock, size);
             ++column)
          values[row * size + column] = values[column * size + row];
}

}  // namespace

at::Tensor CpuOptimizerDevice::zeros(int64_t count, at::ScalarType type, bool /*on_host*/) const {
  return type == at::kFloat ? zero_floats(count) : at::zeros({count}, type);
}

Status CpuOptimizerDevice::run(int64_t count, int64_t work,
                               const std::function<Status(int64_t)>& body) const {
  // libtorch does not divide operations of so few elements.
  if (at::get_num_threads() == 1 || work <= kWorkPerThread) {
    for (int64_t i = 0; i < count; ++i) RETURN_IF_ERROR(body(i));
    return ok();
  }
  std::mutex mutex;
  std::optional<Error> fault;  // guarded by mutex
  std::atomic<int64_t> next = 0;
  // At least two parts: then libtorch's operations in them do not divide themselves further.
  const int64_t threads = std::max<int64_t>(2, threads_for(work, count));
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    const c10::InferenceMode guard(true);
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      const Status done = body(i);
      if (done.ok()) continue;
      const std::lock_guard lock(mutex);
      if (!fault) fault = done.error();
    }
  });
  return fault ? Status(*std::move(fault)) : ok();
}

double CpuOptimizerDevice::gradient_norm() {
  const float* gradients = gradients_.const_data_ptr<float>();
  const int64_t count = table_.trained_count();
  const int64_t parts = (count + kPartOfSquares - 1) / kPartOfSquares;
  squares_.resize(static_cast<size_t>(parts));
  share(parts, count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      squares_[static_cast<size_t>(i)] = cpu_ops().sum_of_squares(
          gradients + i * kPartOfSquares, std::min(kPartOfSquares, count - i * kPartOfSquares));
  });
  double sum = 0;
  for (const double part : squares_) sum += part;
  return std::sqrt(sum);
}

std::string CpuOptimizerDevice::broken_gradient() const {
  const float* gradients = gradients_.const_data_ptr<float>();
  for (const auto& slice : table_.slices())
    for (int64_t i = 0; i < slice.count; ++i)
      if (!std::isfinite(gradients[slice.offset + i]))
        return fmt::format("'{}' ({} at element {})", slice.name, gradients[slice.offset + i], i);
  return "none of the tensors";
}

Status CpuOptimizerDevice::adamw(const AdamwArgs& args, int64_t /*offset*/) const {
  cpu_ops().adamw(args);
  return ok();
}

/// A processor without bf16 units multiplies fp32 five times as fast.
at::Tensor CpuOptimizerDevice::in_bf16(const at::Tensor& x) const {
  return x.to(at::kBFloat16).to(at::kFloat);
}

at::Tensor CpuOptimizerDevice::multiply_add(const at::Tensor& c, double beta, const at::Tensor& a,
                                            const at::Tensor& b, bool is_symmetric,
                                            double alpha) const {
  const int64_t rows = a.size(1), terms = a.size(2), columns = b.size(is_symmetric ? 1 : 2);
  const at::Tensor y = at::empty({a.size(0), rows, columns}, a.options());
  const at::Tensor packed = at::zeros({packed_linear_floats(columns, terms)}, a.options());
  // A symmetric result: the columns up to the diagonal; the others have the same bits.
  const int64_t tile = is_symmetric ? kRowsOfTile : rows;
  for (int64_t i = 0; i < a.size(0); ++i) {
    PackLinearArgs pack;
    pack.column_end = columns;
    pack.terms = terms;
    pack.weights.weight = b.const_data_ptr<float>() + i * terms * columns;
    pack.weights.column_stride = is_symmetric ? terms : 1;
    pack.weights.term_stride = is_symmetric ? 1 : columns;
    pack.packed = packed.mutable_data_ptr<float>();
    cpu_ops().pack_linear(pack);
    for (int64_t first = 0; first < rows; first += tile) {
      LinearRowsArgs args;
      args.rows = std::min(tile, rows - first);
      args.columns = is_symmetric ? first + args.rows : columns;
      args.terms = terms;
      args.panel_end = linear_panels_of(args.columns);
      args.x = a.const_data_ptr<float>() + (i * rows + first) * terms;
      args.x_stride = terms;
      args.packed = pack.packed;
      args.y = y.mutable_data_ptr<float>() + (i * rows + first) * columns;
      args.y_stride = columns;
      cpu_ops().linear_rows(args);
    }
  }
  for (int64_t i = 0; is_symmetric && i < a.size(0); ++i)
    mirror(y.mutable_data_ptr<float>() + i * rows * rows, rows);
  if (alpha != 1) y.mul_(alpha);
  if (beta != 0) y.add_(c, beta);
  return in_bf16(y);
}

}  // namespace primerl
