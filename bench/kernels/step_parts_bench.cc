// The time of a learner's step on the CPU by part, and the gap between that and the time that the
// operations of the part need:
//
//   step_parts_bench [1m|5m] [dtype|bf16] [threads] [steps]
//
// The batch is the demo's: 64 samples of 11 prompt and 9 answer tokens in groups of 8, so 600 rows.
// Bound: the multiply-adds of GEMMs and attention at the speed of a GEMM of 1,024 x 1,024 x 1,024,
// measured first, by linear_bf16 for GEMMs that are bf16 and by linear_rows otherwise. Other parts
// have no multiply-adds that count: all of their time is gap. The times of all threads are added;
// "outside of the operations" is what is left of wall time times threads: copies between them,
// packing of the batch, and threads that wait. Each operation is timed by two reads of a clock, 50
// ns. Leave the machine idle meanwhile.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "bench/kernels/shapes.h"
#include "kernels/ops/ops.h"

namespace primerl::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kVocab = 97, kGroup = 8, kSamples = 64, kPromptTokens = 11, kTokens = 20;

enum Part : size_t {
  kForward,
  kInputGradient,
  kWeightGradient,
  kHead,
  kAttention,
  kAttentionBackward,
  kRows,
  kSwiglu,
  kSoftmax,
  kOptimizer,
  kOther,
  kParts,
};
constexpr std::array<const char*, kParts> kNames = {
    "GEMMs of layers, forward",
    "GEMMs of layers, gradients of rows",
    "GEMMs of layers, gradients of matrices",
    "GEMMs of the head, all three",
    "attention, forward",
    "attention, backward",
    "norms and rotary embedding, both ways",
    "SwiGLU, both ways",
    "softmax and loss, both ways",
    "optimizer and gradient norm",
    "other operations",
};

struct Spent {
  std::atomic<int64_t> nanoseconds = 0;
  std::atomic<double> flops = 0;       // of fp32
  std::atomic<double> flops_bf16 = 0;  // of linear_bf16
};
std::array<Spent, kParts> g_spent;
const CpuOps* g_ops = nullptr;  // the real operations

void add(Part part, Clock::time_point begin, double flops = 0, double flops_bf16 = 0) {
  Spent& spent = g_spent[part];
  spent.nanoseconds += (Clock::now() - begin).count();
  spent.flops += flops;
  spent.flops_bf16 += flops_bf16;
}

/// An operation of the table that adds its time to a part.
template <Part kPart, auto kMember>
struct Timed;
template <Part kPart, class Result, class... Args, Result (*CpuOps::*kMember)(Args...)>
struct Timed<kPart, kMember> {
  static Result call(Args... args) {
    struct Timer {
      Clock::time_point begin = Clock::now();
      ~Timer() { add(kPart, begin); }
    } timer;
    return (g_ops->*kMember)(args...);
  }
};

Part part_of(const LinearRowsArgs& args) {
  const bool is_weight_gradient = args.x_term_stride != 1;
  const int64_t of_weights = is_weight_gradient ? args.rows : args.terms;
  if (args.columns == kVocab || of_weights == kVocab) return kHead;
  if (is_weight_gradient) return kWeightGradient;
  return args.weights.column_stride == 1 ? kInputGradient : kForward;
}

double flops_of(const LinearRowsArgs& args) {
  const int64_t columns =
      std::min(args.columns, args.panel_end * kLinearPanel) - args.panel_begin * kLinearPanel;
  return 2.0 * static_cast<double>(args.rows) * static_cast<double>(columns) *
         static_cast<double>(args.terms);
}

void linear_rows(const LinearRowsArgs& args) {
  const auto begin = Clock::now();
  g_ops->linear_rows(args);
  add(part_of(args), begin, flops_of(args));
}
void linear_bf16(const LinearRowsArgs& args) {
  const auto begin = Clock::now();
  g_ops->linear_bf16(args);
  add(part_of(args), begin, 0, flops_of(args));
}

/// Two GEMMs of queries with their keys; backward has five.
double flops_of(const AttentionArgs& args, double gemms) {
  double keys = 0;
  for (int64_t i = 0; i < args.num_spans; ++i) {
    const AttentionSpan& span = args.spans[i];
    keys += span.num_queries * (span.num_cached + (span.num_queries + 1) / 2.0);
  }
  return 2 * gemms * keys * (args.head_end - args.head_begin) * args.heads.head_dim;
}
void attention(const AttentionArgs& args) {
  const auto begin = Clock::now();
  g_ops->attention(args);
  add(kAttention, begin, flops_of(args, 2));
}
void attention_backward(const AttentionBackwardArgs& args) {
  const auto begin = Clock::now();
  g_ops->attention_backward(args);
  add(kAttentionBackward, begin, flops_of(args.forward, 5));
}

CpuOps timed_ops() {
  CpuOps ops = *g_ops;
  ops.linear_rows = linear_rows;
  ops.linear_bf16 = linear_bf16;
  ops.attention = attention;
  ops.attention_backward = attention_backward;
  ops.rms_norm = Timed<kRows, &CpuOps::rms_norm>::call;
  ops.rms_norm_backward = Timed<kRows, &CpuOps::rms_norm_backward>::call;
  ops.rotary = Timed<kRows, &CpuOps::rotary>::call;
  ops.rotary_backward = Timed<kRows, &CpuOps::rotary_backward>::call;
  ops.swiglu = Timed<kSwiglu, &CpuOps::swiglu>::call;
  ops.swiglu_backward = Timed<kSwiglu, &CpuOps::swiglu_backward>::call;
  ops.softmax = Timed<kSoftmax, &CpuOps::softmax>::call;
  ops.softmax_backward = Timed<kSoftmax, &CpuOps::softmax_backward>::call;
  ops.adamw = Timed<kOptimizer, &CpuOps::adamw>::call;
  ops.sum_of_squares = Timed<kOptimizer, &CpuOps::sum_of_squares>::call;
  ops.column_sums = Timed<kOther, &CpuOps::column_sums>::call;
  ops.gather_rows = Timed<kOther, &CpuOps::gather_rows>::call;
  ops.combine_rows = Timed<kOther, &CpuOps::combine_rows>::call;
  return ops;
}

TrainBatch make_batch() {
  TrainBatch batch;
  batch.tenant = TenantSlot(0);
  for (int i = 0; i < kSamples; ++i) {
    TrainSample sample;
    for (int t = 0; t < kTokens; ++t) {
      const bool is_sampled = t >= kPromptTokens;
      const int word = is_sampled ? i * 13 : i / kGroup * (t + 31);
      sample.tokens.push_back(2 + (word + t * 7) % (kVocab - 2));
      sample.loss_mask.push_back(is_sampled ? 1 : 0);
      sample.logprobs.push_back(is_sampled ? -4.0F : 0.0F);
      sample.advantages.push_back(is_sampled ? static_cast<float>(i % 8) / 8 - 0.4F : 0.0F);
    }
    batch.samples.push_back(std::move(sample));
  }
  return batch;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Operations per second of one thread in a large GEMM.
double speed_of(void (*linear)(const LinearRowsArgs&), bool is_bf16) {
  constexpr int64_t kSide = 1024;
  const std::vector<float> x(kSide * kSide, 1), weight(kSide * kSide, 1);
  std::vector<float> y(kSide * kSide);
  LinearRowsArgs args;
  args.rows = args.columns = args.terms = kSide;
  args.panel_end = linear_panels_of(kSide);
  args.x = x.data();
  args.x_stride = args.y_stride = kSide;
  args.weights = {weight.data(), kSide, 1};
  args.is_bf16 = is_bf16;
  args.y = y.data();
  std::vector<double> times;
  for (int i = 0; i < 8; ++i) {
    const auto begin = Clock::now();
    linear(args);
    times.push_back(seconds_since(begin));
  }
  return flops_of(args) / median(times);
}

struct Total {
  double time = 0, flops = 0, bound = 0;
};

void print_row(const char* name, const Total& row, double all) {
  std::printf("%-42s %8.3f %6.1f %9.3f %9.3f %8.3f\n", name, 1e3 * row.time, 100 * row.time / all,
              1e-9 * row.flops, 1e3 * row.bound, 1e3 * (row.time - row.bound));
}

/// Times are those of all threads together, per step.
void print_table(double wall, int threads, int steps, double speed, double speed_bf16) {
  const double all = wall * threads;
  std::printf("%-42s %8s %6s %9s %9s %8s\n", "part", "ms", "%", "GFLOP", "bound ms", "gap ms");
  Total sum;
  for (size_t part = 0; part < kParts; ++part) {
    const double flops = g_spent[part].flops / steps, bf16 = g_spent[part].flops_bf16 / steps;
    const Total row{1e-9 * static_cast<double>(g_spent[part].nanoseconds) / steps, flops + bf16,
                    flops / speed + bf16 / speed_bf16};
    print_row(kNames[part], row, all);
    sum = {sum.time + row.time, sum.flops + row.flops, sum.bound + row.bound};
  }
  print_row("outside of the operations", {all - sum.time, 0, 0}, all);
  print_row("the step", {all, sum.flops, sum.bound}, all);
}

int run(const std::string& name, const std::string& products, int threads, int steps) {
  Shape shape = name == "5m" ? kFiveMillion : kOneMillion;
  shape.vocab_size = kVocab;
  g_ops = &cpu_ops();
  const double speed = speed_of(g_ops->linear_rows, false);
  const double speed_bf16 = speed_of(g_ops->linear_bf16, true);
  const CpuOps ops = timed_ops();
  replace_cpu_ops(ops);
  LearnerOptions options;
  options.products = products;
  options.threads = threads;
  {
    auto learner = make_learner(make_config(shape, "-parts"), options);
    const TrainBatch batch = make_batch();
    std::vector<double> times;
    for (int i = -2; i < steps; ++i) {  // the first two allocate
      if (i == 0)
        for (Spent& spent : g_spent) {
          spent.nanoseconds = 0;
          spent.flops = spent.flops_bf16 = 0;
        }
      const auto begin = Clock::now();
      const auto report = learner->step(batch, [] { return false; });
      CHECK(report.ok() && !report->skipped, "the step failed");
      if (i >= 0) times.push_back(seconds_since(begin));
    }
    double wall = 0;
    for (const double time : times) wall += time / steps;
    std::printf(
        "%s, products = \"%s\", %d threads, operations of %s: %.2f ms a step, median %.2f\n",
        shape.name, products.c_str(), threads, g_ops->name, 1e3 * wall, 1e3 * median(times));
    std::printf(
        "bound: a GEMM of 1,024^3 has %.0f GFLOP/s in fp32 and %.0f in bf16 on a thread\n\n",
        1e-9 * speed, 1e-9 * speed_bf16);
    print_table(wall, threads, steps, speed, speed_bf16);
  }
  replace_cpu_ops(*g_ops);
  return 0;
}

}  // namespace
}  // namespace primerl::bench

int main(int argc, char** argv) {
  const std::string shape = argc > 1 ? argv[1] : "1m", products = argc > 2 ? argv[2] : "dtype";
  const int threads = argc > 3 ? std::atoi(argv[3]) : 1, steps = argc > 4 ? std::atoi(argv[4]) : 50;
  if ((shape != "1m" && shape != "5m") || (products != "dtype" && products != "bf16") ||
      threads < 1 || threads > 256 || steps < 1) {
    std::fprintf(stderr, "step_parts_bench [1m|5m] [dtype|bf16] [threads] [steps]\n");
    return 2;
  }
  return primerl::bench::run(shape, products, threads, steps);
}
