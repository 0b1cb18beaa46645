#include "kernels/cuda/learner/trained_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "kernels/common/memory.h"
#include "kernels/cuda/learner/optimizer_device.h"

namespace primerl {
namespace {

at::Tensor zeros_on(const CudaStream& stream, int64_t count, at::ScalarType type) {
  return at::zeros({count}, at::TensorOptions(stream.device()).dtype(type));
}

DataType data_type_of(const at::Tensor& flat) {
  return flat.scalar_type() == at::kFloat ? DataType::kF32 : DataType::kBF16;
}

/// The offset and length in bytes of a tensor in a flat buffer.
std::pair<uint64_t, uint64_t> bytes_of(const TensorSlice& slice, DataType type) {
  const uint64_t size = size_in_bytes(type);
  return {static_cast<uint64_t>(slice.offset) * size, static_cast<uint64_t>(slice.count) * size};
}

}  // namespace

CudaTrainedWeights::CudaTrainedWeights(const TensorTable& table, at::ScalarType type,
                                       const OptimizerOptions& options, const CudaStream& stream)
    : table_(table),
      files_(table),
      type_(type),
      stream_(stream),
      masters_(zeros_on(stream, table.count(), at::kFloat)),
      weights_(type == at::kFloat ? masters_ : zeros_on(stream, table.count(), type)),
      gradients_(zeros_on(stream, table.count(), at::kFloat)),
      optimizer_(make_optimizer(options)) {}

CudaTrainedWeights::CudaTrainedWeights(const PaddedAdapters& padded, const AdapterTable& adapter,
                                       at::Tensor weights, at::Tensor gradients,
                                       const OptimizerOptions& options, const CudaStream& stream)
    : table_(padded.tensors()),
      files_(adapter.tensors()),
      padded_(&padded),
      adapter_(&adapter),
      type_(weights.scalar_type()),
      stream_(stream),
      masters_(type_ == at::kFloat ? weights : zeros_on(stream, table_.count(), at::kFloat)),
      weights_(std::move(weights)),
      gradients_(std::move(gradients)),
      optimizer_(make_optimizer(options)) {
  const at::Tensor host = zero_floats(files_.count());
  initialize_adapter(adapter, host.mutable_data_ptr<float>());
  take_weights(host);
}

double CudaTrainedWeights::bytes_of_parameter(at::ScalarType type) {
  return 2.0 * sizeof(float) + (type == at::kFloat ? 0.0 : 2.0);
}

CudaParameter CudaTrainedWeights::parameter(std::string_view name) const {
  const Parameter* found = table_.find(name);
  if (found == nullptr) return {};
  const auto view = [&](const at::Tensor& flat) {
    return flat.narrow(0, found->offset, found->count).view(found->shape);
  };
  return {view(weights_), view(gradients_), nullptr, view(masters_)};
}

void CudaTrainedWeights::take_weights(const at::Tensor& host) {
  masters_.copy_(in_layout(host));
  if (type_ != at::kFloat) weights_.copy_(masters_);
}

Status CudaTrainedWeights::fill(const std::vector<WeightTensor>& tensors) {
  const at::Tensor host = zero_floats(files_.count());
  RETURN_IF_ERROR(fill_parameters(files_, tensors, host.mutable_data_ptr<float>()));
  take_weights(host);
  return stream_.wait();
}

void CudaTrainedWeights::randomize(uint64_t seed, double deviation) {
  const at::Tensor host = zero_floats(table_.count());
  randomize_parameters(table_, seed, deviation, host.mutable_data_ptr<float>());
  take_weights(host);
}

void CudaTrainedWeights::clear_gradients() { gradients_.zero_(); }

std::vector<double> CudaTrainedWeights::gradient_squares() const {
  std::vector<const Parameter*> trained;
  for (const Parameter& parameter : table_.parameters())
    if (parameter.is_trained) trained.push_back(&parameter);
  const at::Tensor norms = at::empty({std::ssize(trained)}, gradients_.options());
  for (size_t i = 0; i < trained.size(); ++i) {
    at::Tensor to = norms.select(0, static_cast<int64_t>(i));
    at::linalg_vector_norm_out(to, gradients_.narrow(0, trained[i]->offset, trained[i]->count), 2);
  }
  const at::Tensor host = norms.cpu();
  std::vector<double> squares;
  for (int64_t i = 0; i < host.numel(); ++i) {
    const double norm = host.const_data_ptr<float>()[i];
    squares.push_back(norm * norm);
  }
  return squares;
}

/// An adapter is copied to the host whole; for whole weights, only the bad tensor.
std::string CudaTrainedWeights::broken_gradient() const {
  const at::Tensor all = padded_ == nullptr ? gradients_ : on_host(gradients_);
  for (const auto& slice : files_.slices()) {
    const at::Tensor values = all.narrow(0, slice.offset, slice.count);
    if (at::isfinite(values).all().item<bool>()) continue;
    const at::Tensor host = values.cpu();
    const float* data = host.const_data_ptr<float>();
    int64_t at = 0;
    while (std::isfinite(data[at])) ++at;
    return fmt::format("'{}' ({} at element {})", slice.name, data[at], at);
  }
  return "none of the tensors";
}

std::unique_ptr<Optimizer> CudaTrainedWeights::make_optimizer(const OptimizerOptions& options) {
  const at::Tensor rounded = type_ == at::kFloat ? at::Tensor() : weights_;
  return std::make_unique<Optimizer>(options, table_, files_,
                                     OptimizerBuffers{masters_, gradients_, rounded},
                                     std::make_unique<CudaOptimizerDevice>(
                                         table_.trained_count(), gradients_, rounded,
                                         [this] { return broken_gradient(); }, stream_));
}

Status CudaTrainedWeights::update(TrainReport& report, const AdamNumbers* adam) {
  RETURN_IF_ERROR(optimizer_->update(report, adam));
  return stream_.wait();
}

at::Tensor CudaTrainedWeights::on_host(const at::Tensor& flat) const {
  at::Tensor host = zero_floats(table_.count());
  host.copy_(flat);
  if (padded_ == nullptr) return host;
  const at::Tensor cut = zero_floats(files_.count());
  padded_->cut(*adapter_, host.const_data_ptr<float>(), cut.mutable_data_ptr<float>());
  return cut;
}

at::Tensor CudaTrainedWeights::in_layout(const at::Tensor& host) const {
  if (padded_ == nullptr) return host;
  const at::Tensor padded = zero_floats(table_.count());
  padded_->pad(*adapter_, host.const_data_ptr<float>(), padded.mutable_data_ptr<float>());
  return padded;
}

std::vector<WeightTensor> CudaTrainedWeights::copies_of(const at::Tensor& flat) const {
  const auto host = std::make_shared<const at::Tensor>(
      flat.scalar_type() == at::kFloat ? on_host(flat) : flat.cpu());
  const std::span all(static_cast<const std::byte*>(host->const_data_ptr()), host->nbytes());
  const DataType type = data_type_of(*host);
  std::vector<WeightTensor> tensors;
  tensors.reserve(files_.slices().size());
  for (const auto& slice : files_.slices()) {
    const auto [offset, count] = bytes_of(slice, type);
    tensors.push_back({slice.name, type, slice.shape, Blob(host, all.subspan(offset, count))});
  }
  return tensors;
}

/// libtorch keeps the pinned memory of earlier snapshots. The scaling stays exact.
std::vector<WeightTensor> CudaTrainedWeights::copy_adapter() const {
  if (type_ == at::kFloat || adapter_->config().rank != padded_->rank()) return copy_weights();
  const auto host = std::make_shared<const at::Tensor>(
      at::empty({table_.count()}, at::TensorOptions().dtype(type_).pinned_memory(true)));
  host->copy_(weights_);
  const std::span all(static_cast<const std::byte*>(host->const_data_ptr()), host->nbytes());
  const size_t size = host->element_size();
  std::vector<WeightTensor> tensors;
  tensors.reserve(files_.slices().size());
  for (const auto& slice : files_.slices()) {
    if (slice.name == kAdapterScaling) {
      const std::vector scaling = {static_cast<float>(scaling_of(adapter_->config()))};
      const auto bytes = std::as_bytes(std::span(scaling));
      tensors.push_back({slice.name, DataType::kF32, slice.shape,
                         Blob(std::vector<std::byte>(bytes.begin(), bytes.end()))});
      continue;
    }
    const auto offset = static_cast<size_t>(table_.find(slice.name)->offset) * size;
    const auto bytes = all.subspan(offset, static_cast<size_t>(slice.count) * size);
    tensors.push_back({slice.name, data_type_of(*host), slice.shape, Blob(host, bytes)});
  }
  return tensors;
}

Status CudaTrainedWeights::publish(std::shared_ptr<DeviceBuffer> buffer,
                                   DeviceWeights::Buffers next, WeightSnapshot& snapshot) const {
  if (buffer->num_bytes() != published_bytes())
    return error(Code::kInvalid, "a buffer of {} bytes is not for weights of {}",
                 buffer->num_bytes(), published_bytes());
  const DataType type = data_type_of(weights_);
  std::vector<uint64_t> offsets;
  offsets.reserve(table_.slices().size());
  for (const auto& slice : table_.slices()) {
    snapshot.tensors.push_back({slice.name, type, slice.shape, {}});
    offsets.push_back(bytes_of(slice, type).first);
  }
  RETURN_IF_ERROR(stream_.copy(buffer->data(), weights_.const_data_ptr(), published_bytes()));
  snapshot.device =
      std::make_shared<const DeviceWeights>(std::move(buffer), std::move(offsets), std::move(next));
  return stream_.wait();
}

std::vector<WeightTensor> CudaTrainedWeights::copy_gradients() const {
  auto all = copies_of(gradients_);
  // One tensor per slice, in their order.
  size_t next = 0;
  std::erase_if(all, [&](const WeightTensor&) {
    return !files_.parameters()[files_.slices()[next++].parameter].is_trained;
  });
  return all;
}

Status CudaTrainedWeights::load(const std::vector<WeightTensor>& tensors,
                                const std::filesystem::path& folder) {
  const at::Tensor weights = zero_floats(files_.count());
  RETURN_IF_ERROR(fill_parameters(files_, tensors, weights.mutable_data_ptr<float>()));
  ASSIGN_OR_RETURN(const OptimizerState state, optimizer_->read(folder));
  take_weights(weights);
  optimizer_->set_state(state);
  return stream_.wait();
}

}  // namespace primerl
