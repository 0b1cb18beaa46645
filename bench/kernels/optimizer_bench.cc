// Bound: AdamW reads gradient, weight and two moments and writes three of them, 28 bytes per
// weight: 29 MB at 1.0 M weights (1m), 3 ms at 10 GB/s; 3.8 GB at the 135m shape, 0.4 s. Peer:
// itself; each other optimizer is a ratio to it, from alternating pairs in one process. sgd 20
// bytes, sign_sgd 12 and adafactor 44 (three passes over gradients, two over weights): 0.7, 0.4
// and 1.6.
//
// muon: 5 iterations of 3 s^2 l + s^3 flops for each matrix with sides s <= l. 1m, 5 layers of q
// and out [128, 128], k and v [64, 128], and three [384, 128]: 2.1 GFLOP, 23 ms on one core of 90
// GFLOP/s, 8 times AdamW and half a step of 64 samples (learner_bench.cc). 135m, 30 layers of
// 576 and 1536: 1.02 TFLOP, 11 s, 28 times AdamW; forward and backward of 4,096 tokens are 3.3
// TFLOP, so a step takes a third longer.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <string>
#include <vector>

#include "bench/kernels/shapes.h"
#include "kernels/common/boundary.h"
#include "kernels/common/memory.h"
#include "kernels/cpu/learner/trained_tensors.h"
#include "kernels/models/config.h"

namespace primerl::bench {
namespace {

constexpr Shape kSmollm2 = {"135m", 576, 30, 1536, 9, 3, 64, 49152};

/// User and system time of the process, all threads.
double process_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double middle_of(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

class Trained {
 public:
  Trained(const TensorTable& table, const OptimizerOptions& options)
      : weights_(zero_floats(table.count())), tensors_(table, weights_, options) {
    float* const weights = weights_.mutable_data_ptr<float>();
    for (int64_t i = 0; i < table.count(); ++i) {
      const auto at = static_cast<float>(i % 1000);
      weights[i] = 0.02F * std::sin(at);
      tensors_.gradients()[i] = 1e-3F * std::cos(3 * at);
    }
  }
  /// Its CPU time.
  double step() {
    TrainReport report;
    report.learning_rate = 1e-4;
    const double began = process_seconds();
    const Status done = at_boundary("a step", [&] { return tensors_.update(report); });
    CHECK(done.ok() && !report.skipped, "the step failed");
    return process_seconds() - began;
  }

 private:
  at::Tensor weights_;
  TrainedTensors tensors_;
};

/// Ratio of the CPU time of a step to that of AdamW.
void optimizer_step(benchmark::State& state, const Shape& shape, const char* kind,
                    const char* moments) {
  const TensorTable table(read_model_config(make_config(shape)).value());
  OptimizerOptions options;
  options.kind = kind;
  options.moments_dtype = moments;
  Trained adamw(table, {}), other(table, options);
  adamw.step();  // the first step allocates the pages of the moments
  other.step();
  std::vector<double> ratio, of_adamw, of_other;
  for (auto _ : state) {
    of_adamw.push_back(adamw.step());
    of_other.push_back(other.step());
    ratio.push_back(of_other.back() / of_adamw.back());
  }
  state.counters["adamw_ms"] = 1e3 * middle_of(of_adamw);
  state.counters["ms"] = 1e3 * middle_of(of_other);
  state.counters["ratio"] = middle_of(ratio);
}

void register_all(const Shape& shape) {
  constexpr const char* kCases[][2] = {{"adamw", "bfloat16"},
                                       {"sgd", "float32"},
                                       {"sign_sgd", "float32"},
                                       {"adafactor", "float32"},
                                       {"muon", "float32"}};
  for (const auto& [kind, moments] : kCases)
    benchmark::RegisterBenchmark(
        (std::string("optimizer_step/") + shape.name + "_" + kind + "_" + moments).c_str(),
        [shape, kind, moments](benchmark::State& state) {
          optimizer_step(state, shape, kind, moments);
        })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
}

const bool kRegistered = [] {
  register_all(kOneMillion);
  register_all(kSmollm2);
  return true;
}();

}  // namespace
}  // namespace primerl::bench
