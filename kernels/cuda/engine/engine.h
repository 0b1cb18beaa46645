/// The Engine on one CUDA device: BatchScheduler plans, CudaDecoder computes, the device samples.
///
/// Numerics are "fast": GEMMs are those of cuBLAS, whose bits depend on the number of rows. So
/// other rows of the batch may change only the last bits of a log-probability. Weights and KV have
/// one type, bf16 or fp32; norms, softmax, logits and sampling are fp32. A step in which every
/// sequence decodes one token is a replayed CUDA graph; others are launched operation by operation.
///
/// step() returns the tokens of one step. If that is a decode step and the next one can be planned
/// without its tokens (BatchScheduler::plan_ahead), the next one is launched first. Then the device
/// has work while the host reads, accepts and plans. The next step reads its tokens from device
/// memory, where the step before wrote them. A sequence that already ended with a stop token still
/// occupies a row of it; that token is discarded. Steps with prompts, or with rows that the host
/// samples, need the tokens: they are planned when the running step has finished. apply() enqueues
/// the copy of new weights after the running step and waits for that step's tokens, which belong to
/// the older version. It does not wait for the copy; the next step is launched after it.
///
/// It computes with the whole weights of one tenant. With `adapter_slots` the weights are those of
/// the folder, and each applied key has an adapter on them (known_adapters.h). New versions, and
/// adapters that prompts wait for, are uploaded while steps continue (adapter_slots.h). The
/// device's sampler does not support penalties, biases and top log-probabilities: such a row is
/// sampled on the host from its logits, by the CPU's sampler. The constructor allocates weights,
/// slots, KV cache and rows. One thread.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "kernels/common/sampler.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/engine/attention.h"
#include "kernels/cuda/engine/decode_graphs.h"
#include "kernels/cuda/engine/step_memory.h"
#include "kernels/cuda/memory/frozen_base.h"
#include "kernels/engine/batch_scheduler.h"
#include "kernels/engine/device_room.h"
#include "kernels/engine/known_adapters.h"

namespace primerl {

class CudaEngine final : public Engine {
 public:
  /// `options` are resolved and checked, as in make_cuda_engine(), which also decides whether a
  /// second set of weights fits. With adapter slots `base` has the folder's weights, else it is
  /// null. Called under a Use of `stream`, of which it keeps a copy.
  CudaEngine(const EngineOptions& options, const ModelConfig& config, const CudaStream& stream,
             const CudaDeviceFacts& facts, bool has_second_set,
             std::shared_ptr<const CudaFrozenBase> base,
             std::shared_ptr<const Tokenizer> tokenizer);
  ~CudaEngine() override;

  /// Fills the weights from a folder; they have no version until one is applied. A base is filled
  /// already.
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
  /// As published by a CpuLearner, in fp32. Empty if adapters are applied.
  WeightManifest manifest() const override;
  KvEvents take_kv_events() override { return scheduler_.take_kv_events(); }
  EngineState state() const override { return scheduler_.state(); }
  int32_t max_sequence_tokens() const override { return options_.max_sequence_tokens; }

 private:
  /// A planned step, and the buffer of its tokens.
  struct Step {
    StepPlan plan;
    size_t buffer_index = 0;  // of StepMemory
    bool has_kept = false;
  };

  bool prepare_adapter(const std::shared_ptr<const WeightSnapshot>& snapshot);
  /// Whether weights on a device are copied through the host.
  bool needs_bytes() const;
  Status take(const WeightSnapshot& snapshot);
  Status apply_adapter(const WeightSnapshot& snapshot);
  /// Uploads the adapter that prompts wait for to its slot. Steps continue meanwhile, unless it
  /// `waits` for the upload.
  Status load_adapter(bool waits);
  Status end_load();
  /// Plans and launches a step if none is in progress; a step with prompts is finished too. False:
  /// there is no work.
  bool begin_step();
  bool is_decode_step(const StepPlan& plan) const;
  bool can_plan_ahead() const;
  CudaAdapterRows decode_adapters(const RowBatch& batch, int64_t rows);
  Status launch(Step& step);
  Status take(const Step& step);
  void finish(const StepPlan& plan, const Status& computed);
  /// Finishes the step in progress, if any.
  void finish_step_in_progress();
  Error out_of_memory(int64_t num_rows) const;
  Status mixed_step();
  void copy_rows();
  size_t num_decoded_spans() const;
  /// The rows of the first spans, which decode_attention() supports.
  DecodeRows decode_rows(int64_t count, int64_t keys_max);
  Status score();
  Status head_of_picked(int64_t count);
  /// The likeliest tokens of rows of logits, on the host; undefined tensors: none are wanted.
  struct Likeliest {
    at::Tensor logits, ids;  // [rows, at least the wanted number], falling
    at::Tensor normalizers;  // [rows]
  };
  Likeliest likeliest(std::span<const StepPlan::Score> scores, const at::Tensor& normalizers) const;
  std::span<const TokenLogprob> top_of(const StepPlan::Score& score, int64_t row,
                                       const Likeliest& all);
  /// The likeliest tokens of a scored row; the row's logits are on the device.
  std::span<const TokenLogprob> top_on_host(const StepPlan::Score& score, int64_t row);
  Status sample_mixed();
  /// Passes the sampled tokens of `samples` to the scheduler: the first rows of a step whose tokens
  /// are in buffer `buffer_index`.
  void accept(std::span<const StepPlan::Sample> samples, size_t buffer_index, bool has_kept);
  /// Samples from the logits of row `row`, which are still those of its step.
  SampledToken draw_on_host(Sequence& sequence, int64_t row);
  void keep(std::span<const uint32_t> words, Sequence& sequence);
  Status check_finite(size_t layer, size_t stage, int64_t num_rows) const;

  // Constant after construction.
  const EngineOptions options_;
  const ModelConfig config_;
  const TensorTable table_;
  const cuda::Tuning tuning_;
  const bool has_decode_attention_;
  // The device. The stream is declared first, because everything below uses it.
  CudaStream stream_;
  // Exactly one of these: the whole weights of one tenant, or the frozen base of the adapters.
  std::unique_ptr<CudaWeights> whole_;
  std::shared_ptr<const CudaFrozenBase> base_;
  const CudaWeights& weights_;                  // those
  std::unique_ptr<CudaAdapterSlots> adapters_;  // null: whole weights are applied
  CudaDecoder decoder_;
  CudaAttention attention_;
  CudaKvCache cache_;
  StepMemory memory_;
  DecodeGraphs graphs_;
  at::Tensor workspace_;  // of decode attention
  // The adapters that it knows.
  KnownAdapters known_;
  bool is_loading_ = false;  // an adapter is being uploaded to a slot
  // The step.
  BatchScheduler scheduler_;
  Step step_;                    // the current one
  Step next_;                    // the one after
  Status lost_;                  // not ok once the device is lost: nothing can be computed
  bool is_in_progress_ = false;  // step_ was launched and not finished
  uint64_t num_steps_ = 0;
  Sampler sampler_;
  std::vector<int32_t> ids_;       // scratch: ids of a kept set
  std::vector<TokenLogprob> top_;  // scratch: of a scored row
};

/// The bytes that make_cuda_engine() compares with the free memory.
DeviceBytes cuda_engine_bytes(const EngineOptions& options, const ModelConfig& config);

/// The engine of a folder with the given `config`. `options` are resolved; their device is an
/// existing CUDA device. Refuses an engine that does not fit the device; the error has both sizes.
/// With adapter slots its weights are in `bases`, which may be null.
Result<std::unique_ptr<Engine>> make_cuda_engine(const EngineOptions& options,
                                                 const ModelConfig& config,
                                                 const std::filesystem::path& model_folder,
                                                 std::shared_ptr<const Tokenizer> tokenizer,
                                                 FrozenBases* bases);

}  // namespace primerl
