/// LearnerCore: the Learner of libtorch, on any device. It owns the steps of the tenants, their
/// rules, the checks, the debug options and the files; a LearnerBackend owns weights, gradients and
/// optimizers on its device and runs the passes.
///
/// It trains whole weights, or adapters of several tenants on frozen weights. A step is passes over
/// micro-batches that add to one gradient, then clip and update. Before the update only gradients
/// and scratch memory change, so a step can stop at any time. Each adapter has its own schedule,
/// clip and step count: a step of one tenant changes nothing of another. Steps of several adapters
/// may share passes of at most `micro_batch_tokens` rows. Each adds the same micro-batches as when
/// it runs alone. A queued step runs one pass at a time, so that passes of other steps can run
/// between. The halves of a step that a client asks for use the same passes and the same update
/// (open_gradients.h); their passes are not shared. One thread: the one that made it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/adapter_dropout.h"
#include "kernels/common/step_dump.h"
#include "kernels/models/adapter.h"
#include "kernels/models/folder.h"
#include "kernels/models/tensors.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/kept_batches.h"
#include "kernels/train/learner.h"
#include "kernels/train/learner_copy.h"
#include "kernels/train/open_gradients.h"
#include "kernels/train/options.h"
#include "kernels/train/packing.h"
#include "kernels/train/tenant_steps.h"

namespace primerl {

/// Trained weights on a device, and the passes over the model. `slot` names the weights that one
/// optimizer trains: 0 for whole weights, else an index into the adapters.
/// Called inside run(), unless a method says otherwise.
class LearnerBackend {
 public:
  virtual ~LearnerBackend() = default;

  // Outside of run().
  /// Runs `body` on the device; an exception, lack of memory for `rows` rows or a lost device
  /// becomes an error that says what was being done.
  virtual Status run(std::string_view doing, int64_t rows, const std::function<Status()>& body) = 0;
  virtual const ModelFolder& model() const = 0;
  virtual const TensorTable& table() const = 0;
  /// Null: whole weights, or a free slot.
  virtual const AdapterTable* adapter(size_t slot) const = 0;
  virtual int64_t num_steps(size_t slot) const = 0;
  /// Whether steps that share a pass keep their bits, as far as the device can.
  virtual bool can_share_passes() const = 0;
  /// The wanted rows of a micro-batch of an adapter, if they are fewer than those of a pass.
  virtual std::optional<int32_t> adapter_batch_tokens() const { return std::nullopt; }
  /// Dense operations per second of the device; 0: not known.
  virtual double peak_flops() const { return 0; }
  /// "cuda:0 in bfloat16"; empty for the CPU.
  virtual std::string device_text() const { return {}; }
  /// Sets a function that gets the activations of every later forward pass, on the device.
  virtual void visit(ActivationVisitor visitor) = 0;
  /// Sets a function that later passes call after each layer. A device that computes on after the
  /// calls have returned does not call it.
  virtual void on_layer(std::function<void()> done) { (void)done; }
  /// Fills the whole weights, or what is not trained beside adapters.
  virtual Status fill(const std::vector<WeightTensor>& tensors) = 0;
  virtual Status randomize(uint64_t seed) = 0;

  virtual Status fill_adapter(size_t slot, const std::vector<WeightTensor>& tensors) = 0;
  /// Makes the adapter and optimizer of a free slot, as at construction; all or nothing. `training`
  /// was checked. Backends of whole weights are not asked.
  virtual Status begin_tenant(size_t slot, const AdapterTraining& training) {
    (void)slot, (void)training;
    return error(Code::kInternal, "this learner has no adapters");
  }
  /// Drops them; the slot is free.
  virtual void end_tenant(size_t slot) { (void)slot; }
  /// Clears the gradient that the passes of a step add to.
  virtual Status begin(size_t slot, const AdapterDropout& dropout) = 0;
  /// Forward and backward; the targets of `pass` belong to `parts`.
  virtual Status pass(const MicroBatch& pass, std::span<const LearnedPart> parts) = 0;
  /// The log-probabilities of the targets of one step of `slot`, with the bits that they have in
  /// a pass() of its own, or those of its reference: the model without the adapter.
  virtual Result<std::vector<float>> measure(size_t slot, const MicroBatch& batch,
                                             bool is_of_reference) = 0;
  /// Clips, and updates the weights at report.learning_rate; fills report.grad_norm. A gradient or
  /// loss that is NaN or infinite changes nothing, nor does, on the CPU, an update that leaves FP8
  /// weights without a scale: the report says that the step was skipped.
  /// `adam`: as in Optimizer::update(); null for the numbers of the slot's options.
  virtual Status update(size_t slot, const AdamNumbers* adam, TrainReport& report) = 0;
  /// The sum of squares of the last step's gradient, before the clip, of each trained parameter of
  /// table(), in its order. Only of whole weights.
  virtual Result<std::vector<double>> gradient_squares() { return std::vector<double>(); }
  /// Adds the tensors that engines apply.
  virtual Status snapshot(size_t slot, WeightSnapshot& snapshot) = 0;
  virtual Result<std::vector<float>> score(size_t slot, const MicroBatch& batch) = 0;
  /// The tensors of files, in fp32; valid until they change.
  virtual std::vector<WeightTensor> weights(size_t slot) = 0;
  /// Those of the last step, before the clip.
  virtual std::vector<WeightTensor> gradients(size_t slot) = 0;
  /// Copies on the host of what checkpoints keep.
  virtual Result<LearnerCopy> capture(size_t slot) = 0;
  /// Sets the weights, and loads the files of the optimizer (optimizer_state.h); all or nothing.
  virtual Status load(size_t slot, const std::vector<WeightTensor>& tensors,
                      const std::filesystem::path& folder) = 0;
};

/// The error of measure() for whole weights, which have no reference.
Error no_reference();

class LearnerCore : public Learner, private StepRunner, private AccumulateRunner {
 public:
  /// `adapters` are valid and of different tenants, in the order of the backend's slots, of which
  /// some may be free; empty: whole weights, for a batch of any tenant, by the rules of `options`.
  /// `base_folder`: of the frozen weights, for files of adapters.
  LearnerCore(const LearnerOptions& options, std::unique_ptr<LearnerBackend> backend,
              std::string base_folder = {}, std::span<const AdapterTraining> adapters = {});

  /// Fills whole weights, if they are trained, and resets the optimizer.
  Status fill(const std::vector<WeightTensor>& tensors);
  /// Fills the adapter of `tenant` (adapter.h); its optimizer state stays.
  Status fill_adapter(TenantSlot tenant, const std::vector<WeightTensor>& tensors);
  /// Fills each adapter that has a start folder from it.
  Status start_from(std::span<const AdapterTraining> adapters);
  /// Random whole weights from a seed and the model's config.
  Status randomize(uint64_t seed) { return backend_->randomize(seed); }

  using Learner::step;
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop_requested) override;
  std::vector<Result<TrainReport>> step_together(std::span<const TrainBatch* const> batches,
                                                 const StopRequested& stop_requested) override;
  /// Divides steps if several may share passes.
  std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop_requested) override;
  int64_t next_tokens(const TrainBatch& batch) const override;
  void discard(TenantSlot tenant) override;
  Result<LossResult> accumulate(const LossBatch& batch,
                                const StopRequested& stop_requested) override;
  std::optional<Result<LossResult>> accumulate_pass(const std::shared_ptr<const LossBatch>& batch,
                                                    const StopRequested& stop_requested) override;
  int64_t next_rows(const LossBatch& batch) const override;
  Result<TrainReport> apply(TenantSlot tenant, const AdamNumbers& adam) override;
  bool has_open_gradients(TenantSlot tenant) const override;
  SampleLimits limits() const override {
    const ModelConfig& config = backend_->model().config;
    return {config.max_positions, config.vocab_size};
  }
  std::string describe() const override;
  /// Whole weights are the same for every tenant.
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override;
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override;
  Result<std::shared_ptr<const LearnerImage>> capture(TenantSlot tenant) override;
  Result<AnswerLoss> evaluate(const TrainBatch& batch) override;
  Status save(TenantSlot tenant, const std::filesystem::path& folder) override;
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override;
  Status begin_tenant(const AdapterTraining& tenant) override;
  void end_tenant(TenantSlot tenant) override;

  /// Sets a function that gets the activations of every later forward pass.
  void visit(ActivationVisitor visitor) { backend_->visit(std::move(visitor)); }
  /// For tests: the gradient of the last step, before the clip, of the trained tensors.
  std::vector<WeightTensor> gradients(TenantSlot tenant = TenantSlot(0));

 private:
  /// The weights that one optimizer trains, by slot.
  struct Trained {
    TenantSlot tenant;
    TrainingRules rules;
    Objective objective;   // of these rules
    bool is_free = false;  // no tenant is in the slot
  };
  /// Limits of an adapter of any slot: the most of those that the learner was made for.
  struct Largest {
    int32_t rank = 0;
    std::set<std::string> targets;
  };

  static Largest largest_of(std::span<const AdapterTraining> adapters);
  bool has_adapters() const { return has_adapters_; }
  /// The slot that a tenant may begin in.
  Result<size_t> check_begins(const AdapterTraining& tenant) const;
  Result<size_t> slot_of(TenantSlot tenant) const;
  int32_t adapter_of(size_t slot) const;
  std::vector<MicroBatch> micro_batches_of(const TrainBatch& batch) const;
  Result<StepInProgress> begin_step(const TrainBatch& batch) override;
  Status measure(StepInProgress& step) override;
  Status run_pass(const MicroBatch& pass, std::span<const LearnedPart> parts) override;
  Result<TrainReport> end_step(StepInProgress& step) override;
  bool has_debug_fault() const override { return !debug_fault_.empty(); }
  bool shares_passes() const override;
  Status update(const StepInProgress& step, TrainReport& report);
  /// The update of both kinds of steps; `adam` as in LearnerBackend::update().
  Status update_weights(size_t slot, const AdamNumbers* adam, TrainReport& report);
  /// The slot of a client's batch that may be computed.
  Result<size_t> check_client(const LossBatch& batch) const;
  int32_t rows_wanted() const override;
  Result<Division> divide(size_t slot, const LossBatch& batch, uint64_t first_draws,
                          bool clears) override;
  Status learn_part(size_t slot, const MicroBatch& batch, const LearnedPart& part) override;
  Status score_part(size_t slot, const MicroBatch& batch, const LearnedPart& part) override;
  /// The gradient norms by group, without that of adapters.
  Result<std::vector<double>> gradient_norms();
  /// Checks or records activations for the debug options.
  void look(const std::string& name, const at::Tensor& rows);
  void keep_batch(const TrainBatch& batch, int64_t step);
  Status dump(size_t slot);

  /// While it exists, each layer of a pass calls `stop_requested`.
  class SignsOfLife {
   public:
    SignsOfLife(LearnerCore& core, const StopRequested& stop_requested) : core_(core) {
      core_.stop_requested_ = &stop_requested;
    }
    SignsOfLife(const SignsOfLife&) = delete;
    SignsOfLife& operator=(const SignsOfLife&) = delete;
    ~SignsOfLife() { core_.stop_requested_ = nullptr; }

   private:
    LearnerCore& core_;
  };

  // Constant after construction.
  const LearnerOptions options_;
  const std::string base_folder_;
  const std::unique_ptr<LearnerBackend> backend_;
  const bool has_adapters_;
  const Largest largest_;
  std::vector<Trained> trained_;
  KeptBatches kept_batches_;
  bool has_warned_ = false;  // a warning was logged about a batch that was not kept
  /// Tensors of layers that are not run here; saved as they were read.
  std::vector<WeightTensor> unused_;
  TenantSteps steps_{*this, options_.micro_batch_tokens};
  const StopRequested* stop_requested_ = nullptr;  // of the step that runs
  OpenGradients open_{*this};
  // For a step with debug options.
  StepDump dump_;
  std::string debug_fault_;  // the first activation that is not finite
  int32_t micro_batch_ = 0;
  bool is_measuring_ = false;  // the debug options do not look
  bool is_dumped_ = true;      // false: activations are only checked
};

}  // namespace primerl
