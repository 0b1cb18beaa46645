// Cross-entropy in place by ATen, in fp32, some rows at a time.
#include <ATen/ops/exp.h>
#include <ATen/ops/where.h>

#include "kernels/cuda/aten/on_stream.h"

namespace primerl::cuda {
namespace {

/// factor * (1[label] - p) of some rows; zeros if the factor is 0, even if p is NaN.
template <class Args>
at::Tensor gradients_of(const OnStream& on, const Args& args, int64_t first, const at::Tensor& z,
                        const at::Tensor& log_normalizers) {
  const int64_t count = z.size(0);
  const at::Tensor labels = on.ints(args.labels + first, {count, 1}).to(at::kLong);
  at::Tensor factors = on.floats(args.coefficients + first, {count, 1}) * args.inverse_temperature;
  factors.masked_fill_(labels.lt(0), 0);
  const at::Tensor at = labels.clamp_min(0);
  at::Tensor grads = at::exp(z - log_normalizers).mul_(-factors);
  grads.scatter_(1, at, grads.gather(1, at) + factors);
  return grads.masked_fill_(factors.eq(0), 0);
}

template <class Args>
at::Tensor logits_of(const OnStream& on, const Args& args) {
  return on.of(args.type, args.logits, {args.rows, args.vocab_size}, {args.row_stride, 1});
}

}  // namespace

Outcome cross_entropy(const CrossEntropyArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor logits = logits_of(on, args);
  for_parts(args.rows, args.vocab_size, [&](int64_t first, int64_t count) {
    const at::Tensor z = wide(logits.narrow(0, first, count)) * args.inverse_temperature;
    const at::Tensor largest = z.amax(-1, true);
    const at::Tensor distances = z - largest, weights = at::exp(distances);
    const at::Tensor sums = weights.sum(-1, true), log_sums = sums.log();
    const at::Tensor log_normalizers = largest + log_sums;
    const at::Tensor labels = on.ints(args.labels + first, {count, 1}).to(at::kLong);
    const at::Tensor chosen = z.gather(1, labels.clamp_min(0)) - log_normalizers;
    on.floats(args.logprobs + first, {count, 1}).copy_(chosen.masked_fill(labels.lt(0), 0));
    if (args.log_normalizers != nullptr)
      on.floats(args.log_normalizers + first, {count, 1}).copy_(log_normalizers);
    if (args.entropies != nullptr) {
      // A token of weight 0 may have logit -infinity.
      const at::Tensor terms = (distances * weights).masked_fill_(weights.eq(0), 0);
      on.floats(args.entropies + first, {count, 1}).copy_(log_sums - terms.sum(-1, true) / sums);
    }
    if (args.coefficients != nullptr)
      logits.narrow(0, first, count).copy_(gradients_of(on, args, first, z, log_normalizers));
  });
  return {};
}

Outcome cross_entropy_backward(const CrossEntropyBackwardArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor logits = logits_of(on, args);
  at::Tensor to = logits;
  if (args.bf16_gradients != nullptr)
    to = on.of(Type::kBfloat16, args.bf16_gradients, {args.rows, args.vocab_size},
               {args.row_stride, 1});
  for_parts(args.rows, args.vocab_size, [&](int64_t first, int64_t count) {
    const at::Tensor z = wide(logits.narrow(0, first, count)) * args.inverse_temperature;
    const at::Tensor normalizers = on.floats(args.log_normalizers + first, {count, 1});
    to.narrow(0, first, count).copy_(gradients_of(on, args, first, z, normalizers));
  });
  return {};
}

}  // namespace primerl::cuda
