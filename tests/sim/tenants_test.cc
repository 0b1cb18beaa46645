// Several tenants on one model, on the virtual clock: no tenant's results depend on the others.
//
// PRIMERL_SEED runs one seed; PRIMERL_SIM_SEEDS=20 is a shorter test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "actors/messages/generation.h"
#include "actors/messages/policy.h"
#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/random.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "tests/sim/demo_run.h"
#include "tests/sim/refusing_engine.h"

namespace primerl::sim {
namespace {

/// A tenant's table follows from its name, so it is the same alone and beside others.
std::string table_of(const std::string& name, int64_t max_off_policy_steps) {
  const uint64_t draw = stable_hash(name);
  const uint64_t group_size = 2 + draw % 2, num_groups = 1 + draw / 8 % 2;
  return fmt::format(
      "[tenant.{0}]\n"
      "environment = {{ name = \"{1}\" }}\n"
      "group_size = {2}\nbatch_size = {3}\nmax_steps = {4}\nmax_off_policy_steps = {5}\n"
      "filters = {{ zero_advantage = false }}\nsampling = {{ max_tokens = {6} }}\n"
      "optimizer = {{ lr = {7} }}\nschedule = {{ kind = \"linear\", decay_steps = 2 }}\n"
      "[tenant.{0}.adapter]\nrank = {8}\n\n",
      name, draw / 16 % 2 == 0 ? "reverse_text" : "copy", group_size, group_size * num_groups,
      2 + draw / 32 % 3, max_off_policy_steps, 4 + draw / 128 % 8, 0.001 + 0.001 * (draw % 5),
      2 + draw / 1024 % 14);
}

/// The graph of examples/two_tenants with these tenants instead.
CheckedGraph graph_of(const std::vector<std::string>& tenants, int64_t max_off_policy_steps,
                      const std::vector<std::string>& sets = {}) {
  const std::string example = std::string(PRIMERL_SOURCE_DIR) + "/examples/two_tenants/graph.toml";
  const std::string text = read_text_file(example, 1 << 20).value();
  const size_t begin = text.find("[tenant."), end = text.find("[model.");
  std::string tables;
  for (const auto& name : tenants) tables += table_of(name, max_off_policy_steps);
  const auto file = scratch_folder() / "tenants.toml";
  std::ofstream(file) << text.substr(0, begin) << tables << text.substr(end);
  Overrides overrides;
  overrides.sets = {
      fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR),
      "resource.engine.backend=\"scripted\"", "resource.learner.backend=\"scripted\"",
      "node.rollout.max_inflight=8", "node.trainer.lost_batches_max=3"};
  overrides.sets.insert(overrides.sets.end(), sets.begin(), sets.end());
  overrides.cores = 2;
  return load_graph(file.string(), overrides, full_catalog());
}

/// The results of a tenant's run, without times.
struct Left {
  std::vector<std::string> rollouts;  // sorted
  std::vector<std::string> metrics;   // one line per step
  friend bool operator==(const Left&, const Left&) = default;
};

class KeepingServices final : public ProcessServices, public RunFiles {
 public:
  explicit KeepingServices(const Plan& plan) : plan_(plan) {}
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override {
    std::string line = fmt::format("{}", step);
    for (const auto& [name, value] : values)
      if (!name.starts_with("time/") && !name.starts_with("perf/"))
        line += fmt::format(" {}={}", name, value);
    left[plan_.tenants[tenant.index()].name].metrics.push_back(std::move(line));
  }
  void log(LogLevel, std::string_view, std::string_view) override {}
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }
  Status append_line(std::string_view file, std::string_view line) override {
    if (file != "rollouts.jsonl") return ok();
    const auto tenant = parse_json(std::string(line), "a line").value().get_string("tenant");
    left[*tenant].rollouts.emplace_back(line);
    return ok();
  }
  Result<std::filesystem::path> begin_checkpoint(TenantSlot tenant, int64_t) override {
    if (plan_.tenants[tenant.index()].name == cannot_save)
      return error(Code::kIo, "no room for a checkpoint");
    return scratch_folder();
  }
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override { return ok(); }

  std::map<std::string, Left> left;
  std::string cannot_save;  // name of a tenant

 private:
  const Plan& plan_;
};

struct Ended {
  RunOutcome outcome;
  std::map<std::string, Left> left;
  std::string fault;       // from the check
  int64_t num_shared = 0;  // steps that shared a pass
};

/// The fault of one tenant.
enum class Trouble { kTrainerFails, kEnvironmentFails, kEnvironmentHangs, kCheckpointFails };

class TroubleOfOne final : public StepHooks {
 public:
  TroubleOfOne(const Plan& plan, const std::string& tenant, Trouble trouble, uint64_t first)
      : trouble_(trouble), first_(first) {
    const std::string node = trouble == Trouble::kTrainerFails ? "trainer" : "env";
    for (uint32_t i = 0; i < plan.instances.size(); ++i)
      if (plan.instances[i].name == node + "." + tenant) instance_ = InstanceId(i);
    CHECK(!instance_.is_none(), "the tenant has no such actor");
  }
  bool has_struck = false;
  const VirtualExecutor* executor = nullptr;  // set before the run

  Injection before(const StepAbout& about) override {
    if (trouble_ == Trouble::kCheckpointFails) return {};
    if (about.instance != instance_ || about.kind != StepKind::kMessage) return {};
    // Env makes no environment calls any more (tests/actors/env_test.cc).
    if (trouble_ == Trouble::kEnvironmentHangs && executor->status().is_draining) return {};
    if (++num_seen_ < first_) return {};
    has_struck = true;
    if (trouble_ == Trouble::kEnvironmentHangs) return {{}, Duration::seconds(1'000'000)};
    return {error(Code::kInternal, "made to fail"), {}};
  }

 private:
  const Trouble trouble_;
  const uint64_t first_;
  InstanceId instance_;
  uint64_t num_seen_ = 0;
};

Ended run(const CheckedGraph& graph, uint64_t seed, StepHooks* hooks = nullptr,
          const std::string& cannot_save = "", ResourceFactory factory = resource_factory()) {
  Ended ended;
  if (graph.plan == nullptr) {
    for (const auto& found : graph.diagnostics.all())
      ended.fault += fmt::format("{}: {}\n", found.code, found.message);
    return ended;
  }
  auto plan = std::make_shared<Plan>(*graph.plan);
  plan->settings.seed = static_cast<int64_t>(seed);
  KeepingServices services(*plan);
  services.cannot_save = cannot_save;
  VirtualExecutor executor(
      plan, std::move(factory), services,
      {.seed = seed, .step_hooks = hooks, .events_max = 2'000'000, .repeat_with = {}});
  if (auto* trouble = dynamic_cast<TroubleOfOne*>(hooks); trouble != nullptr)
    trouble->executor = &executor;
  if (const Status started = executor.start(); !started.ok()) {
    ended.fault = started.error().text();
    return ended;
  }
  ended.outcome = executor.wait();
  for (const auto& [name, count] : executor.counters())
    if (name.ends_with(".steps_shared")) ended.num_shared += count;
  for (auto& [name, left] : services.left) std::sort(left.rollouts.begin(), left.rollouts.end());
  ended.left = std::move(services.left);
  return ended;
}

/// Only trained rollouts: which others were in flight at the last step depends on timing.
Left trained(Left left) {
  std::erase_if(left.rollouts, [](const std::string& line) {
    return line.find("\"end\":\"trained\"") == std::string::npos;
  });
  return left;
}

const std::vector<std::string> kNames = {"ada", "bo", "cy", "di", "ed", "fay", "gus", "hal"};

/// At most `most`; the first two hundred unless PRIMERL_SIM_SEEDS says otherwise.
std::pair<uint64_t, uint64_t> seeds(uint64_t most) {
  const char* one = std::getenv("PRIMERL_SEED");
  if (one != nullptr) return {std::strtoull(one, nullptr, 10), std::strtoull(one, nullptr, 10)};
  const char* few = std::getenv("PRIMERL_SIM_SEEDS");
  return {1, std::min<uint64_t>(most, few == nullptr ? 200 : std::strtoull(few, nullptr, 10))};
}

/// Slots that no tenant has change nothing for those that are there, and have no actors.
TEST(Tenants, FreeSlotsChangeNothing) {
  const std::string limits =
      "graph.tenant_limits={ tenants_max = 6, rank = 16, group_size = 4, batch_size = 8 }";
  const auto [first, last] = seeds(20);
  for (uint64_t seed = first; seed <= last; ++seed) {
    const std::vector<std::string> names = {kNames[seed % 8], kNames[(seed + 3) % 8]};
    const CheckedGraph graph = graph_of(names, 0, {limits});
    ASSERT_NE(graph.plan, nullptr) << run(graph, seed).fault;
    EXPECT_EQ(graph.plan->num_slots(), 6u);
    const Ended hosted = run(graph, seed), closed = run(graph_of(names, 0), seed);
    ASSERT_EQ(hosted.outcome.end, RunEnd::kFinished) << hosted.fault << "PRIMERL_SEED=" << seed;
    ASSERT_EQ(closed.outcome.end, RunEnd::kFinished) << closed.fault << "PRIMERL_SEED=" << seed;
    ASSERT_EQ(hosted.left.size(), 2u);
    for (const auto& name : names)
      ASSERT_EQ(trained(hosted.left.at(name)), trained(closed.left.at(name)))
          << name << ", PRIMERL_SEED=" << seed;
  }
}

/// A tenant of the same name and table in a slot that was used before trains as well, under other
/// keys and with other random numbers.
TEST(Tenants, ALaterUseOfASlotDrawsOthers) {
  const CheckedGraph graph = graph_of({"ada", "bo"}, 0);
  ASSERT_NE(graph.plan, nullptr);
  CheckedGraph later = graph_of({"ada", "bo"}, 0);
  auto plan = std::make_shared<Plan>(*later.plan);
  plan->tenants[0].tenancy = 1;
  later.plan = plan;
  const Ended first = run(graph, 1), second = run(later, 1);
  ASSERT_EQ(second.outcome.end, RunEnd::kFinished) << second.fault;
  EXPECT_EQ(trained(first.left.at("bo")), trained(second.left.at("bo")));
  EXPECT_NE(trained(first.left.at("ada")), trained(second.left.at("ada")));
  EXPECT_EQ(first.left.at("ada").metrics.size(), second.left.at("ada").metrics.size());
}

/// On policy, a tenant's rollouts and metrics, and so its adapter, equal those of a run of its own:
/// with two to eight tenants, at any position among them and under any schedule.
TEST(Tenants, OnPolicyEachIsAsItWouldBeAlone) {
  std::map<std::pair<std::string, uint64_t>, Left> alone;
  const auto [first, last] = seeds(100);
  for (uint64_t seed = first; seed <= last; ++seed) {
    std::vector<std::string> names = kNames;
    RandomStream random(mix(seed, 15));
    for (size_t i = names.size(); i > 1; --i) std::swap(names[i - 1], names[random.below(i)]);
    names.resize(2 + random.below(names.size() - 1));
    const Ended together = run(graph_of(names, 0), seed);
    ASSERT_EQ(together.fault, "");
    ASSERT_EQ(together.outcome.end, RunEnd::kFinished) << "PRIMERL_SEED=" << seed;
    for (const auto& name : names) {
      const Ended own = run(graph_of({name}, 0), seed);
      ASSERT_EQ(own.outcome.end, RunEnd::kFinished);
      ASSERT_FALSE(own.left.at(name).metrics.empty());
      ASSERT_EQ(trained(together.left.at(name)).rollouts, trained(own.left.at(name)).rollouts)
          << name << " among " << names.size() << ", PRIMERL_SEED=" << seed;
      ASSERT_EQ(together.left.at(name).metrics, own.left.at(name).metrics)
          << name << " among " << names.size() << ", PRIMERL_SEED=" << seed;
    }
  }
}

/// At any limit, with two to eight tenants: the run finishes, each tenant makes its steps, no
/// message is left on any edge, and no rollout ends twice.
TEST(Tenants, AllFinishAndNothingIsLeftAtEverySeed) {
  const auto [first, last] = seeds(1000);
  int64_t num_steps = 0, num_shared = 0;
  std::map<std::pair<size_t, int64_t>, CheckedGraph> graphs;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const size_t count = 2 + seed % 7;
    const auto limit = static_cast<int64_t>(seed % 3);
    const std::vector<std::string> names(kNames.begin(),
                                         kNames.begin() + static_cast<ptrdiff_t>(count));
    auto found = graphs.find({count, limit});
    if (found == graphs.end())
      found = graphs.emplace(std::pair(count, limit), graph_of(names, limit)).first;
    const Ended ended = run(found->second, seed);
    ASSERT_EQ(ended.fault, "");
    ASSERT_EQ(ended.outcome.end, RunEnd::kFinished) << "PRIMERL_SEED=" << seed;
    for (const auto& edge : ended.outcome.ledger) {
      ASSERT_TRUE(edge.balances()) << "PRIMERL_SEED=" << seed;
      ASSERT_EQ(edge.in_flight, 0U) << "PRIMERL_SEED=" << seed;
    }
    num_shared += ended.num_shared;
    for (const Tenant& tenant : found->second.plan->tenants) {
      const Left& left = ended.left.at(tenant.name);
      num_steps += tenant.max_steps;
      ASSERT_EQ(left.metrics.size(), static_cast<size_t>(tenant.max_steps))
          << tenant.name << " PRIMERL_SEED=" << seed;
      std::vector<std::string> rollouts;
      for (const auto& line : left.rollouts) rollouts.push_back(line.substr(0, line.find(',')));
      ASSERT_EQ(std::adjacent_find(rollouts.begin(), rollouts.end()), rollouts.end())
          << "PRIMERL_SEED=" << seed;
    }
  }
  EXPECT_GE(num_shared * 10, num_steps) << "of so few seeds? passes are hardly ever shared";
}

/// Expects that the run named the first of `names` with a reason, that the others trained what they
/// train alone, and that no message is left.
void expect_only_the_first_is_aside(const Ended& ended, const std::vector<std::string>& names,
                                    uint64_t seed, const std::string& where) {
  ASSERT_EQ(ended.outcome.end, RunEnd::kFailed) << where;
  const std::string text = ended.outcome.status.error().text();
  ASSERT_NE(text.find(fmt::format("tenant '{}' was set aside: ", names[0])), std::string::npos)
      << where << ": " << text;
  ASSERT_EQ(text.find("was set aside", text.find("was set aside") + 1), std::string::npos)
      << where << ": " << text;
  for (const auto& edge : ended.outcome.ledger) {
    ASSERT_TRUE(edge.balances()) << where;
    ASSERT_EQ(edge.in_flight, 0U) << where;
  }
  for (size_t i = 1; i < names.size(); ++i) {
    const Ended own = run(graph_of({names[i]}, 0), seed);
    ASSERT_EQ(trained(ended.left.at(names[i])).rollouts, trained(own.left.at(names[i])).rollouts)
        << names[i] << ", " << where;
    ASSERT_EQ(ended.left.at(names[i]).metrics, own.left.at(names[i]).metrics)
        << names[i] << ", " << where;
  }
}

std::vector<std::string> some_names(RandomStream& random) {
  std::vector<std::string> names = kNames;
  for (size_t i = names.size(); i > 1; --i) std::swap(names[i - 1], names[random.below(i)]);
  names.resize(2 + random.below(3));
  return names;
}

/// A tenant may fail at any moment of the run: the others train what they train alone, no message
/// is left, and the end names the failed tenant.
TEST(Tenants, AFailedTenantIsSetAsideAndTheOthersContinue) {
  const auto [first, last] = seeds(300);
  uint64_t num_struck = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    RandomStream random(mix(seed, 27));
    const std::vector<std::string> names = some_names(random);
    const auto trouble = static_cast<Trouble>(random.below(4));
    const CheckedGraph graph = graph_of(names, 0);
    ASSERT_NE(graph.plan, nullptr);
    TroubleOfOne hooks(*graph.plan, names[0], trouble, 1 + random.below(4));
    const bool cannot_save = trouble == Trouble::kCheckpointFails;
    const Ended ended = run(graph, seed, &hooks, cannot_save ? names[0] : "");
    hooks.has_struck = hooks.has_struck || cannot_save;
    const std::string where =
        fmt::format("PRIMERL_SEED={}, trouble {}", seed, static_cast<int>(trouble));
    num_struck += hooks.has_struck ? 1 : 0;
    if (!hooks.has_struck) continue;  // the tenant had finished before
    expect_only_the_first_is_aside(ended, names, seed, where);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GE(num_struck * 2, last - first + 1);
}

/// A shared actor fails at a message of one tenant, although it has on_error = "stop".
class FailsOnAMessageOf final : public StepHooks {
 public:
  FailsOnAMessageOf(TenantSlot tenant, std::string_view type, uint64_t first)
      : tenant_(tenant), type_(type), first_(first) {}
  bool has_struck = false;

  Injection before(const StepAbout& about) override {
    if (about.type == nullptr || about.type->name != type_ || about.tenant != tenant_) return {};
    if (++num_seen_ < first_) return {};
    has_struck = true;
    return {error(Code::kInternal, "made to fail"), {}};
  }

 private:
  const TenantSlot tenant_;
  const std::string_view type_;
  const uint64_t first_;
  uint64_t num_seen_ = 0;
};

TenantSlot slot_of(const Plan& plan, const std::string& name) {
  for (const Tenant& tenant : plan.tenants)
    if (tenant.name == name) return tenant.slot;
  CHECK(false, "the graph has no such tenant");
  return {};
}

/// If a shared actor cannot serve one tenant, the others are not affected: every engine refuses its
/// weights, or a handler of router, prefill, decode or broadcaster fails on its message.
TEST(Tenants, AFaultOfASharedActorForOneTenantSetsOnlyItAside) {
  const auto [first, last] = seeds(200);
  const std::vector<std::string> stops = {
      "node.router.on_error=\"stop\"", "node.prefill.on_error=\"stop\"",
      "node.decode.on_error=\"stop\"", "node.broadcaster.on_error=\"stop\""};
  constexpr std::string_view kShared[] = {GenerateRequest::kName, PrefillDone::kName,
                                          WeightsReady::kName, Cancel::kName};
  uint64_t num_struck = 0, num_refused = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    RandomStream random(mix(seed, 31));
    const std::vector<std::string> names = some_names(random);
    const CheckedGraph graph = graph_of(names, 0, stops);
    ASSERT_NE(graph.plan, nullptr);
    const TenantSlot slot = slot_of(*graph.plan, names[0]);
    const uint64_t trouble = random.below(5), moment = random.below(3);
    const std::string where = fmt::format("PRIMERL_SEED={}, trouble {}", seed, trouble);
    if (trouble == 0) {
      const auto version = PolicyVersion(static_cast<int64_t>(moment));
      const Ended ended = run(graph, seed, nullptr, "", refusing_factory(slot, version));
      expect_only_the_first_is_aside(ended, names, seed, where);
      EXPECT_NE(ended.outcome.status.error().text().find("no engine could apply version"),
                std::string::npos);
      ++num_refused;
    } else {
      const std::string_view type = kShared[trouble - 1];
      FailsOnAMessageOf hooks(slot, type, 1 + moment);
      const Ended ended = run(graph, seed, &hooks);
      if (!hooks.has_struck) continue;  // the tenant had finished before
      expect_only_the_first_is_aside(ended, names, seed, where);
    }
    if (::testing::Test::HasFatalFailure()) return;
    ++num_struck;
  }
  EXPECT_GE(num_struck * 2, last - first + 1);
  EXPECT_GE(num_refused * 10, last - first + 1);
}

}  // namespace
}  // namespace primerl::sim
