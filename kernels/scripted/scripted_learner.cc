#include "kernels/scripted/scripted_learner.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/random.h"
#include "kernels/scripted/device_fault.h"
#include "kernels/scripted/scripted_gradients.h"
#include "kernels/scripted/scripted_sums.h"
#include "kernels/scripted/scripted_weights.h"
#include "kernels/train/packing.h"
#include "kernels/train/schedule.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kStateBytesMax = 4096;

class ScriptedLearner final : public Learner {
 public:
  explicit ScriptedLearner(const ScriptedLearnerOptions& options) : options_(options) {}

  using Learner::step;
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop_requested) override;
  std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop_requested) override;
  int64_t next_tokens(const TrainBatch& batch) const override;
  void discard(TenantSlot tenant) override {
    unfinished_.erase(tenant);
    gradients_.open().close(tenant.index());
  }
  Result<LossResult> accumulate(const LossBatch& batch,
                                const StopRequested& stop_requested) override;
  std::optional<Result<LossResult>> accumulate_pass(const std::shared_ptr<const LossBatch>& batch,
                                                    const StopRequested& stop_requested) override;
  int64_t next_rows(const LossBatch& batch) const override;
  Result<TrainReport> apply(TenantSlot tenant, const AdamNumbers& adam) override;
  bool has_open_gradients(TenantSlot tenant) const override {
    return gradients_.open().has_open(tenant.index());
  }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override {
    RETURN_IF_ERROR(check_here(tenant));
    cost_ += options_.snapshot_cost;
    return scripted_snapshot(version, trained_of(tenant).history);
  }
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override;
  Result<std::shared_ptr<const LearnerImage>> capture(TenantSlot tenant) override;
  Status save(TenantSlot tenant, const fs::path& folder) override;
  Status begin_save(LearnerSave save) override;
  std::optional<Status> end_of_save(TenantSlot tenant, Time now) override;
  Status load(TenantSlot tenant, const fs::path& folder) override {
    return load_weights(tenant, folder, folder);
  }
  Status load_weights(TenantSlot tenant, const fs::path& folder, const fs::path& others) override;
  Status begin_tenant(const AdapterTraining& tenant) override;
  void end_tenant(TenantSlot tenant) override;
  SampleLimits limits() const override {
    return {options_.max_sequence_tokens, options_.vocab_size};
  }
  Duration take_cost() override { return std::exchange(cost_, Duration()); }
  std::string describe() const override {
    int64_t num_steps = 0;
    for (const auto& [tenant, trained] : trained_) num_steps += trained.num_steps;
    return fmt::format("{} steps taken", num_steps);
  }

 private:
  /// The training state of one tenant.
  struct Trained {
    uint64_t history = 0;   // hash of the seed and all its steps; stands for the weights
    int64_t num_steps = 0;  // that changed the weights
  };

  static Result<Trained> read_saved(const fs::path& folder);

  /// The files of a save.
  class Image final : public LearnerImage {
   public:
    Image(const ScriptedLearnerOptions& options, const Trained& trained)
        : options_(options), trained_(trained) {}
    /// For a writer's thread: a slow disk, which writes a byte now and then for save_time.
    Status write(const fs::path& folder) const override {
      constexpr int64_t kByte = 50'000'000;
      for (auto left = options_.save_time.to_nanoseconds(); left > 0; left -= kByte, count_bytes(1))
        std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(left, kByte)));
      return write_now(folder);
    }
    Status write_now(const fs::path& folder) const;

   private:
    const ScriptedLearnerOptions& options_;
    const Trained trained_;
  };

  /// A save that ends later.
  struct Saving {
    LearnerSave save;
    Image image;
    SaveLimit limit;
  };

  /// A step in progress.
  struct Stepping {
    std::shared_ptr<const TrainBatch> owned;  // set if the step continues in later work calls
    const TrainBatch* batch = nullptr;
    size_t next = 0;  // sample
    ScriptedSums sums;
    TrainReport report;

    bool is_done() const { return next == batch->samples.size(); }
  };
  struct MicroBatch {
    size_t end = 0;  // one past its last sample
    int64_t num_tokens = 0;
  };

  /// All tenants start with the same weights, whatever their slots.
  Trained& trained_of(TenantSlot tenant) {
    return trained_.try_emplace(tenant, Trained{mix(options_.seed, 0), 0}).first->second;
  }
  TrainingRules rules_of(TenantSlot tenant) const {
    if (const auto joined = joined_.find(tenant); joined != joined_.end()) return joined->second;
    const auto& of = options_.rules_of_tenant;
    if (tenant.index() < of.size()) return of[tenant.index()];
    return {options_.loss, options_.optimizer, options_.schedule, options_.max_steps};
  }
  /// Whether a tenant is in the slot.
  Status check_here(TenantSlot tenant) const {
    if (!free_.contains(tenant)) return ok();
    return error(Code::kNotFound, "this learner has no adapter of tenant {}", tenant);
  }
  Status check_saves(TenantSlot tenant) const {
    RETURN_IF_ERROR(check_here(tenant));
    return gradients_.open().check_none(tenant.index(), "a checkpoint");
  }
  static Status finish(const Saving& saving);
  Result<Stepping> begin_step(const TrainBatch& batch);
  Status check_client(const LossBatch& batch) const;
  /// The next micro-batch: samples from `first` on.
  MicroBatch micro_batch(const TrainBatch& batch, size_t first) const;
  /// Called between micro-batches.
  static Status check_not_stopped(const Stepping& step, const StopRequested& stop_requested);
  void add_micro_batch(Stepping& step);
  TrainReport end_step(Stepping& step);
  std::optional<Result<TrainReport>> pass_of(const std::shared_ptr<const TrainBatch>& batch,
                                             const StopRequested& stop_requested, bool& has_run);

  const ScriptedLearnerOptions options_;
  std::set<TenantSlot> free_ = {options_.free_slots.begin(), options_.free_slots.end()};
  std::map<TenantSlot, TrainingRules> joined_;  // of tenants that begin_tenant() made
  std::map<TenantSlot, Trained> trained_;       // of the tenants used so far
  std::map<TenantSlot, Stepping> unfinished_;   // tenants whose step has further passes
  std::map<TenantSlot, Saving> saving_;         // with save_time
  Duration cost_;
  ScriptedGradients gradients_{
      options_,
      [this](size_t slot) { return trained_of(TenantSlot(static_cast<uint32_t>(slot))).history; },
      [this](Duration cost) { cost_ += cost; }};
};

Result<TrainReport> ScriptedLearner::step(const TrainBatch& batch,
                                          const StopRequested& stop_requested) {
  ASSIGN_OR_RETURN(Stepping step, begin_step(batch));
  while (!step.is_done()) {
    RETURN_IF_ERROR(check_not_stopped(step, stop_requested));
    cost_ += options_.step_cost;
    add_micro_batch(step);
  }
  return end_step(step);
}

std::vector<std::optional<Result<TrainReport>>> ScriptedLearner::pass_together(
    std::span<const std::shared_ptr<const TrainBatch>> batches,
    const StopRequested& stop_requested) {
  std::vector<std::optional<Result<TrainReport>>> reports;
  bool has_run = false;
  for (const auto& batch : batches) {
    auto& report = reports.emplace_back(pass_of(batch, stop_requested, has_run));
    if (report) unfinished_.erase(batch->tenant);
  }
  if (has_run) cost_ += options_.step_cost;
  return reports;
}

/// Its part of a pass; sets `has_run` if a pass ran.
std::optional<Result<TrainReport>> ScriptedLearner::pass_of(
    const std::shared_ptr<const TrainBatch>& batch, const StopRequested& stop_requested,
    bool& has_run) {
  auto found = unfinished_.find(batch->tenant);
  if (found == unfinished_.end() || found->second.owned != batch) {
    auto begun = begin_step(*batch);
    if (!begun.ok()) return begun.error();
    begun->owned = batch;
    found = unfinished_.insert_or_assign(batch->tenant, std::move(begun).value()).first;
  }
  Stepping& step = found->second;
  if (!step.is_done()) {
    const Status goes_on = check_not_stopped(step, stop_requested);
    if (!goes_on.ok()) return goes_on.error();
    has_run = true;
    add_micro_batch(step);
  }
  if (!step.is_done()) return std::nullopt;
  return end_step(step);
}

int64_t ScriptedLearner::next_tokens(const TrainBatch& batch) const {
  const auto found = unfinished_.find(batch.tenant);
  const bool goes_on = found != unfinished_.end() && found->second.batch == &batch;
  const size_t first = goes_on ? found->second.next : 0;
  return std::max<int64_t>(micro_batch(batch, first).num_tokens, 1);
}

Result<ScriptedLearner::Stepping> ScriptedLearner::begin_step(const TrainBatch& batch) {
  RETURN_IF_ERROR(check_here(batch.tenant));
  RETURN_IF_ERROR(gradients_.open().check_may_step(batch.tenant.index()));
  RETURN_IF_ERROR(check_samples(batch, limits()));
  RETURN_IF_ERROR(take_device_fault(options_.device_fault_file, "a scripted training step"));
  Stepping step;
  step.batch = &batch;
  const auto has_loss_token = [](const TrainSample& sample) {
    return std::ranges::any_of(sample.loss_mask, [](uint8_t m) { return m != 0; });
  };
  if (std::ranges::any_of(batch.samples, has_loss_token)) return step;
  step.report.skipped = true;
  step.report.skip_reason = "no token to train on";
  step.next = batch.samples.size();
  return step;
}

ScriptedLearner::MicroBatch ScriptedLearner::micro_batch(const TrainBatch& batch,
                                                         size_t first) const {
  MicroBatch micro_batch{first, 0};
  for (; micro_batch.end < batch.samples.size(); ++micro_batch.end) {
    const int64_t more = std::ssize(batch.samples[micro_batch.end].tokens);
    if (micro_batch.num_tokens > 0 && micro_batch.num_tokens + more > options_.micro_batch_tokens)
      break;
    micro_batch.num_tokens += more;
  }
  return micro_batch;
}

Status ScriptedLearner::check_not_stopped(const Stepping& step,
                                          const StopRequested& stop_requested) {
  const bool is_first = step.report.num_micro_batches == 0;
  if (is_first || !stop_requested || !stop_requested()) return ok();
  return error(Code::kCancelled, "the step was stopped after {} micro-batches",
               step.report.num_micro_batches);
}

void ScriptedLearner::add_micro_batch(Stepping& step) {
  const MicroBatch micro_batch = this->micro_batch(*step.batch, step.next);
  const uint64_t history = trained_of(step.batch->tenant).history;
  for (; step.next < micro_batch.end; ++step.next)
    add_sample(step.batch->samples[step.next], step.batch->loss, history, step.sums);
  ++step.report.num_micro_batches;
  cost_ += options_.token_cost * micro_batch.num_tokens;
}

TrainReport ScriptedLearner::end_step(Stepping& step) {
  TrainReport& report = step.report;
  if (report.skipped) return report;
  const ScriptedSums& sums = step.sums;
  const auto count = static_cast<double>(sums.num_loss_tokens);
  report.loss = sums.loss / count * (1 + options_.loss_shift);
  report.entropy_mean = sums.entropy / count;
  report.mismatch_kl_mean = sums.mismatch_kl / count;
  report.mismatch_kl_max = sums.mismatch_kl_max;
  report.masked_fraction = static_cast<double>(sums.num_masked) / count;
  report.masked_high = report.masked_fraction;
  report.num_tokens = sums.num_tokens;
  report.num_loss_tokens = sums.num_loss_tokens;
  report.effective_size =
      sums.ratio_squared > 0 ? sums.ratio * sums.ratio / (count * sums.ratio_squared) : 1;
  Trained& trained = trained_of(step.batch->tenant);
  ++trained.num_steps;
  trained.history = mix(trained.history, sums.digest);
  report.grad_norm = 0.1 + uniform_of(trained.history);
  const TrainingRules rules = rules_of(step.batch->tenant);
  report.learning_rate =
      learning_rate(rules.schedule, rules.optimizer.lr, rules.max_steps, trained.num_steps);
  return report;
}

Status ScriptedLearner::check_client(const LossBatch& batch) const {
  RETURN_IF_ERROR(check_here(batch.tenant));
  if (unfinished_.contains(batch.tenant))
    return error(Code::kInvalid, "an accumulate while the tenant has an unfinished step");
  if (gradients_.open().is_running(batch.tenant.index(), batch)) return ok();
  return check_loss_batch(batch, limits());
}

Result<LossResult> ScriptedLearner::accumulate(const LossBatch& batch,
                                               const StopRequested& stop_requested) {
  RETURN_IF_ERROR(check_client(batch));
  return gradients_.open().accumulate(batch.tenant.index(), batch, stop_requested);
}

std::optional<Result<LossResult>> ScriptedLearner::accumulate_pass(
    const std::shared_ptr<const LossBatch>& batch, const StopRequested& stop_requested) {
  const Status valid = check_client(*batch);
  if (!valid.ok()) return valid.error();
  return gradients_.open().accumulate_pass(batch->tenant.index(), batch, stop_requested);
}

int64_t ScriptedLearner::next_rows(const LossBatch& batch) const {
  return check_client(batch).ok() ? gradients_.open().next_rows(batch.tenant.index(), batch) : 1;
}

Result<TrainReport> ScriptedLearner::apply(TenantSlot tenant, const AdamNumbers& adam) {
  RETURN_IF_ERROR(check_here(tenant));
  RETURN_IF_ERROR(check_adam(adam, rules_of(tenant).optimizer));
  const size_t slot = tenant.index();
  ASSIGN_OR_RETURN(TrainReport report, gradients_.open().report(slot));
  Trained& trained = trained_of(tenant);
  ++trained.num_steps;
  trained.history = mix(trained.history, gradients_.digest(slot));
  for (const double number :
       {adam.lr, adam.beta1, adam.beta2, adam.epsilon, adam.weight_decay, adam.max_norm})
    trained.history = mix(trained.history, std::bit_cast<uint64_t>(number));
  report.loss *= 1 + options_.loss_shift;
  report.grad_norm = 0.1 + uniform_of(trained.history);
  report.learning_rate = adam.lr;
  gradients_.open().close(slot);
  return report;
}

Result<std::vector<float>> ScriptedLearner::score(TenantSlot tenant,
                                                  const std::vector<int32_t>& tokens) {
  RETURN_IF_ERROR(check_here(tenant));
  if (tokens.empty()) return error(Code::kInvalid, "there is no token to score");
  if (tokens.size() > static_cast<size_t>(options_.max_sequence_tokens))
    return error(Code::kInvalid, "{} tokens are more than the {} of a sample", tokens.size(),
                 options_.max_sequence_tokens);
  for (const int32_t token : tokens)
    if (token < 0 || token >= options_.vocab_size)
      return error(Code::kInvalid, "token {} is not in [0, {})", token, options_.vocab_size);
  std::vector<float> logprobs;
  uint64_t prefix = mix(trained_of(tenant).history, static_cast<uint64_t>(tokens[0]));
  for (size_t i = 1; i < tokens.size(); ++i) {
    prefix = mix(prefix, static_cast<uint64_t>(tokens[i]));
    logprobs.push_back(scripted_logprob(prefix));
  }
  cost_ += options_.token_cost * static_cast<int64_t>(tokens.size());
  return logprobs;
}

Result<std::shared_ptr<const LearnerImage>> ScriptedLearner::capture(TenantSlot tenant) {
  RETURN_IF_ERROR(check_saves(tenant));
  return std::shared_ptr<const LearnerImage>(std::make_shared<Image>(options_, trained_of(tenant)));
}

Status ScriptedLearner::save(TenantSlot tenant, const fs::path& folder) {
  RETURN_IF_ERROR(check_saves(tenant));
  return Image(options_, trained_of(tenant)).write_now(folder);
}

Status ScriptedLearner::begin_save(LearnerSave save) {
  if (options_.save_time == Duration()) return Learner::begin_save(std::move(save));
  const TenantSlot tenant = save.tenant;
  RETURN_IF_ERROR(check_saves(tenant));
  // An earlier save is complete before the next one begins; its end is not asked for any more.
  if (const auto earlier = saving_.extract(tenant)) (void)finish(earlier.mapped());
  const SaveLimit limit(save.lasts_max);
  saving_.emplace(tenant, Saving{std::move(save), Image(options_, trained_of(tenant)), limit});
  return ok();
}

Status ScriptedLearner::finish(const Saving& saving) {
  RETURN_IF_ERROR(saving.image.write_now(saving.save.folder));
  return saving.save.commit();
}

std::optional<Status> ScriptedLearner::end_of_save(TenantSlot tenant, Time now) {
  const auto found = saving_.find(tenant);
  if (found == saving_.end()) return Learner::end_of_save(tenant, now);
  Saving& saving = found->second;
  if (now - saving.save.now < options_.save_time) return saving.limit.look(now);
  Status ended = finish(saving);
  saving_.erase(found);
  return ended;
}

Status ScriptedLearner::Image::write_now(const fs::path& folder) const {
  RETURN_IF_ERROR(take_disk_fault(options_.device_fault_file, "a scripted checkpoint"));
  if (!options_.writes_files) return ok();
  std::error_code fault;
  for (const char* part : {"weights", "learner"}) {
    fs::create_directories(folder / part, fault);
    if (fault) return error(Code::kIo, "'{}': {}", (folder / part).string(), fault.message());
  }
  const auto write = [](const fs::path& file, const Json& json) {
    const std::string text = json.dump(2) + "\n";
    const std::span<const std::byte> part = std::as_bytes(std::span(text));
    return write_file_synced(file, {&part, 1});
  };
  Json config = Json::object(), state = Json::object();
  config.set("model_type", "scripted").set("vocab_size", options_.vocab_size);
  config.set("max_position_embeddings", options_.max_sequence_tokens);
  // 64 bits as text: other JSON readers keep only 53.
  state.set("history", fmt::format("{:016x}", trained_.history))
      .set("num_steps", trained_.num_steps);
  RETURN_IF_ERROR(write(folder / "weights" / "config.json", config));
  RETURN_IF_ERROR(
      write_safetensors(folder / "weights" / "model.safetensors",
                        scripted_snapshot(PolicyVersion(0), trained_.history)->tensors));
  RETURN_IF_ERROR(write(folder / "learner" / "state.json", state));
  RETURN_IF_ERROR(system_files().sync(folder / "weights"));
  return system_files().sync(folder / "learner");
}

Status ScriptedLearner::begin_tenant(const AdapterTraining& tenant) {
  if (!free_.contains(tenant.tenant))
    return error(Code::kExists, "this learner already has an adapter of tenant {}", tenant.tenant);
  RETURN_IF_ERROR(validate(tenant.adapter));
  RETURN_IF_ERROR(check_rules(tenant.rules));
  free_.erase(tenant.tenant);
  joined_.insert_or_assign(tenant.tenant, tenant.rules);
  return ok();
}

/// A save that has not ended has written nothing yet.
void ScriptedLearner::end_tenant(TenantSlot tenant) {
  Learner::end_tenant(tenant);
  trained_.erase(tenant);
  joined_.erase(tenant);
  saving_.erase(tenant);
  free_.insert(tenant);
}

Result<ScriptedLearner::Trained> ScriptedLearner::read_saved(const fs::path& folder) {
  const fs::path file = folder / "learner" / "state.json";
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kStateBytesMax));
  ASSIGN_OR_RETURN(const Json state, parse_json(text, file.string()));
  const auto history_text = state.get_string("history");
  const auto num_steps = state.get_int("num_steps");
  uint64_t history = 0;
  bool is_sound = history_text.ok() && num_steps.ok() && *num_steps >= 0;
  if (is_sound) {
    const char* end = history_text->data() + history_text->size();
    const auto parsed = std::from_chars(history_text->data(), end, history, 16);
    is_sound = parsed.ec == std::errc() && parsed.ptr == end;
  }
  if (!is_sound)
    return error(Code::kCorrupt, "'{}' is not a state of a scripted learner", file.string());
  ASSIGN_OR_RETURN(const auto tensors, read_model_tensors(folder / "weights"));
  RETURN_IF_ERROR(check_scripted_tensors(tensors));
  if (!(tensors[0].bytes == scripted_snapshot(PolicyVersion(0), history)->tensors[0].bytes))
    return error(Code::kCorrupt, "'{}' is not of the weights beside it", file.string());
  return Trained{history, *num_steps};
}

Status ScriptedLearner::load_weights(TenantSlot tenant, const fs::path& folder,
                                     const fs::path& others) {
  RETURN_IF_ERROR(check_here(tenant));
  ASSIGN_OR_RETURN(const Trained weights, read_saved(folder));
  ASSIGN_OR_RETURN(const Trained optimizer, read_saved(others));
  trained_of(tenant) = {weights.history, optimizer.num_steps};
  gradients_.open().close(tenant.index());  // they are of the weights before
  return ok();
}

}  // namespace

Status validate(const ScriptedLearnerOptions& options) {
  if (options.vocab_size < 1)
    return error(Code::kInvalid, "'vocab_size' is {}, below 1", options.vocab_size);
  if (options.max_sequence_tokens < 1)
    return error(Code::kInvalid, "'max_sequence_tokens' is {}, below 1",
                 options.max_sequence_tokens);
  if (options.micro_batch_tokens < 1)
    return error(Code::kInvalid, "'micro_batch_tokens' is {}, below 1", options.micro_batch_tokens);
  for (const Duration cost :
       {options.step_cost, options.token_cost, options.snapshot_cost, options.save_time})
    if (cost < Duration()) return error(Code::kInvalid, "a cost of {} is below 0", to_string(cost));
  return validate(options.schedule, options.optimizer.lr, options.max_steps);
}

Result<std::unique_ptr<Learner>> make_scripted_learner(const ScriptedLearnerOptions& options) {
  RETURN_IF_ERROR(validate(options));
  return std::unique_ptr<Learner>(std::make_unique<ScriptedLearner>(options));
}

}  // namespace primerl
