// The turns of one rollout: request, completion, action, observation, deadline.
#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/common/group_bytes.h"
#include "actors/env/rewards/judge.h"
#include "actors/rollout/rollout.h"
#include "actors/rollout/sampling.h"
#include "kernels/engine/kept_sets.h"
#include "kernels/engine/stop_rule.h"

namespace primerl {
namespace {

/// The kept sets of all turns as one Blob; the sets of a single turn are not copied.
Result<Blob> joined(const std::vector<Blob>& turns) {
  if (turns.size() == 1) return turns.front();
  size_t size = 0;
  for (const Blob& turn : turns) size += turn.size();
  if (size > kKeptBytesMax)
    return error(Code::kExhausted,
                 "the kept sets of {} turns have {} bytes, at most {} are allowed", turns.size(),
                 size, kKeptBytesMax);
  std::vector<std::byte> all;
  all.reserve(size);
  for (const Blob& turn : turns) all.insert(all.end(), turn.bytes().begin(), turn.bytes().end());
  return Blob(std::move(all));
}

}  // namespace

int64_t Rollout::turn_tokens_max(MemberId member_id) const {
  const Trajectory& trajectory = groups_.at(member_id.ordinal).members[member_id.member].trajectory;
  const auto length = static_cast<int64_t>(trajectory.last_sample().size());
  return std::min(sampling_of(member_id.ordinal).max_tokens,
                  tenant_of(member_id.ordinal).seq_len - length);
}

void Rollout::next_turn(MemberId member_id) {
  Member& member = member_at(member_id);
  if (turn_tokens_max(member_id) <= 0)
    return fail(
        member_id,
        fmt::format("the prompt has {} tokens, so seq_len {} leaves none to sample",
                    member.trajectory.last_sample().size(), tenant_of(member_id.ordinal).seq_len));
  member.state = Member::State::kGenerating;
  member.environment_deadline.reset();
  watch(member_id);
  send_request(member_id);
}

void Rollout::send_request(MemberId member_id) {
  Member& member = member_at(member_id);
  if (!can_reach_router(routers_, generate_.targets(tenant_))) {
    member.request = kNotSent;
    to_reissue_.insert(member_id);
    return;
  }
  const Group& group = groups_.at(member_id.ordinal);
  const Trajectory& trajectory = member.trajectory;
  member.request = next_request_++;
  requests_[member.request] = member_id;
  GenerateRequest request;
  request.request = member.request;
  request.session = trajectory.trajectory;
  request.attempt = member.attempt;
  request.version = group.version;
  request.salt = group.salt;
  request.known = member.known;
  const auto sample = trajectory.last_sample();
  request.prompt_tokens.assign(sample.begin() + member.known.num_tokens, sample.end());
  member.asked = member.known.extended(request.prompt_tokens);
  // A turn that is sent again gets the same seed, and so samples the same tokens.
  request.seed = mix(member.seed, static_cast<uint64_t>(trajectory.num_turns));
  request.sampling = sampling_params(sampling_of(member_id.ordinal));
  request.sampling.max_tokens = static_cast<int32_t>(turn_tokens_max(member_id));
  if (!group.messages.empty()) add_turn_end(**chat_, request.sampling);
  request.answered = std::exchange(answered_, {});
  request.time_left = std::max(member.deadline - services().now(), Duration());
  add_routers(routers_, generate_.targets(tenant_));
  ++num_asked_;
  generate_.send(std::move(request), send_options());
}

Status Rollout::on_completion(const Completion& completion) {
  answered_.push_back(completion.request);
  const auto found = requests_.find(completion.request);
  if (found == requests_.end()) {
    if (cancelled_.erase(completion.request) == 0) services().count("completions_unknown", 1);
    charge(completion.tokens.size());
    return finish_handler();
  }
  const MemberId member_id = found->second;
  charge_completion(member_id, completion);
  requests_.erase(found);
  unwatch(member_id);
  switch (completion.end) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      take_tokens(member_id, completion);
      break;
    case FinishReason::kEngineLost:
    case FinishReason::kFailed:
      issue_again(member_id, completion.detail);
      break;
    case FinishReason::kUnknownSession:
      send_whole(member_id);
      break;
    case FinishReason::kRefused:
    case FinishReason::kCancelled:
      fail(member_id, fmt::format("{}: {}", to_string(completion.end), completion.detail));
      break;
  }
  deliver_if_done(member_id.ordinal);
  return finish_handler();
}

/// The text of a turn that environment and reward read.
Result<std::string> Rollout::text_of(const Completion& completion,
                                     const TenantSampling& sampling) const {
  if (completion.end != FinishReason::kStop || sampling.include_stop)
    return tokenizer_->decode(completion.tokens);
  SamplingParams stops = sampling_params(sampling);
  if (chat_->ok()) add_turn_end(**chat_, stops);
  return text_before_stop(completion.tokens, stops, *tokenizer_);
}

void Rollout::take_tokens(MemberId member_id, const Completion& completion) {
  Member& member = member_at(member_id);
  Trajectory& trajectory = member.trajectory;
  const size_t count = completion.tokens.size();
  if (count == 0 || completion.logprobs.size() != count)
    return fail(member_id, fmt::format("the engine gave {} tokens and {} log-probabilities", count,
                                       completion.logprobs.size()));
  if (const int64_t most = turn_tokens_max(member_id); static_cast<int64_t>(count) > most)
    return fail(member_id,
                fmt::format("the engine gave {} tokens, {} were requested", count, most));
  const TenantSampling& sampling = sampling_of(member_id.ordinal);
  if (const Status kept = check_kept_of(completion.kept, completion.tokens, sampling); !kept.ok())
    return fail(member_id, "the completion: " + kept.error().text());
  auto text = text_of(completion, sampling);
  if (!text.ok()) return fail(member_id, "the completion: " + text.error().text());
  member.known = member.asked;
  const auto offset = static_cast<int32_t>(trajectory.tokens.size());
  trajectory.tokens.insert(trajectory.tokens.end(), completion.tokens.begin(),
                           completion.tokens.end());
  trajectory.logprobs.insert(trajectory.logprobs.end(), completion.logprobs.begin(),
                             completion.logprobs.end());
  trajectory.sampled.resize(trajectory.tokens.size(), 1);
  for (const auto& span : completion.spans)
    trajectory.spans.push_back({span.version, span.begin + offset, span.end + offset});
  member.kept.push_back(completion.kept);
  ++trajectory.num_turns;
  trajectory.is_truncated = completion.end == FinishReason::kLength;
  member.texts.push_back(std::move(*text));
  if (!groups_.at(member_id.ordinal).messages.empty()) {
    chat::ParsedAnswer answer = (*chat_)->parse(completion.tokens);
    if (answer.num_faults > 0) services().count("tool_calls_unparsed", answer.num_faults);
    member.answers.push_back(static_cast<int32_t>(member.said.size()));
    member.said.push_back(std::move(answer.message));
  }
  member.state = Member::State::kActing;
  begin_environment_time(member_id, 1);
  send_action(member_id);
}

void Rollout::begin_environment_time(MemberId member_id, int64_t num_calls) {
  Member& member = member_at(member_id);
  unwatch(member_id);
  // A judge has a deadline of its own; its error says more than this one.
  const Tenant& own = tenant_of(member_id.ordinal);
  member.environment_deadline =
      services().now() + own.environment_timeout * num_calls + judge_time(own);
  watch(member_id);
}

void Rollout::send_action(MemberId member_id) {
  Member& member = member_at(member_id);
  if (member.environment.is_none()) {
    const InstanceId chosen = environments_.choose(action_.targets(tenant_));
    // If no environment comes back, the rollout ends at its deadline.
    if (chosen.is_none()) return void(actions_to_resend_.insert(member_id));
    member.environment = chosen;
    member.num_turns_told = 0;
    environments_.begin(chosen);
  }
  const Trajectory& trajectory = member.trajectory;
  trajectories_[trajectory.trajectory] = member_id;
  Action action;
  action.trajectory = trajectory.trajectory;
  action.ordinal = member_id.ordinal;
  action.attempt = member.attempt;
  action.turn = trajectory.num_turns - 1;
  action.first_turn = std::exchange(member.num_turns_told, trajectory.num_turns);
  member.told_from = action.first_turn;
  action.texts.assign(member.texts.begin() + action.first_turn, member.texts.end());
  if (!member.answers.empty())
    for (int32_t turn = action.first_turn; turn <= action.turn; ++turn)
      action.messages.push_back(
          member.said[static_cast<size_t>(member.answers[static_cast<size_t>(turn)])]);
  action.is_truncated = trajectory.is_truncated;
  const Group& group = groups_.at(member_id.ordinal);
  action.source = group.source;
  if (sends_prompts_[group.source.environment] && action.first_turn == 0)
    action.prompt = group.prompt;
  // The environment plays every turn of the action, so its time limit is that of one call per turn.
  // The action that asks for a task has no texts.
  begin_environment_time(member_id, std::max<int64_t>(std::ssize(action.texts), 1));
  action.ended = environments_.take_ended(member.environment);
  auto options = send_options();
  options.target = member.environment;
  ++num_acted_;
  action_.send(std::move(action), options);
}

void Rollout::release_environment(Member& member) {
  if (member.environment.is_none()) return;
  environments_.report_ended(member.environment, member.trajectory.trajectory);
  environments_.end(member.environment);
  member.environment = {};
}

void Rollout::on_environment_lost(InstanceId environment) {
  for (auto& [ordinal, group] : groups_)
    for (size_t i = 0; i < group.members.size(); ++i) {
      Member& member = group.members[i];
      if (member.environment != environment || member.state == Member::State::kDone) continue;
      member.environment = {};
      if (member.run || trajectories_.erase(member.trajectory.trajectory) > 0)
        actions_to_resend_.insert({ordinal, i});
    }
  for (auto& [name, run] : abandoned_runs_)
    if (run.environment == environment) run.environment = {};
  std::erase_if(abandoned_runs_, [](const auto& each) {
    return each.second.environment.is_none() && !each.second.is_at_gateway;
  });
  std::erase_if(abandoned_actions_, [&](const auto& each) { return each.second == environment; });
  if (scores_target_ == environment) {
    scores_.insert(scores_.begin(), sent_scores_.begin(), sent_scores_.end());
    sent_scores_.clear();
    scores_target_ = {};
  }
  environments_.forget(environment);
}

Status Rollout::on_observation(const Observation& observation) {
  if (observation.trajectory == kScoresTrajectory) {
    sent_scores_.clear();
    scores_target_ = {};
    return finish_handler();
  }
  const auto found = trajectories_.find(observation.trajectory);
  if (found == trajectories_.end() ||
      member_at(found->second).trajectory.num_turns != observation.turn + 1) {
    const auto abandoned = abandoned_actions_.find(observation.trajectory);
    if (abandoned == abandoned_actions_.end()) {
      services().count("observations_unknown", 1);
    } else {
      environments_.end(abandoned->second);
      abandoned_actions_.erase(abandoned);
    }
    return finish_handler();
  }
  const MemberId member_id = found->second;
  trajectories_.erase(found);
  Member& member = member_at(member_id);
  Trajectory& trajectory = member.trajectory;
  if (observation.needs_history && member.told_from > 0) {
    services().count("histories_sent_again", 1);
    member.num_turns_told = 0;
    send_action(member_id);
    return finish_handler();
  }
  unwatch(member_id);
  if (observation.is_done && !member.environment.is_none()) {
    // The environment has dropped the trajectory already.
    environments_.end(std::exchange(member.environment, {}));
  }
  if (observation.needs_history) {
    fail(member_id, "the environment asks for turns that it already has");
  } else if (!observation.fault.empty()) {
    fail(member_id, "the environment: " + observation.fault);
  } else if (trajectory.num_turns == 0) {
    start_members(groups_.at(member_id.ordinal),
                  {member_id.ordinal, observation.text, observation.messages, observation.tools,
                   observation.data, observation.scores_groups});
  } else if (observation.is_done) {
    trajectory.scores = observation.scores;
    if (std::isfinite(observation.reward))
      finish(member_id, observation.reward, trajectory.is_truncated);
    else
      fail(member_id, fmt::format("the environment gave the reward {}", observation.reward));
  } else if (observation.is_too_long ||
             trajectory.num_turns >= tenant_of(member_id.ordinal).turns_max) {
    finish(member_id, 0, true);
  } else if (const auto next = next_prompt(member_id, observation); !next.ok()) {
    fail(member_id, "the observation: " + next.error().text());
  } else if (!fits(member_id.ordinal, trajectory, *next)) {
    // No token could be sampled after this observation, so it could not train. It is left out
    // whole, and the trajectory ends with the policy's last turn.
    services().count("observations_too_long", 1);
    finish(member_id, 0, true);
  } else {
    append_prompt(member, *next);
    next_turn(member_id);
  }
  deliver_if_done(member_id.ordinal);
  return finish_handler();
}

void Rollout::finish(MemberId member_id, double reward, bool is_truncated) {
  Member& member = member_at(member_id);
  auto kept = joined(member.kept);
  if (!kept.ok()) return fail(member_id, kept.error().text());
  member.trajectory.kept = std::move(kept).value();
  member.kept.clear();
  release_environment(member);
  member.state = Member::State::kDone;
  member.trajectory.reward = reward;
  member.trajectory.is_truncated = is_truncated;
}

void Rollout::fail(MemberId member_id, std::string fault) {
  Group& group = groups_.at(member_id.ordinal);
  Member& member = group.members[member_id.member];
  abandon(member_id);
  write_end(group, member_id.member,
            {RolloutEnd::kFailed, 0, staleness(made_.next(), group.version), fault});
  Trajectory empty;
  empty.trajectory = member.trajectory.trajectory;
  empty.num_turns = member.trajectory.num_turns;
  empty.is_failed = true;
  empty.fault = clipped_fault(std::move(fault));
  member.trajectory = std::move(empty);
  member.kept.clear();
}

void Rollout::issue_again(MemberId member_id, const std::string& why) {
  Member& member = member_at(member_id);
  const auto num_lost = static_cast<int64_t>(member.attempt - base_attempt_) + 1;
  if (num_lost > options_.attempts_max)
    return fail(member_id,
                fmt::format("its engine was lost or failed {} times: {}", num_lost, why));
  ++member.attempt;
  member.known = {};
  services().count("requests_reissued", 1);
  watch(member_id);
  send_request(member_id);
}

void Rollout::send_whole(MemberId member_id) {
  Member& member = member_at(member_id);
  // A whole prompt needs no session. An engine that refuses one would refuse it again every time.
  if (member.known.num_tokens == 0)
    return fail(member_id, "the engine answered unknown_session to a whole prompt");
  member.known = {};
  services().count("prompts_sent_whole", 1);
  watch(member_id);
  send_request(member_id);
}

void Rollout::abandon(MemberId member_id) {
  Member& member = member_at(member_id);
  unwatch(member_id);
  to_reissue_.erase(member_id);
  if (member.state == Member::State::kGenerating && requests_.erase(member.request) > 0) {
    cancelled_.insert(member.request);
    to_cancel_.push_back(member.request);
  }
  actions_to_resend_.erase(member_id);
  if (member.run) abandon_run(member_id);
  if (trajectories_.erase(member.trajectory.trajectory) > 0) {
    // The environment may be stuck in that action: no other trajectory should wait for it.
    abandoned_actions_[member.trajectory.trajectory] = member.environment;
    environments_.report_ended(member.environment, member.trajectory.trajectory);
    member.environment = {};
  }
  release_environment(member);
  member.state = Member::State::kDone;
}

void Rollout::send_cancels() {
  for (size_t begin = 0; begin < to_cancel_.size(); begin += kCancelRequestsMax) {
    const size_t end = std::min(to_cancel_.size(), begin + kCancelRequestsMax);
    Cancel cancel;
    cancel.requests.assign(to_cancel_.begin() + static_cast<std::ptrdiff_t>(begin),
                           to_cancel_.begin() + static_cast<std::ptrdiff_t>(end));
    cancel_.send(std::move(cancel), send_options());
  }
  to_cancel_.clear();
}

void Rollout::watch(MemberId member_id) {
  const Member& member = member_at(member_id);
  Time first = member.deadline;
  if (member.environment_deadline) first = std::min(first, *member.environment_deadline);
  deadlines_.insert({first, member_id});
}

void Rollout::unwatch(MemberId member_id) {
  const Member& member = member_at(member_id);
  deadlines_.erase({member.deadline, member_id});
  if (member.environment_deadline) deadlines_.erase({*member.environment_deadline, member_id});
}

void Rollout::arm_deadline() {
  std::optional<Time> first;
  if (!deadlines_.empty()) first = deadlines_.begin()->first;
  // If the timer is early, it finds nothing and is set again. If it were late, a deadline would be
  // missed.
  if (!first || (armed_ && *armed_ <= *first)) return;
  armed_ = first;
  services().set_timer("deadline", std::max(*first - services().now(), Duration()));
}

Status Rollout::on_deadline() {
  armed_.reset();
  const Time now = services().now();
  if (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    // One group per timer event, so the number of messages is bounded; the timer then fires at once
    // for the next group.
    const uint64_t ordinal = deadlines_.begin()->second.ordinal;
    for (size_t i = 0; i < groups_.at(ordinal).members.size(); ++i) {
      const Member& member = member_at({ordinal, i});
      if (member.state == Member::State::kDone) continue;
      if (member.environment_deadline && *member.environment_deadline <= now)
        fail({ordinal, i}, fmt::format("the environment did not answer within {}",
                                       to_string(tenant_of(ordinal).environment_timeout)));
      else if (member.deadline <= now)
        fail({ordinal, i}, fmt::format("not done within {}",
                                       to_string(member.state == Member::State::kPlaying
                                                     ? run_time(groups_.at(ordinal))
                                                     : tenant_of(ordinal).rollout_timeout)));
    }
    deliver_if_done(ordinal);
  }
  return finish_handler();
}

Status Rollout::on_peer(const PeerEvent& event) {
  if (event.kind == PeerEvent::Kind::kDown) on_environment_lost(event.instance);
  const bool is_router = note_router(routers_, event);
  const bool may_send =
      !to_reissue_.empty() && can_reach_router(routers_, generate_.targets(tenant_));
  if (!actions_to_resend_.empty() || may_send) services().set_timer("reissue", Duration());
  // Rollouts that only waited for that environment are no longer in flight.
  if (event.kind != PeerEvent::Kind::kDown || !is_router) return finish_handler();
  // The router's state is gone, so no request in flight will be answered.
  cancelled_.clear();
  answered_.clear();
  for (const auto& [request, member_id] : requests_) to_reissue_.insert(member_id);
  requests_.clear();
  if (!to_reissue_.empty() && can_reach_router(routers_, generate_.targets(tenant_)))
    services().set_timer("reissue", Duration());
  return finish_handler();
}

Status Rollout::on_reissue() {
  // One group per timer event, so the number of messages is bounded.
  // Env has both inputs.
  if (!actions_to_resend_.empty() && !action_.targets(tenant_).empty()) {
    const uint64_t ordinal = actions_to_resend_.begin()->ordinal;
    while (!actions_to_resend_.empty() && actions_to_resend_.begin()->ordinal == ordinal) {
      const MemberId member_id = *actions_to_resend_.begin();
      actions_to_resend_.erase(actions_to_resend_.begin());
      if (member_at(member_id).run) {
        repeat_run(member_id, "its environment is gone");
        continue;
      }
      services().count("actions_sent_again", 1);
      send_action(member_id);
    }
    services().set_timer("reissue", Duration());
    deliver_if_done(ordinal);
    return finish_handler();
  }
  if (to_reissue_.empty() || !can_reach_router(routers_, generate_.targets(tenant_)))
    return finish_handler();
  const uint64_t ordinal = to_reissue_.begin()->ordinal;
  while (!to_reissue_.empty() && to_reissue_.begin()->ordinal == ordinal) {
    const MemberId member_id = *to_reissue_.begin();
    to_reissue_.erase(to_reissue_.begin());
    if (member_at(member_id).request == kNotSent) {
      send_request(member_id);
      continue;
    }
    unwatch(member_id);
    issue_again(member_id, "the router is gone");
  }
  if (!to_reissue_.empty()) services().set_timer("reissue", Duration());
  deliver_if_done(ordinal);
  return finish_handler();
}

}  // namespace primerl
