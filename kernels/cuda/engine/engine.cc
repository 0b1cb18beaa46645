#include "kernels/cuda/engine/engine.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

#include "kernels/common/boundary.h"
#include "kernels/common/finite.h"
#include "kernels/cuda/device/device.h"
#include "kernels/engine/kept_sets.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

SchedulerLimits limits_on_cuda(const EngineOptions& options, const ModelConfig& config,
                               std::shared_ptr<const Tokenizer> tokenizer) {
  const DataType type =
      type_named(options.dtype) == at::kBFloat16 ? DataType::kBF16 : DataType::kF32;
  return {options,
          config.vocab_size,
          config.eos_ids,
          std::move(tokenizer),
          fingerprint(config),
          kv_layout(config, type)};
}

/// Blocks of the longest possible sequence.
int64_t blocks_of_row(const EngineOptions& options) {
  return (int64_t{options.max_sequence_tokens} + options.block_size - 1) / options.block_size;
}

HeadShape heads_on_cuda(const ModelConfig& config) {
  const AttentionSpec& spec = config.attention;
  return {spec.num_heads, spec.num_kv_heads, spec.head_dim};
}

/// A power of two, so that there are few kinds of steps.
int32_t num_splits_of(const cuda::Tuning& tuning, const ModelConfig& config, int64_t rows,
                      int64_t keys_max) {
  const int32_t most = cuda::decode_splits(tuning, rows, heads_on_cuda(config), keys_max);
  return static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(most)));
}

/// Floats of decode attention for any number of rows.
int64_t workspace_of(const cuda::Tuning& tuning, const EngineOptions& options,
                     const ModelConfig& config) {
  int64_t most = 1;
  for (int64_t rows = 1; rows <= options.max_running; ++rows) {
    const int32_t splits = num_splits_of(tuning, config, rows, options.max_sequence_tokens);
    most = std::max(most, cuda::decode_workspace(rows, heads_on_cuda(config), splits));
  }
  return most;
}

bool is_drawn_on_host(const Sequence& sequence) {
  return sequence.processor != nullptr || sequence.request.sampling.num_top_logprobs > 0;
}

}  // namespace

CudaEngine::CudaEngine(const EngineOptions& options, const ModelConfig& config,
                       const CudaStream& stream, const CudaDeviceFacts& facts, bool has_second_set,
                       std::shared_ptr<const CudaFrozenBase> base,
                       std::shared_ptr<const Tokenizer> tokenizer)
    : options_(options),
      config_(config),
      table_(config_),
      tuning_{.num_processors = facts.num_processors},
      has_decode_attention_(has_decode_attention(config_.attention, options.block_size)),
      stream_(stream),
      whole_(base != nullptr ? nullptr
                             : std::make_unique<CudaWeights>(table_, type_named(options.dtype),
                                                             stream_, has_second_set)),
      base_(std::move(base)),
      weights_(base_ != nullptr ? base_->weights() : *whole_),
      adapters_(options.adapter_slots == 0
                    ? nullptr
                    : std::make_unique<CudaAdapterSlots>(table_, options, type_named(options.dtype),
                                                         stream_)),
      decoder_(config_, weights_, adapters_.get(), stream_, tuning_,
               std::max(options.max_batched_tokens, options.max_running), options.max_running,
               options.max_sequence_tokens),
      attention_(config_.attention, stream_),
      memory_(options.max_running, blocks_of_row(options), config_.vocab_size, stream_),
      known_(table_, options),
      scheduler_(limits_on_cuda(options, config_, std::move(tokenizer))) {
  const AttentionSpec& spec = config_.attention;
  const std::vector<int64_t> shape = {config_.num_layers(),
                                      int64_t{options.kv_blocks} * options.block_size,
                                      int64_t{spec.num_kv_heads} * spec.head_dim};
  const auto on_cuda = at::TensorOptions(stream_.device());
  cache_ = {at::zeros(shape, on_cuda.dtype(weights_.type())),
            at::zeros(shape, on_cuda.dtype(weights_.type())), options.block_size};
  workspace_ = at::zeros({workspace_of(tuning_, options, config_)}, on_cuda.dtype(at::kFloat));
  if (options_.products == "fp8") decoder_.use_fp8();
}

/// Launched operations may still read memory that is freed here.
CudaEngine::~CudaEngine() { static_cast<void>(stream_.wait()); }

Status CudaEngine::load(const std::vector<WeightTensor>& tensors) {
  const CudaStream::Use use(stream_);
  if (whole_ != nullptr) RETURN_IF_ERROR(whole_->load(tensors));
  RETURN_IF_ERROR(decoder_.weights_changed());
  return decoder_.take(table_, tensors);
}

Status CudaEngine::submit(SequenceRequest request) {
  RETURN_IF_ERROR(known_.check_key(request.key(), scheduler_.versions()));
  ASSIGN_OR_RETURN(const int32_t adapter, known_.number_of(request.key()));
  if (scheduler_.slots().slot_of(adapter) == AdapterSlots::kNone) known_.expect_use(adapter);
  return scheduler_.submit(std::move(request), adapter);
}

/// A snapshot that apply() would refuse is not prepared.
bool CudaEngine::prepare(const std::shared_ptr<const WeightSnapshot>& snapshot) {
  if (!known_.check_key(snapshot->key, scheduler_.versions()).ok()) return true;
  if (snapshot->version == scheduler_.versions().of(snapshot->key)) return true;
  if (snapshot->device != nullptr && needs_bytes()) return true;
  const auto is_done = at_boundary("new weights", [&]() -> Result<bool> {
    const CudaStream::Use use(stream_);
    return known_.applies_adapters() ? prepare_adapter(snapshot) : whole_->prepare(snapshot);
  });
  return !is_done.ok() || *is_done;  // apply() reports the error
}

Result<uint64_t> CudaEngine::apply(const WeightSnapshot& snapshot) {
  RETURN_IF_ERROR(known_.check_key(snapshot.key, scheduler_.versions()));
  if (snapshot.version == scheduler_.versions().of(snapshot.key)) return uint64_t{0};
  if (known_.applies_adapters()) finish_step_in_progress();  // slots change only between two steps
  RETURN_IF_ERROR(lost_);
  const Status brought = at_boundary("new weights", [&]() -> Status {
    const CudaStream::Use use(stream_);
    if (snapshot.device == nullptr || !needs_bytes()) return take(snapshot);
    WeightSnapshot bytes{snapshot.key, snapshot.version, {}};
    ASSIGN_OR_RETURN(bytes.tensors, tensors_on_host(snapshot));
    return take(bytes);
  });
  finish_step_in_progress();
  RETURN_IF_ERROR(lost_);
  RETURN_IF_ERROR(stream_.outcome_of("new weights", brought));
  scheduler_.set_version(snapshot.key, snapshot.version);
  return static_cast<uint64_t>(snapshot.tensors.size());
}

WeightManifest CudaEngine::manifest() const {
  WeightManifest manifest;
  if (known_.applies_adapters()) return manifest;  // each may have its own rank and targets
  for (const auto& slice : table_.slices())
    manifest.tensors.push_back({slice.name, DataType::kF32, slice.shape});
  return manifest;
}

std::string CudaEngine::describe() const {
  const EngineState now = scheduler_.state();
  return fmt::format(
      "{} running, {} held, {} waiting, {} of {} blocks free, {} on {}, {} graphs{}",
      now.num_running, now.num_held, now.num_waiting, now.num_free_blocks, now.num_blocks,
      now.versions.empty() ? "no version applied" : to_string(now.versions.list().front()),
      options_.device, graphs_.size(),
      known_.applies_adapters() || weights_.has_space_for_second_set()
          ? ""
          : ", no space for a second set of weights");
}

Status CudaEngine::step() {
  constexpr std::string_view kLoading = "loading an adapter into a slot";
  const auto load = [&](bool waits) {
    return stream_.outcome_of(kLoading, at_boundary(kLoading, [&] {
                                const CudaStream::Use use(stream_);
                                return load_adapter(waits);
                              }));
  };
  RETURN_IF_ERROR(lost_);
  if (known_.applies_adapters()) RETURN_IF_ERROR(load(false));
  if (!is_in_progress_ && !begin_step()) return known_.applies_adapters() ? load(true) : ok();
  if (!is_in_progress_) return lost_;
  const bool has_next = can_plan_ahead() && scheduler_.plan_ahead(next_.plan);
  const Status outcome =
      has_next ? at_boundary("engine step", [this] { return launch(next_); }) : ok();
  finish_step_in_progress();
  if (!has_next || !lost_.ok()) return lost_;
  std::swap(step_, next_);
  is_in_progress_ = outcome.ok();
  if (!outcome.ok()) finish(step_.plan, outcome);
  return lost_;
}

bool CudaEngine::begin_step() {
  if (!scheduler_.plan(step_.plan)) return false;
  const bool is_decode = is_decode_step(step_.plan);
  const Status computed = at_boundary("engine step", [&] {
    const CudaStream::Use use(stream_);
    copy_rows();
    return is_decode ? launch(step_) : mixed_step();
  });
  is_in_progress_ = is_decode && computed.ok();
  if (!is_in_progress_) finish(step_.plan, computed);
  return true;
}

void CudaEngine::finish_step_in_progress() {
  if (!std::exchange(is_in_progress_, false)) return;
  finish(step_.plan, at_boundary("engine step", [this] { return take(step_); }));
}

/// Sampling on the host would read the logits of the next step.
bool CudaEngine::can_plan_ahead() const {
  return std::ranges::none_of(step_.plan.samples, [](const StepPlan::Sample& sample) {
    return is_drawn_on_host(*sample.sequence);
  });
}

/// Copies keys and values of rows that two sequences share so far.
void CudaEngine::copy_rows() {
  for (const RowCopy& copy : step_.plan.copies)
    for (at::Tensor* cache : {&cache_.keys, &cache_.values})
      cache->narrow(1, copy.to, copy.num_rows).copy_(cache->narrow(1, copy.from, copy.num_rows));
}

/// Every row is the only row of its sequence, and is sampled.
bool CudaEngine::is_decode_step(const StepPlan& plan) const {
  const int64_t rows = plan.rows.num_rows();
  if (!has_decode_attention_ || options_.debug.check_finite || !plan.scores.empty() ||
      std::ssize(plan.samples) != rows || std::ssize(plan.rows.spans) != rows ||
      rows > memory_.rows_max())
    return false;
  for (int64_t i = 0; i < rows; ++i)
    if (plan.samples[static_cast<size_t>(i)].row != i) return false;
  return true;
}

DecodeRows CudaEngine::decode_rows(int64_t count, int64_t keys_max) {
  const int32_t splits = num_splits_of(tuning_, config_, count, keys_max);
  return {count,
          memory_.block_table(),
          memory_.table_stride(),
          memory_.device().lengths,
          keys_max,
          splits,
          workspace_.mutable_data_ptr<float>()};
}

/// A decode step.
Status CudaEngine::launch(Step& step) {
  const CudaStream::Use use(stream_);
  const StepPlan& plan = step.plan;
  const int64_t count = plan.rows.num_rows();
  // Without graphs a step has the rows it needs.
  const int64_t padded = cuda::has_own_kernels() ? graph_rows(count, memory_.rows_max()) : count;
  memory_.begin();
  step.buffer_index = memory_.buffer_index();
  step.has_kept = false;
  int64_t keys_max = 0;
  for (int64_t row = 0; row < count; ++row) {
    const auto i = static_cast<size_t>(row);
    const Sequence& sequence = *plan.samples[i].sequence;
    const RowSpan& span = plan.rows.spans[i];
    memory_.decode(row, plan.rows, span);
    memory_.sample(row, sequence, span.num_keys() - sequence.num_prompt_tokens());
    step.has_kept = step.has_kept || has_kept_sets(sequence.request.sampling);
    keys_max = std::max<int64_t>(keys_max, span.num_keys());
  }
  for (int64_t row = count; row < padded; ++row) memory_.clear(row);
  const CudaAdapterRows adapters = decode_adapters(plan.rows, padded);
  RETURN_IF_ERROR(memory_.upload());
  const StepArrays& arrays = memory_.device();
  const CudaStepRows rows{padded,   arrays.tokens, arrays.positions, arrays.slots, memory_.drawn(),
                          adapters, true};
  const DecodeRows decoded = decode_rows(padded, keys_max);
  const auto attend = [&](size_t layer) {
    return attention_.rope_and_decode(decoder_.rope_args(rows, cache_, layer), decoded, cache_,
                                      layer, decoder_.attended());
  };
  const auto launch_all = [&]() -> Status {
    RETURN_IF_ERROR(decoder_.forward(rows, cache_, attend));
    RETURN_IF_ERROR(decoder_.head(padded, nullptr, adapters));
    return memory_.draw(padded, decoder_.logits(), step.has_kept);
  };
  const DecodeGraphs::Kind kind{padded, decoded.num_splits, step.has_kept,
                                adapters.applies_adapters(), adapters.num_expert_runs > 0};
  RETURN_IF_ERROR(decoder_.may_be_captured() ? graphs_.run(kind, launch_all) : launch_all());
  return memory_.download(count, step.has_kept);
}

Status CudaEngine::take(const Step& step) {
  const CudaStream::Use use(stream_);
  RETURN_IF_ERROR(memory_.wait(step.buffer_index));
  accept(step.plan.samples, step.buffer_index, step.has_kept);
  return ok();
}

/// The number of leading spans with one query each; a prompt's last token may be one of them.
size_t CudaEngine::num_decoded_spans() const {
  const auto& spans = step_.plan.rows.spans;
  if (!has_decode_attention_) return 0;
  const size_t most = std::min(spans.size(), static_cast<size_t>(memory_.rows_max()));
  size_t count = 0;
  while (count < most && spans[count].num_queries == 1) ++count;
  return count;
}

Status CudaEngine::mixed_step() {
  const RowBatch& batch = step_.plan.rows;
  const int64_t count = batch.num_rows();
  std::vector<int32_t> all = batch.tokens;
  all.insert(all.end(), batch.positions.begin(), batch.positions.end());
  all.insert(all.end(), batch.cache_rows.begin(), batch.cache_rows.end());
  const at::Tensor uploaded = stream_.ints(all);
  const auto* first = uploaded.const_data_ptr<int32_t>();
  CudaStepRows rows{count, first, first + count, first + 2 * count};
  at::Tensor tiles, runs;
  if (adapters_ != nullptr) {
    adapters_->begin_step(batch, cuda::kAdapterTileRows);
    tiles = stream_.values(std::span(adapters_->tiles()));
    rows.adapters = {static_cast<const cuda::AdapterTile*>(tiles.const_data_ptr()),
                     std::ssize(adapters_->tiles())};
    runs = stream_.values(std::span(adapters_->expert_runs()));
    rows.adapters.expert_runs = static_cast<const cuda::AdapterTile*>(runs.const_data_ptr());
    rows.adapters.known_runs = adapters_->expert_runs();
    rows.adapters.num_expert_runs = std::ssize(adapters_->expert_runs());
  }

  const size_t num_decoded = num_decoded_spans();
  int64_t keys_max = 0;
  for (size_t i = 0; i < num_decoded; ++i) {
    memory_.decode(static_cast<int64_t>(i), batch, batch.spans[i]);
    keys_max = std::max<int64_t>(keys_max, batch.spans[i].num_keys());
  }
  const auto num_rows = static_cast<int64_t>(num_decoded);
  if (num_decoded > 0) RETURN_IF_ERROR(memory_.upload());
  const DecodeRows decoded = decode_rows(std::max<int64_t>(num_rows, 1), keys_max);
  attention_.begin(batch, num_decoded);
  CudaDecoder::Watch watch;
  if (options_.debug.check_finite)
    watch = [&](size_t layer, size_t stage) { return check_finite(layer, stage, count); };
  const auto attend = [&](size_t layer) -> Status {
    if (num_decoded > 0)
      RETURN_IF_ERROR(attention_.decode(decoded, cache_, layer, decoder_.type(), decoder_.queries(),
                                        decoder_.attended()));
    attention_.attend(cache_, layer, decoder_.queries(), decoder_.attended());
    return ok();
  };
  RETURN_IF_ERROR(decoder_.forward(rows, cache_, attend, watch));
  // The source of the copies above is reused.
  RETURN_IF_ERROR(stream_.wait());
  RETURN_IF_ERROR(score());
  return sample_mixed();
}

Status CudaEngine::check_finite(size_t layer, size_t stage, int64_t num_rows) const {
  const std::string where = first_not_finite(decoder_.hidden(num_rows));
  if (where.empty()) return ok();
  return error(Code::kInternal, "activation 'layers.{}.{}.output' is {} (engine step {}, {})",
               layer, stage_name(config_.layers[layer].stages[stage]), where, num_steps_ + 1,
               describe());
}

Status CudaEngine::sample_mixed() {
  std::span<const StepPlan::Sample> left(step_.plan.samples);
  while (!left.empty()) {
    const auto some = left.first(std::min(left.size(), static_cast<size_t>(memory_.rows_max())));
    const auto count = std::ssize(some);
    bool has_kept = false;
    for (size_t i = 0; i < some.size(); ++i) {
      const Sequence& sequence = *some[i].sequence;
      memory_.sample(static_cast<int64_t>(i), sequence,
                     static_cast<int32_t>(sequence.tokens.size()));
      memory_.host().picked[i] = some[i].row;
      has_kept = has_kept || has_kept_sets(sequence.request.sampling);
    }
    RETURN_IF_ERROR(memory_.upload());
    RETURN_IF_ERROR(head_of_picked(count));
    RETURN_IF_ERROR(memory_.draw(count, decoder_.logits(), has_kept));
    RETURN_IF_ERROR(memory_.download(count, has_kept));
    RETURN_IF_ERROR(memory_.wait(memory_.buffer_index()));
    accept(some, memory_.buffer_index(), has_kept);
    left = left.subspan(some.size());
  }
  return ok();
}

void CudaEngine::accept(std::span<const StepPlan::Sample> samples, size_t buffer_index,
                        bool has_kept) {
  const auto tokens = memory_.tokens(buffer_index);
  const auto logprobs = memory_.logprobs(buffer_index);
  for (size_t i = 0; i < samples.size(); ++i) {
    Sequence& sequence = *samples[i].sequence;
    SampledToken drawn{tokens[i], logprobs[i]};
    if (!sequence.has_finished && is_drawn_on_host(sequence))
      drawn = draw_on_host(sequence, static_cast<int64_t>(i));
    else if (!sequence.has_finished && has_kept && has_kept_sets(sequence.request.sampling))
      keep(memory_.kept(buffer_index, static_cast<int64_t>(i)), sequence);
    scheduler_.accept(sequence, drawn.token, drawn.logprob, drawn.rank);
  }
}

SampledToken CudaEngine::draw_on_host(Sequence& sequence, int64_t row) {
  const at::Tensor of_row = decoder_.logits().select(0, row).cpu();
  const std::span<float> logits(of_row.mutable_data_ptr<float>(),
                                static_cast<size_t>(config_.vocab_size));
  if (sequence.processor != nullptr) sequence.processor->apply(logits);
  return sampler_.sample(logits, sequence.request.sampling, sequence.request.seed,
                         static_cast<int32_t>(sequence.tokens.size()), &sequence.kept,
                         &sequence.top_logprobs);
}

void CudaEngine::keep(std::span<const uint32_t> words, Sequence& sequence) {
  ids_.clear();
  for (size_t i = 0; i < words.size(); ++i)
    for (uint32_t bits = words[i]; bits != 0; bits &= bits - 1)
      ids_.push_back(static_cast<int32_t>(32 * i) + std::countr_zero(bits));
  append_kept(ids_, config_.vocab_size, sequence.kept);
}

}  // namespace primerl
