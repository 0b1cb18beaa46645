#include "actors/trainer/trainer.h"

#include <algorithm>
#include <utility>

#include "actors/rollout/gate.h"
#include "actors/trainer/demands.h"
#include "actors/trainer/filters.h"
#include "kernels/train/loss.h"

namespace primerl {
namespace {

// Filtered batches' worth of groups between two reports; run_alarms.h raises an alarm of more
// than 5.
constexpr int64_t kFilteredToldBatches = 6;

/// Answers to a client: that of its open request, and the refusal of one that came too early.
constexpr int64_t kAnswersMax = 2;

int64_t pool_max(const Tenant& tenant) {
  return (tenant.max_off_policy_steps + 2) * tenant.groups_per_batch();
}

Amount ends_of_one_work_call() {
  return {[](const void*, std::span<const Tenant> tenants) {
            int64_t most = 1;
            for (const auto& tenant : tenants) most = std::max(most, pool_max(tenant));
            return most;
          },
          "(max_off_policy_steps + 2) * groups per batch"};
}

/// A demand that depends on the tenant and on the known objectives.
auto asks(std::string (*fault)(const Tenant& tenant, const OwnObjectives& own)) {
  return [fault](const TrainerOptions& options, const Tenant& tenant) {
    return fault(tenant, options.objectives);
  };
}

}  // namespace

Contract Trainer::contract(const OwnObjectives& own) {
  using O = TrainerOptions;
  Contract contract =
      ContractOf<Trainer, O>("trainer", "trains on batches of groups and publishes weights")
          .uses<Learner>("learner", &O::learner, "the learner that trains")
          .uses<WeightChannel>("weights", &O::weights, "where new weights go")
          .moved("loss",
                 "it is an option of the learner: [resource.<learner>] loss = { kind = ... }, "
                 "or of one tenant: [tenant.<name>] loss = { kind = ... }")
          .option("skipped_max", &O::skipped_max, count_from(1) | unit("steps"),
                  "steps in a row that the learner may skip before the run fails")
          .option("lost_batches_max", &O::lost_batches_max, count_from(1) | unit("batches"),
                  "batches' worth of groups in a row that may end untrained before the run fails")
          .option("save_max", &O::save_max, above(0),
                  "longest time of writing a checkpoint, before the run fails")
          .in("group", &Trainer::on_group, "all members of one group have ended")
          .in("checkpoint", &Trainer::on_checkpoint_request, "a saved state needs a checkpoint",
              optional_port())
          .in("pass", &Trainer::on_pass, "a client's data for forward and backward",
              optional_port())
          .in("update", &Trainer::on_update, "a client's optimizer step", optional_port())
          .in("weights_request", &Trainer::on_weights, "a client saves, loads or publishes weights",
              optional_port())
          .timer("straggler", &Trainer::on_straggler, "the batch stops waiting for an older group")
          .timer("save", &Trainer::on_save_timer, "a checkpoint may have been written")
          .out("weights", &Trainer::weights_out_, "a new policy version is in the channel",
               optional_port(), recorded(), work_burst(1))
          .out("ended", &Trainer::ended_, "how a group ended", optional_port(), recorded(),
               burst(ends_of_one_work_call()), work_burst(ends_of_one_work_call()),
               at_most(ends_of_one_work_call()))
          .out("passed", &Trainer::passed_, "the answer to a pass", optional_port(), recorded(),
               work_burst(1), at_most(kAnswersMax))
          .out("updated", &Trainer::updated_, "the answer to an update", optional_port(),
               recorded(), work_burst(1), at_most(kAnswersMax))
          .out("weights_done", &Trainer::weights_done_, "the answer about weights", optional_port(),
               recorded(), work_burst(1), at_most(kAnswersMax))
          .demands("loss", asks(&fault_of_loss), "write a known objective and its own options")
          .demands("advantage", asks(&fault_of_advantage),
                   "change or remove the options of the advantage")
          .demands("filters", asks(&fault_of_filter_keys),
                   "remove repetition_max and gibberish_from")
          .demands("group_size", asks(&fault_of_group_size),
                   "write group_size = 2 or more: advantages compare the rollouts of a group")
          .demands("sampling.temperature", asks(&fault_of_temperature),
                   "write a temperature above 0, such as 1.0")
          .demands("sampling.top_k", asks(&fault_of_top_k),
                   "write top_k = 2 or more, or 0 to keep all")
          .demands("sampling.top_p", asks(&fault_of_top_p), "write a larger top_p; 1.0 keeps all")
          .demands("sampling.min_p", asks(&fault_of_min_p), "write a smaller min_p; 0.0 keeps all")
          .demands("adapter.targets", asks(&fault_of_targets),
                   "name some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj and "
                   "lm_head, or write [\"all-linear\"], alone or with lm_head")
          .works()
          .stops_on_error()
          .single()
          .one_tenant()
          .state([](auto& f) {
            using T = Trainer;
            f("num_resumes", &T::num_resumes_)("limits", &T::limits_)("version", &T::version_)(
                "pool", &T::pool_)("consumed", &T::consumed_)("held_out", &T::held_out_)(
                "taken", &T::finished_step_)("last_end", &T::last_end_)("filtered", &T::filtered_)(
                "num_sampled_tokens", &T::num_sampled_tokens_)("wasted", &T::wasted_)(
                "num_skipped", &T::num_skipped_)("num_lost", &T::num_lost_)(
                "why_lost", &T::loss_reasons_)("checkpointed", &T::checkpointed_)(
                "is_published", &T::is_published_)("is_waiting", &T::is_waiting_)(
                "waited", &T::waited_)("is_done", &T::is_done_)("fault", &T::fault_)(
                "is_in_line", &T::is_queued_)("batch", &T::batch_groups_)("save", &T::save_)(
                "saves_at_end", &T::saves_at_end_)("score", &T::score_)("rows", &T::rows_)(
                "client", &T::client_);
          });
  if (own != nullptr)
    contract.options.make = [own] {
      auto options = std::make_shared<TrainerOptions>();
      options->objectives = own;
      return std::shared_ptr<void>(std::move(options));
    };
  return contract;
}

Trainer::Trainer(const TrainerOptions& options) : options_(options) {}

Status Trainer::start(Resources& resources) {
  learner_ = &resources.get<Learner>("learner");
  weights_ = &resources.get<WeightChannel>("weights");
  tenant_ = services().tenants().front();
  for (uint32_t i = 0; i < tenant().num_environments(); ++i) {
    const Tenant& own = tenant().in_environment(i);
    const auto use = use_of(own, options_.objectives);
    if (!use) return error(Code::kInvalid, "unknown objective '{}'", own.objective);
    uses_.push_back(*use);
    if (own.curriculum.is_on()) rows_[i];
  }
  if (const auto* point = services().resume_point(tenant_)) RETURN_IF_ERROR(resume(*point));
  held_out_.start_at(version_, num_resumes_ > 0);
  return ok();
}

Status Trainer::on_group(const TrajectoryGroup& group) {
  publish_step_metrics();
  PooledGroup pooled{group, services().delivery().ref, services().delivery().origin, {}};
  if (is_evaluation(group.ordinal)) return add_held_out(pooled);
  num_sampled_tokens_ += num_sampled_tokens(group);
  if (is_done_ || group.is_cancelled) {
    end_group(pooled, RolloutEnd::kCancelled,
              is_done_ ? "the last step is done" : "the run ended before its teacher answered");
    return ok();
  }
  const uint32_t environment = group.source.environment;
  if (environment >= uses_.size())
    return error(Code::kInvalid, "group {} is of environment {}, but tenant '{}' has {}",
                 group.ordinal, environment, tenant().name, uses_.size());
  const Tenant& own = tenant().in_environment(environment);
  const RolloutUse& use = uses_[environment];
  if (const auto rows = rows_.find(environment); rows != rows_.end())
    rows->second.add(own.curriculum, group);
  // Asked within a delivery, so the record has the answer.
  if (!limits_) limits_ = learner_->limits();
  pooled.refused = refuse_members(pooled.group, own, use, *limits_);
  if (!pooled.refused.empty())
    services().count("members_refused", static_cast<int64_t>(pooled.refused.size()));
  if (const auto verdict = judge(pooled.group, own, use)) {
    if (verdict->end == RolloutEnd::kFiltered) {
      filtered_[environment].add(pooled.group, own.eval.pass_reward);
      publish_waiting();
    }
    end_group(pooled, verdict->end, verdict->reason);
    return fail_when_nothing_trains();
  }
  if (!group.version.is_none() &&
      !can_train(version_, group.version, tenant().max_off_policy_steps)) {
    end_group(
        pooled, RolloutEnd::kStale,
        fmt::format("{} steps off policy, {} are allowed",
                    staleness(version_.next(), group.version), tenant().max_off_policy_steps));
    return fail_when_nothing_trains();
  }
  const bool is_in_batch = std::any_of(
      batch_groups_.begin(), batch_groups_.end(),
      [&group](const PooledGroup& other) { return other.group.ordinal == group.ordinal; });
  if (is_in_batch || !pool_.add(std::move(pooled)))
    return error(Code::kInvalid, "group {} came twice", group.ordinal)
        .note("the ordinals of groups come from one source: one env or data node");
  update_flow();
  return ok();
}

/// Rows that cannot be measured are left out and counted. That there are too many is said once.
Status Trainer::add_held_out(const PooledGroup& pooled) {
  if (!limits_) limits_ = learner_->limits();
  for (const Trajectory& member : pooled.group.members) {
    const bool was_full = held_out_.is_full();
    Status added = member.is_failed ? Status(error(Code::kInvalid, "{}", member.fault))
                                    : held_out_.add(member, *limits_);
    if (added.ok()) continue;
    services().count("held_out_refused", 1);
    if (was_full) continue;
    services().log(LogLevel::kWarning,
                   fmt::format("held-out row {}: {}", member.trajectory + 1, added.error().text()));
  }
  GroupEnded ended;
  ended.ordinal = pooled.group.ordinal;
  ended.attempt = pooled.group.attempt;
  ended.end = RolloutEnd::kEvaluated;
  ended_.send(std::move(ended),
              for_tenant(tenant_).answering(pooled.cause).to_origin_of(pooled.origin));
  return ok();
}

/// Reports filtered groups while they keep a step from being made.
void Trainer::publish_waiting() {
  const int64_t of_batch = tenant().groups_per_batch();
  int64_t num_filtered = 0;
  for (const auto& [environment, totals] : filtered_) num_filtered += totals.num_groups;
  if (num_filtered % (kFilteredToldBatches * of_batch) != 0) return;
  services().publish_metrics(tenant_, version_.value,
                             {{"waiting/groups_filtered", static_cast<double>(num_filtered)},
                              {"waiting/groups", static_cast<double>(of_batch)}});
}

Status Trainer::on_straggler() {
  is_waiting_ = false;
  waited_ = true;  // the work call that follows makes the batch
  return ok();
}

Result<bool> Trainer::work() {
  publish_step_metrics();
  if (fault_ && std::exchange(fault_->is_told, true)) return false;
  if (fault_) return fault_->error();
  look_for_save();
  if (fault_) return true;
  if (!is_published_) {
    const bool is_last = !tenant().is_client && version_.value >= tenant().max_steps;
    const Status published = publish(is_last);
    if (!published.ok()) {
      give_up(published.error());
      return true;
    }
    last_end_ = services().now();
    return true;
  }
  if (tenant().is_client) return work_for_client();
  const bool is_last = version_.value >= tenant().max_steps || has_had_all_groups();
  if (!is_done_ && held_out_.is_due(version_, tenant().eval, is_last, num_groups_here() > 0)) {
    const Status evaluated = evaluate();
    if (!evaluated.ok()) give_up(evaluated.error());
    return true;
  }
  const bool is_due = is_last || (tenant().checkpoint_every > 0 && version_.value > 0 &&
                                  version_.value % tenant().checkpoint_every == 0);
  if (((is_due && !is_done_) || saves_at_end_) && checkpointed_ != version_.value) {
    if (!save_) {
      // A work call of its own: if the disk is full, the messages of the step have been sent
      // already.
      if (const Status begun = checkpoint(); !begun.ok()) give_up(begun.error());
      return true;
    }
    if (is_last || saves_at_end_ || save_->step != version_.value) return wait_for_save();
  }
  if (is_last && !is_done_) {
    is_done_ = true;
    end_all(take_groups_here(), RolloutEnd::kCancelled, "the last step is done");
    update_flow();
    leave_queue();
    // Otherwise Rollout ends the run, after the evaluation of this version.
    const TenantEval& eval = tenant().eval;
    if (eval.is_of_answers || !eval.runs_at_end()) services().finish(tenant_);
    return false;
  }
  if (is_done_ || (batch_groups_.empty() && !batch_is_ready())) {
    leave_queue();
    return false;
  }
  if (batch_groups_.empty()) take_batch();
  const auto report = step();
  if (report) end_step(*report);
  update_flow();
  return true;
}

bool Trainer::has_had_all_groups() const {
  if (tenant().groups_max == 0 || num_groups_here() >= num_groups()) return false;
  return std::cmp_greater_equal(consumed_.size() + num_groups_here(), tenant().groups_max);
}

bool Trainer::batch_is_ready() {
  const size_t count = num_groups();
  if (pool_.size() < count) return false;
  if (waited_ || tenant().straggler_wait_ms == 0) return true;
  const bool has_straggler =
      pool_.has_straggler(count, version_, tenant().max_off_policy_steps,
                          [this](uint64_t ordinal) { return consumed_.contains(ordinal); });
  if (!has_straggler) return true;
  if (!is_waiting_) {
    is_waiting_ = true;
    services().set_timer("straggler", Duration::milliseconds(tenant().straggler_wait_ms));
  }
  return false;
}

void Trainer::take_batch() {
  batch_groups_ = pool_.take_oldest(num_groups());
  if (is_waiting_) services().cancel_timer("straggler");
  is_waiting_ = waited_ = false;
}

std::optional<Result<TrainReport>> Trainer::step() {
  if (batch_ == nullptr) {
    auto batch = make_batch(batch_groups_, tenant(), uses_, version_);
    if (!batch.ok()) return batch.error();
    batch_ = std::make_shared<const TrainBatch>(std::move(batch).value());
  }
  const auto stop = [this] { return services().progress() == Progress::kStopRequested; };
  if (!shares_learner()) return learner_->step(*batch_, stop);
  is_queued_ = true;
  return learner_->step_queued(batch_, services().delivery().ref.step, stop);
}

/// Leaves the learner's queue: other tenants may have a batch for it.
void Trainer::leave_queue() {
  if (std::exchange(is_queued_, false)) learner_->leave_queue(tenant_);
}

std::vector<PooledGroup> Trainer::take_groups_here() {
  auto groups = std::exchange(batch_groups_, {});
  batch_.reset();
  for (auto& group : pool_.take_all()) groups.push_back(std::move(group));
  return groups;
}

void Trainer::end_step(const Result<TrainReport>& report) {
  const auto groups = std::exchange(batch_groups_, {});
  batch_.reset();
  if (!report.ok() && report.error().code() == Code::kCancelled) {
    end_all(groups, RolloutEnd::kCancelled, "the run stopped during its step");
    is_done_ = true;
    return;
  }
  if (!report.ok() || report->skipped) {
    end_skipped(groups, report.ok() ? report->skip_reason : report.error().text());
    return;
  }
  version_ = version_.next();
  if (report->num_pass_tokens > 0) services().count("steps_shared", 1);
  num_skipped_ = num_lost_ = 0;
  loss_reasons_.clear();
  for (const auto& group : groups) end_group(group, RolloutEnd::kTrained, "");
  RewardTotals filtered;
  for (const auto& [environment, totals] : filtered_) filtered.add(totals);
  finished_step_ = FinishedStep{batch_metrics(groups, filtered, version_, tenant()),
                                services().now(),
                                report->num_tokens,
                                report->num_loss_tokens,
                                report->num_pass_tokens,
                                report->measures.flops,
                                report->measures.peak_flops};
  add_report_metrics(*report, uses_.front().rule, finished_step_->values);
  for (auto& all :
       {environment_metrics(groups, filtered_, tenant()), curriculum_metrics(rows_, tenant())})
    finished_step_->values.insert(finished_step_->values.end(), all.begin(), all.end());
  keep_score(finished_step_->values);
  filtered_ = {};
  end_all(pool_.take_stale(version_, tenant().max_off_policy_steps), RolloutEnd::kStale,
          fmt::format("stale: version {} exists already", version_));
  const Status published = publish(version_.value >= tenant().max_steps);
  if (!published.ok()) give_up(published.error());
}

Status Trainer::publish(bool is_last) {
  // Versions of a client number publications. A start from a checkpoint has published nothing yet.
  const bool is_new = tenant().is_client && num_resumes_ > 0;
  const PolicyVersion version = is_new ? client_.published.next() : version_;
  ASSIGN_OR_RETURN(const auto snapshot, learner_->snapshot(tenant_, version));
  RETURN_IF_ERROR(weights_->publish(with_key(*snapshot, {tenant_, AdapterId(tenant().tenancy)})));
  is_published_ = true;
  client_.published = std::max(client_.published, version);
  weights_out_.send({.version = version, .is_last = is_last}, for_tenant(tenant_));
  return ok();
}

void Trainer::end_skipped(const std::vector<PooledGroup>& groups, const std::string& reason) {
  services().log(LogLevel::kWarning,
                 fmt::format("step {} was skipped: {}", version_.next(), reason));
  services().count("steps_skipped", 1);
  end_all(groups, RolloutEnd::kFailed, "the step was skipped: " + reason);
  if (++num_skipped_ < options_.skipped_max) return;
  give_up(error(Code::kInvalid, "{} steps in a row were skipped, the last because: {}",
                num_skipped_, reason));
}

void Trainer::end_group(const PooledGroup& pooled, RolloutEnd end, const std::string& reason) {
  const TrajectoryGroup& group = pooled.group;
  // Cancelled groups were not judged; a resumed run opens them again.
  if (end != RolloutEnd::kCancelled) consumed_.add(group.ordinal);
  if (end == RolloutEnd::kStale) services().count("tokens_stale", num_sampled_tokens(group));
  wasted_.add(group, end);
  if (end != RolloutEnd::kTrained && end != RolloutEnd::kCancelled) {
    ++num_lost_;
    loss_reasons_.add(end, reason);
  }
  services().count(fmt::format("groups_{}", to_string(end)), 1);
  GroupEnded ended;
  ended.ordinal = group.ordinal;
  ended.attempt = group.attempt;
  ended.end = end;
  ended.step = end == RolloutEnd::kTrained ? version_.value : 0;
  ended.reason = reason;
  ended.refused = pooled.refused;
  ended_.send(std::move(ended),
              for_tenant(tenant_).answering(pooled.cause).to_origin_of(pooled.origin));
}

void Trainer::end_all(std::vector<PooledGroup> groups, RolloutEnd end, const std::string& reason) {
  for (const auto& group : groups) end_group(group, end, reason);
}

Status Trainer::fail_when_nothing_trains() {
  if (num_lost_ < options_.lost_batches_max * tenant().groups_per_batch() || fault_) return ok();
  give_up(error(Code::kInvalid, "{} groups in a row ended without being trained on, {}", num_lost_,
                loss_reasons_.most_frequent())
              .note("rollouts.jsonl says why each one did"));
  return ok();
}

Status Trainer::evaluate() {
  ASSIGN_OR_RETURN(const AnswerLoss loss, learner_->evaluate(held_out_.next_part(tenant_)));
  const auto mean = held_out_.add(loss, version_);
  if (mean)
    services().publish_metrics(
        tenant_, version_.value,
        {{"eval/loss", *mean}, {"eval/rows", static_cast<double>(held_out_.num_rows())}});
  return ok();
}

/// Pauses the edge when the pool is full. Data without a gate is limited only by this.
void Trainer::update_flow() {
  const bool is_full = !is_done_ && static_cast<int64_t>(num_groups_here()) >= pool_max(tenant());
  if (is_full)
    services().pause("group");
  else
    services().resume("group");
}

}  // namespace primerl
