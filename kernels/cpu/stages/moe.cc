// A mixture of experts: norm, router, GEMMs grouped by expert, the weighted sum of their results,
// and the shared expert beside them.
//
// Each row has `experts_per_token` entries among the rows sorted by expert, and by adapter within
// an expert; equal ones keep the order of the rows. The sum adds a row's experts in the router's
// order, so that no other row changes a bit.
#include <algorithm>

#include "kernels/common/parallel.h"
#include "kernels/common/router_shape.h"
#include "kernels/cpu/stages/stage.h"

namespace primerl {

namespace {

class Moe final : public Stage {
 public:
  Moe(const MoeSpec& spec, const std::string& prefix, const DecoderWeights& weights,
      StageTools tools)
      : tools_(tools),
        parameters_{weights, prefix},
        spec_(spec),
        shape_(router_shape(spec)),
        norm_{parameters_.vector("norm"), nullptr},
        router_(Linear::of(parameters_, "router")),
        selection_bias_(parameters_.vector("selection_bias")),
        gate_up_(parameters_.matrix("experts_gate_up")),
        down_(parameters_.matrix("experts_down")),
        ends_(static_cast<size_t>(spec.num_experts)) {
    if (spec.shared_width > 0) shared_ = GatedMlp::of(parameters_, "shared_", spec.shared_width);
  }

  std::vector<BufferSpec> activations() const override {
    return activations_of(spec_, tools_.hidden_size);
  }
  std::vector<BufferSpec> gradient_rows() const override {
    return gradients_of(spec_, tools_.hidden_size);
  }

  void forward(const StepInput& step, const Buffers& rows, const float* input,
               float* output) override {
    const int64_t num_rows = step.num_rows, hidden = tools_.hidden_size;
    const int64_t num_places = num_rows * spec_.experts_per_token;
    float* normed = rows.floats(kNormed);
    norm_.forward(tools_, num_rows, input, normed, rows.floats(kInverseRms));
    // The logits become the scores in place.
    router_.forward(tools_, num_rows, normed, nullptr, rows.floats(kScores));
    route(num_rows, rows);
    sort(num_rows, rows);
    gather(num_places, normed, rows.integers(kSources), nullptr, rows.floats(kGathered));
    tools_.products.grouped(ends_, rows.floats(kGathered), gate_up_, rows.floats(kGateUp));
    tools_.adapters.forward(gate_up_, runs_, rows.floats(kGathered), rows.floats(kGateUp),
                            rows.integers(kSources));
    swiglu(tools_, num_places, spec_.width, rows.floats(kGateUp), rows.floats(kActivated));
    tools_.products.grouped(ends_, rows.floats(kActivated), down_, rows.floats(kExpertOutputs));
    tools_.adapters.forward(down_, runs_, rows.floats(kActivated), rows.floats(kExpertOutputs),
                            rows.integers(kSources));
    if (spec_.shared_width > 0)
      shared_.forward(tools_, num_rows, normed, rows.floats(kSharedGateUp),
                      rows.floats(kSharedActivated), input, output);
    else if (output != nullptr && output != input)
      std::copy_n(input, num_rows * hidden, output);
    if (output == nullptr) return;
    combine(num_rows, rows.floats(kExpertOutputs), rows, rows.floats(kExpertWeights), output);
  }

  void backward(const StepInput& step, const Buffers& rows, const Buffers& gradient_rows,
                const float* input, float* residual) override {
    const int64_t num_rows = step.num_rows, k = spec_.experts_per_token;
    const int64_t num_places = num_rows * k;
    const float* normed = rows.floats(kNormed);
    float* dnormed = gradient_rows.floats(0);
    count(num_rows, rows);
    backward_weights(num_rows, rows, gradient_rows, residual);
    // The gradients of the experts' outputs: the gradient of the row, times the expert's weight.
    float* doutputs = gradient_rows.floats(kGatheredGradient);
    gather(num_places, residual, rows.integers(kSources), gradient_rows.floats(kSortedWeights),
           doutputs);
    if (ddown_ != nullptr)
      tools_.products.grouped_weight_gradient(ends_, doutputs, rows.floats(kActivated), down_,
                                              ddown_);
    tools_.products.grouped_input_gradient(ends_, doutputs, down_,
                                           gradient_rows.floats(kActivatedSlope));
    tools_.adapters.backward(down_, runs_, rows.floats(kActivated), doutputs,
                             gradient_rows.floats(kActivatedSlope), rows.integers(kSources));
    swiglu_backward(tools_, num_places, spec_.width, rows.floats(kGateUp),
                    gradient_rows.floats(kActivatedSlope), gradient_rows.floats(kGateUpSlope));
    if (dgate_up_ != nullptr)
      tools_.products.grouped_weight_gradient(ends_, gradient_rows.floats(kGateUpSlope),
                                              rows.floats(kGathered), gate_up_, dgate_up_);
    tools_.products.grouped_input_gradient(ends_, gradient_rows.floats(kGateUpSlope), gate_up_,
                                           gradient_rows.floats(kGatheredGradient));
    tools_.adapters.backward(gate_up_, runs_, rows.floats(kGathered),
                             gradient_rows.floats(kGateUpSlope),
                             gradient_rows.floats(kGatheredGradient), rows.integers(kSources));
    router_.backward(tools_, num_rows, normed, gradient_rows.floats(kLogitsSlope), dnormed);
    combine(num_rows, gradient_rows.floats(kGatheredGradient), rows, nullptr, dnormed);
    if (spec_.shared_width > 0)
      shared_.backward(tools_, num_rows, normed, rows.floats(kSharedGateUp),
                       rows.floats(kSharedActivated), residual,
                       gradient_rows.floats(kSharedGateUpSlope),
                       gradient_rows.floats(kSharedActivatedSlope), dnormed, true);
    norm_.backward(tools_, num_rows, input, rows.floats(kInverseRms), dnormed, residual);
  }

  void bind_gradients(float* flat) override {
    norm_.dweight = parameters_.gradient(flat, "norm");
    router_.bind(parameters_, "router", flat);
    dgate_up_ = parameters_.gradient(flat, "experts_gate_up");
    ddown_ = parameters_.gradient(flat, "experts_down");
    if (spec_.shared_width > 0) shared_.bind(parameters_, "shared_", flat);
  }

 private:
  enum Activation : size_t {
    kNormed,
    kInverseRms,
    kScores,
    kExperts,
    kExpertWeights,
    kPlaces,
    kSources,
    kGathered,
    kGateUp,
    kActivated,
    kExpertOutputs,
    kSharedGateUp,
    kSharedActivated
  };
  enum Slope : size_t {
    kLogitsSlope = 1,
    kExpertWeightsSlope,
    kSortedWeights,
    kGatheredGradient,
    kGateUpSlope,
    kActivatedSlope,
    kSharedGateUpSlope,
    kSharedActivatedSlope
  };

  void route(int64_t num_rows, const Buffers& rows) const {
    const int64_t num_experts = spec_.num_experts, k = spec_.experts_per_token;
    share(num_rows, num_rows * num_experts * (16 + k), [&](int64_t begin, int64_t end) {
      float* scores = rows.floats(kScores) + begin * num_experts;
      tools_.ops.route({.rows = end - begin,
                        .shape = shape_,
                        .selection_bias = selection_bias_,
                        .logits = scores,
                        .scores = scores,
                        .experts = rows.integers(kExperts) + begin * k,
                        .weights = rows.floats(kExpertWeights) + begin * k});
    });
  }

  /// The sort class of pair i: its expert, then its row's adapter.
  size_t class_of(const int32_t* experts, int64_t i) const {
    const AdapterGemms& adapters = tools_.adapters;
    const int64_t kind = adapters.kind_of(i / spec_.experts_per_token);
    return static_cast<size_t>(experts[i] * adapters.num_kinds() + kind);
  }

  /// Fills class_ends_, ends_ and runs_: the end of each class, of each expert, and of each adapter
  /// within an expert.
  void count(int64_t num_rows, const Buffers& rows) {
    const int64_t kinds = tools_.adapters.num_kinds();
    class_ends_.assign(static_cast<size_t>(spec_.num_experts * kinds), 0);
    runs_.clear();
    const int32_t* experts = rows.integers(kExperts);
    for (int64_t i = 0; i < num_rows * spec_.experts_per_token; ++i)
      ++class_ends_[class_of(experts, i)];
    int64_t end = 0;
    for (int64_t expert = 0; expert < spec_.num_experts; ++expert) {
      for (int64_t kind = 0; kind < kinds; ++kind) {
        int64_t& count = class_ends_[static_cast<size_t>(expert * kinds + kind)];
        if (kind > 0 && count > 0)
          runs_.push_back({static_cast<int32_t>(kind - 1), expert, end, count});
        count = end += count;
      }
      ends_[static_cast<size_t>(expert)] = end;
    }
  }

  /// places[i]: index of pair i (row * experts_per_token + choice) among the sorted rows; sources:
  /// the row of each index.
  void sort(int64_t num_rows, const Buffers& rows) {
    count(num_rows, rows);
    next_.assign(class_ends_.size(), 0);
    for (size_t c = 1; c < next_.size(); ++c) next_[c] = class_ends_[c - 1];
    const int32_t* experts = rows.integers(kExperts);
    int32_t* places = rows.integers(kPlaces);
    int32_t* sources = rows.integers(kSources);
    const int64_t k = spec_.experts_per_token;
    for (int64_t i = 0; i < num_rows * k; ++i) {
      const int64_t place = next_[class_of(experts, i)]++;
      places[i] = static_cast<int32_t>(place);
      sources[place] = static_cast<int32_t>(i / k);
    }
  }

  void gather(int64_t num_places, const float* x, const int32_t* sources, const float* scale,
              float* y) const {
    const int64_t hidden = tools_.hidden_size;
    share(num_places, num_places * hidden, [&](int64_t begin, int64_t end) {
      tools_.ops.gather_rows({.rows = end - begin,
                              .width = hidden,
                              .x = x,
                              .sources = sources + begin,
                              .scale = scale == nullptr ? nullptr : scale + begin,
                              .y = y + begin * hidden});
    });
  }

  /// Adds a row's entries among the sorted rows to the row.
  void combine(int64_t num_rows, const float* x, const Buffers& rows, const float* weights,
               float* y) const {
    const int64_t hidden = tools_.hidden_size, k = spec_.experts_per_token;
    share(num_rows, num_rows * k * hidden, [&](int64_t begin, int64_t end) {
      tools_.ops.combine_rows({.rows = end - begin,
                               .width = hidden,
                               .terms = spec_.experts_per_token,
                               .x = x,
                               .places = rows.integers(kPlaces) + begin * k,
                               .weights = weights == nullptr ? nullptr : weights + begin * k,
                               .y = y + begin * hidden});
    });
  }

  /// Gradients of the router's logits; also the weights in the sorted order.
  void backward_weights(int64_t num_rows, const Buffers& rows, const Buffers& gradient_rows,
                        const float* residual) const {
    const int64_t hidden = tools_.hidden_size, k = spec_.experts_per_token;
    const int64_t num_experts = spec_.num_experts;
    const int32_t* places = rows.integers(kPlaces);
    const float* weights = rows.floats(kExpertWeights);
    float* dweights = gradient_rows.floats(kExpertWeightsSlope);
    float* sorted = gradient_rows.floats(kSortedWeights);
    share(num_rows, num_rows * k * hidden, [&](int64_t begin, int64_t end) {
      tools_.ops.dot_rows({.rows = end - begin,
                           .width = hidden,
                           .terms = spec_.experts_per_token,
                           .a = residual + begin * hidden,
                           .b = rows.floats(kExpertOutputs),
                           .places = places + begin * k,
                           .dots = dweights + begin * k});
      tools_.ops.route_backward(
          {.rows = end - begin,
           .shape = shape_,
           .scores = rows.floats(kScores) + begin * num_experts,
           .experts = rows.integers(kExperts) + begin * k,
           .dweights = dweights + begin * k,
           .dlogits = gradient_rows.floats(kLogitsSlope) + begin * num_experts});
      for (int64_t i = begin * k; i < end * k; ++i) sorted[places[i]] = weights[i];
    });
  }

  const StageTools tools_;
  const Parameters parameters_;
  const MoeSpec spec_;
  const RouterShape shape_;
  Norm norm_;
  Linear router_;
  const float* selection_bias_;
  Matrix gate_up_, down_;
  GatedMlp shared_;
  float* dgate_up_ = nullptr;
  float* ddown_ = nullptr;
  // Scratch.
  std::vector<int64_t> ends_;        // of each expert's sorted rows
  std::vector<int64_t> class_ends_;  // for each expert and adapter
  std::vector<int64_t> next_;
  std::vector<AdapterRun> runs_;
};

}  // namespace

std::unique_ptr<Stage> make_moe(const MoeSpec& spec, const std::string& prefix,
                                const DecoderWeights& weights, StageTools tools) {
  return std::make_unique<Moe>(spec, prefix, weights, tools);
}

}  // namespace primerl
