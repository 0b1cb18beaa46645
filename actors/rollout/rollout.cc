#include "actors/rollout/rollout.h"

#include <algorithm>

#include "actors/common/group_bytes.h"
#include "actors/common/tenant_key.h"
#include "graph/tenancies.h"
#include "graph/tenant_outside.h"

namespace primerl {
namespace {

constexpr std::string_view kFile = "rollouts.jsonl";

/// Most groups that wait for their end at once: those that the gate allows, and one that is being
/// delivered.
Amount groups_alive_max() {
  return {[](const void*, std::span<const Tenant> tenants) {
            int64_t most = 1;
            for (const auto& tenant : tenants)
              most = std::max(most, (tenant.max_off_policy_steps + 2) * tenant.groups_per_batch());
            return most;
          },
          "(max_off_policy_steps + 2) * groups per batch"};
}

Amount largest_group() {
  return {[](const void*, std::span<const Tenant> tenants) {
            int64_t most = 1;
            for (const auto& tenant : tenants)
              most = std::max({most, tenant.group_size, tenant.eval.samples});
            return most;
          },
          "largest group_size or eval.samples"};
}

Amount cancels_of_one_handler() {
  return {[](const void* options, std::span<const Tenant>) {
            const auto* rollout = static_cast<const RolloutOptions*>(options);
            return rollout->max_inflight / kCancelRequestsMax + 1;
          },
          "max_inflight / 64 + 1"};
}

/// Their names are sent in batches; cancels go to several environments.
Amount run_ends_of_one_handler() {
  return {[](const void* options, std::span<const Tenant>) {
            return static_cast<const RolloutOptions*>(options)->max_inflight + 1;
          },
          "max_inflight + 1"};
}

}  // namespace

Contract Rollout::contract() {
  using O = RolloutOptions;
  const auto rollouts = [] { return at_most(&O::max_inflight, "max_inflight"); };
  return ContractOf<Rollout, O>("rollout", "turns tasks into groups of rollouts")
      .uses<Tokenizer>("tokenizer", &O::model, "the model whose tokenizer it uses")
      .option("max_inflight", &O::max_inflight,
              count_from(1) | unit("rollouts") | also_named("max_inflight_requests"),
              "rollouts at once; at least group_size; also written max_inflight_requests")
      .option("pace", &O::pace, one_of({"adaptive", "full"}),
              "groups in flight: as few as keep the trainer busy, or as many as "
              "max_off_policy_steps permits")
      .option("attempts_max", &O::attempts_max, count_from(0),
              "engine losses or failures that one rollout survives")
      .option("log_tokens", &O::log_tokens, any(),
              "write token ids and log-probabilities into rollouts.jsonl")
      .option(
          "evaluates_only", &O::evaluates_only, any(),
          "no training: one evaluation of the engines' own weights, then the run ends; the ports "
          "group, ended and policy may stay unconnected")
      .in("task", &Rollout::on_task, "something to solve")
      .in("completion", &Rollout::on_completion, "the one answer to a request", rollouts())
      .in("observation", &Rollout::on_observation, "the environment's answer to an action",
          rollouts())
      .in("ended", &Rollout::on_ended, "how a group ended", at_most(groups_alive_max()),
          optional_if(&O::evaluates_only))
      .in("policy", &Rollout::on_policy, "a version that every engine has", latest_wins(),
          optional_if(&O::evaluates_only))
      .in("turn", &Rollout::on_turn, "a completed request of a run, or that no more follow",
          serves_runs())
      .in("run_answered", &Rollout::on_run_answered, "the end of a run", serves_runs(), rollouts())
      .in("address", &Rollout::on_address, "where the gateway listens", serves_runs(),
          latest_wins())
      .timer("deadline", &Rollout::on_deadline, "a rollout or an environment ran out of time")
      .timer("reissue", &Rollout::on_reissue,
             "turns whose router or environment was lost are sent again, or another group opens")
      .timer("budget", &Rollout::on_budget, "the tenant may have tokens again: another group opens")
      .timer("last_version", &Rollout::on_last_version,
             "the last version did not become live in time for its evaluation")
      .out("generate", &Rollout::generate_, "a prompt to continue", burst(largest_group()))
      .out("action", &Rollout::action_, "the policy's text of one turn", addressed(),
           burst(largest_group()), at_most(&O::max_inflight, "max_inflight"))
      .out("group", &Rollout::group_, "all members of one group have ended", recorded(), burst(2),
           message_bytes(group_bytes(GroupKind::kSampled)), optional_if(&O::evaluates_only))
      .out("cancel", &Rollout::cancel_, "cancelled requests", burst(cancels_of_one_handler()),
           at_most(&O::max_inflight, "max_inflight"))
      .out("run", &Rollout::run_, "a rollout that its environment plays", serves_runs(),
           addressed(), burst(largest_group()), at_most(&O::max_inflight, "max_inflight"))
      .out("cancel_runs", &Rollout::cancel_runs_, "runs that are of no use any more", serves_runs(),
           addressed(), burst(run_ends_of_one_handler()), at_most(&O::max_inflight, "max_inflight"))
      .out("closed", &Rollout::closed_, "runs whose requests the gateway must refuse",
           serves_runs(), burst(run_ends_of_one_handler()),
           at_most(&O::max_inflight, "max_inflight"))
      .for_loops()
      .single()
      .one_tenant()
      .state([](auto& f) {
        using R = Rollout;
        f("base_attempt", &R::base_attempt_)("live", &R::live_)("made", &R::made_)(
            "counts", &R::counts_)("pace", &R::pace_)("groups", &R::groups_)(
            "requests", &R::requests_)("trajectories", &R::trajectories_)(
            "cancelled", &R::cancelled_)("abandoned_actions", &R::abandoned_actions_)(
            "environments", &R::environments_)("to_act", &R::actions_to_resend_)(
            "answered", &R::answered_)("to_reissue", &R::to_reissue_)("deadlines", &R::deadlines_)(
            "armed", &R::armed_)("held_task", &R::held_task_)("next_request", &R::next_request_)(
            "next_trajectory", &R::next_trajectory_)("routers", &R::routers_)(
            "has_ended", &R::has_ended_)("is_ending", &R::is_ending_)(
            "is_draining", &R::is_draining_)("told_file_fault", &R::has_logged_file_fault_)(
            "evaluations", &R::evaluations_)("abandoned_runs", &R::abandoned_runs_)(
            "base_url", &R::base_url_)("seal_key", &R::seal_key_)("run_metrics", &R::run_metrics_)(
            "scores", &R::scores_)("sent_scores", &R::sent_scores_)(
            "scores_target", &R::scores_target_)("budget", &R::budget_);
      });
}

Status Rollout::start(Resources& resources) {
  tokenizer_ = &resources.get<Tokenizer>("tokenizer");
  tenant_ = services().tenants().front();
  next_request_ = next_trajectory_ = first_request_of(tenant().tenancy);
  is_driven_ = drives_rollouts(tenant());
  chat_ = chat_format_of(tenant(), *tokenizer_);
  // A rehearsal's tokenizer has no folder: its prompts stay plain.
  has_user_prompts_ = tenant().chat.prompts == "user" && tokenizer_->chat_source() != nullptr;
  if (has_user_prompts_ && !chat_->ok())
    return Error(chat_->error()).while_doing("[tenant." + tenant().name + ".chat]");
  const TenantOutside outside = outside_of(tenant());
  for (size_t i = 0; i < tenant().num_environments(); ++i) {
    const Tenant& part = tenant().in_environment(i);
    sends_prompts_.push_back(!part.rewards.empty() && outside.environments[i].environment >= 0);
    evaluation_sampling_.push_back(evaluation_sampling(part));
  }
  const auto* resume = services().resume_point(tenant_);
  evaluations_.begin(tenant().eval, resume == nullptr ? PolicyVersion(0) : resume->version,
                     resume != nullptr);
  if (options_.max_inflight < tenant().group_size)
    return error(Code::kInvalid, "max_inflight {} is less than the group_size {} of tenant '{}'",
                 options_.max_inflight, tenant().group_size, tenant().name)
        .note("a group opens as a whole");
  if (resume != nullptr) {
    ASSIGN_OR_RETURN(const int64_t resumes, resume->manifest.get_int("resumes"));
    base_attempt_ = static_cast<uint32_t>(resumes + 1);
    // The gate counts from the resumed version on, as if its batches had been trained in this run.
    counts_.opened = counts_.delivered = resume->version.value * tenant().groups_per_batch();
    made_ = resume->version;
  }
  return ok();
}

Status Rollout::on_task(const Task& task) {
  if (is_draining_) return ok();
  CHECK(!held_task_, "a task was handed over while 'task' is paused");
  if (groups_.contains(task.ordinal))
    return error(Code::kInvalid, "task {} came while its group is open", task.ordinal);
  if (task.source.environment >= tenant().num_environments())
    return error(Code::kInvalid, "task {} is of environment {}, but tenant '{}' has {}",
                 task.ordinal, task.source.environment, tenant().name, tenant().num_environments());
  environments_.gives_tasks(services().delivery().sender);
  held_task_ = task;
  return finish_handler();
}

Status Rollout::finish_handler() {
  if (!made_.is_none()) pace_.update_counts(gate_limits(), counts_, made_, services().now());
  if (evaluates() && !is_paused_) advance_evaluation();
  end_run_if_over();
  send_scores();
  open_held_task();
  send_cancels();
  send_run_ends();
  arm_deadline();
  num_asked_ = num_acted_ = 0;
  return ok();
}

void Rollout::open_held_task() {
  if (!held_task_) return;
  if (is_paused_ || has_ended_ || options_.evaluates_only || is_end_of_tasks(*held_task_) ||
      evaluations_.has_row_to_open(tenant().eval.rows)) {
    services().pause("task");
    return;
  }
  // The runs of a driven task need the gateway.
  if (is_driven_ && base_url_.empty()) {
    services().pause("task");
    return;
  }
  counts_.inflight = inflight();
  const GateLimits limits = gate_limits();
  const int64_t depth = options_.pace == "full" ? limits.depth_max() : pace_.depth(limits);
  if (ask_gate(limits, counts_, depth, live_) != GateAnswer::kOpen) {
    services().pause("task");
    return;
  }
  if (const Duration wait = budget_.wait(tenant().tokens_per_second, services().now());
      wait > Duration()) {
    services().pause("task");
    services().set_timer("budget", wait);
    return;
  }
  if (num_asked_ > 0 || (is_driven_ && num_acted_ > 0)) {
    // One step opens at most one group: the next step opens this one.
    services().pause("task");
    services().set_timer("reissue", Duration());
    return;
  }
  const Task task = std::move(*held_task_);
  held_task_.reset();
  services().resume("task");
  open(task);
}

/// Cached tokens of the prompt were not computed.
void Rollout::charge_completion(MemberId member_id, const Completion& completion) {
  const size_t num_prompt = member_at(member_id).trajectory.tokens.size();
  const auto num_cached = static_cast<size_t>(std::max(completion.num_cached_tokens, 0));
  charge(completion.tokens.size() + num_prompt - std::min(num_prompt, num_cached));
}

Status Rollout::on_budget() { return finish_handler(); }

void Rollout::open(const Task& task) {
  Group& group = groups_[task.ordinal];
  group.ordinal = task.ordinal;
  group.source = task.source;
  make_members(group, tenant().group_size);
  ++counts_.opened;
  services().count("groups_opened", 1);
  start_members(group, task);
  deliver_if_done(task.ordinal);
}

void Rollout::make_members(Group& group, int64_t count) {
  group.attempt = base_attempt_;
  group.version = live_;
  group.salt = fmt::format("{}:{}", tenancy_name(tenant()), live_);
  group.members.resize(static_cast<size_t>(count));
  // Each version is evaluated with the same random numbers, so that fewer differences are chance.
  const bool is_row = is_evaluation(group.ordinal);
  const std::string_view purpose = is_row ? "evaluation member" : "member";
  const uint64_t index =
      is_row ? evaluation_row(group.ordinal, static_cast<uint64_t>(tenant().eval.rows))
             : group.ordinal;
  for (size_t i = 0; i < group.members.size(); ++i) {
    Member& member = group.members[i];
    member.attempt = base_attempt_;
    member.trajectory.trajectory = next_trajectory_++;
    member.seed = services().random(tenant_, purpose, mix(index, i)).next();
    member.deadline = services().now() + tenant_of(group).rollout_timeout;
  }
}

void Rollout::start_members(Group& group, const Task& task) {
  group.prompt = task.prompt;
  group.data = task.data;
  group.scores_groups = task.scores_groups;
  if (!task.data.empty()) return start_runs(group);
  auto tokens = prompt_of(task, group);
  if (tokens.ok()) group.prompt_tokens = *tokens;
  for (size_t i = 0; i < group.members.size(); ++i) {
    Trajectory& trajectory = group.members[i].trajectory;
    trajectory.tokens = group.prompt_tokens;
    trajectory.sampled.assign(group.prompt_tokens.size(), 0);
    trajectory.logprobs.assign(group.prompt_tokens.size(), 0.0F);
    if (!tokens.ok())
      fail({group.ordinal, i}, "the prompt: " + tokens.error().text());
    else if (group.prompt_tokens.empty())
      fail({group.ordinal, i}, "the prompt is empty");
    else
      next_turn({group.ordinal, i});
  }
}

void Rollout::deliver_if_done(uint64_t ordinal) {
  if (is_evaluation(ordinal)) return end_row_if_done(ordinal);
  Group& group = groups_.at(ordinal);
  if (group.num_running() > 0) return;
  TrajectoryGroup message;
  message.ordinal = group.ordinal;
  message.attempt = group.attempt;
  message.version = group.version;
  message.source = group.source;
  for (const auto& member : group.members) message.members.push_back(member.trajectory);
  if (const Status fits = check_group_bytes(message); !fits.ok()) {
    services().count("groups_too_large", 1);
    services().log(LogLevel::kWarning, fmt::format("group {}: {}", ordinal, fits.error().text()));
    for (size_t i = 0; i < group.members.size(); ++i) {
      if (!group.members[i].trajectory.is_failed) fail({ordinal, i}, fits.error().message());
      message.members[i] = group.members[i].trajectory;
    }
  }
  for (auto& member : group.members) {
    if (options_.log_tokens) continue;
    member.trajectory.tokens.clear();
    member.trajectory.sampled.clear();
    member.trajectory.logprobs.clear();
  }
  group.is_delivered = true;
  ++counts_.delivered;
  add_score(group, tenant_of(group).curriculum.is_on() ? mean_reward(message) : std::nullopt);
  group_.send(std::move(message), send_options());
}

Status Rollout::on_ended(const GroupEnded& ended) {
  const auto found = groups_.find(ended.ordinal);
  if (found == groups_.end() || !found->second.is_delivered ||
      found->second.attempt != ended.attempt) {
    services().count("ends_of_unknown_groups", 1);
    return ok();
  }
  Group& group = found->second;
  const bool is_trained = ended.end == RolloutEnd::kTrained;
  const PolicyVersion batch = is_trained ? PolicyVersion(ended.step) : made_.next();
  for (const auto& [member, fault] : ended.refused)
    if (member < group.members.size())
      write_end(group, member, {RolloutEnd::kFailed, 0, staleness(batch, group.version), fault});
  for (size_t i = 0; i < group.members.size(); ++i)
    write_end(
        group, i,
        {ended.end, is_trained ? ended.step : 0, staleness(batch, group.version), ended.reason});
  if (!is_trained) ++counts_.lost;
  if (is_trained) {
    const auto is_whole = [&](const auto& each) {
      return !each.second.is_empty() && ended.step > each.second.step();
    };
    if (std::ranges::any_of(run_metrics_, is_whole)) publish_run_metrics();
    run_metrics_[group.source.environment].add(ended.step, group);
  }
  groups_.erase(found);
  if (is_trained) on_version_made(batch);
  // The trainer accepts no more groups. Other tenants may continue for a long time.
  if (ended.end == RolloutEnd::kCancelled && !std::exchange(has_ended_, true))
    drop_open(ended.reason);
  return finish_handler();
}

Status Rollout::on_policy(const PolicyLive& live) {
  const PolicyVersion version = version_in(live, services(), services().delivery().tenant);
  if (version <= live_) return ok();  // also where a snapshot became live
  // No batch of this run made the version that the run starts from.
  if (live_.is_none()) made_ = std::max(made_, version);
  on_version_made(version);
  live_ = version;
  evaluations_.on_live(tenant().eval, live_);
  return finish_handler();
}

void Rollout::on_version_made(PolicyVersion version) {
  if (version <= made_) return;
  made_ = version;
  pace_.see_made(gate_limits(), counts_, live_, made_, services().now());
  drop_stale();
}

void Rollout::drop_stale() {
  std::vector<uint64_t> stale;
  for (const auto& [ordinal, group] : groups_)
    if (!group.is_delivered && !is_evaluation(ordinal) &&
        !can_train(made_, group.version, tenant().max_off_policy_steps))
      stale.push_back(ordinal);
  for (const uint64_t ordinal : stale)
    drop(ordinal, RolloutEnd::kStale, fmt::format("stale: version {} exists already", made_));
}

void Rollout::drop(uint64_t ordinal, RolloutEnd end, const std::string& reason) {
  Group& group = groups_.at(ordinal);
  int64_t num_tokens = 0;
  for (size_t i = 0; i < group.members.size(); ++i) {
    const auto& sampled = group.members[i].trajectory.sampled;
    num_tokens += std::count(sampled.begin(), sampled.end(), 1);
    if (const auto& run = group.members[i].run; run) num_tokens += run->turns.num_sampled();
    abandon({ordinal, i});
    write_end(group, i, {end, 0, staleness(made_.next(), group.version), reason});
  }
  add_score(group, std::nullopt);
  if (end == RolloutEnd::kStale) services().count("tokens_stale", num_tokens);
  if (!is_evaluation(ordinal)) {
    ++counts_.delivered;
    ++counts_.lost;
  }
  groups_.erase(ordinal);
}

void Rollout::write_end(Group& group, size_t index, const RolloutEnded& ended) {
  Member& member = group.members[index];
  if (member.end) return;
  member.end = ended.end;
  services().count(fmt::format("rollouts_{}", to_string(ended.end)), 1);
  std::string_view environment;
  if (!tenant().mix.empty()) environment = tenant_of(group).label;
  write_line(kFile,
             rollout_line(tenant().name, environment, group, index, ended, options_.log_tokens));
}

void Rollout::write_line(std::string_view file, const std::string& line) {
  const Status written = services().files().append_line(file, line);
  if (written.ok() || has_logged_file_fault_) return;
  // Training without this file is useless: report the error once and end the run.
  has_logged_file_fault_ = true;
  services().log(LogLevel::kError, fmt::format("{}: {}", file, written.error().text()));
  services().finish(tenant_);
}

GateLimits Rollout::gate_limits() const {
  const int64_t inflight = tenant().inflight == 0
                               ? options_.max_inflight
                               : std::min(tenant().inflight, options_.max_inflight);
  return {tenant().groups_per_batch(), tenant().max_off_policy_steps, tenant().group_size,
          inflight};
}

int64_t Rollout::inflight() const {
  auto count =
      static_cast<int64_t>(cancelled_.size() + abandoned_actions_.size() + abandoned_runs_.size()) +
      (scores_target_.is_none() ? 0 : 1);
  for (const auto& [ordinal, group] : groups_)
    if (!group.is_delivered) count += group.num_running();
  return count;
}

Status Rollout::on_tenant(TenantSlot, TenantChange::Kind kind) {
  const bool was_paused = is_paused_;
  is_paused_ = kind == TenantChange::Kind::kJoin || kind == TenantChange::Kind::kPause;
  // The task that waits opens then.
  if (was_paused && !is_paused_) services().set_timer("reissue", Duration());
  return ok();
}

Status Rollout::drain() {
  is_draining_ = true;
  held_task_.reset();
  services().resume("task");
  drop_open("the run ends");
  publish_run_metrics();
  return finish_handler();
}

void Rollout::drop_open(const std::string& reason) {
  std::vector<uint64_t> open;
  for (const auto& [ordinal, group] : groups_)
    if (!group.is_delivered && (is_draining_ || !is_evaluation(ordinal))) open.push_back(ordinal);
  for (const uint64_t ordinal : open) drop(ordinal, RolloutEnd::kCancelled, reason);
}

bool Rollout::idle() const { return groups_.empty() && cancelled_.empty(); }

}  // namespace primerl
