// The end of an engine's step on a device: accepted, failed, or the last step of the process.
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/engine/engine.h"

namespace primerl {

void CudaEngine::finish(const StepPlan& plan, const Status& computed) {
  ++num_steps_;
  if (computed.ok()) return scheduler_.finish_step();
  // Results of a lost device are lost for the rest of the process.
  lost_ = stream_.check_device(fmt::format("engine step {}", num_steps_));
  if (!lost_.ok()) return;
  const bool is_full = computed.error().code() == Code::kExhausted;
  const std::string why =
      is_full ? out_of_memory(plan.rows.num_rows()).text() : computed.error().text();
  scheduler_.fail_step(plan, why);
}

/// The tensors of the failed step are freed; memory that libtorch caches may be needed by others.
Error CudaEngine::out_of_memory(int64_t num_rows) const {
  constexpr double kBytesOfGigabyte = 1e9;
  release_kept_memory();
  const auto asked = cuda_device_facts(cuda_device_index(options_.device));
  const CudaDeviceFacts facts = asked.ok() ? *asked : CudaDeviceFacts{};
  const auto cache_bytes = static_cast<double>(cache_.keys.nbytes() + cache_.values.nbytes());
  return error(Code::kExhausted,
               "engine step {} found no memory for {} rows on {}, of which {:.1f} of {:.1f} GB are "
               "free now: the engine was planned to need {:.1f} GB, {:.1f} of them for its cache",
               num_steps_, num_rows, options_.device, facts.free_bytes / kBytesOfGigabyte,
               facts.total_bytes / kBytesOfGigabyte,
               cuda_engine_bytes(options_, config_).all / kBytesOfGigabyte,
               cache_bytes / kBytesOfGigabyte)
      .note(
          "lower 'kv_blocks' or 'max_batched_tokens' of the engine, or end the programs that use "
          "the rest");
}

}  // namespace primerl
