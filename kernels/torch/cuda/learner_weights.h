/// What a learner on a CUDA device trains: fp32 masters, gradients and AdamW moments, and the copy
/// of the weights that products read; flat buffers of the table's layout. Whole weights, or one
/// adapter among others that are alike (padded_adapters.h).
///
/// Computing in bf16 there is such a copy, which each update writes; in fp32 the masters are it.
/// Tensors come to the host whole: files and snapshots are those of a learner on the CPU. One
/// thread, under a CardStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/models/padded_adapters.h"
#include "kernels/torch/cuda/fp8.h"
#include "kernels/torch/cuda/stream.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"
#include "kernels/weights/device_weights.h"

namespace primerl {

/// A weight as products read it, and the fp32 gradient that is added to. Undefined: the model has
/// none of that name; a gradient, too, of what is frozen.
struct CardParameter {
  at::Tensor weight;
  at::Tensor gradient;
  const PaddedAdapters::Matrix* adapters = nullptr;  // null: none is put on it
  at::Tensor exact = {};  // the fp32 weight, where there is one
  std::shared_ptr<const Fp8Weight> fp8 = {};  // null: products read `weight`

  const void* data() const { return weight.defined() ? weight.const_data_ptr() : nullptr; }
  float* slope() const { return gradient.defined() ? gradient.mutable_data_ptr<float>() : nullptr; }
};

/// That of a name (tensors.h).
using CardParameters = std::function<CardParameter(std::string_view name)>;

class CardTrained {
 public:
  /// `table` and `stream` outlive it; `type` is kFloat or kBFloat16. All weights are 0.
  CardTrained(const TensorTable& table, at::ScalarType type, const CardStream& stream);
  /// Of an adapter, which begins as initialize_adapter() has it: `weights`, of their type, and
  /// `gradients` are [padded.tensors().count()] of memory that all adapters share. Its files and
  /// snapshots are those of `adapter`. All outlive it.
  CardTrained(const PaddedAdapters& padded, const AdapterTable& adapter, at::Tensor weights,
              at::Tensor gradients, const CardStream& stream);

  /// Bytes a parameter.
  static double bytes_of_parameter(at::ScalarType type);

  at::ScalarType type() const { return type_; }
  int64_t num_steps() const { return num_steps_; }
  /// Views of the parameter's shape.
  CardParameter parameter(std::string_view name) const;

  /// Takes `tensors` (tensors.h) as the weights; all or nothing.
  Status fill(const std::vector<WeightTensor>& tensors);
  void randomize(uint64_t seed, double deviation);

  void clear_gradients();
  /// As TrainedTensors::update(); waits for the device.
  Status update(const OptimizerOptions& options, TrainReport& report);

  /// Copies on the host, in fp32.
  std::vector<WeightTensor> copy_weights() const { return copies_of(masters_); }
  /// Of whole weights what engines get: those that products read, in their type. As copies on the
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
  const CardStream& stream_;
  // [table.count()] each, on the device.
  at::Tensor masters_;
  at::Tensor weights_;  // those that products read
  at::Tensor gradients_;
  at::Tensor first_moments_;
  at::Tensor second_moments_;
  at::Tensor norms_;  // of parts of the gradient
  int64_t num_steps_ = 0;
};

}  // namespace primerl
