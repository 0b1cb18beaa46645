/// The trained state of a learner on a CUDA device: fp32 masters, gradients and AdamW moments, and
/// the copy of the weights that GEMMs read. They are flat buffers in the table's layout: whole
/// weights, or one adapter among others of the same shape (padded_adapters.h).
///
/// Computing in bf16 there is such a copy, which each update writes; in fp32 the masters are it.
/// Tensors come to the host whole: files and snapshots are those of a learner on the CPU. One
/// thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/device/stream.h"
#include "kernels/cuda/layers/fp8.h"
#include "kernels/models/padded_adapters.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"
#include "kernels/weights/device_weights.h"

namespace primerl {

/// A weight as GEMMs read it, and the fp32 gradient that is added to. Undefined: the model has
/// none of that name; a gradient, too, of what is frozen.
struct CudaParameter {
  at::Tensor weight;
  at::Tensor gradient;
  const PaddedAdapters::Matrix* adapters = nullptr;  // null: none is put on it
  at::Tensor exact = {};                             // the fp32 weight, where there is one
  std::shared_ptr<const Fp8Weight> fp8 = {};         // null: GEMMs read `weight`

  const void* data() const { return weight.defined() ? weight.const_data_ptr() : nullptr; }
  float* grad() const { return gradient.defined() ? gradient.mutable_data_ptr<float>() : nullptr; }
};

/// That of a name (tensors.h).
using CudaParameters = std::function<CudaParameter(std::string_view name)>;

class CudaTrainedWeights {
 public:
  /// `table` and `stream` must stay valid while it exists; `type` is kFloat or kBFloat16. All
  /// weights are 0.
  CudaTrainedWeights(const TensorTable& table, at::ScalarType type, const CudaStream& stream);
  /// For an adapter, which begins as initialize_adapter() says: `weights`, of their type, and
  /// `gradients` are [padded.tensors().count()] of memory that all adapters share. Its files and
  /// snapshots are those of `adapter`. All arguments must stay valid while it exists.
  CudaTrainedWeights(const PaddedAdapters& padded, const AdapterTable& adapter, at::Tensor weights,
                     at::Tensor gradients, const CudaStream& stream);

  /// Bytes a parameter.
  static double bytes_of_parameter(at::ScalarType type);

  at::ScalarType type() const { return type_; }
  int64_t num_steps() const { return num_steps_; }
  /// Views of the parameter's shape.
  CudaParameter parameter(std::string_view name) const;

  /// Takes `tensors` (tensors.h) as the weights; all or nothing.
  Status fill(const std::vector<WeightTensor>& tensors);
  void randomize(uint64_t seed, double deviation);

  void clear_gradients();
  /// As TrainedTensors::update(); waits for the device.
  Status update(const OptimizerOptions& options, TrainReport& report);

  /// Copies on the host, in fp32.
  std::vector<WeightTensor> copy_weights() const { return copies_of(masters_); }
  /// Publishes whole weights for engines: those that GEMMs read, in their type. As copies on the
  /// host,
  std::vector<WeightTensor> copy_published() const { return copies_of(weights_); }
  /// or in `buffer`, which has published_bytes(); they are there when this returns. `next`: where
  /// later ones will lie.
  Status publish(std::shared_ptr<DeviceBuffer> buffer, DeviceWeights::Buffers next,
                 WeightSnapshot& snapshot) const;
  uint64_t published_bytes() const { return weights_.nbytes(); }
  std::vector<WeightTensor> copy_gradients() const;
  /// The files of TrainedTensors; load() is all or nothing.
  Status save(const std::filesystem::path& folder) const;
  Status load(const std::vector<WeightTensor>& tensors, const std::filesystem::path& folder);

 private:
  /// A flat buffer as files have it.
  at::Tensor on_host(const at::Tensor& flat) const;
  /// Back: as `table_` has it, on the host.
  at::Tensor in_layout(const at::Tensor& host) const;
  std::vector<WeightTensor> copies_of(const at::Tensor& flat) const;
  void take_weights(const at::Tensor& host);
  double gradient_norm();
  /// The first tensor whose gradient is not finite, as "NAME (NaN at ...)".
  std::string broken_gradient() const;

  const TensorTable& table_;
  const TensorTable& files_;
  const PaddedAdapters* const padded_ = nullptr;  // of whole weights both are the same table
  const AdapterTable* const adapter_ = nullptr;
  const at::ScalarType type_;
  const CudaStream& stream_;
  // [table.count()] each, on the device.
  at::Tensor masters_;
  at::Tensor weights_;  // those that GEMMs read
  at::Tensor gradients_;
  at::Tensor first_moments_;
  at::Tensor second_moments_;
  at::Tensor norms_;  // of parts of the gradient
  int64_t num_steps_ = 0;
};

}  // namespace primerl
