// Makes the engine of a folder: first the checks common to all libtorch engines, then the engine of
// its device.
#include "kernels/cpu/engine/engine.h"
#include "kernels/devices/device.h"
#include "kernels/devices/make.h"
#include "kernels/sizing/setup.h"
#ifdef PRIMERL_CUDA_ENGINE
#include "kernels/cuda/engine/engine.h"
#endif

namespace primerl {
namespace {

Status check_options(const EngineOptions& options) {
  const auto positive = [](std::string_view name, int32_t value) -> Status {
    if (value >= 1) return ok();
    return error(Code::kInvalid, "{} is {}, it must be at least 1", name, value);
  };
  RETURN_IF_ERROR(positive("kv_blocks", options.kv_blocks));
  RETURN_IF_ERROR(positive("block_size", options.block_size));
  RETURN_IF_ERROR(positive("max_running", options.max_running));
  RETURN_IF_ERROR(positive("max_waiting", options.max_waiting));
  RETURN_IF_ERROR(positive("max_batched_tokens", options.max_batched_tokens));
  constexpr auto kSlotsMax = static_cast<int32_t>(kWeightsKeysMax);
  if (options.adapter_slots < 0 || options.adapter_slots > kSlotsMax)
    return error(Code::kInvalid, "adapter_slots is {}, it must be 0 to {}", options.adapter_slots,
                 kSlotsMax);
  if (options.adapters_max < 0 || options.adapters_max > kSlotsMax)
    return error(Code::kInvalid, "adapters_max is {}, it must be 0 to {}", options.adapters_max,
                 kSlotsMax);
  if (options.adapter_host_bytes_max < 0)
    return error(Code::kInvalid, "adapter_host_bytes_max is {}, it must be 0 or above",
                 options.adapter_host_bytes_max);
  if (options.max_adapter_rank < 1 || options.max_adapter_rank > kAdapterRankMax)
    return error(Code::kInvalid, "max_adapter_rank is {}, it must be 1 to {}",
                 options.max_adapter_rank, kAdapterRankMax);
  if (options.routed_experts && options.device != "cpu")
    return error(Code::kUnavailable, "routed_experts is true, and an engine on '{}' keeps none",
                 options.device)
        .note("only engines on the CPU report the experts of tokens");
  if (options.max_sequence_tokens < 0 || options.threads < 0 || options.max_prefill_tokens < 0)
    return error(Code::kInvalid,
                 "max_sequence_tokens {}, max_prefill_tokens {} and threads {} must be 0 or above",
                 options.max_sequence_tokens, options.max_prefill_tokens, options.threads);
  return ok();
}

Result<EngineOptions> resolve(EngineOptions options, const ModelConfig& config) {
  RETURN_IF_ERROR(check_options(options));
  if (options.routed_experts && !config.moe)
    return error(Code::kInvalid, "routed_experts is true, and the model '{}' has no experts",
                 config.model_type);
  RETURN_IF_ERROR(check_engine_setup(options, config));
  if (options.max_sequence_tokens == 0) options.max_sequence_tokens = config.max_positions;
  return options;
}

}  // namespace

Result<DeviceBytes> engine_device_bytes(const EngineOptions& options,
                                        const std::filesystem::path& model_folder) {
  ASSIGN_OR_RETURN(const auto config, read_model_config(model_folder));
  ASSIGN_OR_RETURN(const auto resolved, resolve(options, config));
#ifdef PRIMERL_CUDA_ENGINE
  if (resolved.device != "cpu") return cuda_engine_bytes(resolved, config);
#endif
  return DeviceBytes{};
}

Result<std::unique_ptr<Engine>> make_torch_engine(const EngineOptions& options,
                                                  const std::filesystem::path& model_folder,
                                                  std::shared_ptr<const Tokenizer> tokenizer,
                                                  FrozenBases* bases) {
  if (const std::string why = why_not_on(options.device); !why.empty())
    return error(Code::kUnavailable, "it is placed on '{}', which {}", options.device, why);
  ASSIGN_OR_RETURN(const auto config, read_model_config(model_folder));
  Status supported = check_is_supported(config);
  if (!supported.ok()) return Error(supported.error()).while_doing(model_folder.string());
  ASSIGN_OR_RETURN(const auto resolved, resolve(options, config));
#ifdef PRIMERL_CUDA_ENGINE
  if (resolved.device != "cpu")
    return make_cuda_engine(resolved, config, model_folder, std::move(tokenizer), bases);
#endif
  return make_cpu_engine(resolved, config, model_folder, std::move(tokenizer), bases);
}

}  // namespace primerl
