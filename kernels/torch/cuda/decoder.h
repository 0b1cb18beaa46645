/// The decoder of an engine on a CUDA device: rows in, logits out.
///
/// Owns the rows of activations, not the weights and not the cache. Work is launched on the
/// engine's stream and nothing waits for it, so that rows of a fixed number can be captured in a
/// CUDA graph. The residual stream is kept in two parts, `stream` and what the last stage adds to
/// it: the next norm adds them. One thread, under a CardStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/models/config.h"
#include "kernels/ops/cuda_products.h"
#include "kernels/torch/cuda/card_adapters.h"
#include "kernels/torch/cuda/mixture.h"
#include "kernels/torch/cuda/weights.h"

namespace primerl {

/// Why the decoder cannot compute a model on a device; ok if it can.
Status check_card_model(const ModelConfig& config);

/// What a forward pass reads; device memory.
struct CardRows {
  int64_t count = 0;
  const int32_t* tokens = nullptr;     // [count], of which some may be drawn_by(place)
  const int32_t* positions = nullptr;  // [count]
  const int32_t* slots = nullptr;      // [count] rows of the cache; negative: none
  const int32_t* drawn = nullptr;      // by place; null: all tokens are known
  CardAdapterRows adapters = {};
  /// Each row is the only one of its sequence, and head() takes all: `attend` turns them and writes
  /// keys and values, slots are not read, and what a stage adds may stay in parts.
  bool is_decode_step = false;
};

/// Keys and values of all layers, device memory.
struct CardCache {
  at::Tensor keys;  // [layers, cache rows, num_kv_heads * head_dim]
  at::Tensor values;
  int32_t block_size = 1;

  /// A layer's in blocks of `size` rows.
  cuda::PagedCache paged(size_t layer, int32_t size, int32_t head_dim) const;
};

class CardDecoder {
 public:
  /// Attention of a layer: from queries() to attended(), both of the rows of the pass.
  using Attend = std::function<Status(size_t layer)>;
  /// After a stage of a layer; for who looks for a broken number.
  using Watch = std::function<Status(size_t layer, size_t stage)>;

  /// All outlive it; without `adapters` no row has one. `rows_max` of a pass, of which
  /// `samples_max` are drawn from at a time; positions are less than `positions_max`.
  CardDecoder(const ModelConfig& config, const CardWeights& weights, CardAdapters* adapters,
              const CardStream& stream, int64_t rows_max, int64_t samples_max,
              int64_t positions_max);

  /// From now on products of layers are FP8's, of what weights_changed() finds.
  void use_fp8();
  /// To be called when the weights are others, before the next forward().
  Status weights_changed() { return fp8_.quantise_all(stream_); }

  cuda::Type type() const;
  /// Whether a pass of one query a sequence waits for nothing.
  bool may_be_captured() const { return !mixture_.has_value() || mixture_->may_be_captured(); }
  /// What of a model's tensors products do not read from the weights.
  Status take(const TensorTable& table, const std::vector<WeightTensor>& tensors) {
    return mixture_.has_value() ? mixture_->take_biases(table, tensors) : ok();
  }
  int64_t samples_max() const { return logits_.size(0); }

  /// Writes keys and values of all rows, layer by layer, before `attend` is called for it.
  Status forward(const CardRows& rows, const CardCache& cache, const Attend& attend,
                 const Watch& watch = {});
  /// Logits of all `count` rows of the last pass, or of the rows that `picked` names ([count] on
  /// the device).
  Status head(int64_t count, const int32_t* picked);

  /// The norm of queries and keys, the turn and the write to the cache of a layer, until the next
  /// product of this decoder.
  cuda::PagedRotaryArgs turn(const CardRows& rows, const CardCache& cache, size_t layer) const;
  at::Tensor queries() const { return q_; }          // [rows_max, num_heads * head_dim]
  at::Tensor attended() const { return attended_; }  // likewise
  at::Tensor logits() const { return logits_; }      // [samples_max, vocab_size] fp32
  /// The residual stream after the last stage: [count, hidden], in fp32 on the host.
  at::Tensor hidden(int64_t count) const;

  /// Bytes that it allocates beside weights and cache.
  static double bytes_needed(const ModelConfig& config, int64_t element_size, int64_t rows_max,
                             int64_t samples_max, int64_t positions_max);

 private:
  struct Linear {
    CardLinear base;
    const CardAdapters::Linear* adapters = nullptr;  // null: nothing can be added to it
  };
  struct Layer {
    const void* attention_norm = nullptr;
    const void* mlp_norm = nullptr;
    const void* q_norm = nullptr;
    const void* k_norm = nullptr;
    Linear qkv, out, gate_up, down;               // the last two of an MLP,
    std::optional<EngineMixture::Layer> mixture;  // or this
  };

  /// sum = stream + addend, to = norm(sum); without an addend to = norm(stream). addend_ may be in
  /// parts.
  Status norm(int64_t rows, const at::Tensor& stream, const at::Tensor* addend, const void* weight,
              const at::Tensor& sum, const at::Tensor& to) const;
  /// Of the product of a decode step's rows with a matrix, where skinny_product() makes it; else 0.
  int32_t parts_of(const CardRows& rows, const CardLinear& linear) const;
  /// What a stage adds to the stream: x times its last matrix, to addend_ or in parts.
  Status add(const CardRows& rows, const at::Tensor& x, const Linear& linear);
  /// Of an MLP: normed_ to activated_.
  Status open_gates(const CardRows& rows, const Linear& gate_up);
  bool is_adapted(const CardRows& rows, const Linear& linear) const;
  /// Launches the product of x, and in a decode step, beside it, the first half of what adapters
  /// add to it; who reads the product makes the other: added_.
  template <class Product>
  Status with_addend(const CardRows& rows, const at::Tensor& x, const Linear& linear,
                   const Product& product);
  const cuda::AdapterAddend* added() const { return added_.has_value() ? &*added_ : nullptr; }
  /// The product of all rows of a pass. What adapters add is in y, or in added_.
  Status linear(const CardRows& rows, const at::Tensor& x, const Linear& linear,
                const at::Tensor& y);
  void make_angles(int64_t positions_max);

  const ModelConfig& config_;
  CardAdapters* const adapters_;  // or null
  const CardStream& stream_;
  const at::ScalarType type_;
  std::optional<EngineMixture> mixture_;
  std::vector<Layer> layers_;
  Fp8Weights fp8_;  // of the layers' matrices, or none
  const void* embedding_;
  const void* final_norm_;
  CardLinear head_;
  at::Tensor cosine_, sine_;  // [positions, rotary_dim / 2] fp32
  // Rows.
  at::Tensor x_;         // the residual stream without the last addend
  at::Tensor addend_;    // what the last stage adds, or
  at::Tensor parts_;     // its parts [num_parts_, rows of the pass, hidden] in fp32,
  int32_t num_parts_ = 0;  // where there are some
  at::Tensor normed_;    // [rows_max, hidden]
  at::Tensor qkv_;       // [rows_max, (num_heads + 2 num_kv_heads) * head_dim]
  at::Tensor q_;         //
  at::Tensor attended_;  //
  at::Tensor gate_up_;   // [rows_max, 2 width]
  at::Tensor activated_;
  at::Tensor picked_x_, picked_addend_, picked_normed_;  // [samples_max, hidden]
  at::Tensor logits_;
  std::optional<cuda::AdapterAddend> added_;  // what adapters add to the last linear's y
};

}  // namespace primerl
