#include "actors/env/env.h"

#include <cmath>
#include <utility>

#include "actors/env/rewards/judge.h"
#include "actors/env/scripted_environment.h"

namespace primerl {
namespace {

bool is_longer(const EnvironmentStep& step, int64_t bytes_max) {
  size_t size = step.text.size();
  for (const ChatMessage& message : step.messages) size += text_of(message).size();
  return std::cmp_greater(size, bytes_max);
}

/// Questions of the rewards of one trajectory.
int64_t judge_questions_of(std::span<const Tenant> tenants) {
  int64_t most = 0;
  for (const Tenant& tenant : tenants) most = std::max(most, num_judges(tenant));
  return most;
}

Amount judge_questions(int64_t num_trajectories) {
  return {[num_trajectories](const void*, std::span<const Tenant> tenants) {
            return num_trajectories * judge_questions_of(tenants);
          },
          fmt::format("{} * judges of a tenant", num_trajectories)};
}

Amount judge_scores_in_flight() {
  return {[](const void*, std::span<const Tenant> tenants) {
            int64_t most = 1;
            for (const Tenant& tenant : tenants)
              most = std::max(most, tenant.inflight_max * num_judges(tenant));
            return most;
          },
          "max_inflight * judges of a tenant"};
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
      .in("score", &Env::on_score, "the judge's answer to a question", optional_port(),
          at_most(judge_scores_in_flight()))
      .in("run", &Env::on_run, "a rollout that the environment's server plays", serves_runs(),
          refuse_with(&Env::refuse_run))
      .in("cancel_runs", &Env::on_cancel_runs, "runs that have ended for Rollout", serves_runs())
      .out("task", &Env::task_, "something to solve", recorded(), work_burst(1))
      .out("observation", &Env::observation_,
           "the answer to one action, with the reward at the end", recorded(),
           work_burst(static_cast<int64_t>(kOutsideAnswersMax)))
      .out("run_answered", &Env::run_answered_, "the end of a run, with its rewards and branches",
           serves_runs(), recorded(), work_burst(static_cast<int64_t>(kOutsideAnswersMax)))
      .out("question", &Env::question_, "an answer that a model of the graph scores",
           optional_port(), recorded(), burst(judge_questions(1)),
           work_burst(judge_questions(static_cast<int64_t>(kOutsideAnswersMax))))
      .scripted([](const EnvOptions& options) -> std::unique_ptr<Actor> {
        return std::make_unique<Env>(options, make_scripted_environment());
      })
      .takes_tasks()
      .asks_outside()
      .for_loops()
      .source()
      .own_thread()
      .restartable()
      .expendable_replicas()  // Rollout sends all actions of a trajectory to another replica
      .one_tenant()
      // The state of an environment is not saved: it follows from the task and all actions so far.
      .state([](auto& f) {
        f("consumed", &Env::consumed_)("next_ordinal", &Env::next_ordinal_)(
            "num_task_faults", &Env::num_task_faults_)("worlds", &Env::worlds_)(
            "is_draining", &Env::is_draining_)("judging", &Env::judging_)("runs", &Env::runs_)(
            "asked", &Env::asked_)("coming", &Env::coming_)("rows", &Env::rows_)("most_room",
                                                                                 &Env::most_room_);
      });
}

Status Env::start(Resources& resources) {
  tenant_ = services().tenants().front();
  pools_ = outside_of(services().tenant(tenant_));
  if (pools_.asks()) {
    outside_ = resources.get_if<Outside>("outside");
    CHECK(outside_ != nullptr, "a tenant that asks outside has no resource for it");
  }
  RETURN_IF_ERROR(make_sources());
  const auto* resume = services().resume_point(tenant_);
  if (resume == nullptr) return ok();
  const Json* consumed = resume->manifest.find("consumed");
  if (consumed == nullptr)
    return error(Code::kCorrupt, "manifest of '{}' has no 'consumed'", resume->folder.string());
  ASSIGN_OR_RETURN(consumed_, OrdinalSet::from_json(*consumed));
  return resume_rows(resume->manifest);
}

Result<EnvironmentTask> Env::task_of(uint64_t ordinal, const TaskSource& source) {
  Environment& environment = *known_source(source).environment;
  if (is_evaluation(ordinal)) {
    const uint64_t row = row_of(ordinal);
    return environment.evaluation_task(row, services().random(tenant_, "evaluation task", row));
  }
  return environment.task(source.number, random_of(source));
}

Result<bool> Env::work() {
  num_asked_ = 0;
  if (outside_ != nullptr) receive_answers();
  if (services().replica() != 0 || num_task_faults_ >= options_.task_faults_max) return false;
  if (asks_for_tasks()) return send_asked_tasks();
  return may_send_task() ? make_task() : false;
}

Status Env::check_prompt(uint64_t ordinal, const EnvironmentTask& task) const {
  const auto check = [&](std::string_view what, size_t size) -> Status {
    if (std::cmp_less_equal(size, options_.text_bytes_max)) return ok();
    return error(Code::kExhausted, "the {} of task {} has {} bytes, text_bytes_max is {}", what,
                 ordinal, size, options_.text_bytes_max);
  };
  RETURN_IF_ERROR(check("prompt", task.prompt.size()));
  return check("data", task.data.size());
}

Result<bool> Env::make_task() {
  const auto tasks_max = static_cast<uint64_t>(services().tenant(tenant_).tasks_max);
  if (tasks_max > 0 && next_ordinal_ > tasks_max) return false;
  const uint64_t ordinal = consumed_.next_free(next_ordinal_);
  if (tasks_max > 0 && ordinal >= tasks_max) {
    // All epochs were given: the empty task says so.
    next_ordinal_ = tasks_max + 1;
    task_.send({.ordinal = tasks_max, .prompt = ""}, for_tenant(tenant_));
    return false;
  }
  const auto source = draw(ordinal);
  if (!source) return true;  // the next work call looks further
  next_ordinal_ = ordinal + 1;
  auto task = make_task_of(ordinal, *source);
  if (!task.ok()) {
    count_task_fault(ordinal, std::move(task).error());
    return true;
  }
  num_task_faults_ = 0;
  // A task answers no message: its cause is the work call itself.
  task_.send(std::move(task).value(), for_tenant(tenant_));
  return may_send_task();
}

/// A task of an environment of this process.
Result<Task> Env::make_task_of(uint64_t ordinal, const TaskSource& source) {
  ASSIGN_OR_RETURN(auto made, task_of(ordinal, source));
  RETURN_IF_ERROR(check_prompt(ordinal, made));
  Task task;
  task.ordinal = ordinal;
  task.prompt = std::move(made.prompt);
  task.messages = std::move(made.messages);
  task.tools = std::move(made.tools);
  task.source = source;
  return task;
}

/// The tenant fails if too many tasks in a row did. An error of the work call would not end it:
/// with `on_error = "drop"` the run would wait for ever for the next task.
void Env::count_task_fault(uint64_t ordinal, Error error) {
  services().count("task_faults", 1);
  if (++num_task_faults_ != options_.task_faults_max) return;
  services().fail_tenant(
      tenant_, std::move(error).while_doing(fmt::format(
                   "{} tasks in a row failed, the last one was {}", num_task_faults_, ordinal)));
}

Result<EnvironmentStep> Env::judge(const Source& source, const EnvironmentTask& task,
                                   Worlds::Played& played) {
  // Each call gets the full time limit. A lost world needs many calls, because it repeats all
  // turns.
  const auto alive = [this] { (void)services().progress(); };
  ASSIGN_OR_RETURN(auto step, Worlds::play(
                                  played, [&] { return source.environment->begin(task); }, alive));
  if (step.done && source.scorers.empty() && !std::isfinite(step.reward))
    return error(Code::kInvalid, "the environment gave the reward {} for task {}", step.reward,
                 played.ordinal)
        .note("a reward is a finite number");
  return step;
}

/// Rollout has dropped everything in flight, or does so now, so no action needs an answer. The end
/// of a run waits for the calls that are running, not for actions that wait for their turn.
Status Env::drain() {
  is_draining_ = true;
  if (outside_ != nullptr) outside_->stop();
  judging_.clear();
  runs_.clear();
  asked_.clear();
  coming_.clear();
  return ok();
}

Status Env::on_tenant(TenantSlot, TenantChange::Kind kind) {
  is_paused_ = kind == TenantChange::Kind::kJoin || kind == TenantChange::Kind::kPause;
  return ok();
}

Status Env::on_action(const Action& action) {
  num_asked_ = 0;
  if (is_draining_) return ok();
  if (action.turn == kAsksTask) return on_first(action);
  if (action.turn == kBringsScores) return on_scores(action);
  if (action.texts.empty() || action.first_turn < 0 ||
      action.turn + 1 != action.first_turn + static_cast<int64_t>(action.texts.size()))
    return error(Code::kInvalid, "an action of turn {} has {} texts from turn {} on", action.turn,
                 action.texts.size(), action.first_turn);
  if (!action.messages.empty() && action.messages.size() != action.texts.size())
    return error(Code::kInvalid, "an action of {} texts has {} parsed messages",
                 action.texts.size(), action.messages.size());
  ASSIGN_OR_RETURN(const Source* const source, source_of(action.source));
  for (const uint64_t trajectory : action.ended) forget(trajectory);
  if (judging_.contains(action.trajectory))
    return error(Code::kInvalid,
                 "an action of trajectory {} came before the answer to its last one",
                 action.trajectory);
  Judging judging;
  judging.ordinal = action.ordinal;
  judging.source = action.source;
  judging.attempt = action.attempt;
  judging.turn = action.turn;
  judging.cause = services().delivery().ref.step;
  auto* played = worlds_.add(action, static_cast<size_t>(options_.worlds_max));
  if (played == nullptr) {
    services().count("trajectories_unknown", 1);
    Observation unknown;
    unknown.trajectory = action.trajectory;
    unknown.attempt = action.attempt;
    unknown.turn = action.turn;
    unknown.needs_history = true;
    observation_.send(std::move(unknown));
    return ok();
  }
  if (source->is_outside()) {
    RETURN_IF_ERROR(ask_step(action.trajectory, action.source, *played, action.first_turn));
    judging_[action.trajectory] = std::move(judging);
    return ok();
  }
  ASSIGN_OR_RETURN(const auto task, task_of(action.ordinal, action.source));
  ASSIGN_OR_RETURN(auto step, judge(*source, task, *played));
  if (!step.done || source->scorers.empty()) {
    if (step.done) forget(action.trajectory);
    send_step(action.trajectory, judging, std::move(step));
    return ok();
  }
  judging_[action.trajectory] = std::move(judging);
  return score(action.trajectory, task, *played, step.reward);
}

Status Env::on_first(const Action& action) {
  if (!action.texts.empty() || !is_evaluation(action.ordinal) ||
      services().tenant(tenant_).eval.rows <= 0)
    return error(Code::kInvalid, "an action of turn -1 has {} texts and the ordinal {}",
                 action.texts.size(), action.ordinal)
        .note("it asks for the task of an evaluation, so it has no text");
  ASSIGN_OR_RETURN(const Source* const source, source_of(action.source));
  for (const uint64_t trajectory : action.ended) forget(trajectory);
  Judging judging;
  judging.ordinal = action.ordinal;
  judging.source = action.source;
  judging.attempt = action.attempt;
  judging.turn = action.turn;
  judging.cause = services().delivery().ref.step;
  if (source->is_outside()) {
    OutsideCall call;
    call.pool = static_cast<uint32_t>(source->use.environment);
    call.body = task_body(row_of(action.ordinal), seed_of(action.ordinal, action.source), true);
    RETURN_IF_ERROR(ask({Asked::Kind::kFirst, action.trajectory}, std::move(call)));
    judging_[action.trajectory] = std::move(judging);
    return ok();
  }
  ASSIGN_OR_RETURN(auto task, task_of(action.ordinal, action.source));
  RETURN_IF_ERROR(check_prompt(row_of(action.ordinal), task));
  send_first(action.trajectory, judging, std::move(task));
  return ok();
}

void Env::send_first(uint64_t trajectory, const Judging& judging, EnvironmentTask task) {
  Observation observation;
  observation.trajectory = trajectory;
  observation.attempt = judging.attempt;
  observation.turn = judging.turn;
  observation.text = std::move(task.prompt);
  observation.messages = std::move(task.messages);
  observation.tools = std::move(task.tools);
  observation.data = std::move(task.data);
  observation.scores_groups = task.scores_groups;
  observation_.send(std::move(observation),
                    for_tenant(tenant_).answering({services().self(), judging.cause}));
}

void Env::send_step(uint64_t trajectory, const Judging& judging, EnvironmentStep step) {
  Observation observation;
  observation.trajectory = trajectory;
  observation.attempt = judging.attempt;
  observation.turn = judging.turn;
  observation.is_too_long = is_longer(step, options_.text_bytes_max);
  if (!observation.is_too_long) {
    observation.text = std::move(step.text);
    observation.messages = std::move(step.messages);
  }
  observation.reward = step.done ? step.reward : 0;
  observation.scores = judging.scores;
  observation.is_done = step.done;
  observation_.send(std::move(observation),
                    for_tenant(tenant_).answering({services().self(), judging.cause}));
}

void Env::send_fault(uint64_t trajectory, const Judging& judging, const Error& error) {
  services().count("action_faults", 1);
  forget(trajectory);
  Observation observation;
  observation.trajectory = trajectory;
  observation.attempt = judging.attempt;
  observation.turn = judging.turn;
  observation.is_done = true;
  observation.fault = error.text();
  observation_.send(std::move(observation),
                    for_tenant(tenant_).answering({services().self(), judging.cause}));
}

void Env::refuse_action(const Action& action, const Error& error) {
  judging_.erase(action.trajectory);
  Judging judging;
  judging.attempt = action.attempt;
  judging.turn = action.turn;
  judging.cause = services().delivery().ref.step;
  send_fault(action.trajectory, judging, error);
}

}  // namespace primerl
