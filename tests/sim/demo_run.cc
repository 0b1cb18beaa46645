#include "tests/sim/demo_run.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <tuple>

#include <unistd.h>

#include "actors/catalog.h"
#include "actors/env/env.h"
#include "actors/messages/load.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "tests/sim/demo_judge.h"
#include "tests/sim/idle_work.h"

namespace primerl::sim {
namespace {

/// Tasks are three letters; the reward follows from the action's text.
class StandIn final : public Environment {
 public:
  explicit StandIn(Fault fault) : fault_(fault) {}

  Result<EnvironmentTask> task(uint64_t ordinal, RandomStream random) override {
    EnvironmentTask task;
    for (int i = 0; i < 3; ++i) task.prompt += static_cast<char>('a' + random.below(26));
    task.answer = fault_ == Fault::kFilteredGroups && ordinal % 3 == 0 ? "same" : "";
    return task;
  }
  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    const uint64_t draw = stable_hash(actions.back(), stable_hash(task.prompt));
    if (fault_ == Fault::kHostile && draw % 3 == 0) return misbehave(draw / 3);
    EnvironmentStep step;
    step.done = true;
    step.reward = static_cast<double>(draw % 1000) / 1000;
    if (!task.answer.empty()) step.reward = 0.5;
    if (fault_ == Fault::kNanReward && draw % 11 == 0)
      step.reward = std::numeric_limits<double>::quiet_NaN();
    return step;
  }

 private:
  static Result<EnvironmentStep> misbehave(uint64_t draw) {
    constexpr size_t kMebibyte = size_t{1} << 20;
    switch (draw % 6) {
      case 0:
        throw std::runtime_error(std::string(kMebibyte, 'x'));
      case 1:
        throw 42;  // not a std::exception
      case 2:
        return Error(Code::kUnavailable, std::string(kMebibyte, '\xff'));
      case 3:
        return EnvironmentStep{std::string(kMebibyte, 'a'), 0, false};
      case 4:
        return EnvironmentStep{"\xff\xfe\x80", 0, false};  // not UTF-8
      default:
        return EnvironmentStep{"", std::numeric_limits<double>::infinity(), true};
    }
  }

  const Fault fault_;
};

/// The program's catalog, with the stand-in as Env's environment. Lives as long as the program.
const Catalog& catalog_of(Fault fault) {
  static std::map<Fault, Catalog> all;
  const auto [found, is_new] = all.try_emplace(fault, full_catalog());
  if (is_new)
    for (Contract& contract : found->second.actors)
      if (contract.name == "env")
        contract.make = [fault](const void* options) -> std::unique_ptr<Actor> {
          return std::make_unique<Env>(*static_cast<const EnvOptions*>(options),
                                       std::make_unique<StandIn>(fault));
        };
  return found->second;
}

Overrides overrides_of(const DemoCase& demo) {
  Overrides overrides;
  const auto set = [&](std::string text) { overrides.sets.push_back(std::move(text)); };
  set(fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR));
  set("resource.engine.backend=\"scripted\"");
  set("resource.learner.backend=\"scripted\"");
  set(fmt::format("tenant.main.group_size={}", demo.group_size));
  set(fmt::format("tenant.main.batch_size={}", demo.batch_size));
  set(fmt::format("tenant.main.max_steps={}", demo.max_steps));
  set(fmt::format("tenant.main.max_off_policy_steps={}", demo.max_off_policy_steps));
  set(fmt::format("tenant.main.checkpoint_every={}", demo.checkpoint_every));
  // A drain waits for environments too: drain_max (60 s) is longer than every hang of a run.
  set("tenant.main.environment_timeout=\"5s\"");
  set("node.rollout.max_inflight=24");
  if (demo.fault == Fault::kRefusedPrompt) set("resource.engine.refuse_every=9");
  if (demo.fault == Fault::kStragglers) {
    set("resource.engine.tail_fraction=0.1");
    set("resource.engine.tail_factor=10");
    set("tenant.main.sampling={ max_tokens = 96 }");
  }
  for (const auto& text : demo.sets) set(text);
  overrides.cores = 2;
  return overrides;
}

/// Checked once per variant, then shared, so that 1,000 seeds read one file.
const CheckedGraph& graph_of(const DemoCase& demo) {
  using Key =
      std::tuple<int64_t, Fault, int64_t, int64_t, int64_t, int64_t, std::vector<std::string>>;
  static std::map<Key, CheckedGraph> all;
  const Key key{demo.max_off_policy_steps,
                demo.fault,
                demo.checkpoint_every,
                demo.group_size,
                demo.batch_size,
                demo.max_steps,
                demo.sets};
  if (const auto found = all.find(key); found != all.end()) return found->second;
  const std::string file = std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/graph.toml";
  auto checked = load_graph(file, overrides_of(demo), catalog_of(demo.fault));
  return all.emplace(key, std::move(checked)).first->second;
}

/// Keeps rollouts.jsonl in memory.
class SimHostServices final : public ProcessServices, public RunFiles {
 public:
  SimHostServices(DemoJudge& judge, std::vector<std::string>& rollouts, const DemoHooks& hooks)
      : judge_(judge), rollouts_(rollouts), hooks_(hooks) {}

  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot, int64_t, const MetricValues&) override {}
  void log(LogLevel, std::string_view, std::string_view) override {}
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }
  Status append_line(std::string_view file, std::string_view line) override {
    if (file != "rollouts.jsonl") return ok();
    if (hooks_.on_line != nullptr) hooks_.on_line(line);
    rollouts_.emplace_back(line);
    judge_.see_line(line);
    return ok();
  }
  Result<std::filesystem::path> begin_checkpoint(TenantSlot, int64_t step) override {
    return hooks_.checkpoint_folder == nullptr ? scratch_folder() : hooks_.checkpoint_folder(step);
  }
  Status commit_checkpoint(TenantSlot, int64_t step, const Json&) override {
    if (hooks_.on_checkpoint != nullptr) hooks_.on_checkpoint(step);
    return ok();
  }

 private:
  DemoJudge& judge_;
  std::vector<std::string>& rollouts_;
  const DemoHooks& hooks_;
};

class SimStepHooks final : public StepHooks {
 public:
  SimStepHooks(const DemoCase& demo, DemoJudge& judge) : demo_(demo), judge_(judge) {}

  Injection before(const StepAbout& about) override {
    Injection injection;
    if (about.type != &message_type<Action>()) return injection;
    // Env makes no environment calls any more (tests/actors/env_test.cc).
    if (executor_ != nullptr && executor_->status().is_draining) return injection;
    injection.takes = demo_.environment_takes;
    const uint64_t draw = mix(demo_.seed, about.delivery);
    if (demo_.fault == Fault::kEnvironmentError && draw % 7 == 0)
      injection.failure = error(Code::kUnavailable, "injected: the environment is down");
    const bool may_hang = demo_.fault == Fault::kEnvironmentHang || demo_.fault == Fault::kHostile;
    if (demo_.fault == Fault::kHostile && draw % 5 == 0) injection.takes = Duration::seconds(1);
    if (may_hang && draw % 19 == 0 && num_hangs_ < 3) {
      ++num_hangs_;
      injection.takes = Duration::seconds(8);
    }
    return injection;
  }
  void after(const StepRecord& record) override {
    idle_.add(record);
    judge_.see_step(record);
  }
  const std::string& idle_fault() const { return idle_.fault(); }
  void watch(const VirtualExecutor& executor) { executor_ = &executor; }

 private:
  const DemoCase demo_;
  DemoJudge& judge_;
  const VirtualExecutor* executor_ = nullptr;
  IdleWork idle_;
  int num_hangs_ = 0;
};

/// A person with two names, who sometimes pauses the engines, and sometimes forgets to end the
/// pause; then the lease ends it.
class Holder {
 public:
  explicit Holder(const DemoCase& demo) : demo_(demo) {}
  void after_event(VirtualExecutor& executor) {
    if (demo_.holds_every == 0 || executor.is_replaying() || executor.status().is_draining ||
        ++num_events_ % demo_.holds_every != 0)
      return;
    const uint64_t draw = mix(demo_.seed, num_events_);
    EngineHold hold;
    hold.owner = draw % 2 == 0 ? "operator" : "sync";
    if (draw % 3 != 0) hold.lease = Duration::milliseconds(1 + static_cast<int64_t>(draw % 5000));
    executor.command({num_events_, {}, Payload::of(std::move(hold))});
  }

 private:
  const DemoCase& demo_;
  uint64_t num_events_ = 0;
};

}  // namespace

std::string_view to_string(Fault fault) {
  constexpr std::string_view kNames[] = {
      "none",       "environment_error", "environment_hang", "refused_prompt",
      "nan_reward", "filtered_groups",   "stragglers",       "hostile"};
  return kNames[static_cast<size_t>(fault)];
}

int DemoResult::num_of(std::string_view end) const {
  for (const auto& [name, count] : ends)
    if (name == end) return count;
  return 0;
}

std::string repeat_command(const DemoCase& demo) {
  return fmt::format(
      "PRIMERL_SEED={} PRIMERL_SIM_OFF_POLICY={} PRIMERL_SIM_FAULT={} build/bin/sim_test "
      "--gtest_filter='*KeepsItsPromises*'",
      demo.seed, demo.max_off_policy_steps, to_string(demo.fault));
}

const std::filesystem::path& scratch_folder() {
  namespace fs = std::filesystem;
  // Learners sync the files that they save; in a memory file system, if there is one, that costs
  // nothing.
  static const struct Folder {
    Folder()
        : path((fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
               fmt::format("primerl-sim-{}", ::getpid())) {
      fs::create_directories(path);
    }
    ~Folder() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
    fs::path path;
  } folder;
  return folder.path;
}

std::shared_ptr<const Plan> demo_plan(const DemoCase& demo) {
  const CheckedGraph& graph = graph_of(demo);
  if (!graph.plan) return nullptr;
  auto plan = std::make_shared<Plan>(*graph.plan);
  plan->settings.seed = static_cast<int64_t>(demo.seed);
  if (!demo.without_edge.empty()) {
    // The edge is removed from the plan, because `check` refuses a file that lacks a needed one.
    const auto removed = std::erase_if(
        plan->edges, [&](const PlanEdge& edge) { return edge.name == demo.without_edge; });
    CHECK(removed == 1, "the demo's plan does not have the edge to leave out");
  }
  return plan;
}

DemoResult run_demo(const DemoCase& demo, const DemoHooks& hooks) {
  DemoResult result;
  DemoJudge judge(demo);
  const auto plan = demo_plan(demo);
  if (plan == nullptr) {
    for (const auto& found : graph_of(demo).diagnostics.all())
      result.violations.push_back(fmt::format("{}: {}", found.code, found.message));
    return result;
  }
  SimHostServices process_services(judge, result.rollouts, hooks);
  SimStepHooks step_hooks(demo, judge);
  const ResourceFactory factory = hooks.factory == nullptr ? resource_factory() : hooks.factory;
  VirtualExecutor executor(plan, factory, process_services,
                           {.seed = demo.seed,
                            .step_hooks = &step_hooks,
                            .observer = hooks.observer,
                            .events_max = 2'000'000,
                            .step_source = hooks.step_source,
                            .cuts = hooks.cuts,
                            .repeat_with = repeat_command(demo)});
  step_hooks.watch(executor);
  if (const Status started = executor.start(); !started.ok()) {
    result.violations.push_back(started.error().text());
    return result;
  }
  Holder holder(demo);
  while (executor.advance()) {
    holder.after_event(executor);
    const Status seen = hooks.after_event == nullptr ? ok() : hooks.after_event(executor);
    if (seen.ok() && step_hooks.idle_fault().empty()) continue;
    result.violations.push_back(seen.ok() ? step_hooks.idle_fault() : seen.error().text());
    return result;
  }
  result.outcome = executor.wait();
  judge.see_end(result.outcome);
  if (hooks.is_judged) result.violations = judge.violations();
  result.trace_hash = executor.trace_hash();
  result.took = executor.now() - Time();
  result.num_steps = executor.status().num_steps;
  result.num_abandoned = executor.num_abandoned();
  for (const auto& [name, value] : executor.counters()) {
    if (name.ends_with(".engine_pauses")) result.num_pauses += value;
    if (name.ends_with(".holds_expired")) result.num_leases_ended += value;
  }
  result.ends.assign(judge.ends().begin(), judge.ends().end());
  return result;
}

}  // namespace primerl::sim
