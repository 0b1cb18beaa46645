// Requests of models: their order, and one at a time of each tenant at the trainer.
#include <algorithm>
#include <utility>

#include "actors/tinker/tinker.h"
#include "graph/base/file_digest.h"

namespace primerl {

using namespace tinker;  // NOLINT: its names are those of the wire

namespace {

Error error_of(const ClientFault& fault) {
  return Error(static_cast<Code>(fault.code), fault.message);
}

}  // namespace

Result<std::string> Tinker::forward_backward(const Client& client) {
  ASSIGN_OR_RETURN(LossRequest wanted, read_loss_request(client.body));
  ASSIGN_OR_RETURN(const Model* const model, find_model(wanted.model, client));
  Job job;
  job.kind = JobKind::kPass;
  job.tenant = model->tenant;
  job.model = wanted.model;
  PassRequest request{.request = 0, .batch = std::move(wanted.batch)};
  if (const size_t bytes = body_bytes_max(request); bytes > kMessageBytesMax)
    return error(Code::kInvalid, "the {} data have {} bytes, a message has at most {}",
                 request.batch.data.size(), bytes, kMessageBytesMax)
        .note("send them in several calls: their gradients add up to the same bits");
  job.batch = std::move(request.batch);
  job.batch.tenant = model->tenant;
  job.shapes = std::move(wanted.shapes);
  return offer(std::move(job), wanted.seq, client);
}

Result<std::string> Tinker::optim_step(const Client& client) {
  ASSIGN_OR_RETURN(const OptimStep wanted, read_optim_step(client.body));
  ASSIGN_OR_RETURN(const Model* const model, find_model(wanted.model, client));
  Job job;
  job.kind = JobKind::kUpdate;
  job.tenant = model->tenant;
  job.model = wanted.model;
  job.adam = wanted.adam;
  return offer(std::move(job), wanted.seq, client);
}

Result<std::string> Tinker::save_weights(const Client& client) {
  ASSIGN_OR_RETURN(const SaveWeights wanted, read_save_weights(client.body));
  ASSIGN_OR_RETURN(const Model* const model, find_model(wanted.model, client));
  Job job;
  job.kind = JobKind::kSave;
  job.tenant = model->tenant;
  job.model = wanted.model;
  job.saved = {wanted.model, false,
               wanted.name.empty() ? fmt::format("weights-{}", wanted.seq) : wanted.name};
  job.overwrites = wanted.overwrites;
  job.ttl_seconds = wanted.ttl_seconds;
  return offer(std::move(job), wanted.seq, client);
}

Result<std::string> Tinker::save_for_sampler(const Client& client) {
  ASSIGN_OR_RETURN(const SaveForSampler wanted, read_save_for_sampler(client.body));
  ASSIGN_OR_RETURN(const Model* const model, find_model(wanted.model, client));
  if (wanted.is_inflight && !wanted.sampler_seq)
    return error(Code::kInvalid, "weights in flight have no 'path'")
        .note("send 'sampling_session_seq_id', or the kind snapshot");
  Job job;
  job.kind = wanted.is_inflight ? JobKind::kPublish : JobKind::kSnapshot;
  job.tenant = model->tenant;
  job.model = wanted.model;
  job.session = model->session;
  job.base_model = model->base_model;
  job.sampler_seq = wanted.sampler_seq.value_or(-1);
  if (!wanted.name.empty()) job.saved = {wanted.model, true, wanted.name};
  job.ttl_seconds = wanted.ttl_seconds;
  return offer(std::move(job), wanted.seq, client);
}

Result<std::string> Tinker::load_weights(const Client& client) {
  ASSIGN_OR_RETURN(const LoadWeights wanted, read_load_weights(client.body));
  Job job;
  job.kind = JobKind::kLoad;
  job.saved = wanted.from;
  job.with_optimizer = wanted.loads_optimizer;
  std::string lane;
  if (wanted.model.empty()) {
    ASSIGN_OR_RETURN(const Session* const session, find_session(wanted.session, client));
    job.tenant = session->tenant;
    job.session = wanted.session;
    job.model = model_name(wanted.session, wanted.model_seq);
    job.makes_model = true;
    job.base_model = base_model_of(job.tenant);
  } else {
    ASSIGN_OR_RETURN(const Model* const model, find_model(wanted.model, client));
    job.tenant = model->tenant;
    job.model = wanted.model;
  }
  const std::string path = to_path(wanted.from);
  if (wanted.from.is_for_sampling)
    return error(Code::kInvalid, "'{}' has weights for samplers, without an optimizer", path)
        .note("save weights for training");
  // The save may be on its way still.
  const auto saved = saved_.find(path);
  const auto open = models_.find(wanted.from.model);
  const bool is_own = saved != saved_.end()
                          ? saved->second.tenant == job.tenant
                          : open != models_.end() && open->second.tenant == job.tenant;
  if (!is_own) return error(Code::kNotFound, "no weights '{}'", path);
  if (!job.makes_model) return offer(std::move(job), wanted.seq, client);
  return offer_unordered(std::move(job), wanted.session + "/models", wanted.model_seq, client);
}

Result<std::string> Tinker::offer(Job job, int64_t seq, const Client& client) {
  RETURN_IF_ERROR(check_futures(job.tenant));
  job.num_bytes = client.body.size();
  // One request of a tenant always fits, however large it is.
  const uint64_t own_bytes = queued_bytes_.used_by(job.tenant);
  if (own_bytes > 0 && !queued_bytes_.has_space(job.tenant, job.num_bytes, num_clients()))
    return error(Code::kExhausted,
                 "requests that wait for the trainer have {} bytes, {} of them of this tenant; at "
                 "most {}, and {} tenants share them",
                 queued_bytes_.used(), own_bytes, queued_bytes_.most(), num_clients());
  const uint64_t number = next_request_;
  const std::string lane = job.model;
  ASSIGN_OR_RETURN(const Admission admission,
                   order_.offer({lane, seq, text_sha256(client.body), job.num_bytes, number,
                                 job.tenant, num_clients()},
                                services().now()));
  if (admission.kind == Admission::Kind::kRepeat) {
    const auto found = answers_.find(admission.request, job.tenant);
    // Its gradient was added once and cannot be added again.
    if (!found.ok())
      return error(Code::kExists, "request {} of '{}' ran, and its answer is gone", seq, lane)
          .note("make a new model, or load saved weights");
    return future_answer(admission.request);
  }
  ++next_request_;
  answers_.open(number, job.tenant);
  jobs_.emplace(number, std::move(job));
  wake_at(order_.next_expiry());
  if (admission.kind == Admission::Kind::kRun) {
    enqueue(number);
    for (const uint64_t ready : order_.pop_ready(lane)) enqueue(ready);
  }
  return future_answer(number);
}

Result<std::string> Tinker::offer_unordered(Job job, std::string lane, int64_t seq,
                                            const Client& client) {
  RETURN_IF_ERROR(check_futures(job.tenant));
  const uint64_t number = next_request_;
  ASSIGN_OR_RETURN(const Admission admission,
                   order_.offer_unordered({lane, seq, text_sha256(client.body), client.body.size(),
                                           number, job.tenant}));
  if (admission.kind == Admission::Kind::kRepeat) {
    if (answers_.find(admission.request, job.tenant).ok()) return future_answer(admission.request);
    if (!models_.contains(job.model))
      return error(Code::kExists, "model '{}' was made and is closed, or could not be made",
                   job.model)
          .note("a new model has a new number");
    // The answer was lost on its way to the client: the model is there.
    order_.renew(lane, seq, number);
    ++next_request_;
    answers_.open(number, job.tenant);
    complete(number, job.kind == JobKind::kLoad ? loaded_answer(job.saved, job.model)
                                                : model_answer(job.model));
    return future_answer(number);
  }
  ++next_request_;
  answers_.open(number, job.tenant);
  job.since = services().now();
  jobs_.emplace(number, std::move(job));
  enqueue(number);
  return future_answer(number);
}

void Tinker::enqueue(uint64_t number) {
  Job& job = jobs_.at(number);
  if (job.refused.is_set()) {
    fail(number, error_of(job.refused));
    jobs_.erase(number);
    return;
  }
  queued_bytes_.add(job.tenant, job.num_bytes);
  tenants_[job.tenant].queue.push_back(number);
}

uint64_t Tinker::add_own_job(Job job) {
  const uint64_t number = next_request_++;
  tenants_[job.tenant].queue.push_front(number);
  jobs_.emplace(number, std::move(job));
  return number;
}

/// It is no longer at the trainer, in the queue or in the order.
void Tinker::end_job(uint64_t number) {
  const auto job = jobs_.extract(number);
  if (job.empty()) return;
  const TenantSlot slot = job.mapped().tenant;
  TenantState& tenant = tenants_[slot];
  const bool was_running = tenant.running == number;
  if (was_running) tenant.running = 0;
  if (was_running || std::erase(tenant.queue, number) > 0)
    queued_bytes_.subtract(slot, job.mapped().num_bytes);
}

void Tinker::fail_job(uint64_t number, const Error& error) {
  const Job& job = jobs_.at(number);
  TenantState& tenant = tenants_[job.tenant];
  if (job.kind == JobKind::kBase) refuse_base(job.tenant, error);
  // Its gradients, and those of the passes before it, are discarded.
  if (job.kind == JobKind::kPass && !job.is_forward_only && tenant.running == number)
    tenant.ages = {};
  fail(number, error);
  end_job(number);
}

bool Tinker::has_room(TenantSlot, JobKind kind) const {
  if (kind == JobKind::kPass) return pass_.room() > 0;
  if (kind == JobKind::kUpdate) return update_.room() > 0;
  return weights_.room() > 0;
}

bool Tinker::may_send_job() const {
  if (is_draining_) return false;
  return std::ranges::any_of(tenants_, [this](const auto& each) {
    const TenantState& tenant = each.second;
    if (paused_.contains(each.first)) return false;
    const uint64_t next = tenant.running != 0    ? tenant.running
                          : tenant.queue.empty() ? 0
                                                 : tenant.queue.front();
    if (next == 0) return false;
    const Job& job = jobs_.at(next);
    if (tenant.running == 0 && waits_for_session(job)) return false;
    return !job.is_sent && !job.waits_for_live && has_room(each.first, job.kind);
  });
}

/// Each tenant sends at most one message of each work call.
void Tinker::send_jobs() {
  for (auto& [slot, tenant] : tenants_) {
    if (paused_.contains(slot)) continue;
    while (tenant.running != 0 || !tenant.queue.empty()) {
      const uint64_t number = tenant.running != 0 ? tenant.running : tenant.queue.front();
      Job& job = jobs_.at(number);
      if (job.is_sent || job.waits_for_live || !has_room(slot, job.kind)) break;
      if (tenant.running == 0 && waits_for_session(job)) break;
      const auto ready = tenant.running != 0 ? Result<bool>(true) : prepare(job);
      if (!ready.ok()) {
        fail_job(number, ready.error());
        continue;
      }
      if (!*ready) continue;  // another job comes first
      if (tenant.running == 0) {
        tenant.running = number;
        tenant.queue.pop_front();
      }
      send_job(number, job);
      break;
    }
  }
}

void Tinker::send_job(uint64_t number, Job& job) {
  job.is_sent = true;
  job.deadline = services().now() + options_.train_timeout;
  wake_at(job.deadline);
  const SendOptions to = send_options(job.tenant);
  for (const InstanceId trainer : weights_.targets(job.tenant)) trainers_.insert(trainer);
  if (job.kind == JobKind::kPass) {
    set_ages(job);
    pass_.send({.request = number, .batch = std::move(job.batch)}, to);
    return;
  }
  if (job.kind == JobKind::kUpdate) {
    update_.send(
        {.request = number, .adam = job.adam, .ages = std::exchange(tenants_[job.tenant].ages, {})},
        to);
    return;
  }
  WeightsRequest request;
  request.request = number;
  switch (job.kind) {
    case JobKind::kLoad:
      // A reset first: an earlier model may have left open gradients.
      request.action =
          job.makes_model && !job.is_reset ? WeightsAction::kReset : WeightsAction::kLoad;
      if (request.action == WeightsAction::kLoad) request.name = job.folder;
      request.with_optimizer = job.with_optimizer;
      break;
    case JobKind::kSave:
      request.action = WeightsAction::kSave;
      request.name = folder_name(job.saved);
      request.overwrites = job.overwrites;
      break;
    case JobKind::kSnapshot:
      request.action = WeightsAction::kSnapshot;
      if (!job.saved.name.empty()) request.name = folder_name(job.saved);
      break;
    case JobKind::kPublish:
      request.action = WeightsAction::kPublish;
      break;
    case JobKind::kDropSnapshot:
      request.action = WeightsAction::kDropSnapshot;
      request.adapter = job.adapter;
      break;
    case JobKind::kDropSaved:
      request.action = WeightsAction::kDropSaved;
      request.name = job.folder;
      break;
    case JobKind::kBase:
      request.action = WeightsAction::kBase;
      break;
    default:
      request.action = WeightsAction::kReset;
  }
  weights_.send(std::move(request), to);
}

Job* Tinker::answered_job(uint64_t number, const ClientFault& fault) {
  num_asked_ = 0;
  const TenantSlot slot = services().delivery().tenant;
  TenantState& tenant = tenants_[slot];
  if (tenant.running != number || number == 0) {
    services().count("answers_unknown", 1);  // the trainer was gone
    return nullptr;
  }
  Job& job = jobs_.at(number);
  job.is_sent = false;
  if (!fault.is_set()) return &job;
  fail_job(number, error_of(fault));
  return nullptr;
}

/// A tenant that failed is not trained any more, and weights that no engine can apply never go
/// live. In a graph without slots the actor is not notified.
void Tinker::expire_jobs() {
  std::vector<uint64_t> late;
  for (const auto& [slot, tenant] : tenants_)
    if (tenant.running != 0 && jobs_.at(tenant.running).deadline <= services().now())
      late.push_back(tenant.running);
  for (const uint64_t number : late) {
    const Job& job = jobs_.at(number);
    const TenantSlot tenant = job.tenant;
    const AdapterId published =
        job.waits_for_live && has_own_key(job.kind) ? job.adapter : AdapterId();
    services().count("requests_late", 1);
    if (job.waits_for_live)
      fail_job(number,
               error(Code::kDeadline, "version {} is not in every engine within {}",
                     job.version.value, to_string(options_.live_timeout))
                   .note("the log of the run says which engine refused it or does not answer"));
    else
      fail_job(number, error(Code::kDeadline, "no answer of the trainer within {}",
                             to_string(options_.train_timeout)));
    if (!published.is_none()) drop_snapshot(tenant, published);
  }
}

void Tinker::set_ages(Job& job) {
  const TenantState& tenant = tenants_[job.tenant];
  job.is_forward_only = job.batch.forward_only;
  for (const LossDatum& datum : job.batch.data) {
    const auto update = tenant.sampled.oldest_update(datum);
    job.ages.push_back(update ? std::max<int64_t>(tenant.num_updates - *update, 0) : -1);
  }
}

Status Tinker::on_passed(const PassDone& done) {
  const Job* const job = answered_job(done.request, done.fault);
  if (job == nullptr) return ok();
  TenantState& tenant = tenants_[job->tenant];
  tenant.num_updates = done.version.value;
  for (const int64_t age : job->ages)
    if (age >= 0 && !job->is_forward_only) tenant.ages.add(age);
  complete(done.request, loss_answer(done.result, job->shapes, job->ages), true);
  end_job(done.request);
  return ok();
}

Status Tinker::on_updated(const UpdateDone& done) {
  const Job* const job = answered_job(done.request, done.fault);
  if (job == nullptr) return ok();
  tenants_[job->tenant].num_updates = done.version.value;
  if (done.skipped)
    services().log(LogLevel::kWarning, fmt::format("an update was skipped: {}", done.skip_reason));
  complete(done.request,
           optim_answer({{"loss", done.loss},
                         {"grad_norm", done.grad_norm},
                         {"learning_rate", done.learning_rate},
                         {"num_loss_tokens", static_cast<double>(done.num_loss_tokens)},
                         {"skipped", done.skipped ? 1.0 : 0.0},
                         {"version", static_cast<double>(done.version.value)}}));
  end_job(done.request);
  return ok();
}

}  // namespace primerl
