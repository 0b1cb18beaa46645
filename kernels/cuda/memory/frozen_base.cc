#include "kernels/cuda/memory/frozen_base.h"

#include <fmt/format.h>

namespace primerl {

std::string_view name_of(at::ScalarType type) {
  return type == at::kFloat ? "float32" : "bfloat16";
}

at::ScalarType type_named(std::string_view dtype) {
  return dtype == "float32" ? at::kFloat : at::kBFloat16;
}

Result<std::shared_ptr<const CudaFrozenBase>> cuda_frozen_base(
    FrozenBases* bases, const std::filesystem::path& folder, const ModelConfig& config,
    const std::vector<WeightTensor>& tensors, at::ScalarType type, const CudaStream& stream,
    const std::function<Status(bool is_base_there)>& check_free_memory) {
  bool is_there = true;
  const auto load = [&]() -> Result<std::shared_ptr<const CudaFrozenBase>> {
    is_there = false;
    RETURN_IF_ERROR(check_free_memory(false));
    auto made = std::make_shared<CudaFrozenBase>(config, type, stream);
    Status loaded = made->load(tensors);
    if (!loaded.ok()) return Error(loaded.error()).while_doing(folder.string());
    return std::shared_ptr<const CudaFrozenBase>(std::move(made));
  };
  if (bases == nullptr) return load();
  ASSIGN_OR_RETURN(auto base, bases->find_or_load<CudaFrozenBase>(
                                  {folder, fmt::format("cuda:{}", stream.device().index()),
                                   std::string(name_of(type))},
                                  load));
  if (is_there) RETURN_IF_ERROR(check_free_memory(true));
  return base;
}

}  // namespace primerl
