// Bound: strictly on-policy (limit 0), a step takes the generation of its longest answer plus the
// learner's time. With a deep enough pipeline it takes max(learner, load of a batch / rate of the
// engine). So the gain is at most (tail + learner) / max(learner, load / rate), for any limit, and
// a limit of k steps hides a tail of about k steps. Here the learner takes longer than the load of
// a batch: `bound` is a step at limit 0 divided by the learner's time for a batch of average
// length.
//
// Engine and learner are scripted and the clock is virtual, so the figures are exact on any
// machine. The gate, its pace and all messages are those of a run. `bench/demo/asynchrony.py`
// measures a real engine and learner.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "graph/base/json.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

constexpr int64_t kSteps = 120;
constexpr int64_t kSettled = 60;  // steps until the pace is stable
constexpr uint64_t kSeeds = 3;
constexpr int64_t kLimits[] = {0, 1, 2, 4, 8};
constexpr int64_t kTailPercents[] = {0, 2, 10};
constexpr int64_t kTailFactor = 10;
constexpr Duration kTrainStep = Duration::milliseconds(1);  // of the learner, for any batch

/// The costs of the parts of a run, in the proportions of a real one.
struct Proportions {
  const char* name;
  int64_t batch_size;
  int64_t new_tokens_min, new_tokens_max, max_running;
  Duration decode_step, decode_token, apply;  // engine
  Duration train_token, snapshot;             // learner
};

/// The demo on two cores, one for the engine and one for the learner: 64 answers of 8 tokens on
/// average take 36 ms to generate and their training step 62 ms (docs/bench/README.md, 0.098 s at
/// limit 0 and 0.062 s at 2).
const Proportions kDemo = {.name = "demo",
                           .batch_size = 64,
                           .new_tokens_min = 4,
                           .new_tokens_max = 12,
                           .max_running = 512,
                           .decode_step = Duration::microseconds(500),
                           .decode_token = Duration::microseconds(60),
                           .apply = Duration::milliseconds(2),
                           .train_token = Duration::microseconds(85),
                           .snapshot = Duration::milliseconds(1)};
/// 8 G parameters in bf16, one accelerator of 3.35 TB/s and 400 TFLOP/s for the engine and one for
/// the learner; calculated. A decode step reads 16 GB of weights and, for each sequence of 1,000
/// tokens, 147 MB of keys and values, which leaves memory for 320 sequences. Training takes 6 flops
/// per parameter and token. A token here stands for 60 tokens of such a run; all costs are per
/// token here.
const Proportions kLongAnswers = {.name = "long_answers",
                                  .batch_size = 256,
                                  .new_tokens_min = 8,
                                  .new_tokens_max = 24,
                                  .max_running = 320,
                                  .decode_step = Duration::microseconds(4800),
                                  .decode_token = Duration::microseconds(44),
                                  .apply = Duration::milliseconds(10),
                                  .train_token = Duration::microseconds(120),
                                  .snapshot = Duration::milliseconds(5)};

std::vector<std::string> sets_of(const Proportions& of, int64_t tail_percent) {
  const int64_t max_tokens = of.new_tokens_max * kTailFactor;
  const auto us = [](Duration duration) {
    return fmt::format("\"{}us\"", duration.to_nanoseconds() / 1000);
  };
  return {fmt::format("resource.engine.tail_fraction={}", static_cast<double>(tail_percent) / 100),
          fmt::format("resource.engine.tail_factor={}", kTailFactor),
          fmt::format("resource.engine.new_tokens_min={}", of.new_tokens_min),
          fmt::format("resource.engine.new_tokens_max={}", of.new_tokens_max),
          fmt::format("resource.engine.max_running={}", of.max_running),
          "resource.engine.step_cost=" + us(of.decode_step),
          "resource.engine.decode_token_cost=" + us(of.decode_token),
          "resource.engine.prefill_token_cost=\"1us\"",
          "resource.engine.apply_cost=" + us(of.apply),
          "resource.engine.max_waiting=4096",
          "resource.engine.kv_blocks=65536",
          "resource.learner.step_cost=" + us(kTrainStep),
          "resource.learner.token_cost=" + us(of.train_token),
          "resource.learner.snapshot_cost=" + us(of.snapshot),
          fmt::format("tenant.main.sampling.max_tokens={}", max_tokens),
          fmt::format("node.rollout.max_inflight={}", 9 * of.batch_size)};
}

struct Flow {
  double step_s = 0;      // virtual, from step to step
  double staleness = 0;   // mean of the trained groups
  double lost_share = 0;  // share of the ended rollouts
};

Flow flow_of(const Proportions& of, int64_t tail_percent, int64_t limit, uint64_t seed) {
  DemoCase demo{.seed = seed, .max_off_policy_steps = limit};
  demo.group_size = 8;
  demo.batch_size = of.batch_size;
  demo.max_steps = kSteps;
  demo.sets = sets_of(of, tail_percent);
  int64_t step = 0;  // number in the newest line
  int64_t num_trained = 0, num_lost = 0, num_steps_late = 0;
  std::map<int64_t, Time> trained_at;
  DemoHooks hooks;
  hooks.on_line = [&](std::string_view text) {
    const Json line = *parse_json(text, "rollouts.jsonl");
    const int64_t trained_in = line.find("step")->as_int();
    step = std::max(step, trained_in);
    if (step <= kSettled) return;
    num_trained += trained_in > 0;
    if (trained_in > 0) num_steps_late += line.find("staleness")->as_int();
    num_lost += line.find("end")->as_string() == "stale";
  };
  hooks.after_event = [&](VirtualExecutor& executor) -> Status {
    trained_at.try_emplace(step, executor.now());
    return ok();
  };
  const DemoResult result = run_demo(demo, hooks);
  CHECK(result.violations.empty(), fmt::format("{}", fmt::join(result.violations, "\n")));
  Flow flow;
  flow.step_s = (trained_at.at(kSteps) - trained_at.at(kSettled)).to_seconds() /
                static_cast<double>(kSteps - kSettled);
  flow.staleness = static_cast<double>(num_steps_late) / static_cast<double>(num_trained);
  flow.lost_share = static_cast<double>(num_lost) / static_cast<double>(num_trained + num_lost);
  return flow;
}

/// The learner's time for a batch of average length.
double learner_s(const Proportions& of, int64_t tail_percent) {
  constexpr double kPromptTokens = 3;
  const double answer_tokens = static_cast<double>(of.new_tokens_min + of.new_tokens_max) / 2 *
                               (1 + (kTailFactor - 1) * static_cast<double>(tail_percent) / 100);
  return kTrainStep.to_seconds() + of.snapshot.to_seconds() +
         of.train_token.to_seconds() * static_cast<double>(of.batch_size) *
             (kPromptTokens + answer_tokens);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Time is virtual, per step. `ratio` is the speedup over limit 0 with the same seed. If
/// `lost_percent` is above 0, the limit was too small for some stragglers: their groups were
/// dropped as stale. Then the trained answers are shorter on average, which is part of the ratio.
void steps(benchmark::State& state, const Proportions& of) {
  const int64_t tail_percent = state.range(0), limit = state.range(1);
  static std::map<std::tuple<std::string, int64_t, uint64_t>, Flow> on_policy;
  std::vector<double> on_policy_s, ratios, staleness, lost;
  uint64_t seed = 0;
  for (auto _ : state) {
    ++seed;
    const auto [base, is_new] = on_policy.try_emplace({of.name, tail_percent, seed});
    if (is_new) base->second = flow_of(of, tail_percent, 0, seed);
    const Flow flow = limit == 0 ? base->second : flow_of(of, tail_percent, limit, seed);
    state.SetIterationTime(flow.step_s);
    on_policy_s.push_back(base->second.step_s);
    ratios.push_back(base->second.step_s / flow.step_s);
    staleness.push_back(flow.staleness);
    lost.push_back(flow.lost_share);
  }
  state.counters["bound"] = median(on_policy_s) / learner_s(of, tail_percent);
  state.counters["ratio"] = median(ratios);
  state.counters["ratio_least"] = *std::ranges::min_element(ratios);
  state.counters["ratio_most"] = *std::ranges::max_element(ratios);
  state.counters["staleness"] = median(staleness);
  state.counters["lost_percent"] = 100 * median(lost);
}

void arguments(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"tail_percent", "limit"});
  for (const int64_t tail_percent : kTailPercents)
    for (const int64_t limit : kLimits) bench->Args({tail_percent, limit});
  bench->UseManualTime()->Iterations(kSeeds)->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(steps, demo, kDemo)->Apply(arguments);
BENCHMARK_CAPTURE(steps, long_answers, kLongAnswers)->Apply(arguments);

}  // namespace
}  // namespace primerl::sim

BENCHMARK_MAIN();
