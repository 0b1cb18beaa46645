#include "runtime/backends/torch_backends.h"

#include "kernels/devices/device.h"
#include "kernels/devices/make.h"

namespace primerl {

const TorchBackends* torch_backends() {
  static const TorchBackends all{
      .make_engine =
          [](const EngineOptions& options, const std::string& model_folder,
             std::shared_ptr<const Tokenizer> tokenizer, FrozenBases* bases) {
            return make_torch_engine(options, model_folder, std::move(tokenizer), bases);
          },
      .make_learner =
          [](const LearnerOptions& options, const std::string& model_folder) {
            return make_torch_learner(options, model_folder);
          },
      .make_adapter_learner =
          [](const LearnerOptions& options, std::span<const AdapterTraining> adapters,
             const std::string& model_folder, FrozenBases* bases) {
            return make_torch_adapter_learner(options, adapters, model_folder, bases);
          },
      .why_not_on = [](const std::string& device,
                       const std::string&) { return why_not_on(device); },
      .slow_way_on = [](const std::string& device) { return slow_way_on(device); },
      .engine_bytes =
          [](const EngineOptions& options, const std::string& model_folder) {
            return engine_device_bytes(options, model_folder);
          },
      .learner_bytes =
          [](const LearnerOptions& options, std::span<const AdapterTraining> adapters,
             const std::string& model_folder) {
            return learner_device_bytes(options, adapters, model_folder);
          },
      .free_memory_on = [](const std::string& device) { return free_memory_on(device); },
      .device_memory = [](const std::string& device) { return device_memory_of(device); }};
  return &all;
}

}  // namespace primerl
