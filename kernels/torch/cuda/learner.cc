#include "kernels/torch/cuda/learner.h"

#include <ATen/Context.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "graph/base/files.h"
#include "kernels/torch/boundary.h"
#include "kernels/torch/cuda/card.h"
#include "kernels/torch/cuda/decoder.h"
#include "kernels/torch/finite.h"
#include "kernels/torch/training/step_report.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr double kGiga = 1e9;
constexpr double kReserveOfLearner = 1e9;  // of libtorch's workspaces and what its pool rounds up

at::ScalarType type_of(const LearnerOptions& options) {
  return options.dtype == "float32" ? at::kFloat : at::kBFloat16;
}

/// What a learner takes on its device.
struct LearnerBytes {
  double weights = 0, rows = 0, head = 0;
  double all() const { return weights + rows + head + kReserveOfLearner; }
};

LearnerBytes bytes_of(const LearnerOptions& options, const ModelConfig& config, int64_t rows) {
  const at::ScalarType type = type_of(options);
  return {static_cast<double>(TensorTable(config).count()) * CardTrained::bytes_of_parameter(type),
          CardTrainingPass::bytes_needed(config, type, recompute_of(options.recompute), rows),
          CardTrainingHead::bytes_needed(config, type)};
}

Error too_large(const LearnerOptions& options, const ModelConfig& config, int64_t rows,
                const CardFacts& card) {
  const LearnerBytes bytes = bytes_of(options, config, rows);
  return error(Code::kExhausted,
               "the learner needs {:.1f} GB of {} for micro-batches of {} tokens (weights, "
               "gradients and moments {:.1f}, activations {:.1f}, head {:.1f}, reserve {:.1f}), "
               "which has {:.1f} of {:.1f} GB free",
               bytes.all() / kGiga, options.device, rows, bytes.weights / kGiga, bytes.rows / kGiga,
               bytes.head / kGiga, kReserveOfLearner / kGiga, card.free_bytes / kGiga,
               card.total_bytes / kGiga)
      .note(
          "lower 'micro_batch_tokens', say recompute = \"keep_attention\" or \"full\", or end "
          "what holds the rest");
}

/// Whether libtorch has been asked for operations that add in one order. It asks this of the
/// environment itself, whenever a product is made.
bool wants_repeatable() {
  const char* config = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  const std::string_view value = config == nullptr ? "" : config;
  if (value != ":4096:8" && value != ":16:8") return false;
  // Of the process: flash attention has no other way to be told.
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  return true;
}

}  // namespace

CudaLearner::CudaLearner(const LearnerOptions& options, ModelFolder model, const CardStream& stream)
    : options_(options),
      model_(std::move(model)),
      rules_{options.loss, options.optimizer, options.schedule, options.max_steps},
      table_(model_.config),
      stream_(stream),
      kept_batches_(options.debug.batch_folder, static_cast<size_t>(options.debug.batches_max)),
      trained_(table_, type_of(options), stream_),
      pass_(model_.config, trained_, stream_, recompute_of(options.recompute), wants_repeatable()),
      head_(model_.config, trained_, stream_) {
  if (options.debug.check_finite || !options.debug.dump_folder.empty())
    pass_.visit([this](const std::string& name, const at::Tensor& rows) { look(name, rows); });
}

/// What is freed may still be read by what was launched.
CudaLearner::~CudaLearner() { static_cast<void>(stream_.wait()); }

Error CudaLearner::out_of_memory(int64_t rows) {
  pass_.release();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const auto card = card_facts(card_index(options_.device));
  return too_large(options_, model_.config, rows, card.ok() ? *card : CardFacts{});
}

template <class Body>
auto CudaLearner::on_card(std::string_view doing, int64_t rows, Body&& body) -> decltype(body()) {
  bool is_full = false;
  auto result = at_boundary(doing, [&]() -> decltype(body()) {
    const CardStream::Use use(stream_);
    try {
      return body();
    } catch (const c10::OutOfMemoryError&) {
      is_full = true;
      return error(Code::kExhausted, "{}: no memory", doing);
    }
  });
  // Only now are the tensors of the failed call gone.
  if (is_full) return out_of_memory(rows);
  return result;
}

Status CudaLearner::fill(const std::vector<WeightTensor>& tensors) {
  RETURN_IF_ERROR(trained_.fill(tensors));
  unused_.clear();
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  for (const auto* tensor : match.unused) unused_.push_back(*tensor);
  return ok();
}

void CudaLearner::randomize(uint64_t seed) {
  trained_.randomize(seed, model_.config.initializer_range);
}

void CudaLearner::look(const std::string& name, const at::Tensor& rows) {
  const at::Tensor host = rows.to(at::kFloat).cpu();
  if (options_.debug.check_finite && broken_.empty())
    if (const std::string where = first_not_finite(host); !where.empty())
      broken_ = fmt::format("activation '{}' is {} of micro-batch {}", name, where, micro_batch_);
  if (!options_.debug.dump_folder.empty())
    dump_.add(fmt::format("micro_batch.{}.{}", micro_batch_, name), host);
}

/// A debug file that cannot be written is no reason to train otherwise than without it.
void CudaLearner::keep_batch(const TrainBatch& batch, int64_t step) {
  const Status kept = kept_batches_.keep(step, batch);
  if (kept.ok() || std::exchange(has_warned_, true)) return;
  fmt::print(stderr, "warning: the batch of step {} is not kept (said once): {}\n", step,
             kept.error().text());
}

Status CudaLearner::dump() {
  auto all = trained_.copy_gradients();
  std::reverse(all.begin(), all.end());
  dump_.add("gradient", all);
  dump_.add("weight", trained_.copy_weights());
  return dump_.write(options_.debug.dump_folder);
}

Status CudaLearner::accumulate(const MicroBatch& batch, LossKind loss, double per_token,
                               LossSums& sums) {
  ASSIGN_OR_RETURN(const at::Tensor normed, pass_.forward(batch.rows));
  {
    const at::Tensor dnormed = at::zeros(normed.sizes(), normed.options().dtype(at::kFloat));
    head_.begin(batch.targets);
    RETURN_IF_ERROR(
        head_.learn(normed, loss, rules_.loss, per_token, dnormed, pass_.scratch(), sums));
    normed.copy_(dnormed);
  }
  return pass_.backward();
}

Result<TrainReport> CudaLearner::step(const TrainBatch& batch,
                                      const StopRequested& stop_requested) {
  RETURN_IF_ERROR(check_samples(batch, limits()));
  const int64_t step = trained_.num_steps() + 1;
  if (!options_.debug.batch_folder.empty()) keep_batch(batch, step);
  broken_.clear();
  dump_ = {};
  // An older dump must not be taken for that of a step that fails.
  if (!options_.debug.dump_folder.empty())
    RETURN_IF_ERROR(StepDump::remove(options_.debug.dump_folder));
  micro_batch_ = 0;
  TrainReport report = begin_report(batch, rules_, step);
  if (report.skipped) return report;
  auto batches = pack(batch.samples, options_.micro_batch_tokens);
  int64_t rows = 0;
  for (const MicroBatch& one : batches) rows = std::max(rows, one.rows.num_rows());
  return on_card("training step", rows,
                 [&] { return run_step(batch, batches, std::move(report), stop_requested); });
}

Result<TrainReport> CudaLearner::run_step(const TrainBatch& batch, std::vector<MicroBatch>& batches,
                                          TrainReport report, const StopRequested& stop_requested) {
  const double per_token = 1.0 / static_cast<double>(report.num_loss_tokens);
  LossSums sums;
  trained_.clear_gradients();
  for (const auto& micro_batch : batches) {
    if (stop_requested && stop_requested())
      return error(Code::kCancelled, "the step was stopped after {} of {} micro-batches",
                   report.num_micro_batches, batches.size());
    RETURN_IF_ERROR(accumulate(micro_batch, batch.loss, per_token, sums));
    ++report.num_micro_batches;
    ++micro_batch_;
    if (broken_.empty()) continue;
    report.skipped = true;
    report.skip_reason = fmt::format("{} (step {})", broken_, trained_.num_steps() + 1);
    if (!options_.debug.dump_folder.empty())
      RETURN_IF_ERROR(dump_.write(options_.debug.dump_folder));
    return report;
  }
  add_means(sums, report);
  RETURN_IF_ERROR(trained_.update(rules_.optimizer, report));
  if (!options_.debug.dump_folder.empty()) RETURN_IF_ERROR(dump());
  return report;
}

Result<std::shared_ptr<const WeightSnapshot>> CudaLearner::snapshot(TenantSlot,
                                                                    PolicyVersion version) {
  using Taken = Result<std::shared_ptr<const WeightSnapshot>>;
  return on_card("a copy of the weights", 0, [&]() -> Taken {
    auto taken = std::make_shared<WeightSnapshot>();
    taken->version = version;
    taken->tensors = trained_.copy_weights();
    return std::shared_ptr<const WeightSnapshot>(std::move(taken));
  });
}

Result<std::vector<float>> CudaLearner::score(TenantSlot, const std::vector<int32_t>& tokens) {
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  TrainSample& sample = batch.samples.emplace_back();
  sample.tokens = tokens;
  sample.loss_mask.assign(tokens.size(), 1);
  Status checked = check_samples(batch, limits());
  if (!checked.ok()) return Error(checked.error());
  const auto num_rows = static_cast<int64_t>(tokens.size());
  return on_card("scoring", num_rows, [&]() -> Result<std::vector<float>> {
    std::vector<float> logprobs;
    const auto batches = pack(batch.samples, static_cast<int32_t>(num_rows));
    if (batches.empty()) return logprobs;
    ASSIGN_OR_RETURN(const at::Tensor normed, pass_.forward(batches.front().rows));
    head_.begin(batches.front().targets);
    RETURN_IF_ERROR(head_.score(normed, logprobs));
    return logprobs;
  });
}

Status CudaLearner::save(TenantSlot, const std::filesystem::path& folder) {
  return on_card("saving a learner", 0, [&]() -> Status {
    auto tensors = trained_.copy_weights();
    tensors.insert(tensors.end(), unused_.begin(), unused_.end());
    RETURN_IF_ERROR(write_model_folder(folder / "weights", model_, tensors));
    RETURN_IF_ERROR(trained_.save(folder / "learner"));
    return system_files().sync(folder);
  });
}

Status CudaLearner::load(TenantSlot, const std::filesystem::path& folder) {
  return on_card("loading a learner", 0, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto tensors, read_model_tensors(folder / "weights"));
    Status loaded = trained_.load(tensors, folder / "learner");
    if (!loaded.ok()) return Error(loaded.error()).while_doing(folder.string());
    return ok();
  });
}

std::string CudaLearner::describe() const {
  return fmt::format("{} optimizer steps, {} parameters on {} in {}", trained_.num_steps(),
                     table_.num_parameters(), options_.device,
                     type_of(options_) == at::kFloat ? "float32" : "bfloat16");
}

std::vector<WeightTensor> CudaLearner::gradients() {
  const CardStream::Use use(stream_);
  return trained_.copy_gradients();
}

Result<std::unique_ptr<Learner>> make_cuda_learner(const LearnerOptions& options, ModelFolder model,
                                                   const std::vector<WeightTensor>* tensors) {
  RETURN_IF_ERROR(check_card_model(model.config));
  if (options.numerics != "fast")
    return error(Code::kInvalid, "numerics \"{}\" cannot be had on {}", options.numerics,
                 options.device)
        .note("products there are not equal to the bit to an engine's; say numerics = \"fast\"");
  ASSIGN_OR_RETURN(const CardFacts card, card_facts(card_index(options.device)));
  if (bytes_of(options, model.config, options.micro_batch_tokens).all() > card.free_bytes)
    return too_large(options, model.config, options.micro_batch_tokens, card);
  return at_boundary("learner", [&]() -> Result<std::unique_ptr<Learner>> {
    use_threads(options.threads);
    const CardStream stream(card_index(options.device));
    const CardStream::Use use(stream);
    auto learner = std::make_unique<CudaLearner>(options, std::move(model), stream);
    if (tensors == nullptr)
      learner->randomize(static_cast<uint64_t>(options.init_seed));
    else
      RETURN_IF_ERROR(learner->fill(*tensors));
    return std::unique_ptr<Learner>(std::move(learner));
  });
}

}  // namespace primerl
