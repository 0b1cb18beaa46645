// The choice of experts by ATen, in fp32.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "kernels/cuda/aten/on_stream.h"

namespace primerl::cuda {
namespace {

constexpr double kExcluded = -std::numeric_limits<double>::infinity();

/// The experts chosen for rows, over the caller's memory.
struct Choice {
  at::Tensor scores;   // [rows, experts]
  at::Tensor ids;      // [rows, experts_per_token]
  at::Tensor weights;  // likewise; backward: their gradients

  Choice part(int64_t first, int64_t count) const {
    return {scores.narrow(0, first, count), ids.narrow(0, first, count),
            weights.narrow(0, first, count)};
  }
};

template <class Args>
Choice choice_of(const OnStream& on, const Args& args, const float* weights) {
  const int64_t wanted = args.shape.experts_per_token;
  return {on.floats(args.scores, {args.rows, args.shape.num_experts}),
          on.ints(args.experts, {args.rows, wanted}), on.floats(weights, {args.rows, wanted})};
}

/// Ids of the `wanted` greatest of each row; among equals, the lower id first, which topk() does
/// not promise.
at::Tensor greatest(const at::Tensor& values, int64_t wanted) {
  return std::get<1>(at::sort(values, true, -1, true)).narrow(-1, 0, wanted);
}

/// Excludes the choices of the groups that are not kept.
at::Tensor in_kept_groups(const RouterShape& shape, const at::Tensor& choices) {
  const int64_t rows = choices.size(0), size = shape.num_experts / shape.num_groups;
  const at::Tensor grouped = choices.view({rows, shape.num_groups, size});
  const at::Tensor best = std::get<0>(at::topk(grouped, std::min<int64_t>(size, 2))).sum(-1);
  at::Tensor mask = at::full_like(best, kExcluded);
  mask.scatter_(1, greatest(best, shape.groups_kept), 0);
  return (grouped + mask.unsqueeze(-1)).view({rows, shape.num_experts});
}

}  // namespace

Outcome route(const RouteArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  const RouterShape& shape = args.shape;
  if (const char* fault = fault_of(shape, args.rows); fault != nullptr) return {fault};
  const OnStream on(stream);
  const int64_t experts = shape.num_experts;
  const at::Tensor all = on.floats(args.logits, {args.rows, experts});
  const Choice to = choice_of(on, args, args.weights);
  for_parts(args.rows, experts, [&](int64_t first, int64_t count) {
    const at::Tensor logits = all.narrow(0, first, count);
    const at::Tensor scores = shape.is_sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
    at::Tensor choices = scores;
    if (args.selection_bias != nullptr)
      choices = scores + on.floats(args.selection_bias, {experts});
    // NaN is never chosen; sort() would put it first.
    choices = choices.nan_to_num(kExcluded);
    if (shape.groups_kept < shape.num_groups) choices = in_kept_groups(shape, choices);
    const at::Tensor ids = greatest(choices, shape.experts_per_token);
    at::Tensor weights = scores.gather(1, ids);
    if (shape.is_normalized) weights = weights / (weights.sum(-1, true) + shape.epsilon);
    const Choice some = to.part(first, count);
    some.scores.copy_(scores);
    some.ids.copy_(ids);
    some.weights.copy_(weights.mul_(shape.scale));
  });
  return {};
}

Outcome route_backward(const RouteBackwardArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  const RouterShape& shape = args.shape;
  if (const char* fault = fault_of(shape, args.rows); fault != nullptr) return {fault};
  const OnStream on(stream);
  const int64_t experts = shape.num_experts;
  const Choice all = choice_of(on, args, args.dweights);
  const at::Tensor dlogits = on.floats(args.dlogits, {args.rows, experts});
  for_parts(args.rows, experts, [&](int64_t first, int64_t count) {
    auto [scores, ids, grads] = all.part(first, count);
    ids = ids.to(at::kLong);
    const at::Tensor chosen = scores.gather(1, ids);
    if (shape.is_normalized) {
      const at::Tensor sum = chosen.sum(-1, true) + shape.epsilon;
      grads = (grads - (grads * chosen).sum(-1, true) / sum) / sum;
    }
    grads = grads * shape.scale;
    at::Tensor d = at::zeros_like(scores);
    d.scatter_(1, ids, grads);
    if (shape.is_sigmoid)
      d.mul_(1 - scores);
    else
      d.sub_((grads * chosen).sum(-1, true));
    dlogits.narrow(0, first, count).copy_(d.mul_(scores));
  });
  return {};
}

Outcome sort_by_expert(const SortByExpertArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const int64_t pairs = args.rows * args.experts_per_token;
  const auto [sorted, order] = at::sort(on.ints(args.experts, {pairs}), true, 0, false);
  at::Tensor permutation = at::empty_like(order);
  permutation.scatter_(0, order, at::arange(pairs, order.options()));
  on.ints(args.permutation, {pairs}).copy_(permutation);
  on.ints(args.sources, {pairs}).copy_(order.div(args.experts_per_token, "floor"));
  const at::Tensor experts = at::arange(args.num_experts, sorted.options());
  on.ints(args.ends, {args.num_experts}).copy_(at::searchsorted(sorted, experts, true, true));
  return {};
}

}  // namespace primerl::cuda
