#include "kernels/cpu/learner/learner.h"

#include <algorithm>

#include "graph/base/files.h"
#include "kernels/common/boundary.h"
#include "kernels/common/memory.h"
#include "kernels/common/step_report.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/weights/safetensors.h"

namespace primerl {

CpuLearner::CpuLearner(const LearnerOptions& options, ModelFolder model)
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

CpuLearner::CpuLearner(const LearnerOptions& options, ModelFolder model, std::string base_folder,
                       std::shared_ptr<const FrozenWeights> base,
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

void CpuLearner::look_if_asked() {
  if (options_.debug.check_finite || !options_.debug.dump_folder.empty())
    pass_.visit([this](const std::string& name, const at::Tensor& rows) { look(name, rows); });
}

Result<CpuLearner::Trained*> CpuLearner::trained_of(TenantSlot tenant) {
  for (auto& trained : trained_)
    if (trained.adapter == nullptr || trained.tenant == tenant) return &trained;
  return error(Code::kNotFound, "this learner has no adapter of tenant {}", tenant)
      .note(fmt::format("it trains adapters of {} tenants", trained_.size()));
}

int32_t CpuLearner::slot_of(const Trained& trained) const {
  if (trained.adapter == nullptr) return kNoAdapter;
  return static_cast<int32_t>(&trained - trained_.data());
}

void CpuLearner::use_adapter(const Trained& trained, const AdapterDropout& dropout) {
  if (trained.adapter != nullptr)
    decoder_.adapters().set(slot_of(trained), trained.adapter.get(), dropout);
}

Status CpuLearner::fill(const std::vector<WeightTensor>& tensors) {
  if (own_ == nullptr)
    return error(Code::kInvalid, "this learner trains adapters, its weights are frozen");
  RETURN_IF_ERROR(own_->load(tensors));
  unused_.clear();
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  for (const auto* tensor : match.unused) unused_.push_back(*tensor);
  return ok();
}

void CpuLearner::randomize(uint64_t seed) {
  randomize_parameters(table_, seed, model_.config.initializer_range,
                       own_->flat().mutable_data_ptr<float>());
}

Status CpuLearner::fill_adapter(TenantSlot tenant, const std::vector<WeightTensor>& tensors) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  if (trained->adapter == nullptr)
    return error(Code::kInvalid, "this learner trains whole weights, not an adapter");
  return trained->adapter->load(tensors);
}

Status CpuLearner::start_from(const AdapterTraining& training) {
  ASSIGN_OR_RETURN(const auto tensors,
                   read_adapter_start(training.start, model_.config, training.adapter));
  return fill_adapter(training.tenant, tensors);
}

Result<std::shared_ptr<const WeightSnapshot>> CpuLearner::snapshot(TenantSlot tenant,
                                                                   PolicyVersion version) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  auto taken = std::make_shared<WeightSnapshot>();
  taken->version = version;
  taken->tensors = trained->tensors.copy_weights();
  return std::shared_ptr<const WeightSnapshot>(std::move(taken));
}

Result<std::vector<float>> CpuLearner::score(TenantSlot tenant,
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

Status CpuLearner::save(TenantSlot tenant, const std::filesystem::path& folder) {
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

Status CpuLearner::load(TenantSlot tenant, const std::filesystem::path& folder) {
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

std::string CpuLearner::describe() const {
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

std::vector<WeightTensor> CpuLearner::gradients(TenantSlot tenant) {
  return trained_of(tenant).value()->tensors.copy_gradients();
}

}  // namespace primerl
