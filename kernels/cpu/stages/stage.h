/// Stage: one stage of a layer, x + body(rms_norm(x)), with explicit forward and backward. Engine
/// and learner run the same stages; their executors decide where rows and keys are stored.
///
/// A stage reads weights and owns none; its rows belong to the executor (Buffers). An engine uses
/// the same buffers for every layer; a learner keeps some for backward. Backward reverses forward.
/// It adds the gradients of its parameters to the bound flat buffer, and the gradient of its input
/// to that of the residual stream. A row's result depends only on its own sequence. With invariant
/// numerics it has the same bits for any other rows and any number of threads. One thread calls;
/// work is divided over its compute threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/weights/adapters.h"
#include "kernels/cpu/weights/product.h"
#include "kernels/cpu/weights/weights.h"
#include "kernels/engine/row_batch.h"
#include "kernels/models/activations.h"
#include "kernels/models/config.h"
#include "kernels/ops/ops.h"

namespace primerl {

/// Rows of one step, and the data that is not in a stage's buffers.
struct StepInput {
  int64_t num_rows = 0;
  const RowBatch* batch = nullptr;
  std::span<const AttentionSpan> spans;
  const int32_t* kv_rows = nullptr;  // of the spans, by cache row
  /// Spans [ends[i - 1], ends[i]) are a family: they may share keys. Different families share none.
  std::span<const int64_t> family_ends;
  const float* cosine = nullptr;  // [positions, rotary_dim / 2]
  const float* sine = nullptr;
  float* keys = nullptr;  // of the layer: [cache rows, num_kv_heads * head_dim]
  float* values = nullptr;
  bool is_attended = false;  // recomputation: the output of attention is still in its buffers
};

/// The activation buffers of a stage, in the order of its specs. Copies share their memory.
class Buffers {
 public:
  Buffers() = default;
  Buffers(const std::vector<BufferSpec>& specs, int64_t rows);

  float* floats(size_t index) const { return tensors_[index].mutable_data_ptr<float>(); }
  int32_t* integers(size_t index) const { return tensors_[index].mutable_data_ptr<int32_t>(); }
  const at::Tensor& tensor(size_t index) const { return tensors_[index]; }
  void replace(size_t index, at::Tensor tensor) { tensors_[index] = std::move(tensor); }

 private:
  std::vector<at::Tensor> tensors_;
};

/// Allocates buffers; equal specs share one buffer.
class SharedBuffers {
 public:
  explicit SharedBuffers(int64_t rows) : rows_(rows) {}
  Buffers of(const std::vector<BufferSpec>& specs);

 private:
  struct Made {
    std::vector<BufferSpec> specs;
    Buffers buffers;
  };
  int64_t rows_;
  std::vector<Made> made_;
};

/// Settings that all stages of a decoder share.
struct StageTools {
  const CpuOps& ops;
  Gemms& products;
  AdapterGemms& adapters;
  std::vector<float>& room;  // scratch
  int64_t hidden_size = 0;
  float epsilon = 0;  // of RMS norms
};

class Stage {
 public:
  virtual ~Stage() = default;

  virtual std::vector<BufferSpec> activations() const = 0;
  /// The gradient buffers that backward needs too; their contents are lost between two calls.
  virtual std::vector<BufferSpec> gradient_rows() const = 0;

  /// output = input + body(norm(input)). `output` may be `input`, or null: then only the rows for
  /// backward are computed. Keys and values of the batch are written to the cache before attention
  /// reads any.
  virtual void forward(const StepInput& step, const Buffers& rows, const float* input,
                       float* output) = 0;
  /// `residual`: gradient of the output; becomes that of the input.
  virtual void backward(const StepInput& step, const Buffers& rows, const Buffers& gradient_rows,
                        const float* input, float* residual) = 0;
  /// Binds the flat buffer that gradients are added to, in the layout of the table. If it is never
  /// called, the weights are frozen and get no gradients.
  virtual void bind_gradients(float* flat) = 0;
};

/// The stage of `spec`; the names of its parameters begin with `prefix` ("layers.3.attention.").
std::unique_ptr<Stage> make_stage(const StageSpec& spec, const std::string& prefix,
                                  const DecoderWeights& weights, StageTools tools);
std::unique_ptr<Stage> make_attention_gqa(const AttentionSpec& spec, const std::string& prefix,
                                          const DecoderWeights& weights, StageTools tools);
std::unique_ptr<Stage> make_mlp(const MlpSpec& spec, const std::string& prefix,
                                const DecoderWeights& weights, StageTools tools);
std::unique_ptr<Stage> make_moe(const MoeSpec& spec, const std::string& prefix,
                                const DecoderWeights& weights, StageTools tools);

/// Access to parameters and their gradients; null if the model has no such parameter.
struct Parameters {
  const DecoderWeights& weights;
  std::string prefix;

  Matrix matrix(std::string_view name) const { return weights.matrix(prefix + std::string(name)); }
  const float* vector(std::string_view name) const {
    return weights.vector(prefix + std::string(name));
  }
  float* gradient(float* flat, std::string_view name) const {
    const Parameter* found = weights.table().find(prefix + std::string(name));
    return found == nullptr ? nullptr : flat + found->offset;
  }
};

/// The norm at the start of a stage, or at the end of a model.
struct Norm {
  const float* weight = nullptr;
  float* dweight = nullptr;

  void forward(const StageTools& tools, int64_t rows, const float* x, float* y,
               float* inverse_rms) const;
  /// Adds to `dx`.
  void backward(const StageTools& tools, int64_t rows, const float* x, const float* inverse_rms,
                const float* dy, float* dx) const;
};

/// A GEMM with bias, plus the LoRA deltas of the step's rows.
struct Linear {
  Matrix weight;
  const float* bias = nullptr;
  float* dweight = nullptr;
  float* dbias = nullptr;

  static Linear of(const Parameters& parameters, const std::string& name);
  void bind(const Parameters& parameters, const std::string& name, float* flat);
  void forward(const StageTools& tools, int64_t rows, const float* x, const float* residual,
               float* y) const;
  void backward(const StageTools& tools, int64_t rows, const float* x, const float* dy, float* dx,
                bool adds = false) const;
  /// The same for rows that are gathered from the step: the i-th is row `sources[i]` of the step.
  /// Backward needs the rows of one adapter to be adjacent.
  void forward_gathered(const StageTools& tools, std::span<const int32_t> sources, const float* x,
                        float* y) const;
  void backward_gathered(const StageTools& tools, std::span<const int32_t> sources, const float* x,
                         const float* dy, float* dx) const;

  /// Which rows have adapters, and the step's row of each; null: the same row.
  struct AdaptedRows {
    std::span<const AdapterRun> runs;
    const int32_t* sources = nullptr;
  };
  void forward_runs(const StageTools& tools, int64_t rows, const AdaptedRows& adapted,
                    const float* x, const float* residual, float* y) const;
  void backward_runs(const StageTools& tools, int64_t rows, const AdaptedRows& adapted,
                     const float* x, const float* dy, float* dx, bool adds) const;
};

/// down(silu(gate x) * up x), for a dense layer or a shared expert.
struct GatedMlp {
  Linear gate_up, down;
  int64_t width = 0;

  static GatedMlp of(const Parameters& parameters, const std::string& prefix, int64_t width);
  void bind(const Parameters& parameters, const std::string& prefix, float* flat);
  /// `y` may be null: then only the rows for backward are computed.
  void forward(const StageTools& tools, int64_t rows, const float* x, float* gate_up_rows,
               float* activated, const float* residual, float* y) const;
  /// `dgate_up` [rows, 2 width] and `dactivated` [rows, width] are scratch.
  void backward(const StageTools& tools, int64_t rows, const float* x, const float* gate_up_rows,
                const float* activated, const float* dy, float* dgate_up, float* dactivated,
                float* dx, bool adds) const;
};

/// SwiGLU of any rows, divided over threads.
void swiglu(const StageTools& tools, int64_t rows, int64_t width, const float* gate_up,
            float* activated);
void swiglu_backward(const StageTools& tools, int64_t rows, int64_t width, const float* gate_up,
                     const float* dactivated, float* dgate_up);

}  // namespace primerl
