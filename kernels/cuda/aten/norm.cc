// RMS norm, SwiGLU and AdamW by ATen.
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/add.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <cmath>

#include "kernels/cuda/aten/adapters.h"

namespace primerl::cuda {

namespace {

/// The output of a GEMM; parts are added in order, then rounded.
at::Tensor without_lora(const OnStream& on, const RmsNormArgs& args, const Epilogue& epilogue) {
  const auto* output = std::get_if<SplitKOutput>(&epilogue);
  if (output == nullptr) return on.of(args.type, address_of(epilogue), {args.rows, args.width});
  const at::Tensor parts = on.floats(output->parts, {output->num_parts, args.rows, args.width});
  at::Tensor sum = parts.select(0, 0).clone();
  for (int64_t part = 1; part < output->num_parts; ++part) sum.add_(parts.select(0, part));
  return sum.to(scalar_type(args.type));
}

}  // namespace

int64_t rms_norm_workspace(int64_t, int64_t) { return 0; }

Outcome rms_norm(const RmsNormArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const int64_t sizes[] = {args.rows, args.width};
  at::Tensor s = on.of(args.type, args.x, sizes);
  if (args.residual.has_value()) {
    const auto& [epilogue, sum] = *args.residual;
    const at::Tensor x = s;
    s = on.of(args.type, sum, sizes);
    at::Tensor delta = without_lora(on, args, epilogue);
    if (const LoraDelta* lora_delta = lora_delta_of(epilogue); lora_delta != nullptr)
      delta = wide(delta) + added_of(on, *lora_delta);
    at::add_out(s, x, delta);
  }
  const auto [y, inverse] =
      at::_fused_rms_norm(s, {args.width}, on.of(args.type, args.weight, {args.width}),
                          static_cast<double>(args.epsilon));
  on.of(args.type, args.y, sizes).copy_(y);
  if (args.inverse_rms != nullptr)
    on.floats(args.inverse_rms, {args.rows}).copy_(inverse.view({args.rows}));
  return {};
}

Outcome rms_norm_backward(const RmsNormBackwardArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const int64_t sizes[] = {args.rows, args.width};
  const at::Tensor all_dy = on.of(args.type, args.dy, sizes),
                   all_x = on.of(args.type, args.x, sizes);
  const at::Tensor weight = wide(on.of(args.type, args.weight, {args.width}));
  const at::Tensor inverses = on.floats(args.inverse_rms, {args.rows, 1});
  const at::Tensor all_dx = on.of(args.type, args.dx, sizes);
  const at::Tensor dweight = on.floats(args.dweight, {args.width});
  for_parts(args.rows, args.width, [&](int64_t first, int64_t count) {
    const at::Tensor inverse = inverses.narrow(0, first, count);
    const at::Tensor dy = wide(all_dy.narrow(0, first, count));
    const at::Tensor normed = all_x.narrow(0, first, count) * inverse;
    dweight.add_((dy * normed).sum(0));
    const at::Tensor grad = dy * weight;
    const at::Tensor mean = (grad * normed).mean(-1, true);
    at::Tensor dx = (grad - normed * mean).mul_(inverse);
    if (args.dsum != nullptr) dx.add_(on.of(args.type, args.dsum, sizes).narrow(0, first, count));
    all_dx.narrow(0, first, count).copy_(dx);
  });
  return {};
}

Outcome swiglu(const SwigluArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const at::Tensor gate_up = on.of(args.type, args.gate_up.data, {args.rows, 2, args.width});
  const at::Tensor activated = on.of(args.type, args.activated, {args.rows, args.width});
  at::Tensor added;
  if (args.gate_up.lora_delta != nullptr)
    added = added_of(on, *args.gate_up.lora_delta).view(gate_up.sizes());
  for_parts(args.rows, args.width, [&](int64_t first, int64_t count) {
    at::Tensor rows = gate_up.narrow(0, first, count);
    if (added.defined()) rows = rows + added.narrow(0, first, count);
    const at::Tensor gate = wide(rows.select(1, 0));
    activated.narrow(0, first, count).copy_(at::silu(gate).mul_(rows.select(1, 1)));
  });
  return {};
}

Outcome swiglu_backward(const SwigluBackwardArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const int64_t sizes[] = {args.rows, 2, args.width};
  const at::Tensor gate_up = on.of(args.type, args.gate_up, sizes);
  const at::Tensor dgate_up = on.of(args.type, args.dgate_up, sizes);
  const at::Tensor dactivated = on.of(args.type, args.dactivated, {args.rows, args.width});
  for_parts(args.rows, args.width, [&](int64_t first, int64_t count) {
    const at::Tensor rows = gate_up.narrow(0, first, count), to = dgate_up.narrow(0, first, count);
    const at::Tensor gate = wide(rows.select(1, 0)), d = wide(dactivated.narrow(0, first, count));
    const at::Tensor share = at::sigmoid(gate);
    const at::Tensor dup = d * gate * share;
    // d silu / d gate = share * (1 + gate * (1 - share)); both are computed before either is
    // written.
    const at::Tensor dgate =
        (1 - share).mul_(gate).add_(1).mul_(share).mul_(d).mul_(rows.select(1, 1));
    to.select(1, 0).copy_(dgate);
    to.select(1, 1).copy_(dup);
  });
  return {};
}

Outcome adamw(const MasterAdamwArgs& args, Stream stream) {
  const AdamwArgs& a = args.step;
  if (a.count == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const float keep = 1.0F - a.lr * a.weight_decay, rate = a.lr / a.correction1;
  const float root = 1.0F / std::sqrt(a.correction2);
  for_parts(a.count, 1, [&](int64_t first, int64_t count) {
    const at::Tensor weights = on.floats(a.weights + first, {count});
    const at::Tensor moments = on.floats(a.first_moments + first, {count});
    const at::Tensor squares = on.floats(a.second_moments + first, {count});
    at::Tensor grads = on.floats(a.gradients + first, {count}) * a.gradient_scale;
    if (args.device_scale != nullptr) grads.mul_(on.floats(args.device_scale, {1}));
    moments.mul_(a.beta1).add_(grads, 1.0F - a.beta1);
    squares.mul_(a.beta2).addcmul_(grads, grads, 1.0F - a.beta2);
    weights.mul_(keep).addcdiv_(moments, squares.sqrt().mul_(root).add_(a.epsilon), -rate);
    if (args.bf16_weights == nullptr) return;
    auto* rounded = static_cast<uint16_t*>(args.bf16_weights) + first;
    on.of(Type::kBfloat16, rounded, {count}).copy_(weights);
  });
  return {};
}

}  // namespace primerl::cuda
