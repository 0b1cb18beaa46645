// Questions of Env to processes outside and to a judge, and how it uses the answers.
#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/env/env.h"
#include "actors/env/environments/catalog.h"
#include "actors/env/rewards/catalog.h"
#include "actors/env/rewards/judge.h"
#include "actors/env/run_calls.h"

namespace primerl {
namespace {

// Calls of one step are numbered from its own number, so that a handler that fails and is repeated
// uses no number twice.
constexpr int kCallBits = 16;

/// Sessions are numbered from 1; 0 is none.
uint64_t session_of(uint64_t trajectory) { return trajectory + 1; }

Error fault_of(const OutsideAnswer& answer) {
  const bool is_gone = answer.end == OutsideEnd::kLost || answer.end == OutsideEnd::kUnusable;
  return Error(is_gone ? Code::kUnavailable : Code::kInvalid, answer.body);
}

}  // namespace

void Env::forget(uint64_t trajectory) {
  worlds_.forget(trajectory);
  if (outside_ == nullptr) return;
  // Sessions are numbered over all environments, so others have none of this number; runs are
  // numbered by their calls.
  for (const Source& source : sources_)
    if (source.is_outside() && !drives_rollouts(source))
      outside_->forget(static_cast<uint32_t>(source.use.environment), session_of(trajectory));
}

/// A worker is asked for the row of an evaluation, with a seed of its own.
uint32_t Env::seed_of(uint64_t ordinal, const TaskSource& source) const {
  RandomStream random = is_evaluation(ordinal)
                            ? services().random(tenant_, "evaluation task", row_of(ordinal))
                            : random_of(source);
  return static_cast<uint32_t>(random.next() >> 32);
}

uint64_t Env::next_call() { return (services().delivery().ref.step << kCallBits) + num_asked_++; }

Status Env::ask(Asked asked, OutsideCall call) {
  call.id = next_call();
  const uint64_t id = call.id;
  RETURN_IF_ERROR(outside_->ask(std::move(call)));
  asked_.emplace(id, asked);
  return ok();
}

/// Sends the tasks that are here, in the order of their ordinals, and asks for the next ones.
Result<bool> Env::send_asked_tasks() {
  bool looks_further = false;  // for a row, in the next work call
  const auto tasks_max = static_cast<uint64_t>(services().tenant(tenant_).tasks_max);
  const size_t ahead_max =
      rows_.empty() ? kTasksAheadMax : static_cast<size_t>(kTasksAheadOfCurriculum);
  while (coming_.size() < ahead_max) {
    if (tasks_max > 0 && next_ordinal_ > tasks_max) break;
    const uint64_t ordinal = consumed_.next_free(next_ordinal_);
    if (tasks_max > 0 && ordinal >= tasks_max) {
      // After the last task of all epochs the empty one says that no more follow.
      next_ordinal_ = tasks_max + 1;
      coming_[tasks_max] = {true, {.ordinal = tasks_max, .prompt = ""}};
      break;
    }
    const auto source = draw(ordinal);
    if (!source) {
      looks_further = true;
      break;
    }
    if (!known_source(*source).is_outside()) {
      next_ordinal_ = ordinal + 1;
      auto made = make_task_of(ordinal, *source);
      if (!made.ok()) {
        count_task_fault(ordinal, std::move(made).error());
        return true;
      }
      num_task_faults_ = 0;
      coming_[ordinal] = {true, std::move(made).value()};
      continue;
    }
    OutsideCall call;
    call.pool = static_cast<uint32_t>(known_source(*source).use.environment);
    call.body = task_body(source->number, seed_of(ordinal, *source));
    RETURN_IF_ERROR(ask({Asked::Kind::kTask, ordinal}, std::move(call)));
    next_ordinal_ = ordinal + 1;
    coming_[ordinal].task.source = *source;
  }
  if (coming_.empty() || !coming_.begin()->second.is_here || !may_send_task()) return looks_further;
  task_.send(std::move(coming_.begin()->second.task), for_tenant(tenant_));
  coming_.erase(coming_.begin());
  return looks_further || may_send_task();
}

Status Env::ask_step(uint64_t trajectory, const TaskSource& source, const Worlds::Played& played,
                     int32_t first_turn) {
  OutsideTurns turns;
  turns.trajectory = trajectory;
  turns.is_evaluation = is_evaluation(played.ordinal);
  turns.ordinal = turns.is_evaluation ? row_of(played.ordinal) : source.number;
  turns.seed = seed_of(played.ordinal, source);
  turns.first_turn = first_turn;
  turns.actions.assign(played.texts.begin() + first_turn, played.texts.end());
  if (played.messages.size() == played.texts.size())
    turns.messages.assign(played.messages.begin() + first_turn, played.messages.end());
  OutsideCall call;
  call.pool = static_cast<uint32_t>(known_source(source).use.environment);
  call.session = session_of(trajectory);
  call.is_whole = first_turn == 0;
  call.is_replay = call.is_whole && played.texts.size() > 1;
  call.body = step_body(turns);
  return ask({Asked::Kind::kStep, trajectory}, std::move(call));
}

void Env::receive_answers() {
  for (const OutsideAnswer& answer : outside_->receive_answers()) {
    const auto found = asked_.find(answer.id);
    if (answer.end == OutsideEnd::kUnusable) services().fail_tenant(tenant_, fault_of(answer));
    if (found == asked_.end()) continue;  // its rollout has failed already
    const Asked asked = found->second;
    asked_.erase(found);
    if (const Status used = on_answer(asked, answer); !used.ok())
      fail_judging(asked.of, used.error());
  }
}

void Env::fail_judging(uint64_t trajectory, const Error& error) {
  const auto judging = judging_.find(trajectory);
  if (judging == judging_.end()) return;
  const Judging failed = std::move(judging->second);
  judging_.erase(judging);
  send_fault(trajectory, failed, error);
}

Status Env::on_score(const JudgeScore& score) {
  const auto found = asked_.find(score.question);
  if (found == asked_.end()) {
    services().count("scores_unknown", 1);
    return ok();
  }
  const Asked asked = found->second;
  asked_.erase(found);
  if (!judging_.contains(asked.of)) return ok();
  const Status used =
      add_score(asked, score.fault.empty() ? Result<double>(score.score)
                                           : Result<double>(Error(Code::kInvalid, score.fault)));
  if (!used.ok()) fail_judging(asked.of, used.error());
  return ok();
}

Status Env::on_answer(const Asked& asked, const OutsideAnswer& answer) {
  if (asked.kind == Asked::Kind::kTask) return on_task_answer(asked.of, answer);
  if (asked.kind == Asked::Kind::kRun) {
    on_run_answer(asked.of, answer);
    return ok();
  }
  if (!judging_.contains(asked.of)) return ok();
  if (asked.kind == Asked::Kind::kFirst) return on_first_answer(asked.of, answer);
  if (asked.kind == Asked::Kind::kStep) return on_step_answer(asked.of, answer);
  return add_score(asked, answer.end == OutsideEnd::kDone ? read_score(answer.body)
                                                          : Result<double>(fault_of(answer)));
}

Result<EnvironmentTask> Env::read_task_answer(const Source& source,
                                              const OutsideAnswer& answer) const {
  if (answer.end != OutsideEnd::kDone) return fault_of(answer);
  return drives_rollouts(source) ? read_driven_task(answer.body) : read_task(answer.body);
}

/// The number of tasks with which epochs were counted; 0: they were not. A rehearsal has none.
int64_t Env::num_named_tasks(const TaskSource& source) const {
  const Tenant& tenant = services().tenant(tenant_);
  if (tenant.tasks_max == 0 || !drives_rollouts(known_source(source))) return 0;
  const TenantEnvironment& environment = tenant.in_environment(source.environment).environment;
  if (environment.contract == nullptr || !environment.contract->rows) return 0;
  const auto rows = environment.contract->rows(environment.options.get());
  return rows.ok() ? rows->num_training : 0;
}

Status Env::on_task_answer(uint64_t ordinal, const OutsideAnswer& answer) {
  const auto asked = coming_.find(ordinal);
  if (asked == coming_.end()) return ok();  // no task is given any more
  const TaskSource source = asked->second.task.source;
  auto task = read_task_answer(known_source(source), answer);
  if (const int64_t num_tasks = num_named_tasks(source); task.ok() && num_tasks > 0)
    if (Status counted = check_num_tasks(answer.body, num_tasks); !counted.ok()) {
      // No other task is given, and not the last one that says that all epochs were.
      coming_.clear();
      next_ordinal_ = static_cast<uint64_t>(services().tenant(tenant_).tasks_max) + 1;
      services().fail_tenant(tenant_, std::move(counted).error());
      return ok();
    }
  if (task.ok())
    if (const Status fits = check_prompt(ordinal, *task); !fits.ok()) task = fits.error();
  if (!task.ok()) {
    coming_.erase(ordinal);
    count_task_fault(ordinal, std::move(task).error());
    return ok();
  }
  num_task_faults_ = 0;
  Coming& coming = coming_[ordinal];
  coming.is_here = true;
  coming.task = {.ordinal = ordinal,
                 .prompt = std::move(task->prompt),
                 .messages = std::move(task->messages),
                 .tools = std::move(task->tools),
                 .data = std::move(task->data),
                 .scores_groups = task->scores_groups,
                 .source = source};
  return ok();
}

Status Env::on_first_answer(uint64_t trajectory, const OutsideAnswer& answer) {
  ASSIGN_OR_RETURN(auto task,
                   read_task_answer(known_source(judging_.at(trajectory).source), answer));
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
    return ask_step(trajectory, judging_.at(trajectory).source, *played, 0);
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
  if (!known_source(judging_.at(trajectory).source).scorers.empty()) {
    if (read.prompt.empty()) read.prompt = played->prompt;
    return score(trajectory, {.prompt = std::move(read.prompt), .answer = std::move(read.answer)},
                 *played, read.step.reward);
  }
  const Judging judging = std::move(judging_.at(trajectory));
  judging_.erase(trajectory);
  forget(trajectory);
  send_step(trajectory, judging, std::move(read.step));
  return ok();
}

Status Env::score(uint64_t trajectory, const EnvironmentTask& task, const Worlds::Played& played,
                  double given) {
  using Kind = Scorer::Kind;
  Judging& judging = judging_.at(trajectory);
  const Source& source = known_source(judging.source);
  const std::vector<Scorer>& scorers = source.scorers;
  judging.scores.assign(scorers.size(), 0);
  // Those of this process first: if one fails, nothing was asked.
  for (size_t i = 0; i < scorers.size(); ++i) {
    if (scorers[i].kind == Kind::kRehearsed) judging.scores[i] = given;
    if (scorers[i].kind != Kind::kHere) continue;
    ASSIGN_OR_RETURN(judging.scores[i], scorers[i].reward->score(task, played.texts, given));
  }
  const auto asked_for = [&](size_t i) {
    return Asked{Asked::Kind::kScore, trajectory, static_cast<uint32_t>(i)};
  };
  for (size_t i = 0; i < scorers.size(); ++i) {
    if (scorers[i].kind != Kind::kOutside) continue;
    OutsideCall call;
    call.pool = static_cast<uint32_t>(source.use.rewards[i]);
    call.body = reward_body(task, played.texts, given, played.messages);
    RETURN_IF_ERROR(ask(asked_for(i), std::move(call)));
    ++judging.num_missing;
  }
  for (size_t i = 0; i < scorers.size(); ++i) {
    if (scorers[i].kind != Kind::kModel) continue;
    const uint64_t id = next_call();
    asked_.emplace(id, asked_for(i));
    const JudgeOptions& judge = judge_options_of(source.tenant->rewards[i]);
    question_.send({.question = id,
                    .reward = source.first_reward + static_cast<uint32_t>(i),
                    .messages = judge_question(judge, task, played.texts)},
                   for_tenant(tenant_)
                       .answering({services().self(), judging.cause})
                       .to_origin_of(services().self()));
    ++judging.num_missing;
  }
  return judging.num_missing == 0 ? send_scored(trajectory) : ok();
}

Status Env::add_score(const Asked& asked, const Result<double>& score) {
  Judging& judging = judging_.at(asked.of);
  const bool asks_model =
      std::ranges::any_of(known_source(judging.source).scorers,
                          [](const Scorer& each) { return each.kind == Scorer::Kind::kModel; });
  if (score.ok())
    judging.scores[asked.reward] = *score;
  else if (!asks_model)
    return score.error();
  else if (judging.fault.empty())
    judging.fault = score.error().text();
  if (--judging.num_missing > 0) return ok();
  if (!judging.fault.empty()) return Error(Code::kInvalid, judging.fault);
  return send_scored(asked.of);
}

Status Env::send_scored(uint64_t trajectory) {
  const Judging& scored = judging_.at(trajectory);
  const std::vector<Scorer>& scorers = known_source(scored.source).scorers;
  double reward = 0;
  for (size_t i = 0; i < scorers.size(); ++i) reward += scorers[i].weight * scored.scores[i];
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
