#include "kernels/train/learner.h"

#include <algorithm>

#include "kernels/train/packing.h"

namespace primerl {
namespace {

/// Sets num_pass_tokens in each report of a pass. If the step had only this pass, it is all tokens
/// of the pass, else `num_tokens`.
void set_pass_tokens(std::vector<std::optional<Result<TrainReport>>>& reports,
                     const std::vector<bool>& is_first, const std::vector<int64_t>& num_tokens) {
  int64_t sum = 0;
  for (size_t i = 0; i < reports.size(); ++i)
    sum +=
        is_first[i] && reports[i] && reports[i]->ok() ? (*reports[i])->num_tokens : num_tokens[i];
  for (size_t i = 0; i < reports.size(); ++i)
    if (reports[i] && reports[i]->ok() && (reports.size() > 1 || !is_first[i]))
      (*reports[i])->num_pass_tokens = sum;
}

/// Removes the tenant's result, if there is one.
template <class T>
std::optional<Result<T>> fetch(std::map<TenantSlot, Result<T>>& results, TenantSlot tenant) {
  const auto found = results.find(tenant);
  if (found == results.end()) return std::nullopt;
  Result<T> result = std::move(found->second);
  results.erase(found);
  return result;
}

Error no_halves(std::string_view call) {
  return error(Code::kUnavailable, "this learner has no '{}': it makes whole steps", call);
}

}  // namespace

Result<LossResult> Learner::accumulate(const LossBatch&, const StopRequested&) {
  return no_halves("accumulate");
}

std::optional<Result<LossResult>> Learner::accumulate_pass(
    const std::shared_ptr<const LossBatch>& batch, const StopRequested& stop_requested) {
  return accumulate(*batch, stop_requested);
}

int64_t Learner::next_rows(const LossBatch& batch) const {
  int64_t rows = 0;
  for (const LossDatum& datum : batch.data) rows += std::ssize(datum.tokens);
  return std::max<int64_t>(rows, 1);  // an empty batch also needs a work call
}

Result<TrainReport> Learner::apply(TenantSlot, const AdamNumbers&) { return no_halves("apply"); }

std::vector<Result<TrainReport>> Learner::step_together(std::span<const TrainBatch* const> batches,
                                                        const StopRequested& stop_requested) {
  std::vector<Result<TrainReport>> reports;
  for (const TrainBatch* batch : batches) reports.push_back(step(*batch, stop_requested));
  return reports;
}

std::vector<std::optional<Result<TrainReport>>> Learner::pass_together(
    std::span<const std::shared_ptr<const TrainBatch>> batches,
    const StopRequested& stop_requested) {
  std::vector<const TrainBatch*> whole;
  for (const auto& batch : batches) whole.push_back(batch.get());
  std::vector<std::optional<Result<TrainReport>>> reports;
  for (auto& report : step_together(whole, stop_requested)) reports.emplace_back(std::move(report));
  return reports;
}

/// One sample after the other, by score().
Result<AnswerLoss> Learner::evaluate(const TrainBatch& batch) {
  RETURN_IF_ERROR(check_samples(batch, limits()));
  AnswerLoss loss;
  for (const TrainSample& sample : batch.samples) {
    ASSIGN_OR_RETURN(const auto logprobs, score(batch.tenant, sample.tokens));
    for (size_t i = 1; i < sample.tokens.size(); ++i)
      if (sample.loss_mask[i] != 0)
        add_answer(logprobs[i - 1], sample.weights.empty() ? 1.0F : sample.weights[i], loss);
  }
  return loss;
}

int64_t Learner::next_tokens(const TrainBatch& batch) const {
  int64_t num_tokens = 0;
  for (const auto& sample : batch.samples) num_tokens += std::ssize(sample.tokens);
  return std::max<int64_t>(num_tokens, 1);  // an empty batch also needs a work call
}

std::optional<Status> SaveLimit::look(Time now) {
  if (!first_) first_ = now;
  if (now - *first_ < lasts_max_) return std::nullopt;
  return Status(error(Code::kDeadline, "it was not written within {}", to_string(lasts_max_)));
}

Status Learner::begin_save(LearnerSave save) {
  // Open gradients refuse it now, and not at its end: nothing has begun.
  if (has_open_gradients(save.tenant)) return this->save(save.tenant, save.folder);
  Status ended = this->save(save.tenant, save.folder);
  if (ended.ok()) ended = save.commit();
  saved_.insert_or_assign(save.tenant, std::move(ended));
  return ok();
}

std::optional<Status> Learner::end_of_save(TenantSlot tenant, Time /*now*/) {
  const auto found = saved_.find(tenant);
  if (found == saved_.end())
    return error(Code::kInternal, "the learner was not asked to save tenant {}", tenant);
  Status ended = std::move(found->second);
  saved_.erase(found);
  return ended;
}

Status Learner::begin_tenant(const AdapterTraining&) {
  return error(Code::kUnavailable, "this learner trains the tenants that it was made for");
}

void Learner::end_tenant(TenantSlot tenant) {
  turns_.forget(tenant);
  queue_.erase(tenant);
  in_progress_.erase(tenant);
  reports_.erase(tenant);
  loss_results_.erase(tenant);
  saved_.erase(tenant);
  discard(tenant);
}

Status Learner::load_weights(TenantSlot tenant, const std::filesystem::path& folder,
                             const std::filesystem::path& others) {
  namespace fs = std::filesystem;
  if (folder == others) return load(tenant, folder);
  const fs::path mixed = folder.parent_path() / fmt::format(".loading-{}", tenant);
  std::error_code fault;
  const auto link = [&](const fs::path& from, const char* part) {
    if (fault) return;
    fs::create_directories(mixed / part, fault);
    if (!fault)
      fs::copy(from / part, mixed / part,
               fs::copy_options::recursive | fs::copy_options::create_hard_links, fault);
  };
  fs::remove_all(mixed, fault);
  link(folder, "weights");
  link(others, "learner");
  const Status loaded = fault
                            ? Status(error(Code::kIo, "'{}': {}", mixed.string(), fault.message()))
                            : load(tenant, mixed);
  fs::remove_all(mixed, fault);
  return loaded;
}

void Learner::ask(TenantSlot tenant, Waiting next, uint64_t work_call,
                  const StopRequested& stop_requested) {
  Waiting& waiting = queue_[tenant];
  if (waiting.batch != next.batch || waiting.loss_batch != next.loss_batch) {
    next.num_tokens =
        next.batch != nullptr ? next_tokens(*next.batch) : next_rows(*next.loss_batch);
    waiting = std::move(next);
  }
  run_pass(turns_.ask(tenant, waiting.num_tokens, work_call), stop_requested);
}

std::optional<Result<TrainReport>> Learner::step_queued(std::shared_ptr<const TrainBatch> batch,
                                                        uint64_t turn,
                                                        const StopRequested& stop_requested) {
  const TenantSlot tenant = batch->tenant;
  if (!reports_.contains(tenant)) ask(tenant, {.batch = std::move(batch)}, turn, stop_requested);
  return fetch(reports_, tenant);
}

std::optional<Result<LossResult>> Learner::accumulate_queued(std::shared_ptr<const LossBatch> batch,
                                                             uint64_t work_call,
                                                             const StopRequested& stop_requested) {
  const TenantSlot tenant = batch->tenant;
  if (!loss_results_.contains(tenant))
    ask(tenant, {.loss_batch = std::move(batch)}, work_call, stop_requested);
  return fetch(loss_results_, tenant);
}

void Learner::run_pass(const std::vector<TenantSlot>& tenants,
                       const StopRequested& stop_requested) {
  std::vector<TenantSlot> steps;
  for (const TenantSlot tenant : tenants)
    if (queue_.at(tenant).batch != nullptr) steps.push_back(tenant);
  run_steps(steps, stop_requested);
  for (const TenantSlot tenant : tenants)
    if (queue_.contains(tenant)) run_accumulate(tenant, stop_requested);
}

void Learner::run_accumulate(TenantSlot tenant, const StopRequested& stop_requested) {
  auto result = accumulate_pass(queue_.at(tenant).loss_batch, stop_requested);
  queue_.erase(tenant);
  if (result) {
    in_progress_.erase(tenant);
    loss_results_.emplace(tenant, *std::move(result));
  } else {
    in_progress_.insert(tenant);
  }
}

void Learner::run_steps(const std::vector<TenantSlot>& tenants,
                        const StopRequested& stop_requested) {
  if (tenants.empty()) return;
  std::vector<std::shared_ptr<const TrainBatch>> batches;
  std::vector<int64_t> num_tokens;
  std::vector<bool> is_first;
  for (const TenantSlot tenant : tenants) {
    batches.push_back(queue_.at(tenant).batch);
    num_tokens.push_back(queue_.at(tenant).num_tokens);
    is_first.push_back(!in_progress_.contains(tenant));
  }
  auto reports = pass_together(batches, stop_requested);
  set_pass_tokens(reports, is_first, num_tokens);
  for (size_t i = 0; i < tenants.size(); ++i) {
    queue_.erase(tenants[i]);
    if (reports[i]) {
      in_progress_.erase(tenants[i]);
      reports_.emplace(tenants[i], *std::move(reports[i]));
    } else {
      in_progress_.insert(tenants[i]);
    }
  }
}

void Learner::leave_queue(TenantSlot tenant) {
  turns_.leave(tenant);
  const auto result = fetch(loss_results_, tenant);
  // Whoever leaves without the result cannot know that its gradients were added.
  if (in_progress_.erase(tenant) > 0 || (result && result->ok())) discard(tenant);
  queue_.erase(tenant);
  reports_.erase(tenant);
}

}  // namespace primerl
