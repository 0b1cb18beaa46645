// A run with a Tinker client: replayed, killed after any step and resumed. The resumed run repeats
// every step of the record, then serves another client, and its own record is replayed too.
#include <gtest/gtest.h>

#include <fstream>

#include "graph/base/files.h"
#include "graph/base/random.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "runtime/replay/recovery.h"
#include "runtime/trace/read/trace_prefix.h"
#include "runtime/trace/record/recorder.h"
#include "tests/replay/replay_run.h"
#include "tests/sim/world_tinker.h"

namespace primerl::sim {
namespace {

namespace fs = std::filesystem;

WorldSpec tinker_spec(uint64_t seed) {
  WorldSpec spec;
  spec.number = kTinkerWorlds + seed;
  add_tinker(spec);
  return spec;
}

std::shared_ptr<const Plan> tinker_plan(const WorldSpec& spec) {
  const auto file = scratch_folder() / "tinker.toml";
  std::ofstream(file) << tinker_table(spec)
                      << fmt::format("[model.policy]\npath = \"{}/examples/reverse_text/base\"\n",
                                     PRIMERL_SOURCE_DIR);
  Overrides overrides;
  overrides.sets = tinker_sets(spec);
  overrides.sets.push_back("resource.engine.backend=\"scripted\"");
  overrides.sets.push_back("resource.learner.backend=\"scripted\"");
  overrides.cores = 2;
  const auto checked = load_graph(file.string(), overrides, full_catalog());
  CHECK(checked.plan != nullptr, "the graph of a client is not valid");
  auto plan = std::make_shared<Plan>(*checked.plan);
  plan->settings.seed = static_cast<int64_t>(spec.number);
  return plan;
}

ResourceFactory tinker_factory(const WorldSpec& spec) {
  return [spec, make = resource_factory()](const Plan& plan,
                                           int32_t index) -> Result<std::shared_ptr<Resource>> {
    if (plan.resources[static_cast<size_t>(index)].kind != Outside::kResourceKind)
      return make(plan, index);
    return std::shared_ptr<Resource>(make_world_tinker(spec));
  };
}

/// Folders of clients are on the disk, because the learner loads them again.
class ClientServices final : public ProcessServices, public RunFiles {
 public:
  explicit ClientServices(fs::path folder) : folder_(std::move(folder)) { fs::remove_all(folder_); }
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot, int64_t, const MetricValues&) override {}
  void log(LogLevel, std::string_view, std::string_view) override {}
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }
  Status append_line(std::string_view, std::string_view) override { return ok(); }
  Result<fs::path> begin_checkpoint(TenantSlot, int64_t step) override {
    return made(fmt::format("step_{}", step));
  }
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override { return ok(); }
  Result<fs::path> begin_client_folder(TenantSlot, std::string_view path) override {
    return made(path);
  }
  Status commit_client_folder(TenantSlot, std::string_view, bool) override { return ok(); }
  Result<fs::path> client_folder(TenantSlot, std::string_view path) override {
    return folder_ / path;
  }
  Status remove_client_folder(TenantSlot, std::string_view) override { return ok(); }

 private:
  fs::path made(std::string_view path) const {
    fs::create_directories(folder_ / path);
    return folder_ / path;
  }
  const fs::path folder_;
};

struct ClientRun {
  std::string fault;           // empty: it ended by its drain
  std::vector<GroupId> steps;  // until the drain
};

/// Runs for so many steps, if it follows a record after its end, and drains.
ClientRun run_client(const std::shared_ptr<const Plan>& plan, const std::string& name,
                     const ResourceFactory& factory, DeliveryObserver& observer, size_t num_steps,
                     Recovery* recovery = nullptr) {
  ClientRun run;
  ClientServices services(scratch_folder() / name);
  std::vector<GroupId> steps;
  StepOrder order(observer, steps);
  VirtualExecutor executor(plan, factory, services,
                           {.seed = static_cast<uint64_t>(plan->settings.seed),
                            .observer = &order,
                            .events_max = 2'000'000,
                            .step_source = recovery,
                            .repeat_with = {}});
  const Status started = executor.start();
  CHECK(started.ok(), started.error().text());
  const bool is_live =
      executor.run_until([&] { return recovery == nullptr || recovery->is_live(); }, 1'000'000);
  const size_t enough = steps.size() + num_steps;
  if (!is_live || !executor.run_until([&] { return steps.size() >= enough; }, 1'000'000))
    run.fault = "it made no more steps";
  run.steps = steps;
  executor.request_drain();
  const RunOutcome outcome = executor.wait();
  if (!outcome.status.ok()) run.fault += outcome.status.error().text();
  return run;
}

std::string differences_in(const std::shared_ptr<const Plan>& plan, const fs::path& trace,
                           const ResourceFactory& factory) {
  ClientServices services(scratch_folder() / "replayed_client");
  ReplaySetup setup;
  setup.plan = plan;
  setup.trace = Trace::open(trace).value();
  use_resources(setup, factory, ReplayDepth::kControl, std::nullopt);
  setup.process_services = &services;
  setup.options.num_threads = 1;
  const auto replay = Replay::make(std::move(setup));
  if (!replay.ok()) return replay.error().text();
  const auto report = (*replay)->run();
  if (!report.ok()) return report.error().text();
  std::string text;
  for (const auto& divergence : report->divergences)
    text += fmt::format("step {} of group {}: {}\n", divergence.step, divergence.group.value,
                        divergence.what);
  return text;
}

TEST(TinkerReplay, ARunWithAClientIsRepeatedAndResumedAfterAnyStep) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const WorldSpec spec = tinker_spec(seed);
    const auto plan = tinker_plan(spec);
    const fs::path folder = scratch_folder() / "trace_of_client";
    ClientRun run;
    {
      VirtualRecord record(*plan, folder);
      Recorder recorder(record.catalog(), record.writer());
      run = run_client(plan, "recorded_client", recording_factory(tinker_factory(spec), recorder),
                       recorder, 1500);
      record.close();
    }
    ASSERT_EQ(run.fault, "");
    ASSERT_EQ(differences_in(plan, folder, tinker_factory(spec)), "");
    const std::shared_ptr<const Trace> trace = Trace::open(folder).value();
    RandomStream random(mix(seed, 43));
    for (int i = 0; i < 4; ++i) {
      const uint64_t killed_after = random.below(run.steps.size());
      SCOPED_TRACE(fmt::format("killed after {} steps", killed_after));
      std::vector<uint64_t> last(plan->groups.size(), 0);
      for (uint64_t step = 0; step < killed_after; ++step) last[run.steps[step].index()] += 1;
      const fs::path resumed = scratch_folder() / "trace_of_resumed_client";
      VirtualRecord record(*plan, resumed);
      Recorder recorder(record.catalog(), record.writer());
      Recovery recovery(plan, longest_prefix(*plan, trace_up_to(trace, last), {}), &recorder);
      auto factory = recovery_factory(tinker_factory(spec), recovery,
                                      std::vector<RecoveryPoint>(plan->tenants.size()));
      factory = recording_factory(std::move(factory), recorder);
      const ClientRun again = run_client(plan, "resumed_client", factory, recovery, 300, &recovery);
      record.close();
      ASSERT_EQ(again.fault, "");
      ASSERT_EQ(differences_in(plan, resumed, tinker_factory(spec)), "");
    }
  }
}

}  // namespace
}  // namespace primerl::sim
