/// The OptimizerDevice of the CPU: GEMMs and AdamW by the operations of kernels/ops, the rest by
/// libtorch, one thread for each unit of work. One thread calls.
#pragma once

#include <string>
#include <vector>

#include "kernels/common/optimizer.h"
#include "kernels/models/tensors.h"

namespace primerl {

class CpuOptimizerDevice final : public OptimizerDevice {
 public:
  /// `table` must stay valid while it exists; `gradients` [table.count()].
  CpuOptimizerDevice(const TensorTable& table, at::Tensor gradients)
      : table_(table), gradients_(std::move(gradients)) {}

  /// Their fp32 values, and those of three more buffers, fit into a second-level cache.
  int64_t elements_max() const override { return int64_t{1} << 16; }
  int64_t matrix_elements_max() const override { return 1; }
  at::Tensor zeros(int64_t count, at::ScalarType type, bool on_host) const override;
  Status run(int64_t count, int64_t work,
             const std::function<Status(int64_t)>& body) const override;
  Status reserve(int64_t /*floats*/) const override { return ok(); }
  double gradient_norm() override;
  std::string broken_gradient() const override;
  Status adamw(const AdamwArgs& args, int64_t offset) const override;
  at::Tensor in_bf16(const at::Tensor& x) const override;
  at::Tensor multiply_add(const at::Tensor& c, double beta, const at::Tensor& a,
                          const at::Tensor& b, bool is_symmetric, double alpha) const override;

 private:
  const TensorTable& table_;
  const at::Tensor gradients_;
  std::vector<double> squares_;  // scratch
};

}  // namespace primerl
