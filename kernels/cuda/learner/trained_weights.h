/// The trained state of a learner on a CUDA device: fp32 masters, gradients, the optimizer,
/// and the copy of the weights that GEMMs read. They are flat buffers in the table's layout: whole
/// weights, or one of several adapters of the same shape (padded_adapters.h).
///
/// With bf16 it is a separate copy that each update writes; with fp32 GEMMs read the masters.
/// Tensors are copied to the host whole: files and snapshots equal those of a learner on the CPU.
/// One thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/optimizer.h"
#include "kernels/cuda/device/stream.h"
#include "kernels/cuda/layers/fp8.h"
#include "kernels/models/padded_adapters.h"
#include "kernels/train/learner.h"
#include "kernels/train/learner_copy.h"
#include "kernels/train/options.h"
#include "kernels/weights/device_weights.h"

namespace primerl {

/// A weight in the layout of GEMMs, and its fp32 gradient buffer. Undefined tensors: the model has
/// no parameter of that name; without a gradient, it is frozen.
struct CudaParameter {
  at::Tensor weight;
  at::Tensor gradient;
  const PaddedAdapters::Matrix* adapters = nullptr;  // null: no adapters
  at::Tensor exact = {};                             // the fp32 weight, if there is one
  std::shared_ptr<const Fp8Weight> fp8 = {};         // null: GEMMs read `weight`, or one of
  std::shared_ptr<const Fp8Experts> experts = {};    // these, if it is there:
  at::Tensor rounded = {};                           // this one with rounded rows

  const void* data() const { return weight.defined() ? weight.const_data_ptr() : nullptr; }
  float* grad() const { return gradient.defined() ? gradient.mutable_data_ptr<float>() : nullptr; }
};

/// The parameter of a name (tensors.h).
using CudaParameters = std::function<CudaParameter(std::string_view name)>;

class CudaTrainedWeights {
 public:
  /// `table` and `stream` must stay valid while it exists; `type` is kFloat or kBFloat16; `options`
  /// are valid. All weights are 0.
  CudaTrainedWeights(const TensorTable& table, at::ScalarType type, const OptimizerOptions& options,
                     const CudaStream& stream);
  /// For an adapter, initialised by initialize_adapter(). `weights`, of their type, and `gradients`
  /// are [padded.tensors().count()] slices of memory that all adapters share. Its files and
  /// snapshots are those of `adapter`. All arguments must stay valid while it exists.
  CudaTrainedWeights(const PaddedAdapters& padded, const AdapterTable& adapter, at::Tensor weights,
                     at::Tensor gradients, const OptimizerOptions& options,
                     const CudaStream& stream);
  // The optimizer calls back.
  CudaTrainedWeights(const CudaTrainedWeights&) = delete;
  CudaTrainedWeights& operator=(const CudaTrainedWeights&) = delete;

  /// Bytes per parameter, without the optimizer.
  static double bytes_of_parameter(at::ScalarType type);

  at::ScalarType type() const { return type_; }
  int64_t num_steps() const { return optimizer_->num_steps(); }
  /// Views of the parameter's shape.
  CudaParameter parameter(std::string_view name) const;

  /// Sets the weights to `tensors` (tensors.h); all or nothing.
  Status fill(const std::vector<WeightTensor>& tensors);
  void randomize(uint64_t seed, double deviation);

  void clear_gradients();
  /// As Optimizer::update(); waits for the device.
  Status update(TrainReport& report, const AdamNumbers* adam = nullptr);

  /// Copies on the host, in fp32.
  std::vector<WeightTensor> copy_weights() const { return copies_of(masters_); }
  /// Publishes whole weights for engines: those that GEMMs read, in their type. As copies on the
  /// host,
  std::vector<WeightTensor> copy_published() const { return copies_of(weights_); }
  /// The numbers of an adapter that GEMMs read, in pinned memory and in the common layout, if its
  /// rank is the common one: one copy, of half the bytes. Else its masters.
  std::vector<WeightTensor> copy_adapter() const;
  /// or in `buffer`, which has published_bytes(); complete when this returns. `next`: the buffers
  /// of later versions.
  Status publish(std::shared_ptr<DeviceBuffer> buffer, DeviceWeights::Buffers next,
                 WeightSnapshot& snapshot) const;
  uint64_t published_bytes() const { return weights_.nbytes(); }
  std::vector<WeightTensor> copy_gradients() const;
  /// As squares_of_parameters(); waits for the device.
  std::vector<double> gradient_squares() const;
  /// As TrainedTensors::capture(), on the host; waits for the device.
  LearnerCopy capture() const {
    return {copy_weights(), optimizer_->copy_state(), optimizer_->header()};
  }
  /// As TrainedTensors::load().
  Status load(const std::vector<WeightTensor>& tensors, const std::filesystem::path& folder);

 private:
  /// A flat buffer on the host, in the layout of files.
  at::Tensor on_host(const at::Tensor& flat) const;
  /// The inverse, in the layout of `table_`, on the host.
  at::Tensor in_layout(const at::Tensor& host) const;
  std::vector<WeightTensor> copies_of(const at::Tensor& flat) const;
  void take_weights(const at::Tensor& host);
  std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options);
  /// The first tensor whose gradient is not finite, as "NAME (NaN at ...)".
  std::string broken_gradient() const;

  const TensorTable& table_;
  const TensorTable& files_;
  const PaddedAdapters* const padded_ = nullptr;  // null for whole weights: both tables are then
                                                  // the same
  const AdapterTable* const adapter_ = nullptr;
  const at::ScalarType type_;
  const CudaStream& stream_;
  // [table.count()] each, on the device.
  at::Tensor masters_;
  at::Tensor weights_;  // weights that GEMMs read
  at::Tensor gradients_;
  const std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace primerl
