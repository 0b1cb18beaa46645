#include "kernels/cpu/learner/learner.h"

#include <algorithm>

#include "graph/base/files.h"
#include "kernels/common/boundary.h"
#include "kernels/common/memory.h"
#include "kernels/common/step_report.h"
#include "kernels/devices/device.h"
#include "kernels/devices/make.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/sizing/memory.h"
#include "kernels/sizing/setup.h"
#include "kernels/train/schedule.h"
#include "kernels/weights/safetensors.h"

#ifdef PRIMERL_CUDA_ENGINE
#include "kernels/cuda/learner/learner.h"
#endif

namespace primerl {

TorchLearner::TorchLearner(const LearnerOptions& options, ModelFolder model)
    : options_(options),
      model_(std::move(model)),
      table_(model_.config),
      kept_batches_(options.debug.batch_folder, static_cast<size_t>(options.debug.batches_max)),
      own_(std::make_unique<DecoderWeights>(table_, numerics_of(options.numerics),
                                            DecoderWeights::Use::kLearner)),
      decoder_(model_.config, *own_),
      pass_(decoder_, recompute_of(options.recompute)),
      head_(decoder_) {
  trained_.push_back({{},
                      {options.loss, options.optimizer, options.schedule, options.max_steps},
                      nullptr,
                      TrainedTensors(table_, own_->flat())});
  decoder_.bind_gradients(trained_.front().tensors.gradients());
  look_if_asked();
}

TorchLearner::TorchLearner(const LearnerOptions& options, ModelFolder model,
                           std::string base_folder, std::shared_ptr<const FrozenWeights> base,
                           std::span<const AdapterTraining> adapters)
    : options_(options),
      model_(std::move(model)),
      base_folder_(std::move(base_folder)),
      table_(model_.config),
      kept_batches_(options.debug.batch_folder, static_cast<size_t>(options.debug.batches_max)),
      base_(std::move(base)),
      decoder_(model_.config, base_->weights()),
      pass_(decoder_, recompute_of(options.recompute)),
      head_(decoder_) {
  for (const auto& training : adapters) {
    auto adapter = std::make_unique<AdapterWeights>(AdapterTable(table_, training.adapter),
                                                    DecoderWeights::Use::kLearner);
    initialize_adapter(adapter->table(), adapter->flat().mutable_data_ptr<float>());
    TrainedTensors tensors(adapter->table().tensors(), adapter->flat());
    adapter->bind_gradients(tensors.gradients());
    trained_.push_back({training.tenant, training.rules, std::move(adapter), std::move(tensors)});
  }
  look_if_asked();
}

void TorchLearner::look_if_asked() {
  if (options_.debug.check_finite || !options_.debug.dump_folder.empty())
    pass_.visit([this](const std::string& name, const at::Tensor& rows) { look(name, rows); });
}

Result<TorchLearner::Trained*> TorchLearner::trained_of(TenantSlot tenant) {
  for (auto& trained : trained_)
    if (trained.adapter == nullptr || trained.tenant == tenant) return &trained;
  return error(Code::kNotFound, "this learner has no adapter of tenant {}", tenant)
      .note(fmt::format("it trains adapters of {} tenants", trained_.size()));
}

int32_t TorchLearner::slot_of(const Trained& trained) const {
  if (trained.adapter == nullptr) return kNoAdapter;
  return static_cast<int32_t>(&trained - trained_.data());
}

void TorchLearner::use_adapter(const Trained& trained, const AdapterDropout& dropout) {
  if (trained.adapter != nullptr)
    decoder_.adapters().set(slot_of(trained), trained.adapter.get(), dropout);
}

Status TorchLearner::fill(const std::vector<WeightTensor>& tensors) {
  if (own_ == nullptr)
    return error(Code::kInvalid, "this learner trains adapters, its weights are frozen");
  RETURN_IF_ERROR(own_->load(tensors));
  unused_.clear();
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  for (const auto* tensor : match.unused) unused_.push_back(*tensor);
  return ok();
}

void TorchLearner::randomize(uint64_t seed) {
  randomize_parameters(table_, seed, model_.config.initializer_range,
                       own_->flat().mutable_data_ptr<float>());
}

Status TorchLearner::fill_adapter(TenantSlot tenant, const std::vector<WeightTensor>& tensors) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  if (trained->adapter == nullptr)
    return error(Code::kInvalid, "this learner trains whole weights, not an adapter");
  return trained->adapter->load(tensors);
}

Status TorchLearner::start_from(const AdapterTraining& training) {
  ASSIGN_OR_RETURN(const auto tensors,
                   read_adapter_start(training.start, model_.config, training.adapter));
  return fill_adapter(training.tenant, tensors);
}

Result<std::shared_ptr<const WeightSnapshot>> TorchLearner::snapshot(TenantSlot tenant,
                                                                     PolicyVersion version) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  auto taken = std::make_shared<WeightSnapshot>();
  taken->version = version;
  taken->tensors = trained->tensors.copy_weights();
  return std::shared_ptr<const WeightSnapshot>(std::move(taken));
}

Result<std::vector<float>> TorchLearner::score(TenantSlot tenant,
                                               const std::vector<int32_t>& tokens) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  ASSIGN_OR_RETURN(const TrainBatch batch, batch_to_score(tokens, limits()));
  return at_boundary("scoring", [&]() -> Result<std::vector<float>> {
    std::vector<float> logprobs;
    auto batches = pack(batch.samples, static_cast<int32_t>(tokens.size()));
    if (batches.empty()) return logprobs;
    for (auto& span : batches.front().rows.spans) span.adapter = slot_of(*trained);
    use_adapter(*trained, {});
    const float* normed = pass_.forward(batches.front().rows);
    head_.score(batches.front().targets, normed, logprobs);
    return logprobs;
  });
}

Status TorchLearner::save(TenantSlot tenant, const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  if (trained->adapter != nullptr) {
    RETURN_IF_ERROR(write_adapter_folder(folder / "weights", trained->adapter->table(),
                                         base_folder_, trained->tensors.weights()));
  } else {
    auto tensors = trained->tensors.view_weights();
    tensors.insert(tensors.end(), unused_.begin(), unused_.end());
    RETURN_IF_ERROR(write_model_folder(folder / "weights", model_, tensors));
  }
  RETURN_IF_ERROR(trained->tensors.save(folder / "learner"));
  return system_files().sync(folder);
}

Status TorchLearner::load(TenantSlot tenant, const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  const auto weights = folder / "weights";
  return at_boundary("loading a learner", [&]() -> Status {
    std::vector<WeightTensor> tensors;
    if (trained->adapter != nullptr) {
      ASSIGN_OR_RETURN(auto read, read_adapter_folder(weights, model_.config));
      Status same = check_same_adapter(trained->adapter->table().config(), read.config);
      if (!same.ok()) return Error(same.error()).while_doing(weights.string());
      tensors = std::move(read.tensors);
    } else {
      ASSIGN_OR_RETURN(tensors, read_model_tensors(weights));
    }
    Status loaded = trained->tensors.load(tensors, folder / "learner");
    if (!loaded.ok()) return Error(loaded.error()).while_doing(folder.string());
    return ok();
  });
}

std::string TorchLearner::describe() const {
  if (trained_.front().adapter == nullptr)
    return fmt::format("{} optimizer steps, {} parameters", trained_.front().tensors.num_steps(),
                       table_.num_parameters());
  int64_t num_steps = 0, num_parameters = 0;
  for (const auto& trained : trained_) {
    num_steps += trained.tensors.num_steps();
    num_parameters += trained.tensors.table().num_parameters();
  }
  return fmt::format("{} optimizer steps, {} adapters of {} parameters on {} that are frozen",
                     num_steps, trained_.size(), num_parameters, table_.num_parameters());
}

std::vector<WeightTensor> TorchLearner::gradients(TenantSlot tenant) {
  return trained_of(tenant).value()->tensors.copy_gradients();
}

namespace {

Status check_rules(const TrainingRules& rules) {
  RETURN_IF_ERROR(validate(rules.loss));
  RETURN_IF_ERROR(validate(rules.schedule, rules.optimizer.lr, rules.max_steps));
  const OptimizerOptions& optimizer = rules.optimizer;
  if (optimizer.kind != "adamw")
    return error(Code::kInvalid, "unknown optimizer '{}'", optimizer.kind)
        .note("known optimizers: adamw");
  const auto fraction = [](double value) { return value >= 0 && value < 1; };
  if (!fraction(optimizer.beta1) || !fraction(optimizer.beta2))
    return error(Code::kInvalid, "beta1 {} and beta2 {} must be in [0, 1)", optimizer.beta1,
                 optimizer.beta2);
  if (!(optimizer.epsilon > 0) || !(optimizer.weight_decay >= 0) || !(optimizer.max_norm >= 0))
    return error(Code::kInvalid,
                 "epsilon {} must be above 0, weight_decay {} and max_norm {} 0 or above",
                 optimizer.epsilon, optimizer.weight_decay, optimizer.max_norm);
  return ok();
}

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
    const auto& [tenant, adapter, rules, start] = adapters[i];
    for (const auto& other : adapters.first(i))
      if (other.tenant == tenant)
        return error(Code::kInvalid, "tenant {} has two adapters in one learner", tenant)
            .note("a tenant trains one adapter");
    Status valid = validate(adapter);
    if (valid.ok()) valid = check_rules(rules);
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
    trained.push_back({fmt::format("{}", training.tenant), training.adapter});
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
    RETURN_IF_ERROR(check_memory("the learner (weights, gradients and two moments in fp32)",
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
    auto learner = std::make_unique<TorchLearner>(options, std::move(model));
    if (random) {
      learner->randomize(static_cast<uint64_t>(options.init_seed));
    } else {
      Status filled = learner->fill(*tensors);
      if (!filled.ok()) return Error(filled.error()).while_doing(model_folder.string());
    }
    return std::unique_ptr<Learner>(std::move(learner));
  });
}

/// Flat weights, for fast numerics, are not shared, since engines need packed ones.
Result<std::shared_ptr<const FrozenWeights>> base_of(const LearnerOptions& options,
                                                     const std::filesystem::path& model_folder,
                                                     const ModelConfig& config,
                                                     FrozenBases* bases) {
  auto base = is_fast(options) ? load_frozen_weights(model_folder, config, true)
                               : frozen_weights(bases, model_folder, config);
  if (base.ok() || !is_random(options, base.error())) return base;
  return random_frozen_weights(static_cast<uint64_t>(options.init_seed), config, is_fast(options));
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
    auto learner = std::make_unique<TorchLearner>(options, std::move(model), model_folder.string(),
                                                  std::move(base), adapters);
    for (const auto& training : adapters) {
      if (training.start.empty()) continue;
      Status started = learner->start_from(training);
      if (!started.ok()) return Error(started.error()).while_doing(training.start);
    }
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
