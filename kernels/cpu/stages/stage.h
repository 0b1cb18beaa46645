/// Stage: one step of a layer, x + body(rms_norm(x)), forward and backward by hand. Engine and
/// learner run the same stages; an executor of each says where rows and keys are kept.
///
/// A stage reads weights and owns none; its rows belong to the executor (Buffers): an engine lends
/// the same ones to every layer, a learner keeps some for backward. Backward undoes forward in
/// reverse order, adds the gradients of its parameters to the flat buffer it was bound to, and the
/// gradient of its input to the residual stream's. Every row's result depends on that row's
/// sequence alone, bit for bit in invariant numerics, whatever the other rows are and however many
/// threads there are. One thread calls; work is shared out over its compute threads.
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

RouterShape router_shape(const MoeSpec& spec);

/// Rows of one step, and what of them is not in a stage's buffers.
struct StepInput {
  int64_t num_rows = 0;
  const RowBatch* batch = nullptr;
  std::span<const AttentionSpan> spans;
  const int32_t* kv_rows = nullptr;  // of the spans, by cache row
  /// Spans [ends[i - 1], ends[i]) may share keys; those of two such families share none.
  std::span<const int64_t> family_ends;
  const float* cosine = nullptr;  // [positions, rotary_dim / 2]
  const float* sine = nullptr;
  float* keys = nullptr;  // of the layer: [cache rows, num_kv_heads * head_dim]
  float* values = nullptr;
  bool is_attended = false;  // forward again: what attention gave is still in its buffers
};

/// Rows of the activations of a stage, in the order of its specs. Copies share their memory.
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

/// Makes buffers; those of equal specs are the same ones.
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

/// What all stages of a decoder share.
struct StageTools {
  const CpuOps& ops;
  Products& products;
  AdapterProducts& adapters;
  std::vector<float>& room;  // scratch
  int64_t hidden_size = 0;
  float epsilon = 0;  // of RMS norms
};

class Stage {
 public:
  virtual ~Stage() = default;

  virtual std::vector<BufferSpec> activations() const = 0;
  /// Rows that backward needs besides: their contents are lost between two calls.
  virtual std::vector<BufferSpec> slopes() const = 0;

  /// output = input + body(norm(input)); `output` may be `input`, or null: only the rows that
  /// backward needs are wanted. Keys and values of the batch are written to the cache rows before
  /// anything attends.
  virtual void forward(const StepInput& step, const Buffers& rows, const float* input,
                       float* output) = 0;
  /// `residual`: the gradient of the output; becomes that of the input.
  virtual void backward(const StepInput& step, const Buffers& rows, const Buffers& slopes,
                        const float* input, float* residual) = 0;
  /// The flat buffer that gradients are added to, in the layout of the table. Never called: the
  /// weights are frozen, and backward makes no gradients of them.
  virtual void bind_gradients(float* flat) = 0;
};

/// The stage of `spec`; its parameters begin with `prefix` ("layers.3.attention.").
std::unique_ptr<Stage> make_stage(const StageSpec& spec, const std::string& prefix,
                                  const DecoderWeights& weights, StageTools tools);
std::unique_ptr<Stage> make_attention_gqa(const AttentionSpec& spec, const std::string& prefix,
                                          const DecoderWeights& weights, StageTools tools);
std::unique_ptr<Stage> make_mlp(const MlpSpec& spec, const std::string& prefix,
                                const DecoderWeights& weights, StageTools tools);
std::unique_ptr<Stage> make_moe(const MoeSpec& spec, const std::string& prefix,
                                const DecoderWeights& weights, StageTools tools);

/// A parameter and the place of its gradient; null where the model has none.
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

/// The norm at the beginning of a stage, and at the end of a model.
struct Norm {
  const float* weight = nullptr;
  float* dweight = nullptr;

  void forward(const StageTools& tools, int64_t rows, const float* x, float* y,
               float* inverse_rms) const;
  /// Adds to `dx`.
  void backward(const StageTools& tools, int64_t rows, const float* x, const float* inverse_rms,
                const float* dy, float* dx) const;
};

/// A product and its bias, and what the adapters of the step's rows add.
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
};

/// down(silu(gate x) * up x), of a dense layer or a shared expert.
struct GatedMlp {
  Linear gate_up, down;
  int64_t width = 0;

  static GatedMlp of(const Parameters& parameters, const std::string& prefix, int64_t width);
  void bind(const Parameters& parameters, const std::string& prefix, float* flat);
  /// `y` may be null: only the rows are wanted.
  void forward(const StageTools& tools, int64_t rows, const float* x, float* gate_up_rows,
               float* activated, const float* residual, float* y) const;
  /// `dgate_up` [rows, 2 width] and `dactivated` [rows, width] are scratch.
  void backward(const StageTools& tools, int64_t rows, const float* x, const float* gate_up_rows,
                const float* activated, const float* dy, float* dgate_up, float* dactivated,
                float* dx, bool adds) const;
};

/// SwiGLU of any rows, shared out.
void swiglu(const StageTools& tools, int64_t rows, int64_t width, const float* gate_up,
            float* activated);
void swiglu_backward(const StageTools& tools, int64_t rows, int64_t width, const float* gate_up,
                     const float* dactivated, float* dgate_up);

}  // namespace primerl
