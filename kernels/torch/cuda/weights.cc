#include "kernels/torch/cuda/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace primerl {
namespace {

constexpr int64_t kStageBytes = int64_t{64} << 20;

at::ScalarType type_of(DataType type) {
  if (type == DataType::kBF16) return at::kBFloat16;
  return type == DataType::kF16 ? at::kHalf : at::kFloat;  // match_tensors() takes no other
}

}  // namespace

CardWeights::CardWeights(const TensorTable& table, at::ScalarType type, const CardStream& stream)
    : table_(table),
      type_(type),
      stream_(stream),
      flat_(at::zeros({table.count()}, at::TensorOptions(stream.device()).dtype(type))),
      stage_(at::empty({kStageBytes}, at::TensorOptions(stream.device()).dtype(at::kByte))) {}

at::Tensor CardWeights::tensor(std::string_view name) const {
  const Parameter* parameter = table_.find(name);
  if (parameter == nullptr) return {};
  return flat_.narrow(0, parameter->offset, parameter->count).view(parameter->shape);
}

const void* CardWeights::data(std::string_view name) const {
  const at::Tensor found = tensor(name);
  return found.defined() ? found.const_data_ptr() : nullptr;
}

CardLinear CardWeights::linear(std::string_view name) const {
  const at::Tensor matrix = tensor(name);
  if (!matrix.defined()) return {};
  return {matrix.t(), tensor(std::string(name) + "_bias")};
}

Status CardWeights::load(const std::vector<WeightTensor>& tensors) {
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  for (const auto& source : match.sources) copy(*source.tensor, *source.slice);
  return stream_.wait();
}

/// Pageable memory has been read when its copy returns.
void CardWeights::copy(const WeightTensor& tensor, const TensorSlice& slice) {
  const at::ScalarType from = type_of(tensor.type);
  const auto size = static_cast<int64_t>(at::elementSize(from));
  // Only read; libtorch knows no view of memory that is not to be written.
  auto* bytes = const_cast<std::byte*>(tensor.bytes.bytes().data());
  at::Tensor to = flat_.narrow(0, slice.offset, slice.count);
  const int64_t part = from == type_ ? slice.count : kStageBytes / size;
  for (int64_t begin = 0; begin < slice.count; begin += part) {
    const int64_t count = std::min(part, slice.count - begin);
    const at::Tensor host = at::from_blob(bytes + begin * size, {count}, from);
    at::Tensor place = to.narrow(0, begin, count);
    if (from == type_) {
      place.copy_(host);
      continue;
    }
    at::Tensor stage = stage_.narrow(0, 0, count * size).view(from);
    stage.copy_(host);
    place.copy_(stage);
  }
}

}  // namespace primerl
