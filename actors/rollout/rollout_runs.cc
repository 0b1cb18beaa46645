// Rollouts that their environment drives (docs/design/verifiers.md): a run, its turns, its end.
#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/common/run_salt.h"
#include "actors/rollout/rollout.h"
#include "actors/rollout/sampling.h"
#include "graph/tenant_outside.h"

namespace primerl {
/// The server's own limit, else that of every rollout.
Duration Rollout::run_time(const Group& group) const {
  const Duration own = tenant_of(group).rollout_timeout;
  const TenantOutside outside = outside_of(tenant());
  const int32_t index = outside.environments[group.source.environment].environment;
  if (index < 0) return own;
  const OutsidePool& pool = outside.spec.pools[static_cast<size_t>(index)];
  return pool.kind == OutsidePoolKind::kVerifiers ? pool.run_timeout : own;
}

MemberName Rollout::name_of(MemberId member_id) const {
  const Member& member = groups_.at(member_id.ordinal).members[member_id.member];
  return {member_id.ordinal, member.attempt, static_cast<uint32_t>(member_id.member)};
}

std::optional<Rollout::MemberId> Rollout::find_run(const MemberName& name) const {
  const auto group = groups_.find(name.ordinal);
  if (group == groups_.end() || name.member >= group->second.members.size()) return std::nullopt;
  const Member& member = group->second.members[name.member];
  if (!member.run || member.attempt != name.attempt) return std::nullopt;
  return MemberId{name.ordinal, name.member};
}

/// A gateway of a resumed run may have another address. Servers cannot reach the old one, so the
/// runs that know it are cancelled, and begin again when their server has answered: a run has at
/// most one answer on its way.
Status Rollout::on_address(const GatewayAddress& address) {
  const bool has_moved = !base_url_.empty() && base_url_ != address.base_url;
  base_url_ = address.base_url;
  seal_key_ = address.seal_key;
  if (!has_moved) return finish_handler();
  for (auto& [ordinal, group] : groups_)
    for (size_t i = 0; i < group.members.size(); ++i) {
      Member& member = group.members[i];
      if (!member.run || !member.run->is_sent || member.run->has_ended) continue;
      member.run->has_moved = true;
      if (!member.environment.is_none()) runs_to_cancel_.push_back(name_of({ordinal, i}));
    }
  return finish_handler();
}

void Rollout::start_runs(Group& group) {
  const Duration time = run_time(group);
  for (size_t i = 0; i < group.members.size(); ++i) {
    Member& member = group.members[i];
    member.state = Member::State::kPlaying;
    member.environment_deadline.reset();
    member.deadline = services().now() + time;
    // The one that gave the task of an evaluation: another may get the run.
    if (!member.environment.is_none()) environments_.end(std::exchange(member.environment, {}));
    watch({group.ordinal, i});
  }
  for (size_t i = 0; i < group.members.size(); i += static_cast<size_t>(members_of_run(group))) {
    group.members[i].run.emplace();
    send_run({group.ordinal, i});
  }
}

void Rollout::send_run(MemberId first) {
  const Group& group = groups_.at(first.ordinal);
  Member& member = member_at(first);
  const InstanceId chosen = environments_.choose(run_.targets(tenant_));
  // If no environment comes back, the rollout ends at its deadline.
  if (chosen.is_none()) return void(actions_to_resend_.insert(first));
  member.environment = chosen;
  member.run->is_sent = true;
  environments_.begin(chosen);
  RunSalt salt;
  salt.salt = group.salt;
  salt.tenant = tenant().name;
  salt.name = name_of(first);
  salt.num_members = static_cast<int32_t>(members_of_run(group));
  salt.version = group.version;
  salt.seal = seal_of(salt, seal_key_);
  Run run;
  run.name = salt.name;
  run.num_members = salt.num_members;
  run.base_url = base_url_;
  run.salt = to_text(salt);
  const TenantSampling& sampling = sampling_of(first.ordinal);
  run.sampling = sampling_params(sampling);
  run.sampling.max_tokens =
      static_cast<int32_t>(std::min(sampling.max_tokens, tenant_of(group).seq_len));
  run.environment = group.source.environment;
  run.data = group.data;
  run.time_left = std::max(member.deadline - services().now(), Duration());
  auto options = send_options();
  options.target = chosen;
  ++num_acted_;
  services().count("runs", 1);
  run_.send(std::move(run), options);
}

void Rollout::repeat_run(MemberId first, const std::string& why) {
  Group& group = groups_.at(first.ordinal);
  Member& member = member_at(first);
  if (member.run->is_sent) {
    const auto num_lost = static_cast<int64_t>(member.attempt - base_attempt_) + 1;
    if (num_lost > options_.attempts_max)
      return fail_run(first, fmt::format("its run was lost {} times: {}", num_lost, why));
    services().count("runs_repeated", 1);
    close_run(name_of(first));
    abandoned_runs_[name_of(first)] = {};
    const size_t end = first.member + static_cast<size_t>(members_of_run(group));
    for (size_t i = first.member; i < end; ++i) ++group.members[i].attempt;
    member.run.emplace();
  }
  send_run(first);
}

Status Rollout::on_run_answered(const RunAnswered& ended) {
  const auto found = find_run(ended.name);
  if (!found || member_at(*found).run->has_ended) {
    const auto abandoned = abandoned_runs_.find(ended.name);
    if (abandoned == abandoned_runs_.end() || abandoned->second.environment.is_none()) {
      services().count("runs_unknown", 1);
      return finish_handler();
    }
    environments_.end(std::exchange(abandoned->second.environment, {}));
    if (!abandoned->second.is_at_gateway) abandoned_runs_.erase(abandoned);
    return finish_handler();
  }
  const MemberId first = *found;
  Member& member = member_at(first);
  environments_.end(std::exchange(member.environment, {}));
  actions_to_resend_.erase(first);
  const int64_t num_members = members_of_run(groups_.at(first.ordinal));
  const bool has_failed =
      !ended.fault.empty() ||
      std::ranges::any_of(ended.members, [](const auto& one) { return !one.fault.empty(); });
  if (ended.is_lost) {
    repeat_run(first, ended.fault);
  } else if (member.run->has_moved && has_failed) {
    repeat_run(first, "the gateway has another address");
  } else if (!ended.fault.empty()) {
    fail_run(first, "the environment: " + ended.fault);
  } else if (std::ssize(ended.members) != num_members) {
    fail_run(first, fmt::format("the environment gave {} results for {} members",
                                ended.members.size(), num_members));
  } else {
    // All turns are here when the gateway has closed the run.
    member.run->has_ended = true;
    member.run->results = ended.members;
    close_run(ended.name);
  }
  deliver_if_done(first.ordinal);
  return finish_handler();
}

void Rollout::on_turn_without_run(const MemberTurn& turn) {
  const auto abandoned = abandoned_runs_.find(turn.name);
  if (turn.is_last) {
    if (abandoned == abandoned_runs_.end()) return;
    abandoned->second.is_at_gateway = false;
    if (abandoned->second.environment.is_none()) abandoned_runs_.erase(abandoned);
    return;
  }
  services().count("turns_dropped", 1);
  if (abandoned != abandoned_runs_.end()) return;
  // An earlier attempt before this start of the run, or a name that no run has. A client may invent
  // any number of them.
  if (std::cmp_greater_equal(abandoned_runs_.size(), options_.max_inflight)) return;
  abandoned_runs_[turn.name] = {};
  close_run(turn.name);
}

Status Rollout::on_turn(const MemberTurn& turn) {
  charge(turn.prompt_tokens.size() + turn.tokens.size());
  const auto found = find_run(turn.name);
  if (!found || (turn.is_last && !member_at(*found).run->has_ended)) {
    on_turn_without_run(turn);
    return finish_handler();
  }
  Member& member = member_at(*found);
  if (!turn.is_last) {
    Status added = member.run->turns.add(turn);
    if (added.ok() && !is_evaluation(found->ordinal))
      added = check_kept_of(turn.kept, turn.tokens, sampling_of(found->ordinal));
    if (!added.ok()) fail_run(*found, "a turn of the gateway: " + added.error().text());
  } else if (turn.index != member.run->turns.num_turns()) {
    const std::string fault = fmt::format("the gateway sent {} turns, {} came", turn.index,
                                          member.run->turns.num_turns());
    member.run.reset();  // nothing of it is open any more
    fail_run(*found, fault);
  } else {
    complete_run(*found);
  }
  deliver_if_done(found->ordinal);
  return finish_handler();
}

void Rollout::complete_run(MemberId first) {
  const OpenRun run = std::move(*member_at(first).run);
  member_at(first).run.reset();
  auto samples = run.turns.samples(run.results);
  const int32_t num_unmatched = run.turns.num_unmatched(samples);
  if (num_unmatched > 0) services().count("turns_unmatched", num_unmatched);
  for (size_t i = 0; i < run.results.size(); ++i) {
    const MemberId member_id{first.ordinal, first.member + i};
    if (!samples[i].ok()) {
      fail(member_id, "the run: " + samples[i].error().text());
      continue;
    }
    finish_run(member_id, run.results[i], std::move(*samples[i]));
    if (auto& report = member_at(member_id).report; report) report->num_unmatched = num_unmatched;
  }
}

void Rollout::finish_run(MemberId member_id, const MemberResult& result,
                         DrivenRun::Samples samples) {
  Member& member = member_at(member_id);
  // An evaluation needs only the reward.
  if (samples.arrays.tokens.empty() && !is_evaluation(member_id.ordinal))
    return fail(member_id,
                fmt::format("no turn of the gateway is in its {} branches", samples.num_branches));
  unwatch(member_id);
  Trajectory made = std::move(samples.arrays);
  made.trajectory = member.trajectory.trajectory;
  made.reward = result.reward;
  made.is_truncated = result.is_truncated;
  member.trajectory = std::move(made);
  member.state = Member::State::kDone;
  RunReport& report = member.report.emplace();
  report.num_branches = samples.num_branches;
  report.num_left_out = samples.num_left_out;
  report.num_tool_calls = result.num_tool_calls;
  report.stop_condition = result.stop_condition;
  report.scores = result.scores;
  report.metrics = result.metrics;
  if (samples.num_left_out > 0) services().count("branches_left_out", samples.num_left_out);
  if (const auto begun = std::ssize(member.trajectory.sample_begins); begun > 0)
    services().count("samples_begun", begun);
  add_texts(member);
}

/// The texts of its turns, for rollouts.jsonl.
void Rollout::add_texts(Member& member) const {
  const Trajectory& trajectory = member.trajectory;
  for (size_t begin = 0; begin < trajectory.tokens.size();) {
    size_t end = begin;
    while (end < trajectory.tokens.size() && trajectory.sampled[end] == 1) ++end;
    if (end > begin) {
      const std::vector<int32_t> turn(
          trajectory.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
          trajectory.tokens.begin() + static_cast<std::ptrdiff_t>(end));
      if (auto text = tokenizer_->decode(turn); text.ok()) member.texts.push_back(std::move(*text));
    }
    begin = end + 1;
  }
}

void Rollout::fail_run(MemberId first, const std::string& fault) {
  const size_t end = first.member + static_cast<size_t>(members_of_run(groups_.at(first.ordinal)));
  for (size_t i = first.member; i < end; ++i) fail({first.ordinal, i}, fault);
}

void Rollout::abandon_run(MemberId first) {
  Member& member = member_at(first);
  const OpenRun run = std::move(*member.run);
  member.run.reset();
  const InstanceId environment = std::exchange(member.environment, {});
  if (!run.is_sent) return;
  const MemberName name = name_of(first);
  if (!environment.is_none()) runs_to_cancel_.push_back(name);
  if (!run.has_ended) close_run(name);
  abandoned_runs_[name] = {environment, true};
}

void Rollout::publish_run_metrics() {
  MetricValues values;
  int64_t step = 0;
  for (auto& [environment, metrics] : run_metrics_) {
    if (metrics.is_empty()) continue;
    step = metrics.step();
    const std::string& label = tenant().in_environment(environment).environment_label();
    for (auto& value : metrics.finish(label)) values.push_back(std::move(value));
  }
  if (!values.empty()) services().publish_metrics(tenant_, step, values);
}

void Rollout::send_run_ends() {
  std::map<InstanceId, std::vector<MemberName>> cancelled;
  for (const MemberName& name : std::exchange(runs_to_cancel_, {})) {
    const auto run = abandoned_runs_.find(name);
    const auto open = find_run(name);
    const InstanceId environment = run != abandoned_runs_.end() ? run->second.environment
                                   : open                       ? member_at(*open).environment
                                                                : InstanceId();
    if (!environment.is_none()) cancelled[environment].push_back(name);
  }
  const auto batches = [](const std::vector<MemberName>& names, const auto& send) {
    for (size_t begin = 0; begin < names.size(); begin += kCancelRequestsMax) {
      const size_t end = std::min(names.size(), begin + kCancelRequestsMax);
      send(std::vector<MemberName>(names.begin() + static_cast<std::ptrdiff_t>(begin),
                                   names.begin() + static_cast<std::ptrdiff_t>(end)));
    }
  };
  for (const auto& [environment, names] : cancelled) {
    auto options = send_options();
    options.target = environment;
    batches(names,
            [&](std::vector<MemberName> part) { cancel_runs_.send({std::move(part)}, options); });
  }
  batches(std::exchange(runs_to_close_, {}),
          [&](std::vector<MemberName> part) { closed_.send({std::move(part)}, send_options()); });
}

}  // namespace primerl
