#include "actors/env/env.h"

#include <cmath>
#include <utility>

#include "actors/env/environments/catalog.h"
#include "actors/env/rewards/catalog.h"
#include "actors/env/scripted_environment.h"

namespace primerl {
namespace {

Observation answer_to(const Action& action) {
  Observation observation;
  observation.trajectory = action.trajectory;
  observation.attempt = action.attempt;
  observation.turn = action.turn;
  return observation;
}

}  // namespace

Contract Env::contract() {
  return ContractOf<Env, EnvOptions>("env", "gives tasks to rollouts and judges their answers")
      .option("task_faults_max", &EnvOptions::task_faults_max, count_from(1),
              "tasks in a row that may fail before the node does")
      .option("worlds_max", &EnvOptions::worlds_max, count_from(1) | unit("trajectories"),
              "trajectories whose worlds are kept between turns; a dropped world is played again "
              "from its first turn")
      .option("text_bytes_max", &EnvOptions::text_bytes_max,
              between(1, int64_t{64} << 20) | unit("bytes"),
              "longest answer of the environment; a longer one ends its rollout as truncated, and "
              "a task with a longer prompt fails")
      .in("action", &Env::on_action, "the policy's text of one turn",
          refuse_with(&Env::refuse_action))
      .out("task", &Env::task_, "something to solve", recorded(), work_burst(1))
      .out("observation", &Env::observation_,
           "the answer to one action, with the reward at the end", recorded())
      .scripted([](const EnvOptions& options) -> std::unique_ptr<Actor> {
        return std::make_unique<Env>(options, make_scripted_environment());
      })
      .takes_tasks()
      .source()
      .own_thread()
      .restartable()
      .expendable_replicas()  // Rollout sends all actions of a trajectory to another replica
      .one_tenant()
      // The state of an environment is not saved: it follows from the task and all actions so far.
      .state([](auto& f) {
        f("consumed", &Env::consumed_)("next_ordinal", &Env::next_ordinal_)(
            "num_task_faults", &Env::num_task_faults_)("worlds", &Env::worlds_)("is_draining",
                                                                                &Env::is_draining_);
      });
}

Status Env::start(Resources&) {
  tenant_ = services().tenants().front();
  if (const auto* resume = services().resume_point(tenant_)) {
    const Json* consumed = resume->manifest.find("consumed");
    if (consumed == nullptr)
      return error(Code::kCorrupt, "manifest of '{}' has no 'consumed'", resume->folder.string());
    ASSIGN_OR_RETURN(consumed_, OrdinalSet::from_json(*consumed));
  }
  if (environment_ == nullptr) {
    ASSIGN_OR_RETURN(environment_, make_environment(services().tenant(tenant_).environment));
    ASSIGN_OR_RETURN(reward_, make_reward(services().tenant(tenant_).reward));
  }
  return ok();
}

Result<EnvironmentTask> Env::task_of(uint64_t ordinal) {
  return environment_->task(ordinal, services().random(tenant_, "task", ordinal));
}

Result<bool> Env::work() {
  if (services().replica() != 0 || task_.room() <= 0) return false;
  const uint64_t ordinal = consumed_.next_free(next_ordinal_);
  next_ordinal_ = ordinal + 1;
  auto task = task_of(ordinal);
  if (task.ok() && std::cmp_greater(task->prompt.size(), options_.text_bytes_max))
    task = error(Code::kExhausted, "the prompt of task {} has {} bytes, text_bytes_max is {}",
                 ordinal, task->prompt.size(), options_.text_bytes_max);
  if (!task.ok()) {
    services().count("task_faults", 1);
    if (++num_task_faults_ < options_.task_faults_max) return true;
    return std::move(task).error().while_doing(
        fmt::format("{} tasks in a row failed, the last one was {}", num_task_faults_, ordinal));
  }
  num_task_faults_ = 0;
  // A task answers no message: its cause is the work call itself.
  task_.send({.ordinal = ordinal, .prompt = std::move(task->prompt)}, for_tenant(tenant_));
  return task_.room() > 0;
}

Result<EnvironmentStep> Env::judge(const Action& action, Worlds::Played& played) {
  ASSIGN_OR_RETURN(const auto task, task_of(action.ordinal));
  // Each call gets the full time limit. A lost world needs many calls, because it repeats all
  // turns.
  const auto alive = [this] { (void)services().progress(); };
  ASSIGN_OR_RETURN(auto step, Worlds::play(
                                  played, [&] { return environment_->begin(task); }, alive));
  if (step.done && reward_ != nullptr) {
    ASSIGN_OR_RETURN(step.reward, reward_->score(task, played.texts, step.reward));
  }
  if (step.done && !std::isfinite(step.reward))
    return error(Code::kInvalid, "the {} gave the reward {} for task {}",
                 reward_ != nullptr ? "tenant's reward" : "environment", step.reward,
                 action.ordinal)
        .note("a reward is a finite number");
  return step;
}

/// Rollout has dropped everything in flight, or does so now, so no action needs an answer. The end
/// of a run waits for the calls that are running, not for actions that wait for their turn.
Status Env::drain() {
  is_draining_ = true;
  return ok();
}

Status Env::on_action(const Action& action) {
  if (is_draining_) return ok();
  if (action.texts.empty() || action.first_turn < 0 ||
      action.turn + 1 != action.first_turn + static_cast<int64_t>(action.texts.size()))
    return error(Code::kInvalid, "an action of turn {} has {} texts from turn {} on", action.turn,
                 action.texts.size(), action.first_turn);
  for (const uint64_t trajectory : action.ended) worlds_.forget(trajectory);
  Observation observation = answer_to(action);
  auto* played = worlds_.add(action, static_cast<size_t>(options_.worlds_max));
  if (played == nullptr) {
    services().count("trajectories_unknown", 1);
    observation.needs_history = true;
    observation_.send(std::move(observation));
    return ok();
  }
  ASSIGN_OR_RETURN(auto step, judge(action, *played));
  if (step.done) worlds_.forget(action.trajectory);
  observation.is_too_long = std::cmp_greater(step.text.size(), options_.text_bytes_max);
  if (!observation.is_too_long) observation.text = std::move(step.text);
  observation.reward = step.done ? step.reward : 0;
  observation.is_done = step.done;
  observation_.send(std::move(observation));
  return ok();
}

void Env::refuse_action(const Action& action, const Error& error) {
  services().count("action_faults", 1);
  worlds_.forget(action.trajectory);
  Observation observation = answer_to(action);
  observation.is_done = true;
  observation.fault = error.text();
  observation_.send(std::move(observation));
}

}  // namespace primerl
