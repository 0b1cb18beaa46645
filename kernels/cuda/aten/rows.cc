// Operations on indexed rows, the gradient of an embedding and GEMMs of few rows by ATen.
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/where.h>

#include "kernels/cuda/aten/on_stream.h"

namespace primerl::cuda {
namespace {

/// table[row_indices] in fp32; zeros for a negative index.
at::Tensor wide_rows(const at::Tensor& table, const at::Tensor& row_indices) {
  at::Tensor rows = wide(at::index_select(table, 0, row_indices.clamp_min(0)));
  return rows.masked_fill_(row_indices.lt(0).unsqueeze(1), 0);
}

}  // namespace

Outcome gather_rows(const GatherRowsArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor x = on.of(args.type, args.x, {kAnyRows, args.width});
  const at::Tensor all = on.ints(args.sources, {args.rows});
  const at::Tensor y = on.of(args.type, args.y, {args.rows, args.width});
  for_parts(args.rows, args.width, [&](int64_t first, int64_t count) {
    at::Tensor sources = all.narrow(0, first, count);
    if (args.others != nullptr) {
      const at::Tensor others = on.ints(args.others, {kAnyRows});
      const at::Tensor behind = at::index_select(others, 0, sources.neg().sub_(1).clamp_min_(0));
      sources = at::where(sources.lt(0), behind, sources);
    }
    at::Tensor rows = wide_rows(x, sources);
    if (args.scale != nullptr)
      rows.mul_(on.floats(args.scale, {args.rows, 1}).narrow(0, first, count));
    y.narrow(0, first, count).copy_(rows);
  });
  return {};
}

Outcome combine_rows(const CombineRowsArgs& args, Stream stream) {
  if (args.rows == 0 || args.terms == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor x = on.of(args.type, args.x, {kAnyRows, args.width});
  const at::Tensor row_indices = on.ints(args.row_indices, {args.rows, args.terms});
  const at::Tensor y = on.of(args.type, args.y, {args.rows, args.width});
  for_parts(args.rows, args.width, [&](int64_t first, int64_t count) {
    at::Tensor sums = y.narrow(0, first, count).to(at::kFloat, false, true);
    for (int32_t j = 0; j < args.terms; ++j) {
      at::Tensor rows = wide_rows(x, row_indices.narrow(0, first, count).select(1, j));
      if (args.weights != nullptr)
        rows.mul_(on.floats(args.weights, {args.rows, args.terms, 1})
                      .narrow(0, first, count)
                      .select(1, j));
      sums.add_(rows);
    }
    y.narrow(0, first, count).copy_(sums);
  });
  return {};
}

Outcome dot_rows(const DotRowsArgs& args, Stream stream) {
  if (args.rows == 0 || args.terms == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor a = on.of(args.type, args.a, {args.rows, args.width});
  const at::Tensor b = on.of(args.type, args.b, {kAnyRows, args.width});
  const at::Tensor row_indices = on.ints(args.row_indices, {args.rows, args.terms});
  const at::Tensor dots = on.floats(args.dots, {args.rows, args.terms});
  for_parts(args.rows, args.width, [&](int64_t first, int64_t count) {
    const at::Tensor rows = a.narrow(0, first, count);
    for (int32_t j = 0; j < args.terms; ++j)
      dots.narrow(0, first, count)
          .select(1, j)
          .copy_(wide_rows(b, row_indices.narrow(0, first, count).select(1, j)).mul_(rows).sum(-1));
  });
  return {};
}

/// The sums of a part of the ids, whose row indices are in [begin, end). An index names each row
/// once, so that no two additions collide.
Outcome embedding_backward(const EmbeddingBackwardArgs& args, Stream stream) {
  if (args.num_ids == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor ids = on.ints(args.ids, {args.num_ids}).to(at::kLong);
  const at::Tensor offsets = on.ints(args.offsets, {args.num_ids + 1});
  const at::Tensor dy = on.of(args.type, args.dy, {kAnyRows, args.width});
  const at::Tensor table = on.floats(args.dtable, {kAnyRows, args.width});
  const at::Tensor ends = on.on_host(offsets);
  const int32_t* end_of = ends.const_data_ptr<int32_t>() + 1;
  const int64_t most = std::max<int64_t>(1, kPartNumbers / args.width);
  for (int64_t first = 0; first < args.num_ids;) {
    const int64_t begin = first == 0 ? 0 : end_of[first - 1];
    int64_t last = first + 1;  // at least one id, with any number of rows
    while (last < args.num_ids && end_of[last] - begin <= most) ++last;
    const int64_t count = end_of[last - 1] - begin;
    const at::Tensor rows = wide_rows(dy, on.ints(args.row_indices + begin, {count}));
    const at::Tensor some = ids.narrow(0, first, last - first);
    const at::Tensor cuts = offsets.narrow(0, first, last - first + 1) - begin;
    at::Tensor sums = at::segment_reduce(rows, "sum", {}, {}, cuts, 0, true, 0.0);
    sums.add_(at::index_select(table, 0, some));
    at::Tensor to = table;
    to.index_copy_(0, some, sums);
    first = last;
  }
  return {};
}

Outcome few_rows_gemm(const FewRowsArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  at::Tensor x = on.of(Type::kBfloat16, args.x, {args.rows, args.terms});
  at::Tensor weight = on.of(Type::kBfloat16, args.weight, {args.columns, args.terms});
  at::Tensor y = on.of(args.type, args.y, {args.rows, args.columns});
  at::Tensor bias;
  if (args.bias != nullptr) bias = on.of(Type::kBfloat16, args.bias, {args.columns});
#ifdef PRIMERL_ATEN_ON_CUDA
  // To fp32 for any type of y: a GEMM to bf16 may add its parts in bf16.
  at::Tensor y_fp32 = at::mm(x, weight.t(), at::kFloat);
#else
  at::Tensor y_fp32 = at::mm(wide(x), wide(weight).t());
#endif
  if (bias.defined()) y_fp32.add_(bias);
  y.copy_(y_fp32);
  return {};
}

Outcome small_m_gemm(const SmallMGemmArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor x = wide(on.of(Type::kBfloat16, args.x, {args.rows, args.terms}));
  const at::Tensor weight = wide(on.of(Type::kBfloat16, args.weight, {args.columns, args.terms}));
  const int64_t terms = args.terms / args.num_parts;
  const at::Tensor parts = on.floats(args.parts, {args.num_parts, args.rows, args.columns});
  for (int64_t part = 0; part < args.num_parts; ++part)
    parts.select(0, part).copy_(
        at::mm(x.narrow(1, part * terms, terms), weight.narrow(1, part * terms, terms).t()));
  return {};
}

}  // namespace primerl::cuda
