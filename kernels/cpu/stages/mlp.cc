// The dense feed-forward stage: x + down(silu(gate n) * up n), n = rms_norm(x).
#include "kernels/cpu/stages/stage.h"

namespace primerl {
namespace {

class Mlp final : public Stage {
 public:
  Mlp(const MlpSpec& spec, const std::string& prefix, const DecoderWeights& weights,
      StageTools tools)
      : tools_(tools),
        parameters_{weights, prefix},
        spec_(spec),
        norm_{parameters_.vector("norm"), nullptr},
        mlp_(GatedMlp::of(parameters_, "", spec.width)) {}

  std::vector<BufferSpec> activations() const override {
    return activations_of(spec_, tools_.hidden_size);
  }
  std::vector<BufferSpec> gradient_rows() const override {
    return gradients_of(spec_, tools_.hidden_size);
  }

  void forward(const StepInput& step, const Buffers& rows, const float* input,
               float* output) override {
    norm_.forward(tools_, step.num_rows, input, rows.floats(kNormed), rows.floats(kInverseRms));
    mlp_.forward(tools_, step.num_rows, rows.floats(kNormed), rows.floats(kGateUp),
                 rows.floats(kActivated), input, output);
  }

  void backward(const StepInput& step, const Buffers& rows, const Buffers& gradient_rows,
                const float* input, float* residual) override {
    float* dnormed = gradient_rows.floats(0);
    mlp_.backward(tools_, step.num_rows, rows.floats(kNormed), rows.floats(kGateUp),
                  rows.floats(kActivated), residual, gradient_rows.floats(1),
                  gradient_rows.floats(2), dnormed, false);
    norm_.backward(tools_, step.num_rows, input, rows.floats(kInverseRms), dnormed, residual);
  }

  void bind_gradients(float* flat) override {
    norm_.dweight = parameters_.gradient(flat, "norm");
    mlp_.bind(parameters_, "", flat);
  }

 private:
  enum Activation : size_t { kNormed, kInverseRms, kGateUp, kActivated };

  const StageTools tools_;
  const Parameters parameters_;
  const MlpSpec spec_;
  Norm norm_;
  GatedMlp mlp_;
};

}  // namespace

std::unique_ptr<Stage> make_mlp(const MlpSpec& spec, const std::string& prefix,
                                const DecoderWeights& weights, StageTools tools) {
  return std::make_unique<Mlp>(spec, prefix, weights, tools);
}

}  // namespace primerl
