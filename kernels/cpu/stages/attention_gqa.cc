// Grouped-query attention: norm, q k v, optional norms of q and k, RoPE, attention, GEMM with
// `out`.
#include <cmath>

#include "kernels/common/parallel.h"
#include "kernels/cpu/stages/stage.h"

namespace primerl {
namespace {

class AttentionGqa final : public Stage {
 public:
  AttentionGqa(const AttentionSpec& spec, const std::string& prefix, const DecoderWeights& weights,
               StageTools tools)
      : tools_(tools),
        parameters_{weights, prefix},
        spec_(spec),
        norm_{parameters_.vector("norm"), nullptr},
        qkv_(Linear::of(parameters_, "qkv")),
        out_(Linear::of(parameters_, "out")),
        q_norm_(parameters_.vector("q_norm")),
        k_norm_(parameters_.vector("k_norm")) {}

  std::vector<BufferSpec> activations() const override {
    return activations_of(spec_, tools_.hidden_size);
  }
  std::vector<BufferSpec> gradient_rows() const override {
    return gradients_of(spec_, tools_.hidden_size);
  }

  void forward(const StepInput& step, const Buffers& rows, const float* input,
               float* output) override {
    norm_.forward(tools_, step.num_rows, input, rows.floats(kNormed), rows.floats(kInverseRms));
    qkv_.forward(tools_, step.num_rows, rows.floats(kNormed), nullptr, rows.floats(kQkv));
    rotate(step, rows);
    if (!step.is_attended) attend(step, rows);
    if (output != nullptr)
      out_.forward(tools_, step.num_rows, rows.floats(kAttended), input, output);
  }

  void backward(const StepInput& step, const Buffers& rows, const Buffers& gradient_rows,
                const float* input, float* residual) override {
    float* dnormed = gradient_rows.floats(0);
    out_.backward(tools_, step.num_rows, rows.floats(kAttended), residual,
                  gradient_rows.floats(kAttendedSlope));
    attend_backward(step, rows, gradient_rows);
    rotate_backward(step, rows, gradient_rows);
    qkv_.backward(tools_, step.num_rows, rows.floats(kNormed), gradient_rows.floats(kQkvSlope),
                  dnormed);
    norm_.backward(tools_, step.num_rows, input, rows.floats(kInverseRms), dnormed, residual);
  }

  void bind_gradients(float* flat) override {
    norm_.dweight = parameters_.gradient(flat, "norm");
    qkv_.bind(parameters_, "qkv", flat);
    out_.bind(parameters_, "out", flat);
    dq_norm_ = parameters_.gradient(flat, "q_norm");
    dk_norm_ = parameters_.gradient(flat, "k_norm");
  }

 private:
  enum Activation : size_t { kNormed, kInverseRms, kQkv, kQ, kAttended, kLogSumExp };
  enum Slope : size_t { kQkvSlope = 1, kQSlope, kAttendedSlope, kKeysSlope, kValuesSlope };

  int64_t q_width() const { return int64_t{spec_.num_heads} * spec_.head_dim; }
  int64_t kv_width() const { return int64_t{spec_.num_kv_heads} * spec_.head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  HeadShape heads() const { return {spec_.num_heads, spec_.num_kv_heads, spec_.head_dim}; }

  void rotate(const StepInput& step, const Buffers& rows) const {
    share(step.num_rows, 8 * step.num_rows * qkv_width(), [&](int64_t begin, int64_t end) {
      tools_.ops.rotary({.rows = end - begin,
                         .heads = heads(),
                         .rotary_dim = spec_.rotary_dim,
                         .epsilon = tools_.epsilon,
                         .qkv = rows.floats(kQkv) + begin * qkv_width(),
                         .q_weight = q_norm_,
                         .k_weight = k_norm_,
                         .positions = step.batch->positions.data() + begin,
                         .cache_rows = step.batch->cache_rows.data() + begin,
                         .cosine = step.cosine,
                         .sine = step.sine,
                         .q = rows.floats(kQ) + begin * q_width(),
                         .keys = step.keys,
                         .values = step.values});
    });
  }

  AttentionArgs attention(const StepInput& step, const Buffers& rows) const {
    return {.spans = step.spans.data(),
            .num_spans = static_cast<int64_t>(step.spans.size()),
            .heads = heads(),
            .head_begin = 0,
            .head_end = spec_.num_heads,
            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec_.head_dim))),
            .kv_rows = step.kv_rows,
            .q = rows.floats(kQ),
            .keys = step.keys,
            .values = step.values,
            .out = rows.floats(kAttended),
            .log_sum_exp = rows.floats(kLogSumExp)};
  }

  /// Multiply-adds of all queries with all keys.
  int64_t attention_work(const StepInput& step) const {
    int64_t pairs = 0;
    for (const auto& span : step.spans)
      pairs += int64_t{span.num_queries} * (span.num_cached + span.num_queries / 2 + 1);
    return 2 * pairs * q_width();
  }

  /// Calls body(args) for each family of spans and key-value head: each call adds to separate
  /// memory.
  template <class Body>
  void share_heads(const StepInput& step, const AttentionArgs& all, int64_t work,
                   Body&& body) const {
    const int64_t num_kv_heads = spec_.num_kv_heads;
    const int64_t num_tasks = static_cast<int64_t>(step.family_ends.size()) * num_kv_heads;
    if (threads_for(work, num_tasks) < 2) return body(all);
    const int32_t group = spec_.num_heads / spec_.num_kv_heads;
    share_tasks(num_tasks, work, [&](int64_t i) {
      const auto family = static_cast<size_t>(i / num_kv_heads);
      const int64_t first = family == 0 ? 0 : step.family_ends[family - 1];
      AttentionArgs one = all;
      one.spans = step.spans.data() + first;
      one.num_spans = step.family_ends[family] - first;
      one.head_begin = static_cast<int32_t>(i % num_kv_heads) * group;
      one.head_end = one.head_begin + group;
      body(one);
    });
  }

  void attend(const StepInput& step, const Buffers& rows) const {
    share_heads(step, attention(step, rows), attention_work(step),
                [&](const AttentionArgs& args) { tools_.ops.attention(args); });
  }

  void attend_backward(const StepInput& step, const Buffers& rows,
                       const Buffers& gradient_rows) const {
    gradient_rows.tensor(kKeysSlope).narrow(0, 0, step.num_rows).zero_();
    gradient_rows.tensor(kValuesSlope).narrow(0, 0, step.num_rows).zero_();
    share_heads(step, attention(step, rows), 3 * attention_work(step),
                [&](const AttentionArgs& args) {
                  tools_.ops.attention_backward({.forward = args,
                                                 .dout = gradient_rows.floats(kAttendedSlope),
                                                 .dq = gradient_rows.floats(kQSlope),
                                                 .dkeys = gradient_rows.floats(kKeysSlope),
                                                 .dvalues = gradient_rows.floats(kValuesSlope)});
                });
  }

  void rotate_backward(const StepInput& step, const Buffers& rows, const Buffers& gradient_rows) {
    // The gradients of both norms, side by side.
    const int64_t d = spec_.head_dim;
    dnorms_.assign(static_cast<size_t>(2 * d), 0.0F);
    share_sums(step.num_rows, 2 * d, 16 * step.num_rows * qkv_width(), tools_.room, dnorms_.data(),
               [&](int64_t begin, int64_t end, float* sums) {
                 tools_.ops.rotary_backward(
                     {.rows = end - begin,
                      .heads = heads(),
                      .rotary_dim = spec_.rotary_dim,
                      .epsilon = tools_.epsilon,
                      .qkv = rows.floats(kQkv) + begin * qkv_width(),
                      .q_weight = q_norm_,
                      .k_weight = k_norm_,
                      .positions = step.batch->positions.data() + begin,
                      .cosine = step.cosine,
                      .sine = step.sine,
                      .dq = gradient_rows.floats(kQSlope) + begin * q_width(),
                      .dkeys = gradient_rows.floats(kKeysSlope) + begin * kv_width(),
                      .dvalues = gradient_rows.floats(kValuesSlope) + begin * kv_width(),
                      .dqkv = gradient_rows.floats(kQkvSlope) + begin * qkv_width(),
                      .dq_weight = sums,
                      .dk_weight = sums + d});
               });
    if (dq_norm_ == nullptr) return;
    for (int64_t i = 0; i < d; ++i) {
      dq_norm_[i] += dnorms_[static_cast<size_t>(i)];
      dk_norm_[i] += dnorms_[static_cast<size_t>(d + i)];
    }
  }

  const StageTools tools_;
  const Parameters parameters_;
  const AttentionSpec spec_;
  Norm norm_;
  Linear qkv_, out_;
  const float* q_norm_;
  const float* k_norm_;
  float* dq_norm_ = nullptr;
  float* dk_norm_ = nullptr;
  std::vector<float> dnorms_;  // scratch
};

}  // namespace

std::unique_ptr<Stage> make_attention_gqa(const AttentionSpec& spec, const std::string& prefix,
                                          const DecoderWeights& weights, StageTools tools) {
  return std::make_unique<AttentionGqa>(spec, prefix, weights, tools);
}

}  // namespace primerl
