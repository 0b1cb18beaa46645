#include "kernels/scripted/scripted_weights.h"

#include <fmt/ranges.h>

#include <cstring>

#include "graph/base/random.h"

namespace primerl {
namespace {

constexpr const char* kName = "scripted.weight";
constexpr int64_t kNumWords = 4;

std::string describe(DataType type, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", to_string(type), fmt::join(shape, ", "));
}

}  // namespace

std::shared_ptr<const WeightSnapshot> scripted_snapshot(PolicyVersion version, uint64_t history) {
  std::vector<std::byte> bytes(kNumWords * sizeof(uint64_t));
  for (uint64_t i = 0; i < kNumWords; ++i) {
    const uint64_t word = mix(history, i);
    for (size_t k = 0; k < sizeof(word); ++k)
      bytes[i * sizeof(word) + k] = static_cast<std::byte>(word >> (8 * k));
  }
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->version = version;
  snapshot->tensors.push_back({kName, DataType::kU64, {kNumWords}, Blob(std::move(bytes))});
  return snapshot;
}

WeightManifest scripted_manifest() { return {{{kName, DataType::kU64, {kNumWords}}}}; }

Status check_scripted_tensors(const std::vector<WeightTensor>& tensors) {
  bool is_found = false;
  for (const WeightTensor& tensor : tensors) {
    if (tensor.name != kName)
      return error(Code::kInvalid, "tensor '{}' is not of a scripted model", tensor.name)
          .note(fmt::format("its tensors: {}", kName));
    const std::vector<int64_t> shape = {kNumWords};
    if (tensor.type != DataType::kU64 || tensor.shape != shape ||
        tensor.bytes.size() != kNumWords * sizeof(uint64_t))
      return error(Code::kInvalid, "tensor '{}' is {} with {} bytes, not {}", tensor.name,
                   describe(tensor.type, tensor.shape), tensor.bytes.size(),
                   describe(DataType::kU64, shape));
    is_found = true;
  }
  if (!is_found) return error(Code::kInvalid, "tensor '{}' is missing", kName);
  return ok();
}

}  // namespace primerl
