/// The decoder of an engine on a CUDA device: rows in, logits out.
///
/// Owns the rows of activations, not the weights and not the cache. Work is launched on the
/// engine's stream and nothing waits for it, so that a fixed number of rows can be captured in a
/// CUDA graph. The residual stream has two parts: `stream`, and the delta of the last stage, which
/// the next norm adds. One thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/engine/adapter_slots.h"
#include "kernels/cuda/engine/mixture.h"
#include "kernels/cuda/memory/weights.h"
#include "kernels/cuda/ops/cuda_tuning.h"
#include "kernels/models/config.h"

namespace primerl {

/// The input of a forward pass; device memory.
struct CudaStepRows {
  int64_t count = 0;
  const int32_t* tokens = nullptr;     // [count]; may contain token_of_sample(index)
  const int32_t* positions = nullptr;  // [count]
  const int32_t* slots = nullptr;      // [count] rows of the cache; negative: none
  const int32_t* drawn = nullptr;      // by index; null: all tokens are known
  CudaAdapterRows adapters = {};
  /// Each row is the only one of its sequence, and head() reads all. `attend` applies RoPE and
  /// writes keys and values; slots are not read; the delta of a stage may stay in parts.
  bool is_decode_step = false;
};

/// Keys and values of all layers, device memory.
struct CudaKvCache {
  at::Tensor keys;  // [layers, cache rows, num_kv_heads * head_dim]
  at::Tensor values;
  int32_t block_size = 1;

  /// A layer's in blocks of `size` rows.
  cuda::PagedCache paged(size_t layer, int32_t size, int32_t head_dim) const;
};

class CudaDecoder {
 public:
  /// Attention of a layer, for the rows of the pass: reads queries(), writes attended().
  using Attend = std::function<Status(size_t layer)>;
  /// Called after a stage of a layer; for the search for NaN and infinity.
  using Watch = std::function<Status(size_t layer, size_t stage)>;

  /// All arguments must stay valid while it exists; without `adapters` no row has one. A pass has
  /// up to `rows_max` rows, of which `samples_max` are sampled at a time. Positions are less than
  /// `positions_max`.
  CudaDecoder(const ModelConfig& config, const CudaWeights& weights, CudaAdapterSlots* adapters,
              const CudaStream& stream, const cuda::Tuning& tuning, int64_t rows_max,
              int64_t samples_max, int64_t positions_max);

  /// From now on the GEMMs of layers are FP8, with the weights that weights_changed() quantises.
  void use_fp8();
  /// Must be called after a change of the weights, before the next forward().
  Status weights_changed() { return fp8_.quantise_all(stream_); }

  cuda::Type type() const;
  /// Whether a decode pass never waits for the host.
  bool may_be_captured() const { return !mixture_.has_value() || mixture_->may_be_captured(); }
  /// Reads the biases of the router from `tensors`; GEMMs do not read them from the weights.
  Status take(const TensorTable& table, const std::vector<WeightTensor>& tensors) {
    return mixture_.has_value() ? mixture_->take_biases(table, tensors) : ok();
  }
  int64_t samples_max() const { return logits_.size(0); }

  /// Writes keys and values of all rows, layer by layer, before `attend` is called for it.
  Status forward(const CudaStepRows& rows, const CudaKvCache& cache, const Attend& attend,
                 const Watch& watch = {});
  /// Logits of all `count` rows of the last pass, or of the rows in `picked` ([count] on the
  /// device). `adapters` are those of these rows.
  Status head(int64_t count, const int32_t* picked, const CudaAdapterRows& adapters);
  /// Whether an adapter may add to the head.
  bool has_adapters_on_head() const { return on_head_ != nullptr; }

  /// The arguments of a layer's norm of queries and keys, RoPE and write to the cache; valid until
  /// the next GEMM of this decoder.
  cuda::PagedRotaryArgs rope_args(const CudaStepRows& rows, const CudaKvCache& cache,
                                  size_t layer) const;
  at::Tensor queries() const { return q_; }          // [rows_max, num_heads * head_dim]
  at::Tensor attended() const { return attended_; }  // likewise
  at::Tensor logits() const { return logits_; }      // [samples_max, vocab_size] fp32
  /// The residual stream after the last stage: [count, hidden], in fp32 on the host.
  at::Tensor hidden(int64_t count) const;

  /// Bytes that it allocates at most beside weights and cache, on any device.
  static double bytes_needed(const ModelConfig& config, int64_t element_size, int64_t rows_max,
                             int64_t samples_max, int64_t positions_max);

 private:
  struct Linear {
    CudaLinear base;
    const CudaAdapterSlots::Linear* adapters = nullptr;  // null: nothing can be added to it
  };
  struct Layer {
    const void* attention_norm = nullptr;
    const void* mlp_norm = nullptr;
    const void* q_norm = nullptr;
    const void* k_norm = nullptr;
    Linear qkv, out, gate_up, down;               // the last two for an MLP,
    std::optional<EngineMixture::Layer> mixture;  // or this for a mixture
  };

  /// `delta` as the next norm reads it: delta_ may be in parts and have a LoRA delta.
  cuda::Epilogue epilogue_of(const at::Tensor& delta) const;
  /// sum = stream + delta, to = norm(sum); without a delta to = norm(stream).
  Status norm(int64_t rows, const at::Tensor& stream, const at::Tensor* delta, const void* weight,
              const at::Tensor& sum, const at::Tensor& to) const;
  /// The parts of a decode step's GEMM if small_m_gemm() computes it; else 0.
  int32_t parts_of(const CudaStepRows& rows, const CudaLinear& linear) const;
  /// The delta of a stage: x times its last matrix, to delta_ or in parts.
  Status add(const CudaStepRows& rows, const at::Tensor& x, const Linear& linear);
  /// The first half of an MLP: normed_ to activated_.
  Status apply_swiglu(const CudaStepRows& rows, const Linear& gate_up);
  bool is_adapted(const CudaStepRows& rows, const Linear& linear) const;
  /// Launches the GEMM of x. In a decode step it also launches, in parallel, the first half of the
  /// LoRA delta. The operation that reads the output computes the other half from lora_delta_.
  template <class Gemm>
  Status with_lora_delta(const CudaStepRows& rows, const at::Tensor& x, const Linear& linear,
                         const Gemm& gemm);
  const cuda::LoraDelta* lora_delta() const {
    return lora_delta_.has_value() ? &*lora_delta_ : nullptr;
  }
  /// The GEMM of all rows of a pass. The LoRA delta is in y, or in lora_delta_.
  Status linear(const CudaStepRows& rows, const at::Tensor& x, const Linear& linear,
                const at::Tensor& y);
  void make_angles(int64_t positions_max);

  const ModelConfig& config_;
  const cuda::Tuning tuning_;
  CudaAdapterSlots* const adapters_;  // or null
  const CudaStream& stream_;
  const at::ScalarType type_;
  std::optional<EngineMixture> mixture_;
  std::vector<Layer> layers_;
  Fp8Weights fp8_;  // of the layers' matrices, or none
  const void* embedding_;
  const void* final_norm_;
  CudaLinear head_;
  const CudaAdapterSlots::Linear* on_head_ = nullptr;  // null: no adapter can add to it
  at::Tensor cosine_, sine_;  // [positions, rotary_dim / 2] fp32
  // Rows.
  at::Tensor x_;           // the residual stream without the last delta
  at::Tensor delta_;       // the delta of the last stage, or
  at::Tensor parts_;       // its parts [num_parts_, rows of the pass, hidden] in fp32,
  int32_t num_parts_ = 0;  // where there are some
  at::Tensor normed_;      // [rows_max, hidden]
  at::Tensor qkv_;         // [rows_max, (num_heads + 2 num_kv_heads) * head_dim]
  at::Tensor q_;           //
  at::Tensor attended_;    //
  at::Tensor gate_up_;     // [rows_max, 2 width]
  at::Tensor activated_;
  at::Tensor picked_x_, picked_delta_, picked_normed_;  // [samples_max, hidden]
  at::Tensor logits_;
  std::optional<cuda::LoraDelta> lora_delta_;  // the LoRA delta of the last linear's y
};

}  // namespace primerl
