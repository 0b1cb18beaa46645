// The row-invariant GEMM compared with the vendor's (at::mm_out), one thread each, same run.
//
// Bound: with many rows, the multiply-adds: two vectors of 8 per cycle with AVX2, 32 flops. With
// one row, the weights are read once: their bytes at the rate of the cache or memory that they are
// in ("read" sums the same bytes). Targets: 0.8 of the vendor's from 64 rows on, 0.9 of "read" at
// one.
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <benchmark/benchmark.h>

#include "kernels/ops/ops.h"

namespace primerl::bench {
namespace {

struct Operands {
  at::Tensor x, weight, packed, y;
  LinearRowsArgs args;

  Operands(int64_t rows, int64_t columns, int64_t terms)
      : x(at::rand({rows, terms})),
        weight(at::rand({columns, terms})),
        packed(at::rand({packed_linear_floats(columns, terms)})),
        y(at::rand({rows, columns})) {
    at::set_num_threads(1);
    cpu_ops().pack_linear({0,
                           columns,
                           terms,
                           {weight.const_data_ptr<float>(), terms, 1},
                           packed.mutable_data_ptr<float>()});
    args.rows = rows;
    args.columns = columns;
    args.terms = terms;
    args.panel_end = linear_panels_of(columns);
    args.x = x.const_data_ptr<float>();
    args.x_stride = terms;
    args.packed = packed.const_data_ptr<float>();
    args.y = y.mutable_data_ptr<float>();
    args.y_stride = columns;
  }
};

void count_work(benchmark::State& state, const Operands& of) {
  const double flops = 2.0 * static_cast<double>(of.args.rows * of.args.columns * of.args.terms);
  state.counters["GFLOPs"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB"] = benchmark::Counter(static_cast<double>(of.weight.nbytes()) * 1e-9,
                                            benchmark::Counter::kIsIterationInvariantRate);
}

void linear_rows(benchmark::State& state) {
  const Operands of(state.range(0), state.range(1), state.range(2));
  for (auto _ : state) {
    cpu_ops().linear_rows(of.args);
    benchmark::ClobberMemory();
  }
  count_work(state, of);
}

void vendor(benchmark::State& state) {
  Operands of(state.range(0), state.range(1), state.range(2));
  const at::Tensor transposed = of.weight.t();
  for (auto _ : state) {
    at::mm_out(of.y, of.x, transposed);
    benchmark::ClobberMemory();
  }
  count_work(state, of);
}

using Wide = float __attribute__((vector_size(32), aligned(4)));

__attribute__((target("avx2"), optimize("O3"))) float sum_of(const float* from, int64_t count) {
  Wide sums[8] = {};
  for (int64_t i = 0; i < count; i += 64)
    for (int j = 0; j < 8; ++j) sums[j] += *reinterpret_cast<const Wide*>(from + i + 8 * j);
  for (int j = 1; j < 8; ++j) sums[0] += sums[j];
  return sums[0][0];
}

void read(benchmark::State& state) {
  const Operands of(1, state.range(1), state.range(2));
  const int64_t count = of.packed.numel() / 64 * 64;
  for (auto _ : state) benchmark::DoNotOptimize(sum_of(of.args.packed, count));
  count_work(state, of);
}

void shapes(benchmark::internal::Benchmark* of) {
  const std::pair<int64_t, int64_t> sizes[] = {{384, 256},   {1536, 256},  {1024, 1024},
                                               {3072, 1024}, {1024, 3072}, {4096, 4096}};
  for (const int64_t rows : {1, 2, 8, 32, 64, 512, 2048})
    for (const auto& [columns, terms] : sizes) of->Args({rows, columns, terms});
}

void one_row(benchmark::internal::Benchmark* of) {
  for (const auto& [columns, terms] :
       {std::pair{384, 256}, {1536, 256}, {1024, 1024}, {3072, 1024}, {1024, 3072}, {4096, 4096}})
    of->Args({1, columns, terms});
}

BENCHMARK(linear_rows)->Apply(shapes);
BENCHMARK(vendor)->Apply(shapes);
BENCHMARK(read)->Apply(one_row);

}  // namespace
}  // namespace primerl::bench
