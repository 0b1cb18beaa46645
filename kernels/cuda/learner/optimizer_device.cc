#include "kernels/cuda/learner/optimizer_device.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace primerl {
namespace {

constexpr int64_t kPartOfNorm = int64_t{1} << 22;  // summed in fp32; the parts are added in double,
                                                   // in order

}  // namespace

CudaOptimizerDevice::CudaOptimizerDevice(int64_t trained_count, at::Tensor gradients,
                                         at::Tensor rounded,
                                         std::function<std::string()> broken_gradient,
                                         const CudaStream& stream)
    : trained_count_(trained_count),
      gradients_(std::move(gradients)),
      rounded_(std::move(rounded)),
      broken_gradient_(std::move(broken_gradient)),
      stream_(stream),
      norms_(at::zeros({(trained_count + kPartOfNorm - 1) / kPartOfNorm},
                       gradients_.options().dtype(at::kFloat))) {}

double CudaOptimizerDevice::bytes_needed(const OptimizerOptions& options,
                                         const TensorTable& table) {
  const OptimizerPlan plan = plan_optimizer(options, table);
  const bool on_host = has_host_moments(options);
  double bytes = on_host ? 0 : state_bytes(options, plan);
  // As in Optimizer::floats_of_unit().
  const bool is_plain =
      rules_of(options).rule == UpdateRule::kAdamw && !on_host && bytes_of_moment(options) == 4;
  if (!is_plain)
    bytes += sizeof(float) * 4.0 * static_cast<double>(std::min(kElementsMax, table.count()));
  if (const int64_t largest = scratch_floats(plan); largest > 0)
    bytes += sizeof(float) * static_cast<double>(std::max(
                                 largest, 8 * std::min(kMatrixElementsMax, table.count())));
  return bytes;
}

at::Tensor CudaOptimizerDevice::zeros(int64_t count, at::ScalarType type, bool on_host) const {
  if (!on_host) return at::zeros({count}, gradients_.options().dtype(type));
  return at::zeros({count}, at::TensorOptions().dtype(type).pinned_memory(count > 0));
}

Status CudaOptimizerDevice::run(int64_t count, int64_t /*work*/,
                                const std::function<Status(int64_t)>& body) const {
  for (int64_t i = 0; i < count; ++i) RETURN_IF_ERROR(body(i));
  return ok();
}

/// libtorch keeps the memory, so that the operations of the step find it.
Status CudaOptimizerDevice::reserve(int64_t floats) const {
  if (floats > 0) at::empty({floats}, gradients_.options().dtype(at::kFloat));
  return ok();
}

double CudaOptimizerDevice::gradient_norm() {
  for (int64_t i = 0; i < norms_.numel(); ++i) {
    at::Tensor to = norms_.select(0, i);
    const int64_t begin = i * kPartOfNorm;
    at::linalg_vector_norm_out(
        to, gradients_.narrow(0, begin, std::min(kPartOfNorm, trained_count_ - begin)), 2);
  }
  const at::Tensor norms = norms_.cpu();
  double sum = 0;
  for (int64_t i = 0; i < norms.numel(); ++i) {
    const double norm = norms.const_data_ptr<float>()[i];
    sum += norm * norm;
  }
  return std::sqrt(sum);
}

Status CudaOptimizerDevice::adamw(const AdamwArgs& args, int64_t offset) const {
  cuda::MasterAdamwArgs all;
  all.step = args;
  if (rounded_.defined()) all.bf16_weights = rounded_.narrow(0, offset, 1).mutable_data_ptr();
  return launched(cuda::adamw(all, stream_.raw()), "adamw");
}

at::Tensor CudaOptimizerDevice::in_bf16(const at::Tensor& x) const { return x.to(at::kBFloat16); }

at::Tensor CudaOptimizerDevice::multiply_add(const at::Tensor& c, double beta, const at::Tensor& a,
                                             const at::Tensor& b, bool is_symmetric,
                                             double alpha) const {
  const at::Tensor right = is_symmetric ? b.transpose(1, 2) : b;
  if (beta == 0 && alpha == 1) return at::bmm(a, right);
  return at::baddbmm(c, a, right, beta, alpha);
}

}  // namespace primerl
