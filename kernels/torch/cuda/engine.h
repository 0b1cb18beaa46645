/// The Engine on one CUDA device: BatchScheduler decides, CardDecoder computes, the device draws.
///
/// Numerics are "fast": products are cuBLAS's, whose bits depend on the number of rows, so that
/// batch mates may change the last bits of a log-probability and no more. Weights and KV have one
/// type, bf16 or fp32; norms, softmax, logits and draws are fp32. A step in which every sequence
/// decodes one token is a replayed CUDA graph; others are launched operation by operation. A step
/// is planned when the tokens of the one before are known, since they decide who goes on.
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
#include "kernels/engine/known_adapters.h"
#include "kernels/torch/cuda/attention.h"
#include "kernels/torch/cuda/card.h"
#include "kernels/torch/cuda/decode_graphs.h"
#include "kernels/torch/cuda/step_memory.h"
#include "kernels/torch/inference/sampler.h"

namespace primerl {

class CudaEngine final : public Engine {
 public:
  /// As make_cuda_engine() does it, which knows whether a second set of weights fits: `options` are
  /// resolved and were checked. Under a Use of `stream`, of which it keeps a copy.
  CudaEngine(const EngineOptions& options, const ModelConfig& config, const CardStream& stream,
             const CardFacts& card, bool has_second_set,
             std::shared_ptr<const Tokenizer> tokenizer);
  ~CudaEngine() override;

  /// Fills the weights with what a folder has: they are of no version until one is applied.
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
  bool prepare_adapter(const std::shared_ptr<const WeightSnapshot>& snapshot);
  Status apply_adapter(const WeightSnapshot& snapshot);
  /// Brings the adapter that prompts wait for into its slot: steps go on meanwhile, unless it
  /// `waits` until that is done.
  Status load_adapter(bool waits);
  Status end_load();
  Status compute();
  bool is_decode_step() const;
  CardAdapterRows decode_adapters(int64_t rows);
  Status decode_step();
  Status mixed_step();
  void copy_rows();
  size_t num_decoded_spans() const;
  /// Of the first spans, which decode_attention() takes.
  DecodeRows decode_rows(int64_t count, int64_t keys_max);
  Status score();
  Status sample_mixed();
  /// Hands the drawn tokens of `samples` on, which are the first rows of the logits.
  Status accept(std::span<const StepPlan::Sample> samples, bool has_kept);
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
  CardWeights weights_;
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
  StepPlan plan_;
  uint64_t num_steps_ = 0;
  Sampler sampler_;
  std::vector<int32_t> ids_;  // scratch: of a kept set
};

/// The one of a folder, which was read as `config`; `options` are resolved, their device is a card
/// that is there. Refuses what does not fit the device, with both sizes.
Result<std::unique_ptr<Engine>> make_cuda_engine(const EngineOptions& options,
                                                 const ModelConfig& config,
                                                 const std::filesystem::path& model_folder,
                                                 std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace primerl
