// The three GEMMs of a linear layer, invariant and the vendor's, one thread each, same run: y = x
// w' with a learner's master weights (forward), dx = dy w (input) and dw += dy' x (weight).
//
// Bound: two flops per multiply-add at two vectors of 8 per cycle with AVX2. Aim: no slower than
// the vendor's at the shapes of the demo, and 0.8 of it at any other from 64 rows on.
#include "kernels/cpu/weights/product.h"

#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <benchmark/benchmark.h>

namespace primerl::bench {
namespace {

enum class Kind { kForward, kInput, kWeight };

void product(benchmark::State& state, Kind kind, Numerics numerics) {
  at::set_num_threads(1);
  const int64_t rows = state.range(0), columns = state.range(1), terms = state.range(2);
  const at::Tensor x = at::rand({rows, terms}), dy = at::rand({rows, columns});
  const at::Tensor weight = at::rand({columns, terms}), y = at::rand({rows, columns});
  const at::Tensor dx = at::rand({rows, terms}), dweight = at::rand({columns, terms});
  const Matrix matrix{1, columns, terms, weight.const_data_ptr<float>(), nullptr};
  Gemms products(numerics);
  for (auto _ : state) {
    if (kind == Kind::kForward)
      products.linear(rows, x.const_data_ptr<float>(), matrix, nullptr, nullptr,
                      y.mutable_data_ptr<float>());
    if (kind == Kind::kInput)
      products.input_gradient(rows, dy.const_data_ptr<float>(), matrix,
                              dx.mutable_data_ptr<float>(), false);
    if (kind == Kind::kWeight)
      products.weight_gradient(rows, dy.const_data_ptr<float>(), x.const_data_ptr<float>(), matrix,
                               dweight.mutable_data_ptr<float>());
    benchmark::ClobberMemory();
  }
  state.counters["GFLOPs"] = benchmark::Counter(2e-9 * static_cast<double>(rows * columns * terms),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* of) {
  for (const auto& [columns, terms] : {std::pair{256, 128},
                                       {128, 128},
                                       {768, 128},
                                       {128, 384},
                                       {97, 128},
                                       {3840, 640},
                                       {640, 1920}})
    of->Args({600, columns, terms});
}

BENCHMARK_CAPTURE(product, forward_invariant, Kind::kForward, Numerics::kInvariant)->Apply(shapes);
BENCHMARK_CAPTURE(product, forward_fast, Kind::kForward, Numerics::kFast)->Apply(shapes);
BENCHMARK_CAPTURE(product, input_invariant, Kind::kInput, Numerics::kInvariant)->Apply(shapes);
BENCHMARK_CAPTURE(product, input_fast, Kind::kInput, Numerics::kFast)->Apply(shapes);
BENCHMARK_CAPTURE(product, weight_invariant, Kind::kWeight, Numerics::kInvariant)->Apply(shapes);
BENCHMARK_CAPTURE(product, weight_fast, Kind::kWeight, Numerics::kFast)->Apply(shapes);

}  // namespace
}  // namespace primerl::bench
