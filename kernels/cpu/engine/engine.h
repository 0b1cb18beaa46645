/// The Engine on libtorch: BatchScheduler decides, Decoder computes, Sampler draws.
///
/// Its weights are the whole ones of one tenant: those of a second one are refused. With
/// `adapter_slots` they are the folder's and stay, a learner may hold the same ones, and each key
/// that is applied has an adapter on them: a step computes rows of all of them together, and each
/// as if it were alone. Of more adapters than slots all are kept beside the slots too, and one that
/// prompts wait for is brought into a slot, a part before each step. Where whole weights change and
/// the options allow a second set, prepare() fills that one, a part each time it is asked,
/// and apply() exchanges the two. KV memory is kv_blocks * block_size cache rows a layer, allocated
/// once. One thread: the one that made it.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "kernels/common/sampler.h"
#include "kernels/cpu/stages/decoder.h"
#include "kernels/cpu/weights/frozen_weights.h"
#include "kernels/engine/batch_scheduler.h"
#include "kernels/engine/known_adapters.h"

namespace primerl {

class TorchEngine final : public Engine {
 public:
  /// Elements that prepare() fills in at a time, and of an adapter before a step: one or two
  /// milliseconds.
  static constexpr int64_t kPreparedElements = int64_t{1} << 20;

  /// `options` has every 0 resolved. `base` is there with adapter slots alone; else weights are
  /// zero until apply() or load(). `tokenizer`, which may be null, is for stop texts.
  TorchEngine(const EngineOptions& options, const ModelConfig& config,
              std::shared_ptr<const Tokenizer> tokenizer,
              std::shared_ptr<const FrozenWeights> base);

  /// Allocates the KV cache; before anything else is called.
  Status make_cache();

  /// Fills the weights, unless they are a base, with what a folder has: they are of no version
  /// until one is applied.
  Status load(const std::vector<WeightTensor>& tensors);

  Status step() override;
  bool has_work() const override { return scheduler_.has_work(); }
  std::string describe() const override;

  Status submit(SequenceRequest request) override;
  Status take_over(SequenceId id) override { return scheduler_.take_over(id); }
  void abort(SequenceId id) override { scheduler_.abort(id); }
  void expire(SequenceId id) override { scheduler_.expire(id); }
  std::vector<PrefillEvent> take_prefilled() override { return scheduler_.take_prefilled(); }
  std::vector<FinishEvent> take_finished() override { return scheduler_.take_finished(); }
  bool prepare(const std::shared_ptr<const WeightSnapshot>& snapshot) override;
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override;
  /// As a TorchLearner publishes them, in fp32. Empty where adapters are applied: each may have a
  /// rank and targets of its own.
  WeightManifest manifest() const override;
  KvEvents take_kv_events() override { return scheduler_.take_kv_events(); }
  EngineState state() const override { return scheduler_.state(); }
  int32_t max_sequence_tokens() const override { return options_.max_sequence_tokens; }

 private:
  /// Of an adapter on the frozen weights.
  struct AdapterInSlot {
    std::unique_ptr<AdapterWeights> weights;  // while it is in a slot, or on its way
    bool is_begun = false;                    // on its way: some of the tensors may be there
  };

  /// Weights and what multiplies by them.
  struct WeightSet {
    WeightSet(const TensorTable& table, Numerics numerics, const ModelConfig& config)
        : own(std::make_unique<DecoderWeights>(table, numerics, DecoderWeights::Use::kEngine)),
          decoder(config, *own) {}
    WeightSet(std::shared_ptr<const FrozenWeights> frozen, const ModelConfig& config)
        : base(std::move(frozen)), decoder(config, base->weights()) {}
    // One of the two is null.
    std::unique_ptr<DecoderWeights> own;        // change with every version
    std::shared_ptr<const FrozenWeights> base;  // maybe held by others too
    Decoder decoder;
  };

  /// Makes it where there is none; false: there is no memory for one.
  bool make_second_set();
  void forget_preparing() {
    preparing_ = nullptr;
    preparing_tensors_.clear();
  }
  bool prepare_more();
  std::unique_ptr<WeightSet> new_set() const;
  Status apply_adapter(const WeightSnapshot& snapshot);
  /// Brings a part of the adapter that prompts wait for into its slot.
  Status load_adapter();
  void copy_rows();
  Status forward();
  Status check_finite(size_t layer, size_t stage, int64_t num_rows) const;
  /// The logits of `count` rows, which row(i) names, beginning at logits_.
  template <class Row>
  float* make_logits(int64_t count, Row row);
  void score();
  void sample();
  void draw(float* logits);

  // Constant after construction.
  const EngineOptions options_;
  const ModelConfig config_;
  const TensorTable table_;
  // Weights.
  std::unique_ptr<WeightSet> weights_;
  std::unique_ptr<WeightSet> second_;  // null: there is none, or none yet
  std::shared_ptr<const WeightSnapshot>
      preparing_;                                // what the second is filled with; null: nothing
  std::vector<WeightTensor> preparing_tensors_;  // of it, on the host
  bool is_prepared_ = false;                     // with all of it
  KnownAdapters known_;
  std::vector<AdapterInSlot> adapters_;  // by their number
  // The step.
  BatchScheduler scheduler_;
  StepPlan plan_;
  uint64_t num_steps_ = 0;
  std::vector<Sampler> samplers_;  // one a thread
  std::vector<SampledToken> drawn_;
  std::vector<float> scored_;
  // Memory, allocated once.
  at::Tensor keys_;  // [layers, cache rows, num_kv_heads * head_dim]
  at::Tensor values_;
  std::vector<std::vector<Buffers>> rows_;  // by layer and stage; layers share them
  at::Tensor hidden_;                       // [max_batched_tokens, hidden], the residual stream
  at::Tensor sampled_;                      // [max_running rows, hidden]
  at::Tensor logits_;                       // [max_running rows, vocab_size]
};

/// The one of a folder, which was read as `config`; `options` are resolved, `bases` may be null.
Result<std::unique_ptr<Engine>> make_cpu_engine(const EngineOptions& options,
                                                const ModelConfig& config,
                                                const std::filesystem::path& model_folder,
                                                std::shared_ptr<const Tokenizer> tokenizer,
                                                FrozenBases* bases);

}  // namespace primerl
