#include "kernels/cpu/weights/frozen_weights.h"

#include "kernels/common/memory.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

std::shared_ptr<FrozenWeights> zero_weights(const ModelConfig& config, bool flat,
                                            GemmNumbers numbers) {
  return flat ? std::make_shared<FrozenWeights>(config, Numerics::kFast,
                                                DecoderWeights::Use::kLearner, numbers)
              : std::make_shared<FrozenWeights>(config, Numerics::kInvariant,
                                                DecoderWeights::Use::kEngine, numbers);
}

/// What shared weights have in memory.
std::string type_of(GemmNumbers numbers) {
  switch (numbers) {
    case GemmNumbers::kBf16:
      return "matrices in bf16";
    case GemmNumbers::kFp8:
      return "float32, rounded to fp8";
    case GemmNumbers::kDtype:
      break;
  }
  return "float32";
}

}  // namespace

Result<std::shared_ptr<const FrozenWeights>> load_frozen_weights(
    const std::filesystem::path& folder, const ModelConfig& config, bool flat,
    GemmNumbers numbers) {
  ASSIGN_OR_RETURN(const auto tensors, read_model_tensors(folder));
  auto made = zero_weights(config, flat, numbers);
  Status loaded = made->weights().load(tensors);
  if (!loaded.ok()) return Error(loaded.error()).while_doing(folder.string());
  return std::shared_ptr<const FrozenWeights>(std::move(made));
}

Result<std::shared_ptr<const FrozenWeights>> frozen_weights(FrozenBases* bases,
                                                            const std::filesystem::path& folder,
                                                            const ModelConfig& config,
                                                            GemmNumbers numbers) {
  const auto load = [&] { return load_frozen_weights(folder, config, false, numbers); };
  if (bases == nullptr) return load();
  return bases->find_or_load<FrozenWeights>({folder, "cpu", type_of(numbers)}, load);
}

Result<std::shared_ptr<const FrozenWeights>> random_frozen_weights(uint64_t seed,
                                                                   const ModelConfig& config,
                                                                   bool flat, GemmNumbers numbers) {
  const TensorTable table(config);
  const at::Tensor values = zero_floats(table.count());
  randomize_parameters(table, seed, config.initializer_range, values.mutable_data_ptr<float>());
  auto made = zero_weights(config, flat, numbers);
  RETURN_IF_ERROR(made->weights().load(view_parameters(table, values.const_data_ptr<float>())));
  return std::shared_ptr<const FrozenWeights>(std::move(made));
}

}  // namespace primerl
