#include "kernels/cpu/learner/learner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/boundary.h"
#include "kernels/common/gradient_norms.h"
#include "kernels/common/step_report.h"
#include "kernels/cpu/learner/head.h"
#include "kernels/cpu/learner/trained_tensors.h"
#include "kernels/cpu/learner/training_pass.h"

namespace primerl {
namespace {

class CpuBackend final : public LearnerBackend {
 public:
  CpuBackend(const LearnerOptions& options, ModelFolder model)
      : options_(options),
        model_(std::move(model)),
        table_(model_.config),
        own_(std::make_unique<DecoderWeights>(table_, numerics_of(options.numerics),
                                              DecoderWeights::Use::kLearner,
                                              gemm_numbers_of(options.products))),
        decoder_(model_.config, *own_),
        pass_(decoder_, recompute_of(options.recompute)),
        head_(decoder_) {
    trained_.push_back(
        {nullptr, std::make_unique<TrainedTensors>(table_, own_->flat(), options.optimizer)});
    decoder_.bind_gradients(trained_.front().tensors->gradients());
  }
  CpuBackend(const LearnerOptions& options, ModelFolder model,
             std::shared_ptr<const FrozenWeights> base, std::span<const AdapterTraining> adapters)
      : options_(options),
        model_(std::move(model)),
        table_(model_.config),
        base_(std::move(base)),
        decoder_(model_.config, base_->weights()),
        pass_(decoder_, recompute_of(options.recompute)),
        head_(decoder_) {
    for (const auto& training : adapters)
      trained_.push_back(training.is_free ? Trained() : made(training));
  }

  Status run(std::string_view doing, int64_t /*rows*/,
             const std::function<Status()>& body) override {
    return at_boundary(doing, body);
  }
  const ModelFolder& model() const override { return model_; }
  const TensorTable& table() const override { return table_; }
  const AdapterTable* adapter(size_t slot) const override {
    const auto& adapter = trained_[slot].adapter;
    return adapter == nullptr ? nullptr : &adapter->table();
  }
  int64_t num_steps(size_t slot) const override { return trained_[slot].tensors->num_steps(); }
  /// libtorch's GEMM of more rows may have other bits.
  bool can_share_passes() const override {
    return base_ != nullptr && numerics_of(options_.numerics) == Numerics::kInvariant;
  }
  std::optional<int32_t> adapter_batch_tokens() const override {
    if (!can_share_passes()) return std::nullopt;
    return std::min(options_.micro_batch_tokens, options_.adapter_batch_tokens);
  }
  void visit(ActivationVisitor visitor) override { pass_.visit(std::move(visitor)); }
  void on_layer(std::function<void()> done) override { pass_.on_layer(std::move(done)); }

  Status fill(const std::vector<WeightTensor>& tensors) override {
    if (own_ != nullptr) return own_->load(tensors);
    return error(Code::kInvalid, "this learner trains adapters, its weights are frozen");
  }
  Status randomize(uint64_t seed) override {
    randomize_parameters(table_, seed, model_.config.initializer_range,
                         own_->flat().mutable_data_ptr<float>());
    return round();
  }
  Status begin_tenant(size_t slot, const AdapterTraining& training) override {
    trained_[slot] = made(training);
    return ok();
  }
  void end_tenant(size_t slot) override {
    decoder_.adapters().set(static_cast<int32_t>(slot), nullptr);
    trained_[slot] = {};
  }
  Status fill_adapter(size_t slot, const std::vector<WeightTensor>& tensors) override {
    return trained_[slot].adapter->load(tensors);
  }

  Status begin(size_t slot, const AdapterDropout& dropout) override {
    trained_[slot].dropout = dropout;
    trained_[slot].tensors->clear_gradients();
    return ok();
  }
  Status pass(const MicroBatch& pass, std::span<const LearnedPart> parts) override {
    // Set each time: score() between two passes of a step uses none.
    for (size_t slot = 0; slot < trained_.size(); ++slot) use_adapter(slot, trained_[slot].dropout);
    const float* normed = pass_.forward(pass.rows);
    dnormed_.assign(static_cast<size_t>(pass.rows.num_rows() * model_.config.hidden_size), 0.0F);
    head_.learn(pass.targets, parts, normed, dnormed_.data());
    pass_.backward(pass.rows, dnormed_.data());
    return ok();
  }
  Result<std::vector<float>> measure(size_t slot, const MicroBatch& batch,
                                     bool is_of_reference) override {
    const auto& [adapter, tensors, dropout] = trained_[slot];
    if (is_of_reference && adapter == nullptr) return no_reference();
    if (adapter != nullptr)
      decoder_.adapters().set(static_cast<int32_t>(slot), is_of_reference ? nullptr : adapter.get(),
                              dropout);
    std::vector<float> logprobs;
    head_.score(batch.targets, pass_.forward(batch.rows), logprobs);
    return logprobs;
  }
  Status update(size_t slot, const AdamNumbers* adam, TrainReport& report) override {
    TrainedTensors& tensors = *trained_[slot].tensors;
    Optimizer& optimizer = tensors.optimizer();
    // If the new weights had no FP8 scale, the step is undone. Hardly any step needs the copy.
    std::optional<Optimizer::Undo> undo;
    const bool has_scales = own_ != nullptr && own_->has_scales();
    if (has_scales && optimizer.may_overflow(report.learning_rate, adam)) undo = optimizer.undo();
    RETURN_IF_ERROR(tensors.update(report, adam));
    if (report.skipped) return ok();
    const Status rounded = round();
    if (rounded.ok() || !undo) return rounded;
    optimizer.restore(*undo);
    report.skipped = true;
    report.skip_reason = "the update is undone: " + std::string(rounded.error().message());
    return round();
  }
  Result<std::vector<double>> gradient_squares() override {
    return squares_of_parameters(table_, trained_.front().tensors->gradients());
  }
  Status snapshot(size_t slot, WeightSnapshot& snapshot) override {
    snapshot.tensors = trained_[slot].tensors->copy_weights();
    return ok();
  }
  Result<std::vector<float>> score(size_t slot, const MicroBatch& batch) override {
    std::vector<float> logprobs;
    use_adapter(slot, {});
    const float* normed = pass_.forward(batch.rows);
    head_.score(batch.targets, normed, logprobs);
    return logprobs;
  }
  std::vector<WeightTensor> weights(size_t slot) override {
    return trained_[slot].tensors->view_weights();
  }
  std::vector<WeightTensor> gradients(size_t slot) override {
    return trained_[slot].tensors->copy_gradients();
  }
  Result<LearnerCopy> capture(size_t slot) override { return trained_[slot].tensors->capture(); }
  Status load(size_t slot, const std::vector<WeightTensor>& tensors,
              const std::filesystem::path& folder) override {
    // An error of round() would come after the change.
    if (own_ != nullptr) RETURN_IF_ERROR(own_->check(tensors));
    RETURN_IF_ERROR(trained_[slot].tensors->load(tensors, folder));
    return round();
  }

 private:
  struct Trained {
    std::unique_ptr<AdapterWeights> adapter;  // null: whole weights, or a free slot
    std::unique_ptr<TrainedTensors> tensors;  // null: a free slot
    AdapterDropout dropout = {};              // of the step in progress
  };

  /// A new adapter with its optimizer.
  Trained made(const AdapterTraining& training) const {
    auto adapter = std::make_unique<AdapterWeights>(AdapterTable(table_, training.adapter),
                                                    DecoderWeights::Use::kLearner);
    initialize_adapter(adapter->table(), adapter->flat().mutable_data_ptr<float>());
    auto tensors = std::make_unique<TrainedTensors>(adapter->table().tensors(), adapter->flat(),
                                                    training.rules.optimizer);
    adapter->bind_gradients(tensors->gradients());
    return {std::move(adapter), std::move(tensors)};
  }

  /// After a change of whole weights. Frozen ones never change.
  Status round() { return own_ == nullptr ? ok() : own_->round(); }

  /// Sets the adapter for the next pass of the decoder.
  void use_adapter(size_t slot, const AdapterDropout& dropout) {
    if (const auto& adapter = trained_[slot].adapter; adapter != nullptr)
      decoder_.adapters().set(static_cast<int32_t>(slot), adapter.get(), dropout);
  }

  // Constant after construction.
  const LearnerOptions options_;
  const ModelFolder model_;
  const TensorTable table_;
  // Exactly one is set: whole weights that are trained, or frozen ones that may be shared.
  const std::unique_ptr<DecoderWeights> own_;
  const std::shared_ptr<const FrozenWeights> base_;
  Decoder decoder_;
  TrainingPass pass_;
  TrainingHead head_;
  std::vector<Trained> trained_;  // by adapter slot in the decoder
  std::vector<float> dnormed_;    // [rows, hidden], scratch
};

}  // namespace

CpuLearner::CpuLearner(const LearnerOptions& options, ModelFolder model)
    : LearnerCore(options, std::make_unique<CpuBackend>(options, std::move(model))) {}

CpuLearner::CpuLearner(const LearnerOptions& options, ModelFolder model, std::string base_folder,
                       std::shared_ptr<const FrozenWeights> base,
                       std::span<const AdapterTraining> adapters)
    : LearnerCore(
          options,
          std::make_unique<CpuBackend>(options, std::move(model), std::move(base), adapters),
          std::move(base_folder), adapters) {}

}  // namespace primerl
