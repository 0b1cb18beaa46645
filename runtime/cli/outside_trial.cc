#include "runtime/cli/outside_trial.h"

#include <algorithm>
#include <cmath>

#include "actors/env/environments/catalog.h"
#include "actors/env/outside_calls.h"
#include "actors/env/rewards/catalog.h"
#include "actors/env/rewards/judge.h"
#include "actors/env/run_calls.h"
#include "actors/trainer/batch.h"
#include "graph/base/json.h"
#include "graph/base/real_clock.h"
#include "graph/tenant_outside.h"
#include "runtime/cli/outside_asker.h"

namespace primerl {
namespace {

constexpr uint64_t kTasks = 3;

/// The action that is played where the answer of a task is not known.
constexpr std::string_view kSomeAction = "test";

/// A trajectory that has ended.
struct PlayedTask {
  EnvironmentTask task;
  std::vector<std::string> actions;
  double given = 0;
};

class Trial {
 public:
  /// `tenant` as one of its environments sees it, which asks `use`.
  Trial(const Tenant& tenant, TenantOutside outside, OutsideUse use)
      : tenant_(tenant),
        outside_(std::move(outside)),
        use_(std::move(use)),
        asker_(outside_.spec),
        name_(tenant.label.empty()
                  ? fmt::format("tenant '{}'", tenant.name)
                  : fmt::format("tenant '{}', environment '{}'", tenant.name, tenant.label)) {}

  Result<std::string> run() {
    const Time began = steady_now();
    if (drives_rollouts(tenant_)) {
      RETURN_IF_ERROR(ask_driven_tasks());
      ASSIGN_OR_RETURN(const std::string server, ask_server());
      return fmt::format(
          "{}: {} tasks given in {:.1f} s; {}; runs need the gateway, so none was played", name_,
          kTasks, (steady_now() - began).to_seconds(), server);
    }
    std::vector<std::string> rewards;
    for (uint64_t ordinal = 0; ordinal < kTasks; ++ordinal) {
      asker_.set_subject(fmt::format("task {} of tenant '{}'", ordinal, tenant_.name));
      auto reward = play(ordinal);
      if (!reward.ok())
        return std::move(reward).error().while_doing(
            fmt::format("task {} of tenant '{}'", ordinal, tenant_.name));
      rewards.push_back(fmt::format("{}", *reward));
    }
    std::string line = fmt::format("{}: {} tasks played in {:.1f} s, rewards {}", name_, kTasks,
                                   (steady_now() - began).to_seconds(), fmt::join(rewards, ", "));
    if (num_endless_ > 0)
      line += fmt::format("; {} did not end within turns_max {}", num_endless_, tenant_.turns_max);
    return line;
  }

 private:
  /// Which dialect the server speaks that drives the rollouts.
  Result<std::string> ask_server() {
    asker_.set_subject(fmt::format("the server of tenant '{}'", tenant_.name));
    ASSIGN_OR_RETURN(const std::string body, ask_environment(0, true, R"({"call":"server"})"));
    ASSIGN_OR_RETURN(const Json server, parse_json(body, "the server"));
    ASSIGN_OR_RETURN(const std::string dialect, server.get_string("dialect"));
    ASSIGN_OR_RETURN(const std::string address, server.get_string("address"));
    return fmt::format("the server at {} speaks {}", address, dialect);
  }

  Result<double> play(uint64_t ordinal) {
    const bool is_outside = use_.environment >= 0;
    ASSIGN_OR_RETURN(PlayedTask played, is_outside ? play_outside(ordinal) : play_here(ordinal));
    if (tenant_.rewards.empty()) return played.given;
    double sum = 0;
    for (size_t i = 0; i < tenant_.rewards.size(); ++i) {
      if (is_judge(tenant_.rewards[i])) continue;  // its engine does not run yet
      ASSIGN_OR_RETURN(const double score, score_of(i, played));
      sum += tenant_.rewards[i].weight * score;
    }
    if (!(std::abs(sum) <= kRewardMax))
      return error(Code::kInvalid, "the reward {} is not in [{}, {}]", sum, -kRewardMax,
                   kRewardMax);
    return sum;
  }

  Result<double> score_of(size_t index, const PlayedTask& played) {
    const std::string what = fmt::format("reward '{}'", tenant_.rewards[index].label);
    auto score = [&]() -> Result<double> {
      const int32_t pool = use_.rewards[index];
      if (pool < 0) {
        ASSIGN_OR_RETURN(const auto reward, make_reward(tenant_.rewards[index]));
        return reward->score(played.task, played.actions, played.given);
      }
      ASSIGN_OR_RETURN(
          const std::string body,
          asker_.ask(pool, 0, true, reward_body(played.task, played.actions, played.given)));
      return read_score(body);
    }();
    return score.ok() ? score : std::move(score).error().while_doing(what);
  }

  Status ask_driven_tasks() {
    for (uint64_t ordinal = 0; ordinal < kTasks; ++ordinal) {
      const std::string what = fmt::format("task {} of tenant '{}'", ordinal, tenant_.name);
      asker_.set_subject(what);
      auto body = ask_environment(0, true, task_body(ordinal, static_cast<uint32_t>(ordinal)));
      if (!body.ok()) return std::move(body).error().while_doing(what);
      if (const auto task = read_driven_task(*body); !task.ok())
        return Error(task.error()).while_doing(what);
    }
    return ok();
  }

  Result<PlayedTask> play_here(uint64_t ordinal) {
    ASSIGN_OR_RETURN(const auto environment, make_environment(tenant_.environment));
    PlayedTask played;
    ASSIGN_OR_RETURN(played.task, environment->task(ordinal, RandomStream(mix(0, ordinal))));
    played.actions = environment->demonstration(played.task);
    if (played.actions.empty()) played.actions.emplace_back(kSomeAction);
    ASSIGN_OR_RETURN(const auto step, environment->step(played.task, played.actions));
    played.given = step.reward;
    return played;
  }

  Result<PlayedTask> play_outside(uint64_t ordinal) {
    PlayedTask played;
    const auto seed = static_cast<uint32_t>(ordinal);
    ASSIGN_OR_RETURN(const std::string body, ask_environment(0, true, task_body(ordinal, seed)));
    ASSIGN_OR_RETURN(played.task, read_task(body));
    const std::string action =
        played.task.answer.empty() ? std::string(kSomeAction) : played.task.answer;
    for (int32_t turn = 0; turn < tenant_.turns_max; ++turn) {
      OutsideTurns turns;
      turns.trajectory = ordinal;
      turns.ordinal = ordinal;
      turns.seed = seed;
      turns.first_turn = turn;
      turns.actions = {action};
      ASSIGN_OR_RETURN(const std::string answer,
                       ask_environment(ordinal + 1, turn == 0, step_body(turns)));
      ASSIGN_OR_RETURN(const OutsideStep step, read_step(answer));
      played.actions.push_back(action);
      if (!step.step.done) continue;
      played.given = step.step.reward;
      if (!step.answer.empty()) played.task.answer = step.answer;
      return played;
    }
    ++num_endless_;
    return played;
  }

  Result<std::string> ask_environment(uint64_t session, bool is_whole, std::string body) {
    auto answer = asker_.ask(use_.environment, session, is_whole, std::move(body));
    if (answer.ok()) return answer;
    return std::move(answer).error().while_doing(
        fmt::format("environment '{}'", tenant_.environment_label()));
  }

  const Tenant& tenant_;
  const TenantOutside outside_;
  const OutsideUse use_;
  OutsideAsker asker_;
  const std::string name_;
  uint64_t num_endless_ = 0;  // tasks that did not end
};

/// Whether a process of this machine asks for the tenant.
bool is_asked_here(const Plan& plan, TenantSlot tenant) {
  return std::any_of(plan.instances.begin(), plan.instances.end(), [&](const PlanInstance& one) {
    return plan.node(one.node).contract->asks_outside &&
           (one.tenant.is_none() || one.tenant == tenant) &&
           plan.process(plan.group(one.group).process).machine.empty();
  });
}

}  // namespace

std::vector<std::string> outside_pools(const Plan& plan) {
  std::vector<std::string> names;
  for (const Tenant& tenant : plan.tenants)
    for (const OutsidePool& pool : outside_of(tenant).spec.pools)
      names.push_back(fmt::format("{} of tenant '{}'", pool.name, tenant.name));
  return names;
}

Result<std::vector<std::string>> try_outside(const Plan& plan) {
  std::vector<std::string> lines;
  for (size_t slot = 0; slot < plan.tenants.size(); ++slot) {
    const Tenant& tenant = plan.tenants[slot];
    const TenantOutside outside = outside_of(tenant);
    if (!is_asked_here(plan, TenantSlot(static_cast<uint32_t>(slot)))) continue;
    for (size_t i = 0; i < tenant.num_environments(); ++i) {
      const OutsideUse& use = outside.environments[i];
      const bool asks = use.environment >= 0 ||
                        std::ranges::any_of(use.rewards, [](int32_t pool) { return pool >= 0; });
      if (!asks) continue;
      ASSIGN_OR_RETURN(std::string line, Trial(tenant.in_environment(i), outside, use).run());
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace primerl
