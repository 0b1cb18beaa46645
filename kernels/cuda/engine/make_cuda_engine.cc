// The memory that an engine needs on a CUDA device, and the construction of a folder's engine.
#include <algorithm>

#include "kernels/common/boundary.h"
#include "kernels/cuda/engine/engine.h"
#include "kernels/cuda/layers/supported_model.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr double kReserveBytes = 1.5e9;  // libtorch's workspaces, graphs and gathered keys
constexpr double kGigabytes = 1e9;

double weight_bytes(const EngineOptions& options, const ModelConfig& config) {
  return static_cast<double>(TensorTable(config).count()) *
         static_cast<double>(at::elementSize(type_named(options.dtype)));
}

/// Bytes with one set of weights.
double bytes_on_cuda(const EngineOptions& options, const ModelConfig& config) {
  const auto size = static_cast<int64_t>(at::elementSize(type_named(options.dtype)));
  const AttentionSpec& spec = config.attention;
  const double cache = 2.0 * config.num_layers() * static_cast<double>(options.kv_blocks) *
                       options.block_size * spec.num_kv_heads * spec.head_dim;
  const int64_t rows_max = std::max(options.max_batched_tokens, options.max_running);
  const double rows = CudaDecoder::bytes_needed(config, size, rows_max, options.max_running,
                                                options.max_sequence_tokens);
  const double slots = options.adapter_slots == 0
                           ? 0
                           : CudaAdapterSlots::bytes_needed(
                                 TensorTable(config), options, size,
                                 config.moe.has_value() ? config.moe->experts_per_token : 0);
  const double fp8 = options.products == "fp8" ? fp8_bytes(config, false, rows_max) : 0.0;
  return weight_bytes(options, config) + fp8 + cache * static_cast<double>(size) + rows + slots +
         WeightUpload::bytes_needed() + kReserveBytes;
}

Status check_cuda_engine(const EngineOptions& options, const ModelConfig& config) {
  RETURN_IF_ERROR(check_cuda_model(config));
  RETURN_IF_ERROR(check_products(options.products, options.dtype, config, options.device));
  return options.adapter_slots > 0 ? CudaAdapterSlots::check(TensorTable(config), options) : ok();
}

/// `is_base_there`: its frozen weights are already on the device.
Result<CudaDeviceFacts> check_free_memory(const EngineOptions& options, const ModelConfig& config,
                                          bool is_base_there) {
  ASSIGN_OR_RETURN(CudaDeviceFacts facts, cuda_device_facts(cuda_device_index(options.device)));
  const double needed =
      bytes_on_cuda(options, config) - (is_base_there ? weight_bytes(options, config) : 0.0);
  if (needed <= facts.free_bytes) return facts;
  return error(Code::kExhausted,
               "the engine needs {:.1f} GB of {}, which has {:.1f} of {:.1f} GB free",
               needed / kGigabytes, options.device, facts.free_bytes / kGigabytes,
               facts.total_bytes / kGigabytes)
      .note(
          "lower 'kv_blocks' or 'max_batched_tokens' of the engine, or end the programs that use "
          "the rest");
}

}  // namespace

DeviceBytes cuda_engine_bytes(const EngineOptions& options, const ModelConfig& config) {
  return {bytes_on_cuda(options, config),
          options.adapter_slots > 0 ? weight_bytes(options, config) : 0.0,
          name_of(type_named(options.dtype))};
}

Result<std::unique_ptr<Engine>> make_cuda_engine(const EngineOptions& options,
                                                 const ModelConfig& config,
                                                 const std::filesystem::path& model_folder,
                                                 std::shared_ptr<const Tokenizer> tokenizer,
                                                 FrozenBases* bases) {
  RETURN_IF_ERROR(check_cuda_engine(options, config));
  ASSIGN_OR_RETURN(const auto tensors, read_model_tensors(model_folder));
  return at_boundary("engine", [&]() -> Result<std::unique_ptr<Engine>> {
    use_threads(options.threads);
    const CudaStream stream(cuda_device_index(options.device));
    const CudaStream::Use use(stream);
    CudaDeviceFacts facts;
    const auto look = [&](bool is_base_there) -> Status {
      ASSIGN_OR_RETURN(facts, check_free_memory(options, config, is_base_there));
      return ok();
    };
    std::shared_ptr<const CudaFrozenBase> base;
    bool has_second_set = false;
    if (options.adapter_slots > 0) {
      ASSIGN_OR_RETURN(base, cuda_frozen_base(bases, model_folder, config, tensors,
                                              type_named(options.dtype), stream, look));
    } else {
      RETURN_IF_ERROR(look(false));
      has_second_set =
          bytes_on_cuda(options, config) + weight_bytes(options, config) <= facts.free_bytes;
    }
    auto engine = std::make_unique<CudaEngine>(options, config, stream, facts, has_second_set,
                                               std::move(base), std::move(tokenizer));
    Status loaded = engine->load(tensors);
    if (!loaded.ok()) return Error(loaded.error()).while_doing(model_folder.string());
    return std::unique_ptr<Engine>(std::move(engine));
  });
}

}  // namespace primerl
