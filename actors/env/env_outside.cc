// What Env asks outside of the process, and how it uses the answers.
#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/env/env.h"
#include "actors/env/environments/catalog.h"
#include "actors/env/rewards/catalog.h"

namespace primerl {
namespace {

// Calls of one step are numbered from its own number, so that a handler that fails and is repeated
// uses no number twice.
constexpr int kCallBits = 16;

/// Sessions are numbered from 1; 0 is none.
uint64_t session_of(uint64_t trajectory) { return trajectory + 1; }

Error fault_of(const OutsideAnswer& answer) {
  return Error(answer.end == OutsideEnd::kLost ? Code::kUnavailable : Code::kInvalid, answer.body);
}

}  // namespace

/// In a rehearsal the environment exists already. Rewards of this process read a real answer, so
/// they are left out then.
Status Env::make_judges() {
  const Tenant& tenant = services().tenant(tenant_);
  const bool is_rehearsal = environment_ != nullptr;
  if (!is_rehearsal && !is_asked_outside()) {
    ASSIGN_OR_RETURN(environment_, make_environment(tenant.environment));
  }
  for (size_t i = 0; i < tenant.rewards.size(); ++i) {
    Judge& judge = judges_.emplace_back();
    judge.weight = tenant.rewards[i].weight;
    if (pools_.rewards[i] >= 0) continue;
    ASSIGN_OR_RETURN(judge.reward, make_reward(tenant.rewards[i]));
  }
  if (is_rehearsal && std::any_of(judges_.begin(), judges_.end(),
                                  [](const Judge& judge) { return judge.reward != nullptr; }))
    judges_.clear();
  return ok();
}

void Env::forget(uint64_t trajectory) {
  worlds_.forget(trajectory);
  if (is_asked_outside() && outside_ != nullptr)
    outside_->forget(static_cast<uint32_t>(pools_.environment), session_of(trajectory));
}

/// A worker is asked for the row of an evaluation, with a seed of its own.
uint32_t Env::seed_of(uint64_t ordinal) const {
  const bool is_row = is_evaluation(ordinal);
  const uint64_t number = is_row ? row_of(ordinal) : ordinal;
  return static_cast<uint32_t>(
      services().random(tenant_, is_row ? "evaluation task" : "task", number).next() >> 32);
}

Status Env::ask(Asked asked, OutsideCall call) {
  call.id = (services().delivery().ref.step << kCallBits) + num_asked_++;
  const uint64_t id = call.id;
  RETURN_IF_ERROR(outside_->ask(std::move(call)));
  asked_.emplace(id, asked);
  return ok();
}

/// Sends the tasks that are here, in the order of their ordinals, and asks for the next ones.
Result<bool> Env::send_asked_tasks() {
  while (coming_.size() < kTasksAheadMax) {
    const uint64_t ordinal = consumed_.next_free(next_ordinal_);
    OutsideCall call;
    call.pool = static_cast<uint32_t>(pools_.environment);
    call.body = task_body(ordinal, seed_of(ordinal));
    RETURN_IF_ERROR(ask({Asked::Kind::kTask, ordinal}, std::move(call)));
    next_ordinal_ = ordinal + 1;
    coming_[ordinal];
  }
  if (!coming_.begin()->second.is_here || task_.room() <= 0) return false;
  task_.send(std::move(coming_.begin()->second.task), for_tenant(tenant_));
  coming_.erase(coming_.begin());
  return task_.room() > 0;
}

Status Env::ask_step(uint64_t trajectory, const Worlds::Played& played, int32_t first_turn) {
  OutsideTurns turns;
  turns.trajectory = trajectory;
  turns.is_evaluation = is_evaluation(played.ordinal);
  turns.ordinal = turns.is_evaluation ? row_of(played.ordinal) : played.ordinal;
  turns.seed = seed_of(played.ordinal);
  turns.first_turn = first_turn;
  turns.actions.assign(played.texts.begin() + first_turn, played.texts.end());
  if (played.messages.size() == played.texts.size())
    turns.messages.assign(played.messages.begin() + first_turn, played.messages.end());
  OutsideCall call;
  call.pool = static_cast<uint32_t>(pools_.environment);
  call.session = session_of(trajectory);
  call.is_whole = first_turn == 0;
  call.is_replay = call.is_whole && played.texts.size() > 1;
  call.body = step_body(turns);
  return ask({Asked::Kind::kStep, trajectory}, std::move(call));
}

void Env::receive_answers() {
  for (const OutsideAnswer& answer : outside_->receive_answers()) {
    const auto found = asked_.find(answer.id);
    if (found == asked_.end()) continue;  // its rollout has failed already
    const Asked asked = found->second;
    asked_.erase(found);
    if (const Status used = on_answer(asked, answer); !used.ok()) {
      const auto judging = judging_.find(asked.of);
      if (judging == judging_.end()) continue;
      const Judging failed = std::move(judging->second);
      judging_.erase(judging);
      send_fault(asked.of, failed, used.error());
    }
  }
}

Status Env::on_answer(const Asked& asked, const OutsideAnswer& answer) {
  if (asked.kind == Asked::Kind::kTask) return on_task_answer(asked.of, answer);
  if (!judging_.contains(asked.of)) return ok();
  if (asked.kind == Asked::Kind::kFirst) return on_first_answer(asked.of, answer);
  if (asked.kind == Asked::Kind::kStep) return on_step_answer(asked.of, answer);
  return on_score_answer(asked, answer);
}

Status Env::on_task_answer(uint64_t ordinal, const OutsideAnswer& answer) {
  auto task = answer.end == OutsideEnd::kDone ? read_task(answer.body)
                                              : Result<EnvironmentTask>(fault_of(answer));
  if (task.ok())
    if (const Status fits = check_prompt(ordinal, *task); !fits.ok()) task = fits.error();
  if (!task.ok()) {
    coming_.erase(ordinal);
    const auto counted = count_task_fault(ordinal, std::move(task).error());
    if (!counted.ok()) services().fail_tenant(tenant_, counted.error());
    return ok();
  }
  num_task_faults_ = 0;
  Coming& coming = coming_[ordinal];
  coming.is_here = true;
  coming.task = {.ordinal = ordinal,
                 .prompt = std::move(task->prompt),
                 .messages = std::move(task->messages),
                 .tools = std::move(task->tools)};
  return ok();
}

Status Env::on_first_answer(uint64_t trajectory, const OutsideAnswer& answer) {
  if (answer.end != OutsideEnd::kDone) return fault_of(answer);
  ASSIGN_OR_RETURN(auto task, read_task(answer.body));
  RETURN_IF_ERROR(check_prompt(row_of(judging_.at(trajectory).ordinal), task));
  const Judging judging = std::move(judging_.at(trajectory));
  judging_.erase(trajectory);
  send_first(trajectory, judging, std::move(task));
  return ok();
}

Status Env::on_step_answer(uint64_t trajectory, const OutsideAnswer& answer) {
  auto* played = worlds_.find(trajectory);
  if (played == nullptr)
    return error(Code::kExhausted, "its earlier turns were dropped: more than {} trajectories",
                 options_.worlds_max)
        .note("raise 'worlds_max' of the node");
  if (answer.end == OutsideEnd::kNeedsHistory) {
    services().count("histories_played_again", 1);
    return ask_step(trajectory, *played, 0);
  }
  if (answer.end != OutsideEnd::kDone) return fault_of(answer);
  ASSIGN_OR_RETURN(auto read, read_step(answer.body));
  // An answer to all turns says what a fresh worker has observed.
  for (size_t i = 0; i < read.played.size(); ++i) {
    if (i >= played->observed.size()) {
      played->observed.push_back(std::move(read.played[i]));
    } else if (read.played[i] != played->observed[i]) {
      return error(Code::kInvalid,
                   "a fresh worker observed something else after turn {} than the one that died",
                   i + 1)
          .note(
              "an environment must do the same for the same task and actions; if it cannot, its "
              "first line says \"replay\": false");
    }
  }
  if (!read.step.done) {
    played->observed.push_back(digest(read.step));
    const Judging judging = std::move(judging_.at(trajectory));
    judging_.erase(trajectory);
    send_step(trajectory, judging, std::move(read.step));
    return ok();
  }
  if (!judges_.empty())
    return score(trajectory, {.prompt = "", .answer = std::move(read.answer)}, *played,
                 read.step.reward);
  const Judging judging = std::move(judging_.at(trajectory));
  judging_.erase(trajectory);
  forget(trajectory);
  send_step(trajectory, judging, std::move(read.step));
  return ok();
}

Status Env::score(uint64_t trajectory, const EnvironmentTask& task, const Worlds::Played& played,
                  double given) {
  Judging& judging = judging_.at(trajectory);
  judging.scores.assign(judges_.size(), 0);
  // Those of this process first: if one fails, nothing was asked.
  for (size_t i = 0; i < judges_.size(); ++i) {
    if (judges_[i].reward == nullptr) continue;
    ASSIGN_OR_RETURN(judging.scores[i], judges_[i].reward->score(task, played.texts, given));
  }
  for (size_t i = 0; i < judges_.size(); ++i) {
    if (judges_[i].reward != nullptr) continue;
    OutsideCall call;
    call.pool = static_cast<uint32_t>(pools_.rewards[i]);
    call.body = reward_body(task, played.texts, given, played.messages);
    RETURN_IF_ERROR(
        ask({Asked::Kind::kScore, trajectory, static_cast<uint32_t>(i)}, std::move(call)));
    ++judging.num_missing;
  }
  return judging.num_missing == 0 ? send_scored(trajectory) : ok();
}

Status Env::on_score_answer(const Asked& asked, const OutsideAnswer& answer) {
  if (answer.end != OutsideEnd::kDone) return fault_of(answer);
  Judging& judging = judging_.at(asked.of);
  ASSIGN_OR_RETURN(judging.scores[asked.reward], read_score(answer.body));
  return --judging.num_missing == 0 ? send_scored(asked.of) : ok();
}

Status Env::send_scored(uint64_t trajectory) {
  const Judging& scored = judging_.at(trajectory);
  double reward = 0;
  for (size_t i = 0; i < judges_.size(); ++i) reward += judges_[i].weight * scored.scores[i];
  if (!std::isfinite(reward))
    return error(Code::kInvalid, "the tenant's reward gave the reward {} for task {}", reward,
                 scored.ordinal)
        .note("a reward is a finite number");
  const Judging judging = std::move(judging_.at(trajectory));
  judging_.erase(trajectory);
  forget(trajectory);
  send_step(trajectory, judging, {.text = "", .reward = reward, .done = true});
  return ok();
}

}  // namespace primerl
