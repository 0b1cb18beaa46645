// The work of a Trainer for a client that trains its tenant by halves of a step (client_steps.h).
#include <algorithm>
#include <utility>

#include "actors/common/tenant_key.h"
#include "actors/trainer/trainer.h"

namespace primerl {
namespace {

// As of a checkpoint: the learner wakes the trainer, on a virtual clock only this does.
constexpr Duration kLookAgain = Duration::seconds(1);
// A run that waits for its client is idle and not stalled: it has a timer.
constexpr Duration kWaitsForClient = Duration::seconds(3600);

ClientFault fault_of(const Error& error) {
  return {static_cast<uint8_t>(error.code()), error.text()};
}

/// An answer without a result.
template <Message Done>
Done answer_of(uint64_t request, PolicyVersion version) {
  Done done;
  done.request = request;
  done.version = version;
  return done;
}

template <Message Done>
Done refused(uint64_t request, PolicyVersion version, const Error& fault) {
  auto done = answer_of<Done>(request, version);
  done.fault = fault_of(fault);
  return done;
}

/// The sums of the passes of an update as means over the targets that trained.
void add_means(const LossTotals& totals, MetricValues& values) {
  const double count = static_cast<double>(std::max<int64_t>(totals.num_trained, 1));
  values.emplace_back("loss/sum", totals.loss);
  values.emplace_back("loss/mean", totals.loss / count);
  values.emplace_back("entropy/all/mean", totals.entropy / count);
  values.emplace_back("mismatch_kl/all/mean", totals.mismatch_kl / count);
  values.emplace_back("masked/all/mean", static_cast<double>(totals.num_masked) / count);
  values.emplace_back("capped/all/mean", static_cast<double>(totals.num_capped) / count);
}

/// As of the batches of a loop.
void add_ages(const DataAges& ages, MetricValues& values) {
  if (ages.num_data == 0 || ages.counts.size() != kStalenessBounds.size() + 1) return;
  values.emplace_back("off_policy/mean",
                      static_cast<double>(ages.sum) / static_cast<double>(ages.num_data));
  values.emplace_back("off_policy/max", static_cast<double>(ages.most));
  add_histogram("off_policy", kStalenessBounds, ages.counts, values);
}

}  // namespace

std::optional<Error> Trainer::refusal() const {
  if (!tenant().is_client)
    return error(Code::kInvalid, "tenant '{}' is trained by a loop of the graph", tenant().name)
        .note("a client trains a tenant with client = true");
  if (is_done_) return error(Code::kUnavailable, "the run ends");
  if (client_.request)
    return error(Code::kInvalid, "a request while another one of the tenant, a {}, is open",
                 client_.request->what())
        .note("the next one is sent after the answer to the last");
  return std::nullopt;
}

void Trainer::take_request(OpenRequest request) {
  request.cause = services().delivery().ref;
  request.origin = services().delivery().origin;
  client_.request = std::move(request);
}

Status Trainer::on_pass(const PassRequest& request) {
  publish_step_metrics();
  // Asked within a delivery, so the record has the answer.
  if (!limits_) limits_ = learner_->limits();
  auto fault = refusal();
  if (!fault)
    if (const Status usable = ClientProgress::check(request.batch, *limits_, tenant());
        !usable.ok())
      fault = usable.error();
  if (fault) {
    services().count("client_requests_refused", 1);
    passed_.send(refused<PassDone>(request.request, version_, *fault));
    return ok();
  }
  OpenRequest taken;
  taken.pass = request;
  taken.pass->batch.tenant = tenant_;
  take_request(std::move(taken));
  return ok();
}

Status Trainer::on_update(const UpdateRequest& request) {
  publish_step_metrics();
  auto fault = refusal();
  if (!fault)
    if (const Status valid = validate(request.adam); !valid.ok()) fault = valid.error();
  if (!fault && client_.open.num_calls == 0)
    fault = error(Code::kInvalid, "an update without open gradients")
                .note("a pass opens them; an update, a load and a pass that failed close them");
  if (fault) {
    services().count("client_requests_refused", 1);
    updated_.send(refused<UpdateDone>(request.request, version_, *fault));
    return ok();
  }
  OpenRequest taken;
  taken.update = request;
  take_request(std::move(taken));
  return ok();
}

Status Trainer::on_weights(const WeightsRequest& request) {
  publish_step_metrics();
  auto fault = refusal();
  if (!fault)
    if (const Status possible = client_.check(request); !possible.ok()) fault = possible.error();
  if (fault) {
    services().count("client_requests_refused", 1);
    weights_done_.send(refused<WeightsDone>(request.request, version_, *fault));
    return ok();
  }
  OpenRequest taken;
  taken.weights = request;
  take_request(std::move(taken));
  return ok();
}

/// A step of its own for each part, so that what is said leaves before what follows.
Result<bool> Trainer::work_for_client() {
  // Only a rehearsal, which has no client, has such a small max_steps.
  if (!is_done_ && client_.has_first && version_.value >= tenant().max_steps) {
    is_done_ = true;
    services().finish(tenant_);
    return false;
  }
  if (client_.folder || (is_done_ && !saves_at_end_)) {
    leave_queue();
    return false;
  }
  if (saves_at_end_ && checkpointed_ == version_.value) {
    saves_at_end_ = false;
    return false;
  }
  if (saves_at_end_ || client_checkpoint_is_due()) {
    if (!save_) {
      if (const Status begun = checkpoint(); !begun.ok()) give_up(begun.error());
      return true;
    }
    if (saves_at_end_ || save_->step != version_.value) return wait_for_save();
  }
  // Folders and checkpoints are written one after the other.
  const bool needs_folder = !client_.has_first || (client_.request && client_.request->weights);
  if (save_ && needs_folder) {
    leave_queue();
    return false;
  }
  if (!client_.has_first) {
    if (const Status begun = begin_folder(kFirstFolder, {}, false); !begun.ok())
      give_up(begun.error());
    return true;
  }
  if (!client_.request) {
    leave_queue();
    wait_for_client();
    return false;
  }
  if (client_.request->pass) {
    if (const auto result = accumulate()) end_pass(*result);
  } else if (client_.request->update) {
    run_update();
  } else {
    run_weights();
  }
  return true;
}

void Trainer::wait_for_client() {
  if (!save_ && !std::exchange(client_.is_awaited, true))
    services().set_timer("save", kWaitsForClient);
}

/// No checkpoint has open gradients. The gradients of a pass in the learner's queue are open too.
bool Trainer::client_checkpoint_is_due() const {
  if (client_.open.num_calls > 0 || is_queued_ || client_.was_loaded ||
      checkpointed_ >= version_.value)
    return false;
  const int64_t every = tenant().checkpoint_every;
  return (every > 0 && version_.value > 0 && version_.value % every == 0) ||
         client_.asked_step > checkpointed_;
}

std::optional<Result<LossResult>> Trainer::accumulate() {
  // A copy: a saved state needs the request.
  if (pass_ == nullptr) pass_ = std::make_shared<const LossBatch>(client_.request->pass->batch);
  if (client_.open.num_calls == 0 && !is_queued_) client_.open.began = services().now();
  const auto stop = [this] { return services().progress() == Progress::kStopRequested; };
  if (!shares_learner()) return learner_->accumulate(*pass_, stop);
  is_queued_ = true;
  return learner_->accumulate_queued(pass_, services().delivery().ref.step, stop);
}

void Trainer::end_pass(const Result<LossResult>& result) {
  const bool forward_only = pass_->forward_only;
  pass_.reset();
  is_queued_ = false;
  const OpenRequest request = close_request();
  auto done = answer_of<PassDone>(request.pass->request, version_);
  if (result.ok()) {
    done.result = *result;
    services().count("client_passes", 1);
  } else {
    Error fault = result.error();
    // It may have added a part, so the rest would not be the sum of whole passes.
    if (!forward_only) {
      learner_->discard(tenant_);
      if (client_.open.num_calls > 0)
        (void)std::move(fault).note(
            fmt::format("the gradients of {} earlier passes are discarded: send them again",
                        client_.open.num_calls));
    }
    done.fault = fault_of(fault);
    services().count("client_passes_failed", 1);
  }
  client_.end_pass(forward_only, result.ok() ? &*result : nullptr);
  passed_.send(std::move(done), answer_to(request));
}

void Trainer::run_update() {
  const OpenRequest request = close_request();
  const auto report = learner_->apply(tenant_, request.update->adam);
  auto done = answer_of<UpdateDone>(request.update->request, version_);
  if (!report.ok()) {
    done.fault = fault_of(report.error());  // nothing changed
    updated_.send(std::move(done), answer_to(request));
    return;
  }
  const OpenPasses passes = std::exchange(client_.open, {});
  done.loss = passes.totals.loss;
  done.grad_norm = report->grad_norm;
  done.learning_rate = report->learning_rate;
  done.num_loss_tokens = passes.totals.num_trained;
  done.skipped = report->skipped;
  done.skip_reason = report->skip_reason;
  if (report->skipped) {
    services().log(LogLevel::kWarning,
                   fmt::format("update {} was skipped: {}", version_.next(), report->skip_reason));
    services().count("steps_skipped", 1);
  } else {
    version_ = version_.next();
    client_.was_loaded = false;
    done.version = version_;
    finished_step_ = FinishedStep{
        {}, passes.began,           report->num_tokens,         report->num_loss_tokens,
        0,  report->measures.flops, report->measures.peak_flops};
    add_means(passes.totals, finished_step_->values);
    add_ages(request.update->ages, finished_step_->values);
    finished_step_->values.emplace_back("optim/grad_norm", report->grad_norm);
    finished_step_->values.emplace_back("optim/lr", report->learning_rate);
    add_measures(report->measures, finished_step_->values);
    keep_score(finished_step_->values);
  }
  updated_.send(std::move(done), answer_to(request));
}

void Trainer::run_weights() {
  const WeightsRequest asked = *client_.request->weights;
  auto answer = answer_of<WeightsDone>(asked.request, version_);
  const Status ran = run_weights(asked, answer);
  if (!ran.ok()) answer.fault = fault_of(ran.error());
  if (!client_.folder) answer_weights(std::move(answer));
}

/// With client_.folder set, the answer follows when the folder is complete.
Status Trainer::run_weights(const WeightsRequest& asked, WeightsDone& answer) {
  RunFiles& files = services().files();
  const WeightsKey moving = weights_key(services(), tenant_);
  switch (asked.action) {
    case WeightsAction::kSave:
      return begin_folder(client_.next_saved(asked.name).path(), answer, false);
    case WeightsAction::kReset:
    case WeightsAction::kLoad: {
      ASSIGN_OR_RETURN(const auto first, files.client_folder(tenant_, kFirstFolder));
      auto folder = first;
      if (asked.action == WeightsAction::kLoad) {
        ASSIGN_OR_RETURN(folder,
                         files.client_folder(tenant_, client_.find_saved(asked.name)->path()));
      }
      const bool with_optimizer = asked.action == WeightsAction::kLoad && asked.with_optimizer;
      RETURN_IF_ERROR(learner_->load_weights(tenant_, folder, with_optimizer ? folder : first));
      client_.close();
      client_.was_loaded = true;
      return ok();
    }
    case WeightsAction::kSnapshot:
      if (asked.name.empty()) return publish_snapshot(asked, answer);
      return begin_folder(SnapshotOfClient{0, asked.name}.path(), answer, true);
    case WeightsAction::kBase:
      return publish_snapshot(asked, answer);
    case WeightsAction::kPublish: {
      ASSIGN_OR_RETURN(answer.version, publish_as(moving));
      answer.adapter = moving.adapter;
      return ok();
    }
    case WeightsAction::kDropSnapshot: {
      const WeightsKey key{tenant_, asked.adapter};
      const SnapshotOfClient dropped = *client_.find_snapshot(key.snapshot_number());
      client_.remove_snapshot(dropped.number);
      answer.adapter = asked.adapter;
      weights_->drop(key);
      WeightsReady gone;
      gone.adapter = key.adapter;
      gone.is_dropped = true;
      weights_out_.send(gone, for_tenant(tenant_));
      return dropped.name.empty() ? ok() : files.remove_client_folder(tenant_, dropped.path());
    }
    case WeightsAction::kDropSaved:
      client_.remove_saved(asked.name);
      return ok();
  }
  return error(Code::kInvalid, "an unknown request for weights");
}

/// With a name, after its folder is complete.
Status Trainer::publish_snapshot(const WeightsRequest& asked, WeightsDone& answer) {
  const uint32_t number = client_.num_snapshots + 1;
  const WeightsKey key = snapshot_key(weights_key(services(), tenant_), number);
  ASSIGN_OR_RETURN(answer.version, publish_as(key, asked.action == WeightsAction::kBase));
  client_.num_snapshots = number;
  client_.snapshots.push_back({number, asked.name});
  answer.adapter = key.adapter;
  return ok();
}

/// Versions of all keys of the tenant rise together, so that each names one publication.
Result<PolicyVersion> Trainer::publish_as(WeightsKey key, bool is_base) {
  const PolicyVersion version = std::max(client_.published.next(), version_);
  ASSIGN_OR_RETURN(const auto snapshot, learner_->snapshot(tenant_, version));
  RETURN_IF_ERROR(weights_->publish(with_key(is_base ? zeros_like(*snapshot) : *snapshot, key)));
  client_.published = version;
  WeightsReady ready;
  ready.version = version;
  ready.adapter = adapter_in_message(key);
  weights_out_.send(ready, for_tenant(tenant_));
  return version;
}

Status Trainer::begin_folder(std::string_view path, WeightsDone answer, bool weights_only) {
  RunFiles& files = services().files();
  ASSIGN_OR_RETURN(const auto folder, files.begin_client_folder(tenant_, path));
  LearnerSave save{tenant_, folder, services().now(), nullptr, options_.save_max};
  save.commit = [&files, tenant = tenant_, path = std::string(path), weights_only] {
    return files.commit_client_folder(tenant, path, weights_only);
  };
  save.is_of_client = true;
  RETURN_IF_ERROR(learner_->begin_save(std::move(save)));
  client_.folder = OpenFolder{std::string(path), path == kFirstFolder, std::move(answer)};
  set_save_timer(kLookAgain);
  return ok();
}

/// Called by look_for_save(). A full disk ends the request; without the first folder there is no
/// client.
void Trainer::end_folder(const Status& written) {
  OpenFolder folder = *std::exchange(client_.folder, std::nullopt);
  set_save_timer({});
  if (folder.is_first) {
    client_.has_first = written.ok();
    if (!written.ok())
      give_up(Error(written.error()).while_doing("the state that the tenant begins with"));
    return;
  }
  if (!client_.request || !client_.request->weights) return;
  const WeightsRequest& asked = *client_.request->weights;
  if (!written.ok()) {
    folder.answer.fault = fault_of(Error(written.error()).while_doing(folder.path));
  } else if (asked.action == WeightsAction::kSave) {
    client_.add_saved(client_.next_saved(asked.name));
  } else if (const Status published = publish_snapshot(asked, folder.answer); !published.ok()) {
    folder.answer.fault = fault_of(published.error());
    (void)services().files().remove_client_folder(tenant_, folder.path);
  }
  answer_weights(std::move(folder.answer));
}

OpenRequest Trainer::close_request() { return *std::exchange(client_.request, std::nullopt); }

SendOptions Trainer::answer_to(const OpenRequest& request) const {
  return for_tenant(tenant_).answering(request.cause).to_origin_of(request.origin);
}

void Trainer::answer_weights(WeightsDone answer) {
  const OpenRequest request = close_request();
  if (answer.fault.is_set()) services().count("client_requests_failed", 1);
  weights_done_.send(std::move(answer), answer_to(request));
}

void Trainer::refuse_request(const Error& fault) {
  if (!client_.request) return;
  pass_.reset();
  const OpenRequest request = close_request();
  const SendOptions options = answer_to(request);
  if (request.pass)
    passed_.send(refused<PassDone>(request.pass->request, version_, fault), options);
  else if (request.update)
    updated_.send(refused<UpdateDone>(request.update->request, version_, fault), options);
  else
    weights_done_.send(refused<WeightsDone>(request.weights->request, version_, fault), options);
}

/// Open gradients are in no checkpoint, so the one at the end would be refused.
void Trainer::end_client() {
  if (!tenant().is_client) return;
  if (std::exchange(client_.is_awaited, false) && !save_ && !client_.folder) set_save_timer({});
  const bool waits_for_folder = client_.folder && !client_.folder->is_first;
  if (!waits_for_folder) refuse_request(error(Code::kCancelled, "the run ends"));
  if (client_.open.num_calls == 0) return;
  services().log(LogLevel::kInfo, fmt::format("the gradients of {} passes are discarded: the run "
                                              "ends before their update",
                                              client_.open.num_calls));
  learner_->discard(tenant_);
  client_.close();
}

}  // namespace primerl
