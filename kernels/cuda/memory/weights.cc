#include "kernels/cuda/memory/weights.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <system_error>
#include <utility>

#include "kernels/common/boundary.h"

namespace primerl {
CudaWeights::CudaWeights(const TensorTable& table, at::ScalarType type, const CudaStream& stream,
                         bool has_space_for_second_set)
    : table_(table),
      type_(type),
      stream_(stream),
      flat_(at::zeros({table.count()}, at::TensorOptions(stream.device()).dtype(type))),
      upload_(type, stream.device()),
      has_space_(has_space_for_second_set) {}

at::Tensor CudaWeights::tensor(std::string_view name) const {
  const Parameter* parameter = table_.find(name);
  if (parameter == nullptr) return {};
  return flat_.narrow(0, parameter->offset, parameter->count).view(parameter->shape);
}

const void* CudaWeights::data(std::string_view name) const {
  const at::Tensor found = tensor(name);
  return found.defined() ? found.const_data_ptr() : nullptr;
}

CudaLinear CudaWeights::linear(std::string_view name) const {
  const at::Tensor matrix = tensor(name);
  if (!matrix.defined()) return {};
  return {matrix.t(), tensor(std::string(name) + "_bias")};
}

/// The upload uses another stream, so the buffer must already be unused.
Status CudaWeights::load(const std::vector<WeightTensor>& tensors) {
  if (stage_.has_value()) stage_->stop();
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  RETURN_IF_ERROR(stream_.wait());
  return upload_.run(match, flat_, {});
}

std::optional<at::ScalarType> CudaWeights::type_beside(const WeightSnapshot& snapshot) const {
  if (snapshot.device == nullptr ||
      snapshot.device->buffer().device_index() != stream_.device().index())
    return std::nullopt;
  return type_on_device(table_, snapshot);
}

/// Other users may have allocated the memory since the engine was made.
bool CudaWeights::has_stage() {
  if (stage_.has_value() || !has_space_) return stage_.has_value();
  try {
    const CudaStream::Use use(stream_);
    stage_.emplace(table_, flat_, upload_);
    has_space_ = stream_.wait().ok();
  } catch (const c10::OutOfMemoryError&) {
    has_space_ = false;
  }
  if (!has_space_) stage_.reset();
  return stage_.has_value();
}

/// If the device is lost, the next step reports it.
bool CudaWeights::is_being_read() const {
  const auto is_copied =
      at_boundary("new weights", [&]() -> Result<bool> { return is_copied_.query(); });
  return is_copied.ok() && !*is_copied;
}

/// Does not prepare a snapshot that does not match the model: apply() refuses it. A snapshot older
/// than the one being prepared is not prepared either, only applied: one actor may lag behind
/// another for a while.
bool CudaWeights::prepare(const std::shared_ptr<const WeightSnapshot>& snapshot) {
  if (type_beside(*snapshot).has_value() || !has_stage()) return true;
  if (stage_->holds(*snapshot)) return stage_->is_done();
  if (stage_->is_newer_than(*snapshot)) return true;
  if (is_being_read()) return false;
  return !stage_->begin(snapshot).ok();
}

/// A copy within the device reads and writes each byte once.
Status CudaWeights::copy_within(const void* from, at::ScalarType type) {
  if (retaining_thread_.joinable())
    retaining_thread_.join();  // the thread of the previous version: done, or nearly
  if (type == type_) {
    RETURN_IF_ERROR(
        stream_.copy(flat_.mutable_data_ptr(), from, static_cast<size_t>(flat_.nbytes())));
  } else {
    auto* data = const_cast<void*>(from);  // not written
    flat_.copy_(at::from_blob(data, {table_.count()}, flat_.options().dtype(type)));
  }
  stream_.record(is_copied_);
  return ok();
}

/// A lost device copies nothing any more. If no thread can start, the caller waits; it has the
/// buffer too.
Status CudaWeights::keep_until_copied(std::shared_ptr<const DeviceBuffer> buffer) {
  try {
    retaining_thread_ = std::jthread([this, buffer = std::move(buffer)]() mutable {
      static_cast<void>(at_boundary("a copy of new weights", [&] {
        const CudaStream::Use use(stream_);
        return WeightUpload::await(is_copied_);
      }));
      buffer = nullptr;
    });
  } catch (const std::system_error&) {
    return stream_.wait();
  }
  return ok();
}

/// The second set is not changed until the copy is done: prepare() checks that.
Status CudaWeights::apply(const WeightSnapshot& snapshot) {
  if (const auto type = type_beside(snapshot)) {
    RETURN_IF_ERROR(copy_within(snapshot.device->buffer().data(), *type));
    const Status kept = keep_until_copied(snapshot.device->shared_buffer());
    if (stage_.has_value()) stage_->stop();
    return kept;
  }
  if (stage_.has_value() && stage_->holds(snapshot)) {
    RETURN_IF_ERROR(stage_->wait());
    const Status copied = copy_within(stage_->flat().const_data_ptr(), type_);
    stage_->stop();
    return copied;
  }
  if (has_same_layout(table_, type_, snapshot)) {
    if (stage_.has_value()) stage_->stop();
    RETURN_IF_ERROR(stream_.wait());
    return upload_.take(snapshot.device->buffer(), flat_);
  }
  ASSIGN_OR_RETURN(const auto tensors, tensors_on_host(snapshot));
  return load(tensors);
}

}  // namespace primerl
