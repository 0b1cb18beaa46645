// A tenant that a client trains beside one of a loop, on the virtual clock: neither changes the
// results of the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "actors/messages/client.h"
#include "graph/base/files.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kClientUpdates = 3;

/// The answers that a client got, as it got them.
struct ClientAnswers {
  std::vector<LossResult> passes;
  std::vector<UpdateDone> updates;
  std::vector<WeightsDone> weights;
  std::vector<std::string> faults;
};

/// Asks for two passes and an update, three times, then saves, publishes and makes a snapshot.
class SimClient final : public Actor {
 public:
  struct Options {
    int64_t tenant = 0;  // its slot
  };
  static Contract contract(const std::shared_ptr<ClientAnswers>& answers) {
    using C = SimClient;
    return ContractOf<C, Options>("sim_client", "a client with a script")
        .option("tenant", &Options::tenant, count_from(0), "slot of its tenant")
        .in("passed", &C::on_passed, "an answer")
        .in("updated", &C::on_updated, "an answer")
        .in("weights_done", &C::on_weights, "an answer")
        .out("pass", &C::pass, "a pass", work_burst(1))
        .out("update", &C::update, "an update", work_burst(1))
        .out("weights", &C::weights, "weights", work_burst(1))
        .works()
        .single()
        .made_by([answers](const Options& options) -> std::unique_ptr<Actor> {
          return std::make_unique<SimClient>(options, answers);
        })
        .state([](auto& f) { f("next", &C::next_)("is_open", &C::is_open_); });
  }
  explicit SimClient(const Options& options, std::shared_ptr<ClientAnswers> answers = nullptr)
      : tenant_(static_cast<uint32_t>(options.tenant)), answers_(std::move(answers)) {}

  Result<bool> work() override {
    if (is_open_ || next_ >= kClientUpdates * 3 + 3) return false;
    is_open_ = true;
    const uint64_t number = next_++;
    if (number >= kClientUpdates * 3) {
      WeightsRequest request;
      request.request = number;
      request.action = number % 3 == 0   ? WeightsAction::kSave
                       : number % 3 == 1 ? WeightsAction::kPublish
                                         : WeightsAction::kSnapshot;
      request.name = number % 3 == 0 ? "a" : "";
      weights.send(request, for_tenant(tenant_));
    } else if (number % 3 == 2) {
      UpdateRequest request;
      request.request = number;
      update.send(request, for_tenant(tenant_));
    } else {
      pass.send(a_pass(number), for_tenant(tenant_));
    }
    return true;
  }

  Out<PassRequest> pass;
  Out<UpdateRequest> update;
  Out<WeightsRequest> weights;

 private:
  static PassRequest a_pass(uint64_t number) {
    PassRequest request;
    request.request = number;
    request.batch.loss = tinker_loss("cross_entropy", {}).value();
    for (int32_t d = 0; d < 8; ++d) {
      LossDatum& datum = request.batch.data.emplace_back();
      for (int32_t i = 0; i < 20; ++i) {
        datum.tokens.push_back((static_cast<int32_t>(number) * 11 + d * 3 + i) % 60);
        datum.targets.push_back((static_cast<int32_t>(number) * 11 + d * 3 + i + 1) % 60);
      }
    }
    return request;
  }
  void close(const ClientFault& fault) {
    is_open_ = false;
    if (fault.is_set()) answers_->faults.push_back(fault.message);
  }
  Status on_passed(const PassDone& done) {
    close(done.fault);
    answers_->passes.push_back(done.result);
    return ok();
  }
  Status on_updated(const UpdateDone& done) {
    close(done.fault);
    answers_->updates.push_back(done);
    return ok();
  }
  Status on_weights(const WeightsDone& done) {
    close(done.fault);
    answers_->weights.push_back(done);
    return ok();
  }

  const TenantSlot tenant_;
  const std::shared_ptr<ClientAnswers> answers_;
  uint64_t next_ = 0;
  bool is_open_ = false;
};

const std::string kLoop =
    "[tenant.ada]\nenvironment = { name = \"reverse_text\" }\ngroup_size = 2\nbatch_size = 4\n"
    "max_steps = 3\nmax_off_policy_steps = 0\nsampling = { max_tokens = 6 }\n"
    "filters = { zero_advantage = false }\n"
    "[tenant.ada.adapter]\nrank = 4\n\n";
const std::string kClientTable =
    "[tenant.zoe]\nclient = true\nseq_len = 64\n[tenant.zoe.adapter]\nrank = 4\n\n";

/// The graph of examples/two_tenants with these tenants, and a client for the last one.
CheckedGraph graph_of(const std::string& tables, int num_tenants, const Catalog& catalog) {
  const std::string example = std::string(PRIMERL_SOURCE_DIR) + "/examples/two_tenants/graph.toml";
  std::string text = read_text_file(example, 1 << 20).value();
  const auto put = [&text](const std::string& before, const std::string& added) {
    text.insert(text.find(before), added);
  };
  const size_t begin = text.find("[tenant.");
  text = text.substr(0, begin) + tables + text.substr(text.find("[model."));
  if (tables.find("zoe") != std::string::npos) {
    put("[edges]",
        fmt::format("[node.client]\nactor = \"sim_client\"\ntenant = {}\n\n", num_tenants - 1));
    put("  \"env.task ",
        "  \"client.pass -> trainer.pass\",\n  \"client.update -> trainer.update\",\n"
        "  \"client.weights -> trainer.weights_request\",\n");
    put("  \"decode.completion ",
        "  \"trainer.passed -> client.passed\",\n  \"trainer.updated -> client.updated\",\n"
        "  \"trainer.weights_done -> client.weights_done\",\n");
  }
  const auto file = scratch_folder() / "clients.toml";
  std::ofstream(file) << text;
  Overrides overrides;
  overrides.sets = {
      fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR),
      "resource.engine.backend=\"scripted\"", "resource.learner.backend=\"scripted\"",
      "node.rollout.max_inflight=8"};
  overrides.cores = 2;
  return load_graph(file.string(), overrides, catalog);
}

class Services final : public ProcessServices, public RunFiles {
 public:
  explicit Services(const Plan& plan) : plan_(plan) {}
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override {
    std::string line = fmt::format("{}", step);
    for (const auto& [name, value] : values)
      if (!name.starts_with("time/") && !name.starts_with("perf/"))
        line += fmt::format(" {}={}", name, value);
    metrics[plan_.tenants[tenant.index()].name].push_back(std::move(line));
  }
  void log(LogLevel, std::string_view, std::string_view) override {}
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }
  Status append_line(std::string_view, std::string_view) override { return ok(); }
  Result<std::filesystem::path> begin_checkpoint(TenantSlot, int64_t) override {
    return scratch_folder();
  }
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override { return ok(); }
  Result<std::filesystem::path> begin_client_folder(TenantSlot, std::string_view) override {
    return scratch_folder();
  }
  Status commit_client_folder(TenantSlot, std::string_view path, bool) override {
    folders.emplace_back(path);
    return ok();
  }

  std::map<std::string, std::vector<std::string>> metrics;
  std::vector<std::string> folders;

 private:
  const Plan& plan_;
};

struct Ran {
  RunOutcome outcome;
  ClientAnswers client;
  std::map<std::string, std::vector<std::string>> metrics;
  std::vector<std::string> folders;
};

/// Runs until the client has its answers and the loop its steps, then drains.
Ran run(const std::string& tables, int num_tenants, uint64_t seed) {
  Ran ran;
  const auto answers = std::make_shared<ClientAnswers>();
  Catalog catalog = full_catalog();
  catalog.actors.push_back(SimClient::contract(answers));
  const CheckedGraph graph = graph_of(tables, num_tenants, catalog);
  std::string findings;
  for (const auto& found : graph.diagnostics.all())
    findings += fmt::format("{}: {}\n", found.code, found.message);
  EXPECT_NE(graph.plan, nullptr) << findings;
  if (graph.plan == nullptr) return ran;
  auto plan = std::make_shared<Plan>(*graph.plan);
  plan->settings.seed = static_cast<int64_t>(seed);
  Services services(*plan);
  VirtualExecutor executor(plan, resource_factory(), services,
                           {.seed = seed, .events_max = 2'000'000, .repeat_with = {}});
  const Status started = executor.start();
  EXPECT_TRUE(started.ok()) << (started.ok() ? "" : started.error().text());
  if (!started.ok()) return ran;
  if (tables.find("zoe") != std::string::npos) {
    // Then all is done: the client only waits, and the loop has made its steps.
    const Time long_after = Time() + Duration::seconds(3000);
    EXPECT_TRUE(executor.run_until([&] { return executor.now() >= long_after; }, 1'000'000));
    executor.request_drain();
  }
  ran.outcome = executor.wait();
  ran.client = *answers;
  ran.metrics = services.metrics;
  ran.folders = services.folders;
  return ran;
}

TEST(AClientBesideALoop, ChangesNoResultAndItsOwnDoNotDependOnTheLoop) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Ran both = run(kLoop + kClientTable, 2, seed);
    EXPECT_EQ(both.outcome.end, RunEnd::kInterrupted)
        << seed << (both.outcome.status.ok() ? "" : both.outcome.status.error().text());
    EXPECT_THAT(both.client.faults, IsEmpty());
    ASSERT_THAT(both.client.passes, SizeIs(kClientUpdates * 2));
    ASSERT_THAT(both.client.updates, SizeIs(kClientUpdates));
    EXPECT_EQ(both.client.updates.back().version, PolicyVersion(kClientUpdates));
    EXPECT_THAT(both.folders, ::testing::ElementsAre("first", "weights/a"));

    const Ran client = run(kClientTable, 1, seed), loop = run(kLoop, 1, seed);
    EXPECT_EQ(both.client.passes, client.client.passes);
    for (size_t i = 0; i < both.client.updates.size(); ++i)
      EXPECT_EQ(both.client.updates[i].grad_norm, client.client.updates[i].grad_norm) << i;
    EXPECT_EQ(both.metrics.at("zoe").size(), kClientUpdates);
    EXPECT_EQ(both.metrics.at("ada"), loop.metrics.at("ada")) << seed;
  }
}

TEST(AClientBesideALoop, IsWaitedForAndTheRunIsNotStalled) {
  const Ran alone = run(kClientTable, 1, 1);
  EXPECT_EQ(alone.outcome.end, RunEnd::kInterrupted) << "only the drain ends it";
}

}  // namespace
}  // namespace primerl::sim
