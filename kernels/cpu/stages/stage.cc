#include "kernels/cpu/stages/stage.h"

#include <ATen/ops/zeros.h>

#include "kernels/common/memory.h"
#include "kernels/common/parallel.h"

namespace primerl {

Buffers::Buffers(const std::vector<BufferSpec>& specs, int64_t rows) {
  for (const auto& spec : specs)
    tensors_.push_back(spec.is_integer ? at::zeros({rows, spec.width}, at::kInt)
                                       : zero_floats(rows, spec.width));
}

Buffers SharedBuffers::of(const std::vector<BufferSpec>& specs) {
  for (const auto& made : made_)
    if (made.specs == specs) return made.buffers;
  return made_.emplace_back(Made{specs, Buffers(specs, rows_)}).buffers;
}

std::unique_ptr<Stage> make_stage(const StageSpec& spec, const std::string& prefix,
                                  const DecoderWeights& weights, StageTools tools) {
  if (const auto* attention = std::get_if<AttentionSpec>(&spec))
    return make_attention_gqa(*attention, prefix, weights, tools);
  if (const auto* mlp = std::get_if<MlpSpec>(&spec)) return make_mlp(*mlp, prefix, weights, tools);
  return make_moe(std::get<MoeSpec>(spec), prefix, weights, tools);
}

void Norm::forward(const StageTools& tools, int64_t rows, const float* x, float* y,
                   float* inverse_rms) const {
  const int64_t width = tools.hidden_size;
  share(rows, 4 * rows * width, [&](int64_t begin, int64_t end) {
    tools.ops.rms_norm({.rows = end - begin,
                        .width = width,
                        .epsilon = tools.epsilon,
                        .x = x + begin * width,
                        .weight = weight,
                        .y = y + begin * width,
                        .inverse_rms = inverse_rms == nullptr ? nullptr : inverse_rms + begin});
  });
}

void Norm::backward(const StageTools& tools, int64_t rows, const float* x, const float* inverse_rms,
                    const float* dy, float* dx) const {
  const int64_t width = tools.hidden_size;
  share_sums(rows, width, 8 * rows * width, tools.room, dweight,
             [&](int64_t begin, int64_t end, float* sums) {
               tools.ops.rms_norm_backward({.rows = end - begin,
                                            .width = width,
                                            .dy = dy + begin * width,
                                            .x = x + begin * width,
                                            .weight = weight,
                                            .inverse_rms = inverse_rms + begin,
                                            .dx = dx + begin * width,
                                            .dweight = sums});
             });
}

Linear Linear::of(const Parameters& parameters, const std::string& name) {
  return {parameters.matrix(name), parameters.vector(name + "_bias"), nullptr, nullptr};
}

void Linear::bind(const Parameters& parameters, const std::string& name, float* flat) {
  dweight = parameters.gradient(flat, name);
  dbias = parameters.gradient(flat, name + "_bias");
}

void Linear::forward(const StageTools& tools, int64_t rows, const float* x, const float* residual,
                     float* y) const {
  forward_runs(tools, rows, {tools.adapters.runs(), nullptr}, x, residual, y);
}

void Linear::forward_gathered(const StageTools& tools, std::span<const int32_t> sources,
                              const float* x, float* y) const {
  forward_runs(tools, std::ssize(sources), {tools.adapters.gathered(sources), sources.data()}, x,
               nullptr, y);
}

void Linear::forward_runs(const StageTools& tools, int64_t rows, const AdaptedRows& adapted,
                          const float* x, const float* residual, float* y) const {
  tools.products.linear(rows, x, weight, bias, residual, y);
  tools.adapters.forward(weight, adapted.runs, x, y, adapted.sources);
}

void Linear::backward(const StageTools& tools, int64_t rows, const float* x, const float* dy,
                      float* dx, bool adds) const {
  backward_runs(tools, rows, {tools.adapters.runs(), nullptr}, x, dy, dx, adds);
}

void Linear::backward_gathered(const StageTools& tools, std::span<const int32_t> sources,
                               const float* x, const float* dy, float* dx) const {
  backward_runs(tools, std::ssize(sources), {tools.adapters.gathered(sources), sources.data()}, x,
                dy, dx, false);
}

void Linear::backward_runs(const StageTools& tools, int64_t rows, const AdaptedRows& adapted,
                           const float* x, const float* dy, float* dx, bool adds) const {
  if (dweight != nullptr) tools.products.weight_gradient(rows, dy, x, weight, dweight);
  if (dbias != nullptr) tools.products.bias_gradient(rows, weight.columns, dy, dbias);
  tools.products.input_gradient(rows, dy, weight, dx, adds);
  tools.adapters.backward(weight, adapted.runs, x, dy, dx, adapted.sources);
}

void swiglu(const StageTools& tools, int64_t rows, int64_t width, const float* gate_up,
            float* activated) {
  share(rows, 16 * rows * width, [&](int64_t begin, int64_t end) {
    tools.ops.swiglu({.rows = end - begin,
                      .width = width,
                      .gate_up = gate_up + begin * 2 * width,
                      .activated = activated + begin * width});
  });
}

void swiglu_backward(const StageTools& tools, int64_t rows, int64_t width, const float* gate_up,
                     const float* dactivated, float* dgate_up) {
  share(rows, 24 * rows * width, [&](int64_t begin, int64_t end) {
    tools.ops.swiglu_backward({.rows = end - begin,
                               .width = width,
                               .gate_up = gate_up + begin * 2 * width,
                               .dactivated = dactivated + begin * width,
                               .dgate_up = dgate_up + begin * 2 * width});
  });
}

GatedMlp GatedMlp::of(const Parameters& parameters, const std::string& prefix, int64_t width) {
  return {Linear::of(parameters, prefix + "gate_up"), Linear::of(parameters, prefix + "down"),
          width};
}

void GatedMlp::bind(const Parameters& parameters, const std::string& prefix, float* flat) {
  gate_up.bind(parameters, prefix + "gate_up", flat);
  down.bind(parameters, prefix + "down", flat);
}

void GatedMlp::forward(const StageTools& tools, int64_t rows, const float* x, float* gate_up_rows,
                       float* activated, const float* residual, float* y) const {
  gate_up.forward(tools, rows, x, nullptr, gate_up_rows);
  swiglu(tools, rows, width, gate_up_rows, activated);
  if (y != nullptr) down.forward(tools, rows, activated, residual, y);
}

void GatedMlp::backward(const StageTools& tools, int64_t rows, const float* x,
                        const float* gate_up_rows, const float* activated, const float* dy,
                        float* dgate_up, float* dactivated, float* dx, bool adds) const {
  down.backward(tools, rows, activated, dy, dactivated);
  swiglu_backward(tools, rows, width, gate_up_rows, dactivated, dgate_up);
  gate_up.backward(tools, rows, x, dgate_up, dx, adds);
}

}  // namespace primerl
