#include "kernels/cuda/learner/learner_memory.h"

#include "kernels/common/step_report.h"
#include "kernels/cuda/learner/adapters.h"
#include "kernels/cuda/learner/head.h"
#include "kernels/cuda/learner/optimizer_device.h"
#include "kernels/cuda/learner/training_pass.h"
#include "kernels/cuda/memory/frozen_base.h"

namespace primerl {

LearnerBytes learner_bytes(const LearnerOptions& options, const ModelConfig& config,
                           std::span<const AdapterTraining> adapters, int64_t rows) {
  const at::ScalarType type = type_named(options.dtype);
  const TensorTable table(config);
  const auto count = static_cast<double>(table.count());
  const double fp8 = options.products == "fp8" ? fp8_bytes(config, true, rows) : 0.0;
  LearnerBytes bytes = {
      count * CudaTrainedWeights::bytes_of_parameter(type) +
          CudaOptimizerDevice::bytes_needed(options.optimizer, table) + fp8,
      CudaTrainingPass::bytes_needed(config, type, recompute_of(options.recompute), rows),
      CudaTrainingHead::bytes_needed(config, type)};
  if (adapters.empty()) return bytes;
  bytes.weights = frozen_bytes(options, config, adapters) + fp8 +
                  LearnerAdapters::bytes_needed(table, adapters, type);
  const int32_t experts = config.moe.has_value() ? config.moe->experts_per_token : 0;
  bytes.rows += LearnerAdapters::bytes_of_rows(table, adapters, type, rows, experts);
  return bytes;
}

double frozen_bytes(const LearnerOptions& options, const ModelConfig& config,
                    std::span<const AdapterTraining> adapters) {
  if (adapters.empty()) return 0;
  return static_cast<double>(TensorTable(config).count()) *
         static_cast<double>(at::elementSize(type_named(options.dtype)));
}

Error too_large(const LearnerOptions& options, std::span<const AdapterTraining> adapters,
                const LearnerBytes& bytes, int64_t rows, const CudaDeviceFacts& facts,
                bool is_base_there) {
  constexpr double kGiga = 1e9;
  const std::string what =
      adapters.empty() ? "weights, gradients and moments"
                       : fmt::format("{}{} adapters, gradients and moments",
                                     is_base_there ? "" : "frozen weights, ", adapters.size());
  return error(Code::kExhausted,
               "the learner needs {:.1f} GB of {} for micro-batches of {} tokens ({} {:.1f}, "
               "activations {:.1f}, head {:.1f}, reserve {:.1f}), which has {:.1f} of {:.1f} GB "
               "free",
               bytes.all() / kGiga, options.device, rows, what, bytes.weights / kGiga,
               bytes.rows / kGiga, bytes.head / kGiga, kLearnerReserveBytes / kGiga,
               facts.free_bytes / kGiga, facts.total_bytes / kGiga)
      .note(
          "lower 'micro_batch_tokens', use recompute = \"keep_attention\" or \"full\", another "
          "optimizer or optimizer.moments_on = \"host\", or end the programs that use the rest");
}

}  // namespace primerl
