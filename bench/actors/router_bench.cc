// Bound: a request is looked up in tables of 10,000 and copied twice, 8 KiB of 2,048 tokens each:
// about 1 us of memory at 10 GB/s and a dozen cache misses of 0.1 us. cache_aware hashes 64 blocks
// of 32 tokens, three runs of SHA-256 each, about 0.2 us. It looks up each block for the engines
// that have all earlier blocks, and updates its entry of the chosen engine: 13 us and up to 200
// misses. Aim: 99 of 100 decisions within 50 us, at 10,000 sessions on 8 engines. They have twice
// as many blocks as the table keeps, so cache_aware evicts entries with every prompt.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "actors/router/router.h"
#include "graph/testing/node_runner.h"

namespace primerl::bench {
namespace {

constexpr uint32_t kEngines = 8;
constexpr uint64_t kSessions = 10'000;
constexpr int32_t kPromptTokens = 2048;
constexpr int32_t kSharedTokens = 512;  // of all prompts: a system prompt

InstanceId engine(uint32_t index) { return InstanceId(10 + index); }

GenerateRequest request_of(uint64_t request, uint64_t session) {
  GenerateRequest made;
  made.request = request;
  made.session = session;
  made.salt = "main:0";
  // Each session has one open turn.
  if (request >= kSessions) made.answered = {request - kSessions};
  for (int32_t i = 0; i < kPromptTokens; ++i)
    made.prompt_tokens.push_back(i < kSharedTokens ? i : static_cast<int32_t>(session) * 7 + i);
  return made;
}

/// The cost of one request from input port to output port, including the copies of the test runner.
void decide(benchmark::State& state, const std::string& policy) {
  NodeRunner<Router> router({.policy = policy});
  std::vector<InstanceId> engines;
  for (uint32_t i = 0; i < kEngines; ++i) engines.push_back(engine(i));
  router.set_targets("prefill", engines);
  std::vector<uint64_t> num_sent(kEngines);
  const auto tell_loads = [&] {
    for (uint32_t i = 0; i < kEngines; ++i) {
      EngineLoad load;
      load.engine = engine(i);
      load.num_received = num_sent[i];
      load.num_finished = num_sent[i] - std::min<uint64_t>(num_sent[i], kSessions / kEngines);
      load.num_room = 1 << 20;
      CHECK(load.applied.set({TenantSlot(0)}, PolicyVersion(0)), "too many keys");
      CHECK(router.give("load", load).ok(), "refused");
    }
  };
  tell_loads();
  uint64_t request = 0;
  std::vector<double> microseconds;
  const auto ask = [&] {
    auto asked = request_of(request, request % kSessions);
    ++request;
    const auto before = std::chrono::steady_clock::now();
    CHECK(router.give("generate", std::move(asked)).ok(), "refused");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
    ++num_sent[router.targets_of("prefill").at(0).value - engine(0).value];
    router.forget_sent();
    if (request % 64 == 0) tell_loads();
    return took.count();
  };
  while (request < kSessions) ask();
  for (auto _ : state) {
    const double seconds = ask();
    state.SetIterationTime(seconds);
    microseconds.push_back(seconds * 1e6);
  }
  std::ranges::sort(microseconds);
  state.counters["p50_us"] = microseconds[microseconds.size() / 2];
  state.counters["p99_us"] = microseconds[microseconds.size() * 99 / 100];
}

void register_all() {
  for (const auto& policy : route_policies())
    benchmark::RegisterBenchmark(
        ("decide/" + policy.name).c_str(),
        [name = policy.name](benchmark::State& state) { decide(state, name); })
        ->UseManualTime()
        ->Iterations(20'000)
        ->Unit(benchmark::kMicrosecond);
}

const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace primerl::bench
