// The learner of a folder: what every learner of libtorch refuses, then the one of its device.
#include <span>

#include "kernels/common/boundary.h"
#include "kernels/common/memory.h"
#include "kernels/cpu/learner/learner.h"
#include "kernels/devices/device.h"
#include "kernels/devices/make.h"
#include "kernels/sizing/memory.h"
#include "kernels/sizing/setup.h"
#include "kernels/train/optimizer.h"
#include "kernels/train/schedule.h"
#include "kernels/weights/safetensors.h"
#ifdef PRIMERL_CUDA_ENGINE
#include "kernels/cuda/learner/learner.h"
#endif

namespace primerl {
namespace {

Status check_options(const LearnerOptions& options) {
  if (const std::string why = why_not_on(options.device); !why.empty())
    return error(Code::kUnavailable, "it is placed on '{}', which {}", options.device, why);
  RETURN_IF_ERROR(check_learner_setup(options));
  if (options.micro_batch_tokens < 1 || options.adapter_batch_tokens < 1 || options.threads < 0)
    return error(Code::kInvalid,
                 "micro_batch_tokens {} and adapter_batch_tokens {} must be at least 1, threads {} "
                 "0 or above",
                 options.micro_batch_tokens, options.adapter_batch_tokens, options.threads);
  return ok();
}

Status check_adapters(std::span<const AdapterTraining> adapters) {
  if (adapters.empty() || adapters.size() > kAdaptersOfLearnerMax)
    return error(Code::kInvalid, "a learner of {} adapters: it may have 1 to {}", adapters.size(),
                 kAdaptersOfLearnerMax);
  for (size_t i = 0; i < adapters.size(); ++i) {
    const auto& [tenant, adapter, rules, start, is_free] = adapters[i];
    for (const auto& other : adapters.first(i))
      if (other.tenant == tenant)
        return error(Code::kInvalid, "tenant {} has two adapters in one learner", tenant)
            .note("a tenant trains one adapter");
    Status valid = validate(adapter);
    if (valid.ok() && !is_free) valid = check_rules(rules);
    if (!valid.ok()) return Error(valid.error()).while_doing(fmt::format("tenant {}", tenant));
  }
  return ok();
}

/// Whether libtorch's GEMMs read the frozen weights.
bool is_fast(const LearnerOptions& options) {
  return numerics_of(options.numerics) == Numerics::kFast;
}

double bytes_needed(const LearnerOptions& options, const ModelConfig& config,
                    std::span<const AdapterTraining> adapters) {
  std::vector<TrainedAdapter> trained;
  for (const auto& training : adapters)
    trained.push_back(
        {fmt::format("{}", training.tenant), training.adapter, training.rules.optimizer});
  return sum_of(learner_memory(options, config, trained, 0));
}

/// Checks that are common to every learner of a folder.
Result<ModelFolder> check_folder(const LearnerOptions& options,
                                 const std::filesystem::path& model_folder,
                                 std::span<const AdapterTraining> adapters) {
  ASSIGN_OR_RETURN(auto model, read_model_folder(model_folder));
  Status supported = check_is_supported(model.config);
  if (!supported.ok()) return Error(supported.error()).while_doing(model_folder.string());
  const LearnerDebugOptions& debug = options.debug;
  if (!debug.batch_folder.empty())
    RETURN_IF_ERROR(
        KeptBatches(debug.batch_folder, static_cast<size_t>(debug.batches_max)).prepare());
  if (options.device == "cpu")
    RETURN_IF_ERROR(check_memory("the learner (weights, gradients and optimizer moments)",
                                 bytes_needed(options, model.config, adapters)));
  return model;
}

/// Whether a learner starts from random weights: `fault` says that the folder has no weights.
bool is_random(const LearnerOptions& options, const Error& fault) {
  return fault.code() == Code::kNotFound && options.init_seed >= 0;
}

#ifdef PRIMERL_CUDA_ENGINE
Result<std::unique_ptr<Learner>> make_on_cuda(const LearnerOptions& options, ModelFolder model,
                                              std::span<const AdapterTraining> adapters,
                                              const std::filesystem::path& model_folder,
                                              FrozenBases* bases) {
  const auto tensors = read_model_tensors(model_folder);
  const bool random = !tensors.ok() && is_random(options, tensors.error());
  if (!tensors.ok() && !random) return Error(tensors.error());
  auto made = make_cuda_learner(options, std::move(model), random ? nullptr : &*tensors,
                                model_folder.string(), adapters, bases);
  if (!made.ok()) return Error(made.error()).while_doing(model_folder.string());
  return made;
}
#endif

Result<std::unique_ptr<Learner>> make_learner(const LearnerOptions& options,
                                              const std::filesystem::path& model_folder) {
  ASSIGN_OR_RETURN(auto model, check_folder(options, model_folder, {}));
#ifdef PRIMERL_CUDA_ENGINE
  if (options.device != "cpu")
    return make_on_cuda(options, std::move(model), {}, model_folder, nullptr);
#endif
  const auto tensors = read_model_tensors(model_folder);
  const bool random = !tensors.ok() && is_random(options, tensors.error());
  if (!tensors.ok() && !random) return Error(tensors.error());
  return at_boundary("learner", [&]() -> Result<std::unique_ptr<Learner>> {
    use_threads(options.threads);
    auto learner = std::make_unique<CpuLearner>(options, std::move(model));
    Status filled = random ? learner->randomize(static_cast<uint64_t>(options.init_seed))
                           : learner->fill(*tensors);
    if (!filled.ok()) return Error(filled.error()).while_doing(model_folder.string());
    return std::unique_ptr<Learner>(std::move(learner));
  });
}

/// Flat weights, for fast numerics, are not shared, since engines need packed ones.
Result<std::shared_ptr<const FrozenWeights>> base_of(const LearnerOptions& options,
                                                     const std::filesystem::path& model_folder,
                                                     const ModelConfig& config,
                                                     FrozenBases* bases) {
  const GemmNumbers numbers = gemm_numbers_of(options.products);
  auto base = is_fast(options) ? load_frozen_weights(model_folder, config, true, numbers)
                               : frozen_weights(bases, model_folder, config, numbers);
  if (base.ok() || !is_random(options, base.error())) return base;
  return random_frozen_weights(static_cast<uint64_t>(options.init_seed), config, is_fast(options),
                               numbers);
}

Result<std::unique_ptr<Learner>> make_adapter_learner(const LearnerOptions& options,
                                                      std::span<const AdapterTraining> adapters,
                                                      const std::filesystem::path& model_folder,
                                                      FrozenBases* bases) {
  ASSIGN_OR_RETURN(auto model, check_folder(options, model_folder, adapters));
#ifdef PRIMERL_CUDA_ENGINE
  if (options.device != "cpu")
    return make_on_cuda(options, std::move(model), adapters, model_folder, bases);
#endif
  return at_boundary("learner", [&]() -> Result<std::unique_ptr<Learner>> {
    use_threads(options.threads);
    ASSIGN_OR_RETURN(auto base, base_of(options, model_folder, model.config, bases));
    auto learner = std::make_unique<CpuLearner>(options, std::move(model), model_folder.string(),
                                                std::move(base), adapters);
    RETURN_IF_ERROR(learner->start_from(adapters));
    return std::unique_ptr<Learner>(std::move(learner));
  });
}

}  // namespace

Result<DeviceBytes> learner_device_bytes([[maybe_unused]] const LearnerOptions& options,
                                         [[maybe_unused]] std::span<const AdapterTraining> adapters,
                                         const std::filesystem::path& model_folder) {
  ASSIGN_OR_RETURN(const auto config, read_model_config(model_folder));
#ifdef PRIMERL_CUDA_ENGINE
  if (options.device != "cpu") return cuda_learner_bytes(options, config, adapters);
#endif
  return DeviceBytes{};
}

Result<std::unique_ptr<Learner>> make_torch_learner(const LearnerOptions& options,
                                                    const std::filesystem::path& model_folder) {
  RETURN_IF_ERROR(check_options(options));
  RETURN_IF_ERROR(
      check_rules({options.loss, options.optimizer, options.schedule, options.max_steps}));
  return make_learner(options, model_folder);
}

Result<std::unique_ptr<Learner>> make_torch_adapter_learner(
    const LearnerOptions& options, std::span<const AdapterTraining> adapters,
    const std::filesystem::path& model_folder, FrozenBases* bases) {
  RETURN_IF_ERROR(check_options(options));
  RETURN_IF_ERROR(check_adapters(adapters));
  return make_adapter_learner(options, adapters, model_folder, bases);
}

}  // namespace primerl
