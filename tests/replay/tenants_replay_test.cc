// Runs of tenants whose steps shared forward passes: replayed at every depth, with one tenant only,
// and resumed at any step. The result must be the same as if each tenant had trained alone.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "graph/base/files.h"
#include "graph/base/random.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "runtime/replay/recovery.h"
#include "runtime/trace/read/trace_prefix.h"
#include "runtime/trace/record/recorder.h"
#include "tests/replay/replay_run.h"
#include "tests/sim/refusing_engine.h"

namespace primerl::sim {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kNumTenants = 5;

/// The graph of examples/two_tenants with five small tenants, on policy, so that the trained data
/// does not depend on timing. The learner is the slowest part, so their batches wait for each
/// other.
std::shared_ptr<const Plan> tenants_plan(uint64_t seed) {
  const std::string example = std::string(PRIMERL_SOURCE_DIR) + "/examples/two_tenants/graph.toml";
  const std::string text = read_text_file(example, 1 << 20).value();
  std::string tables;
  for (uint32_t i = 0; i < kNumTenants; ++i)
    tables += fmt::format(
        "[tenant.t{0}]\nenvironment = {{ name = \"reverse_text\" }}\n"
        "group_size = 2\nbatch_size = 4\nmax_steps = 5\nmax_off_policy_steps = 0\n"
        "filters = {{ zero_advantage = false }}\nsampling = {{ max_tokens = {1} }}\n"
        "[tenant.t{0}.adapter]\nrank = 2\n\n",
        i, 4 + 2 * i);
  const auto file = scratch_folder() / "five_tenants.toml";
  std::ofstream(file) << text.substr(0, text.find("[tenant.")) << tables
                      << text.substr(text.find("[model."));
  Overrides overrides;
  overrides.sets = {
      fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR),
      "resource.engine.backend=\"scripted\"", "resource.learner.backend=\"scripted\"",
      "resource.learner.step_cost=\"50ms\"", "node.rollout.max_inflight=16"};
  overrides.cores = 2;
  const auto checked = load_graph(file.string(), overrides, full_catalog());
  CHECK(checked.plan != nullptr, "the graph of five tenants is not valid");
  auto plan = std::make_shared<Plan>(*checked.plan);
  plan->settings.seed = static_cast<int64_t>(seed);
  return plan;
}

/// Records how the tenants of a run ended.
class TenantsServices final : public ProcessServices, public RunFiles {
 public:
  explicit TenantsServices(fs::path folder) : folder_(std::move(folder)) {
    fs::remove_all(folder_);
  }
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot, int64_t, const MetricValues&) override {}
  void log(LogLevel, std::string_view, std::string_view) override {}
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }
  Status append_line(std::string_view, std::string_view) override { return ok(); }
  Result<fs::path> begin_checkpoint(TenantSlot tenant, int64_t step) override {
    const fs::path folder = folder_ / fmt::format("{}_{}", tenant.value, step);
    fs::create_directories(folder);
    return folder;
  }
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override { return ok(); }

  /// The learner's state for each tenant after the tenant's last step.
  std::string learners() const {
    std::stringstream text;
    for (uint32_t i = 0; i < kNumTenants; ++i)
      text << std::ifstream(folder_ / fmt::format("{}_5", i) / "learner" / "state.json").rdbuf();
    return text.str();
  }

 private:
  const fs::path folder_;
};

struct TenantsRun {
  std::string learners;
  std::string fault;       // empty: the run finished
  int64_t num_shared = 0;  // steps that shared a forward pass
  std::vector<GroupId> steps;
};

TenantsRun run_tenants(const std::shared_ptr<const Plan>& plan, const std::string& name,
                       const ResourceFactory& factory, DeliveryObserver& observer,
                       ReplaySource* source = nullptr) {
  TenantsRun run;
  TenantsServices services(scratch_folder() / name);
  StepOrder order(observer, run.steps);
  VirtualExecutor executor(plan, factory, services,
                           {.seed = static_cast<uint64_t>(plan->settings.seed),
                            .observer = &order,
                            .events_max = 2'000'000,
                            .step_source = source,
                            .repeat_with = {}});
  const Status started = executor.start();
  CHECK(started.ok(), started.error().text());
  const RunOutcome outcome = executor.wait();
  if (!outcome.status.ok()) run.fault = outcome.status.error().text();
  for (const auto& [counter, count] : executor.counters())
    if (counter.ends_with(".steps_shared")) run.num_shared += count;
  run.learners = services.learners();
  return run;
}

fs::path record_tenants(const std::shared_ptr<const Plan>& plan, TenantsRun& run,
                        const ResourceFactory& factory = resource_factory()) {
  const fs::path folder = scratch_folder() / "trace_of_tenants";
  VirtualRecord record(*plan, folder);
  Recorder recorder(record.catalog(), record.writer());
  run = run_tenants(plan, "recorded", recording_factory(factory, recorder), recorder);
  record.close();
  return folder;
}

std::string differences_of(const Result<ReplayReport>& report) {
  if (!report.ok()) return report.error().text();
  std::string text;
  for (const auto& divergence : report->divergences)
    text += fmt::format("step {} of group {}: {}\n", divergence.step, divergence.group.value,
                        divergence.what);
  return text;
}

Result<ReplayReport> replay_tenants(const std::shared_ptr<const Plan>& plan, const fs::path& trace,
                                    ReplayDepth depth, std::optional<TenantSlot> only,
                                    uint32_t num_threads,
                                    const ResourceFactory& factory = resource_factory()) {
  TenantsServices services(scratch_folder() / "replayed");
  ReplaySetup setup;
  setup.plan = plan;
  ASSIGN_OR_RETURN(setup.trace, Trace::open(trace));
  use_resources(setup, factory, depth, only);
  setup.process_services = &services;
  setup.options.num_threads = num_threads;
  ASSIGN_OR_RETURN(const auto replay, Replay::make(std::move(setup)));
  return replay->run();
}

TEST(TenantsReplay, RepeatsAndResumesRunsWhoseStepsSharedPasses) {
  int64_t num_shared = 0, num_shared_again = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const auto plan = tenants_plan(seed);
    TenantsRun run;
    const fs::path folder = record_tenants(plan, run);
    ASSERT_EQ(run.fault, "");
    ASSERT_FALSE(run.learners.empty());
    num_shared += run.num_shared;
    RandomStream random(mix(seed, 41));
    for (const ReplayDepth depth :
         {ReplayDepth::kFull, ReplayDepth::kLearner, ReplayDepth::kControl}) {
      const auto threads = 1 + static_cast<uint32_t>(random.below(4));
      ASSERT_EQ(differences_of(replay_tenants(plan, folder, depth, std::nullopt, threads)), "");
    }
    for (const uint32_t tenant : {0, 3})
      ASSERT_EQ(differences_of(
                    replay_tenants(plan, folder, ReplayDepth::kLearner, TenantSlot(tenant), 1)),
                "");
    // Killed after some steps, without any checkpoint: all steps are computed again.
    const std::shared_ptr<const Trace> trace = Trace::open(folder).value();
    for (int i = 0; i < 4; ++i) {
      std::vector<uint64_t> last(plan->groups.size(), 0);
      const uint64_t num_steps = random.below(run.steps.size());
      for (uint64_t step = 0; step < num_steps; ++step) last[run.steps[step].index()] += 1;
      const fs::path resumed = scratch_folder() / "trace_of_resumed";
      VirtualRecord record(*plan, resumed);
      Recorder recorder(record.catalog(), record.writer());
      Recovery recovery(plan, longest_prefix(*plan, trace_up_to(trace, last), {}), &recorder);
      auto factory = recovery_factory(resource_factory(), recovery,
                                      std::vector<RecoveryPoint>(plan->tenants.size()));
      factory = recording_factory(std::move(factory), recorder);
      const TenantsRun again = run_tenants(plan, "resumed", factory, recovery, &recovery);
      record.close();
      ASSERT_TRUE(recovery.is_live());
      ASSERT_EQ(again.fault, "");
      ASSERT_EQ(again.learners, run.learners) << "killed after " << num_steps << " steps";
      num_shared_again += again.num_shared;
      // When the run resumed, no tenant was in the queue any more: that is part of its record.
      for (const ReplayDepth depth : {ReplayDepth::kFull, ReplayDepth::kLearner})
        ASSERT_EQ(differences_of(replay_tenants(plan, resumed, depth, std::nullopt, 1)), "")
            << "killed after " << num_steps << " steps";
    }
  }
  // Of 12 * 5 * 5 steps, and of four times as many.
  EXPECT_GT(num_shared, 100);
  EXPECT_GT(num_shared_again, 400);
}

/// The shared broadcaster reports that one tenant cannot continue. A replay reports it at the same
/// step, and a run that resumes from its record knows it.
TEST(TenantsReplay, RepeatsWhatASharedActorSaidOfOne) {
  uint64_t num_known = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const auto plan = tenants_plan(seed);
    RandomStream random(mix(seed, 43));
    const TenantSlot hers(static_cast<uint32_t>(random.below(kNumTenants)));
    const auto factory =
        refusing_factory(hers, PolicyVersion(static_cast<int64_t>(random.below(4))));
    TenantsRun run;
    const fs::path folder = record_tenants(plan, run, factory);
    const std::string aside =
        fmt::format("tenant '{}' was set aside: 'broadcaster': no engine could apply version",
                    plan->tenants[hers.index()].name);
    ASSERT_TRUE(run.fault.starts_with(aside)) << run.fault;
    for (const ReplayDepth depth :
         {ReplayDepth::kFull, ReplayDepth::kLearner, ReplayDepth::kControl})
      ASSERT_EQ(differences_of(replay_tenants(plan, folder, depth, std::nullopt, 2, factory)), "");
    for (uint32_t tenant = 0; tenant < kNumTenants; ++tenant)
      ASSERT_EQ(differences_of(replay_tenants(plan, folder, ReplayDepth::kLearner,
                                              TenantSlot(tenant), 1, factory)),
                "");
    const std::shared_ptr<const Trace> trace = Trace::open(folder).value();
    for (int i = 0; i < 6; ++i) {
      std::vector<uint64_t> last(plan->groups.size(), 0);
      const uint64_t num_steps = random.below(run.steps.size());
      for (uint64_t step = 0; step < num_steps; ++step) last[run.steps[step].index()] += 1;
      Recovery recovery(plan, longest_prefix(*plan, trace_up_to(trace, last), {}), nullptr);
      const auto again_factory =
          recovery_factory(factory, recovery, std::vector<RecoveryPoint>(plan->tenants.size()));
      const TenantsRun again = run_tenants(plan, "resumed", again_factory, recovery, &recovery);
      ASSERT_TRUE(recovery.is_live());
      // After an interrupted record another version may fail, but the same tenant must.
      ASSERT_TRUE(again.fault.starts_with(aside)) << again.fault << ", killed after " << num_steps;
      ASSERT_EQ(again.learners, run.learners) << "killed after " << num_steps << " steps";
      num_known += num_steps * 2 > run.steps.size() ? 1 : 0;
    }
  }
  EXPECT_GT(num_known, 8U);
}

}  // namespace
}  // namespace primerl::sim
