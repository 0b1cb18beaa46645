/// Sends tasks to one tenant's rollouts and judges the policy's answers with the tenant's
/// environment and, if it names one, its reward. If the node has replicas, the first gives the
/// tasks and the others judge. Each replica serves one rollout at a time, so no rollout waits for
/// another one's environment.
///
///            [ env ]  -> task
///   action ~~~>       ~~~> observation
///
/// Threads: own thread (an environment may block). State: the next ordinal, and the actions of
/// unfinished trajectories; everything else follows from these. Order: ordinals rise; a resumed run
/// skips those that it has consumed. Restartable: an instance stuck in a call is abandoned and
/// replaced.
#pragma once

#include <memory>

#include "actors/common/ordinals.h"
#include "actors/env/environment.h"
#include "actors/env/reward.h"
#include "actors/env/worlds.h"
#include "actors/messages/rollout.h"
#include "graph/contract.h"

namespace primerl {

struct EnvOptions {
  int64_t task_faults_max = 100;              // tasks in a row that may fail before the node does
  int64_t worlds_max = 1024;                  // trajectories whose worlds are kept between turns
  int64_t text_bytes_max = int64_t{4} << 20;  // longest answer of the environment, longest prompt
};

class Env final : public Actor {
 public:
  using Options = EnvOptions;
  static Contract contract();
  explicit Env(const EnvOptions& options) : options_(options) {}
  /// With an environment that exists already, for tests.
  Env(const EnvOptions& options, std::unique_ptr<Environment> environment)
      : options_(options), environment_(std::move(environment)) {}

  Status start(Resources& resources) override;
  Result<bool> work() override;
  Status drain() override;

 private:
  Status on_action(const Action& action);
  void refuse_action(const Action& action, const Error& error);
  Result<EnvironmentStep> judge(const Action& action, Worlds::Played& played);

  Result<EnvironmentTask> task_of(uint64_t ordinal);

  const EnvOptions options_;
  // Constant after start.
  TenantSlot tenant_;
  OrdinalSet consumed_;
  // Touched only by handlers.
  std::unique_ptr<Environment> environment_;
  std::unique_ptr<Reward> reward_;  // null: the environment's own reward is used
  uint64_t next_ordinal_ = 0;
  int64_t num_task_faults_ = 0;  // in a row
  bool is_draining_ = false;
  Worlds worlds_;  // destroyed before their environment
  Out<Task> task_;
  Out<Observation> observation_;
};

}  // namespace primerl
