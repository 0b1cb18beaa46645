#include "actors/env/env.h"

#include <cmath>

#include "actors/env/environments/catalog.h"
#include "actors/env/rewards/catalog.h"
#include "actors/env/scripted_environment.h"

namespace primerl {

Contract Env::contract() {
  return ContractOf<Env, EnvOptions>("env", "gives tasks to rollouts and judges their answers")
      .option("task_faults_max", &EnvOptions::task_faults_max, count_from(1),
              "tasks in a row that may fail before the node does")
      .in("action", &Env::on_action, "what the policy said in one turn",
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
      .one_tenant()
      // An environment has no state: each step follows from the task and all actions so far.
      .state([](auto& f) {
        f("consumed", &Env::consumed_)("next_ordinal", &Env::next_ordinal_)("num_task_faults",
                                                                            &Env::num_task_faults_);
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
  if (task_.room() <= 0) return false;
  const uint64_t ordinal = consumed_.next_free(next_ordinal_);
  next_ordinal_ = ordinal + 1;
  auto task = task_of(ordinal);
  if (!task.ok()) {
    services().count("task_faults", 1);
    if (++num_task_faults_ < options_.task_faults_max) return true;
    return std::move(task).error().while_doing(
        fmt::format("{} tasks in a row failed, the last one was {}", num_task_faults_, ordinal));
  }
  num_task_faults_ = 0;
  // A task answers nothing: its cause is the work turn itself.
  task_.send({.ordinal = ordinal, .prompt = std::move(task->prompt)}, for_tenant(tenant_));
  return task_.room() > 0;
}

Status Env::on_action(const Action& action) {
  ASSIGN_OR_RETURN(const auto task, task_of(action.ordinal));
  ASSIGN_OR_RETURN(auto step, environment_->step(task, action.texts));
  if (step.done && reward_ != nullptr) {
    ASSIGN_OR_RETURN(step.reward, reward_->score(task, action.texts, step.reward));
  }
  if (step.done && !std::isfinite(step.reward))
    return error(Code::kInvalid, "the {} gave the reward {} for task {}",
                 reward_ != nullptr ? "tenant's reward" : "environment", step.reward,
                 action.ordinal)
        .note("a reward is a finite number");
  Observation observation;
  observation.trajectory = action.trajectory;
  observation.attempt = action.attempt;
  observation.turn = action.turn;
  observation.text = std::move(step.text);
  observation.reward = step.done ? step.reward : 0;
  observation.is_done = step.done;
  observation_.send(std::move(observation));
  return ok();
}

void Env::refuse_action(const Action& action, const Error& error) {
  services().count("action_faults", 1);
  Observation observation;
  observation.trajectory = action.trajectory;
  observation.attempt = action.attempt;
  observation.turn = action.turn;
  observation.is_done = true;
  observation.fault = error.text();
  observation_.send(std::move(observation));
}

}  // namespace primerl
