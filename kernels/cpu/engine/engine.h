/// The Engine on libtorch: BatchScheduler plans, Decoder computes, Sampler samples.
///
/// It computes with the whole weights of one tenant and refuses those of a second one. With
/// `adapter_slots` the weights are the folder's and stay frozen; a learner may share them. Each
/// applied key then has an adapter: a step computes rows of all adapters together, each as if it
/// were alone. If there are more adapters than slots, all have a copy beside the slots
/// (adapter_copies.h). An adapter that prompts wait for is loaded into a slot, a part before each
/// step. If whole weights are applied and the options allow a second set, prepare() fills that set
/// in parts, and apply() exchanges the two. KV memory is kv_blocks * block_size cache rows per
/// layer, allocated once. One thread: the one that made it.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "kernels/common/sampler.h"
#include "kernels/cpu/engine/routed_rows.h"
#include "kernels/cpu/stages/decoder.h"
#include "kernels/cpu/weights/frozen_weights.h"
#include "kernels/engine/batch_scheduler.h"
#include "kernels/engine/known_adapters.h"

namespace primerl {

class CpuEngine final : public Engine {
 public:
  /// Elements that each prepare() call fills in, and elements of an adapter loaded before a step:
  /// one or two milliseconds.
  static constexpr int64_t kPreparedElements = int64_t{1} << 20;

  /// `options` are resolved: no 0 left. `base` is set only with adapter slots; otherwise weights
  /// are zero until apply() or load(). `tokenizer`, which may be null, is for stop texts.
  CpuEngine(const EngineOptions& options, const ModelConfig& config,
            std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const FrozenWeights> base);

  /// Allocates the KV cache; call before anything else.
  Status make_cache();

  /// Fills the weights from a folder, unless they are a base; they have no version until one is
  /// applied.
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
  void drop(WeightsKey key) override;
  void set_share(TenantSlot tenant, double share) override { scheduler_.set_share(tenant, share); }
  /// As published by a CpuLearner, in fp32. Empty if adapters are applied: each may have its own
  /// rank and targets.
  WeightManifest manifest() const override;
  KvEvents take_kv_events() override { return scheduler_.take_kv_events(); }
  EngineState state() const override { return scheduler_.state(); }
  int32_t max_sequence_tokens() const override { return options_.max_sequence_tokens; }

 private:
  /// An adapter on the frozen weights.
  struct AdapterInSlot {
    std::unique_ptr<AdapterWeights> weights;  // while it is in a slot, or being loaded
    std::vector<WeightTensor> coming;         // being loaded: what it is loaded from
    bool is_begun = false;                    // some of these tensors may be there
  };

  /// Weights and the decoder that uses them.
  struct WeightSet {
    WeightSet(const TensorTable& table, Numerics numerics, GemmNumbers numbers,
              const ModelConfig& config)
        : own(std::make_unique<DecoderWeights>(table, numerics, DecoderWeights::Use::kEngine,
                                               numbers)),
          decoder(config, *own) {}
    WeightSet(std::shared_ptr<const FrozenWeights> frozen, const ModelConfig& config)
        : base(std::move(frozen)), decoder(config, base->weights()) {}
    // Exactly one is set.
    std::unique_ptr<DecoderWeights> own;        // replaced with every version
    std::shared_ptr<const FrozenWeights> base;  // may be shared
    Decoder decoder;
  };

  /// Allocates the second set if it is missing; false: not enough memory.
  bool make_second_set();
  void forget_preparing() {
    preparing_ = nullptr;
    preparing_tensors_.clear();
  }
  bool prepare_more();
  std::unique_ptr<WeightSet> new_set() const;
  Status apply_adapter(const WeightSnapshot& snapshot);
  /// Loads a part of the adapter that prompts wait for into its slot.
  Status load_adapter();
  void copy_rows();
  Status forward();
  Status check_finite(size_t layer, size_t stage, int64_t num_rows) const;
  /// Computes the logits of `count` rows, where row(i) gives the i-th row; writes them to logits_.
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
  std::unique_ptr<WeightSet> second_;                // null: none, or not allocated yet
  std::shared_ptr<const WeightSnapshot> preparing_;  // the snapshot that fills the second set;
                                                     // null: none
  std::vector<WeightTensor> preparing_tensors_;      // its tensors, on the host
  bool is_prepared_ = false;                         // the second set is complete
  KnownAdapters known_;
  std::vector<AdapterInSlot> adapters_;  // by number
  // For the current step.
  BatchScheduler scheduler_;
  StepPlan plan_;
  uint64_t num_steps_ = 0;
  std::vector<Sampler> samplers_;  // one per thread
  std::vector<SampledToken> drawn_;
  std::vector<float> scored_;
  std::vector<std::vector<TokenLogprob>> scored_top_;  // by scored row
  // Memory, allocated once.
  at::Tensor keys_;  // [layers, cache rows, num_kv_heads * head_dim]
  at::Tensor values_;
  RoutedRows routed_;
  std::vector<std::vector<Buffers>> rows_;  // by layer and stage; layers share buffers
  at::Tensor hidden_;                       // [max_batched_tokens, hidden], the residual stream
  std::vector<int32_t> head_rows_;          // rows of the step that the head reads
  at::Tensor sampled_;                      // [max_running rows, hidden]
  at::Tensor logits_;                       // [max_running rows, vocab_size]
};

/// The engine of a folder with the given `config`; `options` are resolved, `bases` may be null.
Result<std::unique_ptr<Engine>> make_cpu_engine(const EngineOptions& options,
                                                const ModelConfig& config,
                                                const std::filesystem::path& model_folder,
                                                std::shared_ptr<const Tokenizer> tokenizer,
                                                FrozenBases* bases);

}  // namespace primerl
