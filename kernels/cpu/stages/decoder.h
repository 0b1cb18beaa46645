/// One decoder for every family: embedding, the stages of each layer, final norm, tied or own head.
///
/// Owns the shared parts of the stages, but neither weights nor rows. Engine and learner run its
/// layers differently (inference/engine.cc, training/training_pass.h). One thread calls; work is
/// shared over its compute threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/stages/stage.h"
#include "kernels/engine/row_batch.h"
#include "kernels/models/config.h"

namespace primerl {

class Decoder {
 public:
  /// `config` and `weights` must stay valid while it exists.
  Decoder(const ModelConfig& config, const DecoderWeights& weights);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const ModelConfig& config() const { return config_; }
  StageTools& tools() { return tools_; }
  /// The adapters of its linears; none until they are set.
  AdapterGemms& adapters() { return adapters_; }
  size_t num_layers() const { return layers_.size(); }
  const std::vector<std::unique_ptr<Stage>>& layer(size_t index) const { return layers_[index]; }
  const Norm& final_norm() const { return final_norm_; }
  const Linear& head() const { return head_; }
  /// Without it backward computes only the gradients of adapters.
  void bind_gradients(float* flat);
  /// Reuses the angles that `other`, of the same config, computed for its positions.
  void reuse_angles(Decoder& other) {
    cosine_.swap(other.cosine_);
    sine_.swap(other.sine_);
  }

  /// The input that every stage of a step needs; computes the angles of all its positions. Valid
  /// until the next call.
  StepInput begin(const RowBatch& batch);
  /// Writes hidden [rows, hidden].
  void embed(const RowBatch& batch, float* hidden) const;
  /// Adds the gradient of the embedding, if a gradient buffer is bound.
  void embed_backward(const RowBatch& batch, const float* dhidden) const;

 private:
  void prepare_positions(int64_t count);

  const ModelConfig& config_;
  Gemms products_;
  AdapterGemms adapters_;
  std::vector<float> room_;
  StageTools tools_;
  const float* embedding_;  // [vocab_size, hidden]
  float* dembedding_ = nullptr;
  std::vector<std::vector<std::unique_ptr<Stage>>> layers_;
  Norm final_norm_;
  Linear head_;
  const DecoderWeights& weights_;
  // For the current step.
  std::vector<AttentionSpan> spans_;
  std::vector<int32_t> kv_rows_;  // if blocks have several rows
  std::vector<int64_t> family_ends_;
  // Rotary angles.
  std::vector<float> frequencies_;
  std::vector<float> cosine_;  // [positions, rotary_dim / 2]
  std::vector<float> sine_;
};

}  // namespace primerl
