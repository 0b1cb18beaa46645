/// The Engine on one CUDA device: BatchScheduler decides, CardDecoder computes, the device draws.
///
/// Numerics are "fast": products are cuBLAS's, whose bits depend on the number of rows, so that
/// batch mates may change the last bits of a log-probability and no more. Weights and KV have one
/// type, bf16 or fp32; norms, softmax, logits and draws are fp32. A step in which every sequence
/// decodes one token is a replayed CUDA graph; others are launched operation by operation.
///
/// step() hands on the tokens of one step. Where that is a decode step and the one after can be
/// planned without them (BatchScheduler::plan_ahead), it is launched first, so that the device has
/// work while the host reads, accepts and plans. It reads tokens where the step before left them. A
/// sequence that ends with a stop token has one row more in it, whose token nobody takes. What
/// needs the tokens first is planned when the step under way is done: steps with prompts, or with
/// rows that the host draws. apply() puts the copy of new weights behind it, waits for its tokens,
/// which are of the older version, and not for the copy: the next step is launched behind that.
///
/// Its weights are the whole ones of one tenant, or, with `adapter_slots`, the folder's, and each
/// key that is applied has an adapter on them (known_adapters.h). New versions, and adapters that
/// prompts wait for, come to the device while steps go on (card_adapters.h). What the device's
/// sampler has not (penalties, biases, the likeliest tokens) is drawn on the host from that row's
/// logits, by the CPU's sampler. Weights, slots, KV cache and rows are allocated when it is made.
/// One thread.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "kernels/engine/batch_scheduler.h"
#include "kernels/engine/device_room.h"
#include "kernels/engine/known_adapters.h"
#include "kernels/torch/cuda/attention.h"
#include "kernels/torch/cuda/card.h"
#include "kernels/torch/cuda/card_base.h"
#include "kernels/torch/cuda/decode_graphs.h"
#include "kernels/torch/cuda/step_memory.h"
#include "kernels/torch/inference/sampler.h"

namespace primerl {

class CudaEngine final : public Engine {
 public:
  /// As make_cuda_engine() does it, which knows whether a second set of weights fits: `options` are
  /// resolved and were checked. With adapter slots `base` is the folder's weights, else null. Under
  /// a Use of `stream`, of which it keeps a copy.
  CudaEngine(const EngineOptions& options, const ModelConfig& config, const CardStream& stream,
             const CardFacts& card, bool has_second_set, std::shared_ptr<const CardBase> base,
             std::shared_ptr<const Tokenizer> tokenizer);
  ~CudaEngine() override;

  /// Fills the weights with what a folder has: they are of no version until one is applied. A base
  /// has them already.
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
  /// As a TorchLearner publishes them, in fp32. Empty where adapters are applied.
  WeightManifest manifest() const override;
  EngineState state() const override { return scheduler_.state(); }
  int32_t max_sequence_tokens() const override { return options_.max_sequence_tokens; }

 private:
  /// A planned step, and where its tokens come to.
  struct Step {
    StepPlan plan;
    size_t half = 0;  // of the memory
    bool has_kept = false;
  };

  bool prepare_adapter(const std::shared_ptr<const WeightSnapshot>& snapshot);
  /// Whether weights that lie on a device are taken by way of the host.
  bool needs_bytes() const;
  Status take(const WeightSnapshot& snapshot);
  Status apply_adapter(const WeightSnapshot& snapshot);
  /// Brings the adapter that prompts wait for into its slot: steps go on meanwhile, unless it
  /// `waits` until that is done.
  Status load_adapter(bool waits);
  Status end_load();
  /// Plans and launches a step where none is under way; one with prompts is finished, too. False:
  /// there is nothing to do.
  bool begin_step();
  bool is_decode_step(const StepPlan& plan) const;
  bool can_go_ahead() const;
  CardAdapterRows decode_adapters(const RowBatch& batch, int64_t rows);
  Status launch(Step& step);
  Status take(const Step& step);
  void finish(const StepPlan& plan, const Status& computed);
  /// Finishes the step under way, if there is one.
  void settle();
  Error out_of_memory(int64_t num_rows) const;
  Status mixed_step();
  void copy_rows();
  size_t num_decoded_spans() const;
  /// Of the first spans, which decode_attention() takes.
  DecodeRows decode_rows(int64_t count, int64_t keys_max);
  Status score();
  Status sample_mixed();
  /// Hands the drawn tokens of `samples` on: the first rows of a step whose tokens came to `half`.
  void accept(std::span<const StepPlan::Sample> samples, size_t half, bool has_kept);
  /// From the logits of row `row`, which are still those of its step.
  SampledToken draw_on_host(Sequence& sequence, int64_t row);
  void keep(std::span<const uint32_t> words, Sequence& sequence);
  Status check_finite(size_t layer, size_t stage, int64_t num_rows) const;

  // Constant after construction.
  const EngineOptions options_;
  const ModelConfig config_;
  const TensorTable table_;
  const int32_t num_processors_;
  const bool has_decode_attention_;
  // The device. The stream is first, as all below work on it.
  CardStream stream_;
  // One of both: the whole weights of one tenant, or those that adapters leave as they are.
  std::unique_ptr<CardWeights> whole_;
  std::shared_ptr<const CardBase> base_;
  const CardWeights& weights_;  // those
  std::unique_ptr<CardAdapters> adapters_;  // null: whole weights change
  CardDecoder decoder_;
  CardAttention attention_;
  CardCache cache_;
  StepMemory memory_;
  DecodeGraphs graphs_;
  at::Tensor workspace_;  // of decode attention
  // Whose adapters there are.
  KnownAdapters known_;
  bool is_loading_ = false;  // the adapter that is coming into a slot is on its way to the device
  // The step.
  BatchScheduler scheduler_;
  Step step_;                  // the one that is taken next
  Step next_;                  // the one after
  Status lost_;                // that the device is: nothing can be computed any more
  bool is_under_way_ = false;  // step_ was launched
  uint64_t num_steps_ = 0;
  Sampler sampler_;
  std::vector<int32_t> ids_;  // scratch: of a kept set
};

/// What make_cuda_engine() holds against the memory that is free.
DeviceBytes cuda_engine_bytes(const EngineOptions& options, const ModelConfig& config);

/// The one of a folder, which was read as `config`; `options` are resolved, their device is a card
/// that is there. Refuses what does not fit the device, with both sizes. With adapter slots its
/// weights are among `bases`, which may be null.
Result<std::unique_ptr<Engine>> make_cuda_engine(const EngineOptions& options,
                                                 const ModelConfig& config,
                                                 const std::filesystem::path& model_folder,
                                                 std::shared_ptr<const Tokenizer> tokenizer,
                                                 FrozenBases* bases);

}  // namespace primerl
