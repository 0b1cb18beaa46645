// The cost of the whole graph around an engine on a CUDA device: Rollout, Router, Prefill and
// Decode.
//
//   cuda_graph_bench 0.6b|8b FOLDER [DEVICE]
//
// FOLDER: the model is written there; DEVICE: cuda:0, or another.
//
// The graph of examples/reverse_text with its actors and edges, a scripted learner and an
// environment that answers at once: 1,024 rollouts in groups of 8, 64 of them in flight, from 128
// tokens of prompt to 256. Then the same requests, in the order of the graph, go directly to the
// engine: the same number in flight, a group as soon as it has space. A rate counts all new tokens
// from the first request to the last end. Bound: 1, the engine's own rate; target 0.9. Also prints
// the time of a step and the time between steps, medians.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "actors/env/env.h"
#include "bench/device/random_model.h"
#include "kernels/devices/make.h"
#include "kernels/engine/engine_wrapper.h"
#include "kernels/engine/observed_engine.h"
#include "kernels/weights/safetensors.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/caf_executor.h"
#include "tests/sim/no_host.h"

namespace primerl::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int32_t kRollouts = 1024, kGroup = 8, kInFlight = 64;
constexpr int32_t kPromptTokens = 128, kNewTokens = 128;
constexpr int kRounds = 3;

/// Metrics of the engine, seen from outside.
struct Watched {
  std::vector<SequenceRequest> requests;
  std::vector<double> steps, between;  // seconds, of steps with all sequences in flight
  int64_t num_tokens = 0;
  int32_t num_ended = 0;
  Clock::time_point begin, end;

  double rate() const {
    return static_cast<double>(num_tokens) / std::chrono::duration<double>(end - begin).count();
  }
};

double median_us(std::vector<double> seconds) {
  if (seconds.empty()) return 0;
  std::ranges::sort(seconds);
  return 1e6 * seconds[seconds.size() / 2];
}

/// Ignores what the scripted learner publishes and applies the tensors of its folder; records step
/// times.
class WatchedEngine final : public EngineWrapper {
 public:
  WatchedEngine(std::unique_ptr<Engine> engine, std::vector<WeightTensor> tensors, Watched& watched)
      : EngineWrapper(std::move(engine)), tensors_(std::move(tensors)), watched_(watched) {}

  Status submit(SequenceRequest request) override {
    if (watched_.requests.empty()) watched_.begin = Clock::now();
    watched_.requests.push_back(request);
    return EngineWrapper::submit(std::move(request));
  }
  Status step() override {
    const auto begin = Clock::now();
    const bool is_full = EngineWrapper::state().num_running == kInFlight;
    if (is_full && was_full_) watched_.between.push_back(seconds(last_, begin));
    Status stepped = EngineWrapper::step();
    last_ = Clock::now();
    if (is_full) watched_.steps.push_back(seconds(begin, last_));
    was_full_ = is_full;
    return stepped;
  }
  std::vector<FinishEvent> take_finished() override {
    auto ends = EngineWrapper::take_finished();
    for (const FinishEvent& end : ends) {
      CHECK(is_complete(end.reason), end.detail);
      watched_.num_tokens += std::ssize(end.tokens);
      ++watched_.num_ended;
      watched_.end = Clock::now();
    }
    return ends;
  }
  bool prepare(const std::shared_ptr<const WeightSnapshot>&) override { return true; }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    return EngineWrapper::apply({snapshot.key, snapshot.version, tensors_});
  }
  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    return Engine::apply_prepared(snapshot);
  }
  WeightManifest manifest() const override { return {}; }

 private:
  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  const std::vector<WeightTensor> tensors_;
  Watched& watched_;
  Clock::time_point last_;
  bool was_full_ = false;
};

std::unique_ptr<Engine> watched_engine(const fs::path& folder, const std::string& device,
                                       Watched& watched) {
  EngineOptions options;
  options.device = device;
  options.numerics = "fast";
  options.max_running = kInFlight;
  options.max_batched_tokens = 16384;
  options.kv_blocks = 20 * kInFlight;
  options.max_sequence_tokens = kPromptTokens + kNewTokens;
  auto engine = make_torch_engine(options, folder);
  CHECK(engine.ok(), engine.error().text());
  return std::make_unique<ObservedEngine>(std::make_unique<WatchedEngine>(
      std::move(engine).value(), read_model_tensors(folder).value(), watched));
}

/// Tasks of 128 characters, one token each; every answer ends its rollout.
class Trivial final : public Environment {
 public:
  Result<EnvironmentTask> task(uint64_t ordinal, RandomStream random) override {
    static_cast<void>(ordinal);
    std::string prompt;
    for (int32_t i = 0; i < kPromptTokens; ++i) {
      // U+0400 to U+07FF: two bytes.
      const auto code = static_cast<uint32_t>(0x400 + random.below(0x400));
      prompt.push_back(static_cast<char>(0xC0U | (code >> 6U)));
      prompt.push_back(static_cast<char>(0x80U | (code & 0x3FU)));
    }
    return EnvironmentTask{prompt, ""};
  }
  Result<EnvironmentStep> step(const EnvironmentTask&,
                               const std::vector<std::string>& actions) override {
    const auto reward = static_cast<double>(stable_hash(actions.back()) % 1000) / 1000;
    return EnvironmentStep{"", reward, true};
  }
};

/// Every actor, but with Env around `Trivial`.
Catalog catalog_of_bench() {
  Catalog catalog = full_catalog();
  for (Contract& contract : catalog.actors)
    if (contract.name == "env")
      contract.make = [](const void* options) -> std::unique_ptr<Actor> {
        return std::make_unique<Env>(*static_cast<const EnvOptions*>(options),
                                     std::make_unique<Trivial>());
      };
  return catalog;
}

/// `catalog` must stay valid while the plan exists, which points into it.
std::shared_ptr<const Plan> plan_of(const fs::path& folder, int32_t vocab_size,
                                    const Catalog& catalog) {
  Overrides overrides;
  overrides.cores = 8;
  overrides.sets = {fmt::format("model.policy.path=\"{}\"", fs::absolute(folder).string()),
                    "resource.engine.backend=\"scripted\"",  // replaced by our engine
                    "resource.learner.backend=\"scripted\"",
                    fmt::format("resource.learner.vocab_size={}", vocab_size),
                    fmt::format("resource.engine.max_running={}", kInFlight),
                    "resource.engine.kv_blocks=65536",
                    fmt::format("tenant.main.group_size={}", kGroup),
                    fmt::format("tenant.main.batch_size={}", kRollouts),
                    "tenant.main.max_steps=1",
                    "tenant.main.max_off_policy_steps=0",
                    "tenant.main.checkpoint_every=0",
                    fmt::format("tenant.main.sampling.max_tokens={}", kNewTokens),
                    "tenant.main.sampling.ignore_eos=true",
                    fmt::format("node.rollout.max_inflight={}", kInFlight),
                    "node.env.replicas=3"};
  const auto checked = load_graph(
      std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/graph.toml", overrides, catalog);
  CHECK(checked.plan != nullptr, render(checked.diagnostics, checked.sources));
  return std::make_shared<Plan>(*checked.plan);
}

Watched through_graph(const fs::path& folder, const std::string& device, int32_t vocab_size) {
  Watched watched;
  sim::NoHost host;
  const Catalog catalog = catalog_of_bench();
  CafExecutorSetup setup;
  setup.plan = plan_of(folder, vocab_size, catalog);
  setup.process_services = &host;
  setup.factory = [&, others = resource_factory()](
                      const Plan& plan, int32_t index) -> Result<std::shared_ptr<Resource>> {
    if (plan.resources[static_cast<size_t>(index)].kind != Engine::kResourceKind)
      return others(plan, index);
    return std::shared_ptr<Resource>(watched_engine(folder, device, watched));
  };
  CafExecutor executor(std::move(setup));
  const Status started = executor.start();
  CHECK(started.ok(), started.error().text());
  const RunOutcome outcome = executor.wait();
  CHECK(outcome.status.ok(), outcome.status.error().text());
  CHECK(watched.num_ended == kRollouts, "not all rollouts ended");
  return watched;
}

Watched alone(const fs::path& folder, const std::string& device,
              const std::vector<SequenceRequest>& requests) {
  Watched watched;
  const auto engine = watched_engine(folder, device, watched);
  CHECK(engine->apply({{}, PolicyVersion(0), {}}).ok(), "no weights");
  size_t next = 0;
  while (watched.num_ended < std::ssize(requests)) {
    while (next < requests.size() &&
           static_cast<int32_t>(next) - watched.num_ended + kGroup <= kInFlight)
      for (int32_t i = 0; i < kGroup; ++i) CHECK(engine->submit(requests[next++]).ok(), "refused");
    CHECK(engine->step().ok(), "a step failed");
    for (const auto& event : engine->take_prefilled())
      CHECK(engine->take_over(event.id).ok(), "nothing to take over");
    static_cast<void>(engine->take_finished());
  }
  return watched;
}

void report(const char* what, const Watched& watched) {
  fmt::print("{:<14} {:>8.0f} tok/s, {} tokens; a step of 64 {:.0f} us, between two {:.0f} us\n",
             what, watched.rate(), watched.num_tokens, median_us(watched.steps),
             median_us(watched.between));
  std::fflush(stdout);
}

int run(const std::string& name, const fs::path& folder, const std::string& device) {
  const int32_t vocab_size = write_random_model(name, folder).vocab_size;
  std::vector<double> shares;
  for (int round = 0; round < kRounds; ++round) {
    const Watched graph = through_graph(folder, device, vocab_size);
    report("whole graph", graph);
    const Watched engine = alone(folder, device, graph.requests);
    report("engine alone", engine);
    shares.push_back(graph.rate() / engine.rate());
  }
  std::ranges::sort(shares);
  fmt::print("of the engine's own rate {:.3f} [{:.3f}, {:.3f}]\n", shares[shares.size() / 2],
             shares.front(), shares.back());
  return 0;
}

}  // namespace
}  // namespace primerl::bench

int main(int argc, char** argv) {
  const std::string shape = argc == 3 || argc == 4 ? argv[1] : "";
  if (shape != "0.6b" && shape != "8b") {
    fmt::print(stderr, "usage: cuda_graph_bench 0.6b|8b FOLDER [DEVICE]\n");
    return 2;
  }
  return primerl::bench::run(shape, argv[2], argc == 4 ? argv[3] : "cuda:0");
}
