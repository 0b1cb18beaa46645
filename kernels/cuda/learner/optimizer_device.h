/// The OptimizerDevice of a CUDA device: AdamW by our operation, GEMMs in bf16 by cuBLAS, the rest
/// by libtorch. One thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "kernels/common/optimizer.h"
#include "kernels/cuda/device/stream.h"

namespace primerl {

class CudaOptimizerDevice final : public OptimizerDevice {
 public:
  static constexpr int64_t kElementsMax = int64_t{1} << 24;
  static constexpr int64_t kMatrixElementsMax = int64_t{1} << 23;

  /// `gradients`: those of the trained tensors, then others; `rounded`: the weights in bf16, or
  /// undefined. `broken_gradient`: as the method. All must stay valid while it exists.
  CudaOptimizerDevice(int64_t trained_count, at::Tensor gradients, at::Tensor rounded,
                      std::function<std::string()> broken_gradient, const CudaStream& stream);

  /// Bytes on the device of the state and of what a step needs.
  static double bytes_needed(const OptimizerOptions& options, const TensorTable& table);

  int64_t elements_max() const override { return kElementsMax; }
  int64_t matrix_elements_max() const override { return kMatrixElementsMax; }
  at::Tensor zeros(int64_t count, at::ScalarType type, bool on_host) const override;
  Status run(int64_t count, int64_t work,
             const std::function<Status(int64_t)>& body) const override;
  Status reserve(int64_t floats) const override;
  double gradient_norm() override;
  std::string broken_gradient() const override { return broken_gradient_(); }
  Status adamw(const AdamwArgs& args, int64_t offset) const override;
  at::Tensor in_bf16(const at::Tensor& x) const override;
  at::Tensor multiply_add(const at::Tensor& c, double beta, const at::Tensor& a,
                          const at::Tensor& b, bool is_symmetric, double alpha) const override;

 private:
  const int64_t trained_count_;
  const at::Tensor gradients_;
  const at::Tensor rounded_;
  const std::function<std::string()> broken_gradient_;
  const CudaStream& stream_;
  const at::Tensor norms_;  // of parts of the gradient
};

}  // namespace primerl
