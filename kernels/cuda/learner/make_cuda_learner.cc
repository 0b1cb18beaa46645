// Constructs the learner of a folder on a CUDA device with enough free memory.
#include "kernels/common/boundary.h"
#include "kernels/common/memory.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/layers/supported_model.h"
#include "kernels/cuda/learner/adapters.h"
#include "kernels/cuda/learner/learner.h"
#include "kernels/cuda/learner/learner_memory.h"

namespace primerl {
namespace {

Status check_free_memory(const LearnerOptions& options, const ModelConfig& config,
                         std::span<const AdapterTraining> adapters, bool is_base_there) {
  ASSIGN_OR_RETURN(const CudaDeviceFacts facts,
                   cuda_device_facts(cuda_device_index(options.device)));
  const int64_t rows = options.micro_batch_tokens;
  LearnerBytes bytes = learner_bytes(options, config, adapters, rows);
  if (is_base_there) bytes.weights -= frozen_bytes(options, config, adapters);
  if (bytes.all() <= facts.free_bytes) return ok();
  return too_large(options, adapters, bytes, rows, facts, is_base_there);
}

/// Random weights, used without `tensors`, are not shared.
Result<std::shared_ptr<const CudaFrozenBase>> frozen_base(
    const LearnerOptions& options, const ModelConfig& config,
    const std::vector<WeightTensor>* tensors, const std::string& folder,
    std::span<const AdapterTraining> adapters, const CudaStream& stream, FrozenBases* bases) {
  const auto look = [&](bool is_base_there) {
    return check_free_memory(options, config, adapters, is_base_there);
  };
  const at::ScalarType type = type_named(options.dtype);
  if (tensors != nullptr)
    return cuda_frozen_base(bases, folder, config, *tensors, type, stream, look);
  const TensorTable table(config);
  const at::Tensor host = zero_floats(table.count());
  randomize_parameters(table, static_cast<uint64_t>(options.init_seed), config.initializer_range,
                       host.mutable_data_ptr<float>());
  return cuda_frozen_base(nullptr, folder, config,
                          view_parameters(table, host.const_data_ptr<float>()), type, stream, look);
}

}  // namespace

DeviceBytes cuda_learner_bytes(const LearnerOptions& options, const ModelConfig& config,
                               std::span<const AdapterTraining> adapters) {
  return {learner_bytes(options, config, adapters, options.micro_batch_tokens).all(),
          frozen_bytes(options, config, adapters), name_of(type_named(options.dtype))};
}

Result<std::unique_ptr<Learner>> make_cuda_learner(const LearnerOptions& options, ModelFolder model,
                                                   const std::vector<WeightTensor>* tensors,
                                                   const std::string& base,
                                                   std::span<const AdapterTraining> adapters,
                                                   FrozenBases* bases) {
  RETURN_IF_ERROR(check_cuda_model(model.config));
  if (!adapters.empty()) RETURN_IF_ERROR(LearnerAdapters::can_train(model.config));
  RETURN_IF_ERROR(check_products(options.products, options.dtype, model.config, options.device));
  return at_boundary("learner", [&]() -> Result<std::unique_ptr<Learner>> {
    use_threads(options.threads);
    const CudaStream stream(cuda_device_index(options.device));
    const CudaStream::Use use(stream);
    std::shared_ptr<const CudaFrozenBase> frozen;
    if (adapters.empty()) {
      RETURN_IF_ERROR(check_free_memory(options, model.config, adapters, false));
    } else {
      ASSIGN_OR_RETURN(frozen,
                       frozen_base(options, model.config, tensors, base, adapters, stream, bases));
    }
    auto learner = std::make_unique<CudaLearner>(options, std::move(model), base, std::move(frozen),
                                                 adapters, stream);
    RETURN_IF_ERROR(tensors == nullptr
                        ? learner->randomize(static_cast<uint64_t>(options.init_seed))
                        : learner->fill(*tensors));
    RETURN_IF_ERROR(learner->start_from(adapters));
    return std::unique_ptr<Learner>(std::move(learner));
  });
}

}  // namespace primerl
