/// Sends tasks to one tenant's rollouts and judges the policy's answers with the tenant's
/// environment and its rewards. If the node has replicas, the first gives the tasks and the others
/// judge.
///
///                     [ env ]  -> task, question
///   action, score          ~~~>    ~~~> observation
///   run, cancel_runs       ~~~>    ~~~> run_answered
///
/// An environment of this process is called in the handler: each replica serves one rollout at a
/// time, so no rollout waits for another one's environment. An environment or a reward outside of
/// the process (outside.h) is asked, and its answer is received in a work call: one replica serves
/// all rollouts. A reward that a model of the graph gives is asked over `question`. Its observation
/// leaves when all scores are here, failed ones included, so that no more questions are open than
/// rollouts in flight have rewards. An environment that drives rollouts gets whole runs; each has
/// one answer.
///
/// A tenant may have several environments (task_mix.h says which of them gives a task), each with
/// rewards of its own, and an environment may have a curriculum (curriculum.h), which learns from
/// actions that bring scores how the groups of its rows ended.
///
/// Threads: own thread (an environment may block). State: the next ordinal, the actions of
/// unfinished trajectories, what was asked, and curricula; everything else follows from these.
/// Order: ordinals rise; a resumed run skips those that it has consumed. Restartable: an instance
/// stuck in a call is abandoned and replaced.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/common/curriculum.h"
#include "actors/common/ordinals.h"
#include "actors/common/task_mix.h"
#include "actors/env/environment.h"
#include "actors/env/outside_calls.h"
#include "actors/env/reward.h"
#include "actors/env/worlds.h"
#include "actors/messages/judge.h"
#include "actors/messages/rollout.h"
#include "actors/messages/run.h"
#include "graph/contract.h"
#include "graph/outside.h"
#include "graph/tenant_outside.h"

namespace primerl {

struct EnvOptions {
  int64_t task_faults_max = 100;              // tasks in a row that may fail before the node does
  int64_t worlds_max = 1024;                  // trajectories whose worlds are kept between turns
  int64_t text_bytes_max = int64_t{4} << 20;  // longest answer of the environment, longest prompt
};

/// Tasks that are asked outside before rollouts need them.
inline constexpr size_t kTasksAheadMax = 64;
/// Tasks of a tenant with a curriculum that wait for Rollout. Those that wait were chosen before
/// the rewards of the rollouts in flight.
inline constexpr int64_t kTasksAheadOfCurriculum = 4;

class Env final : public Actor {
 public:
  using Options = EnvOptions;
  static Contract contract();
  explicit Env(const EnvOptions& options) : options_(options) {}
  /// With an environment that exists already, for tests and rehearsals.
  Env(const EnvOptions& options, std::unique_ptr<Environment> environment) : options_(options) {
    given_.push_back(std::move(environment));
  }
  /// The same for the environments of a tenant in their order; the rest is scripted.
  Env(const EnvOptions& options, std::vector<std::unique_ptr<Environment>> environments)
      : options_(options), given_(std::move(environments)) {}

  Status start(Resources& resources) override;
  Result<bool> work() override;
  Status drain() override;
  /// While its tenant is paused it gives no task.
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;

 private:
  /// An action that waits for answers from outside.
  struct Judging {
    uint64_t ordinal = 0;  // of the task
    TaskSource source;
    uint32_t attempt = 0;
    int32_t turn = 0;
    uint64_t cause = 0;          // step of this group that got the action
    std::vector<double> scores;  // of each reward of its environment
    uint32_t num_missing = 0;    // scores that have not come
    std::string fault;           // of the first score that failed
    template <class F>
    static void fields(F& f) {
      f("ordinal", &Judging::ordinal)("source", &Judging::source)("attempt", &Judging::attempt)(
          "turn", &Judging::turn)("cause", &Judging::cause)("scores", &Judging::scores)(
          "num_missing", &Judging::num_missing)("fault", &Judging::fault);
    }
  };
  /// A run that its server plays.
  struct Driven {
    MemberName name;
    int32_t num_members = 1;
    uint64_t cause = 0;        // step of this group that got the run
    uint32_t environment = 0;  // that plays it
    template <class F>
    static void fields(F& f) {
      f("name", &Driven::name)("num_members", &Driven::num_members)("cause", &Driven::cause)(
          "environment", &Driven::environment);
    }
  };
  /// The use of an answer: a task, a step, the score of a reward, the task of an evaluation, or the
  /// end of a run.
  struct Asked {
    enum class Kind : uint8_t { kTask, kStep, kScore, kFirst, kRun };
    Kind kind = Kind::kTask;
    uint64_t of = 0;      // ordinal of the task (kTask), session (kRun), or trajectory
    uint32_t reward = 0;  // index, for kScore
    template <class F>
    static void fields(F& f) {
      f("kind", &Asked::kind)("of", &Asked::of)("reward", &Asked::reward);
    }
  };
  struct Coming {
    bool is_here = false;
    Task task;
    template <class F>
    static void fields(F& f) {
      f("is_here", &Coming::is_here)("task", &Coming::task);
    }
  };
  /// One reward of an environment.
  struct Scorer {
    enum class Kind : uint8_t { kHere, kOutside, kModel, kRehearsed };
    Kind kind = Kind::kHere;
    std::unique_ptr<Reward> reward;  // for kHere
    double weight = 1;
  };
  /// One environment of the tenant; constant after start.
  struct Source {
    const Tenant* tenant = nullptr;            // as this environment sees it
    std::unique_ptr<Environment> environment;  // null: outside
    std::vector<Scorer> scorers;               // empty: the environment's own reward is used
    OutsideUse use;
    uint32_t first_reward = 0;      // of its rewards, among those of the tenant
    std::vector<uint8_t> stage_of;  // of each row, if its curriculum has stages
    bool is_outside() const { return use.environment >= 0; }
    bool has_curriculum() const { return tenant->curriculum.is_on(); }
  };
  /// The curriculum of one environment.
  struct Rows {
    RowPools pools;
    RowWalk walk;
    template <class F>
    static void fields(F& f) {
      f("pools", &Rows::pools)("walk", &Rows::walk);
    }
  };

  // env_sources.cc
  Status make_sources();
  Status make_scorers(Source& source, bool is_rehearsal);
  Status make_stages(Source& source) const;
  Status resume_rows(const Json& manifest);
  Result<const Source*> source_of(const TaskSource& source) const;
  const Source& known_source(const TaskSource& source) const {
    return sources_[source.environment];
  }
  /// The source of an ordinal of training; empty: a curriculum has found no row yet.
  std::optional<TaskSource> draw(uint64_t ordinal);
  Status on_scores(const Action& action);
  Status add_score(const GroupScored& scored);
  /// The random numbers of a task of training.
  RandomStream random_of(const TaskSource& source) const;

  /// Whether `task` has space for another one.
  bool may_send_task();

  // env.cc
  Status on_action(const Action& action);
  Status on_score(const JudgeScore& score);
  void refuse_action(const Action& action, const Error& error);
  /// Answers an action that asks for the task of an evaluation.
  Status on_first(const Action& action);
  void send_first(uint64_t trajectory, const Judging& judging, EnvironmentTask task);
  Result<EnvironmentStep> judge(const Source& source, const EnvironmentTask& task,
                                Worlds::Played& played);
  Result<EnvironmentTask> task_of(uint64_t ordinal, const TaskSource& source);
  Result<Task> make_task_of(uint64_t ordinal, const TaskSource& source);
  Status check_prompt(uint64_t ordinal, const EnvironmentTask& task) const;
  Result<bool> make_task();
  void count_task_fault(uint64_t ordinal, Error error);
  void send_step(uint64_t trajectory, const Judging& judging, EnvironmentStep step);
  void send_fault(uint64_t trajectory, const Judging& judging, const Error& error);

  // env_outside.cc
  bool asks_for_tasks() const {
    return std::ranges::any_of(sources_, [](const Source& each) { return each.is_outside(); });
  }
  /// The trajectory has ended.
  void forget(uint64_t trajectory);
  Status ask(Asked asked, OutsideCall call);
  Result<bool> send_asked_tasks();
  Status ask_step(uint64_t trajectory, const TaskSource& source, const Worlds::Played& played,
                  int32_t first_turn);
  uint64_t next_call();
  void receive_answers();
  /// The trajectory fails with `error`, if it is not answered yet.
  void fail_judging(uint64_t trajectory, const Error& error);
  Status on_answer(const Asked& asked, const OutsideAnswer& answer);
  Status on_task_answer(uint64_t ordinal, const OutsideAnswer& answer);
  Status on_step_answer(uint64_t trajectory, const OutsideAnswer& answer);
  /// Adds a score, or notes why there is none; the last one sends the result.
  Status add_score(const Asked& asked, const Result<double>& score);
  /// Scores a trajectory that its environment has ended, or asks for scores, and sends the result
  /// if none is missing.
  Status score(uint64_t trajectory, const EnvironmentTask& task, const Worlds::Played& played,
               double given);
  Status send_scored(uint64_t trajectory);
  Status on_first_answer(uint64_t trajectory, const OutsideAnswer& answer);
  Result<EnvironmentTask> read_task_answer(const Source& source, const OutsideAnswer& answer) const;
  int64_t num_named_tasks(const TaskSource& source) const;
  uint32_t seed_of(uint64_t ordinal, const TaskSource& source) const;
  uint64_t row_of(uint64_t ordinal) const {
    return evaluation_row_of(services().tenant(tenant_), ordinal).row;
  }

  // env_runs.cc
  bool drives_rollouts(const Source& source) const {
    return source.is_outside() &&
           pools_.spec.pools[static_cast<size_t>(source.use.environment)].kind ==
               OutsidePoolKind::kVerifiers;
  }
  Status on_run(const Run& run);
  Status on_cancel_runs(const CancelRuns& cancel);
  void refuse_run(const Run& run, const Error& error);
  void on_run_answer(uint64_t session, const OutsideAnswer& answer);
  void send_run_answered(RunAnswered ended, uint64_t cause);

  const EnvOptions options_;
  // Constant after start.
  TenantSlot tenant_;
  OrdinalSet consumed_;
  TenantOutside pools_;
  Outside* outside_ = nullptr;  // null: nothing is asked outside
  // Touched only by handlers.
  std::vector<std::unique_ptr<Environment>> given_;  // by a test or a rehearsal
  std::vector<Source> sources_;                      // parallel to the tenant's environments
  TaskMix mix_;
  uint64_t next_ordinal_ = 0;
  std::map<uint32_t, Rows> rows_;  // of the environments that have a curriculum
  int64_t most_room_ = 0;          // of `task`, with a curriculum: its space while no task waits
  int64_t num_task_faults_ = 0;    // in a row
  bool is_draining_ = false;
  bool is_paused_ = false;               // its tenant; follows from on_tenant() and is not saved
  Worlds worlds_;                        // destroyed before their environment
  std::map<uint64_t, Judging> judging_;  // by trajectory
  std::map<uint64_t, Driven> runs_;      // that have no end, by session of the call
  std::map<uint64_t, Asked> asked_;      // by call or question; at most kOutsideCallsMax calls
  std::map<uint64_t, Coming> coming_;    // by ordinal; at most kTasksAheadMax
  uint32_t num_asked_ = 0;               // by this handler
  Out<Task> task_;
  Out<Observation> observation_;
  Out<JudgeQuestion> question_;
  Out<RunAnswered> run_answered_;
};

}  // namespace primerl
