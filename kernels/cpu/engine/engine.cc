#include "kernels/cpu/engine/engine.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>

#include "kernels/common/boundary.h"
#include "kernels/common/finite.h"
#include "kernels/common/memory.h"
#include "kernels/common/parallel.h"
#include "kernels/sizing/memory.h"
#include "kernels/weights/device_weights.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr int64_t kWorkOfLogit = 8;      // cost of sampling per logit, in multiply-adds
constexpr double kCacheBytesMax = 1e15;  // more than any machine has; keeps sizes in bytes within
                                         // integers

SchedulerLimits limits_of(const EngineOptions& options, const ModelConfig& config,
                          std::shared_ptr<const Tokenizer> tokenizer) {
  return {options,
          config.vocab_size,
          config.eos_ids,
          std::move(tokenizer),
          fingerprint(config),
          kv_layout(config, DataType::kF32)};
}

/// Bytes of keys and values; may exceed the range of an integer.
double cache_bytes(const EngineOptions& options, const ModelConfig& config) {
  return kv_layout(config, DataType::kF32).cache_bytes(options.kv_blocks, options.block_size);
}

Error no_memory(const EngineOptions& options, const ModelConfig& config) {
  return error(Code::kExhausted, "there is no memory for {} KV blocks: they need {:.0f} bytes",
               options.kv_blocks, cache_bytes(options, config))
      .note("lower 'kv_blocks' or 'block_size' of the engine");
}

/// The buffer of a mixture's stage that has the chosen experts.
size_t experts_index(const MoeSpec& spec) {
  static const size_t kIndex = [&] {
    const auto buffers = activations_of(spec, 1);
    return static_cast<size_t>(std::ranges::find(buffers, "experts", &BufferSpec::name) -
                               buffers.begin());
  }();
  return kIndex;
}

}  // namespace

CpuEngine::CpuEngine(const EngineOptions& options, const ModelConfig& config,
                     std::shared_ptr<const Tokenizer> tokenizer,
                     std::shared_ptr<const FrozenWeights> base)
    : options_(options),
      config_(config),
      table_(config_),
      weights_(base == nullptr ? new_set() : std::make_unique<WeightSet>(std::move(base), config_)),
      known_(table_, options),
      scheduler_(limits_of(options, config_, std::move(tokenizer))),
      routed_(options, config_) {
  const int64_t rows = std::max(options.max_batched_tokens, 1);
  SharedBuffers shared(rows);
  const Decoder& decoder = weights_->decoder;
  for (size_t i = 0; i < decoder.num_layers(); ++i)
    for (auto& layer = rows_.emplace_back(); const auto& stage : decoder.layer(i))
      layer.push_back(shared.of(stage->activations()));
  hidden_ = at::zeros({rows, config_.hidden_size}, at::kFloat);
  const int64_t samples = std::min<int64_t>(rows, options.max_running);
  sampled_ = at::zeros({samples, config_.hidden_size}, at::kFloat);
  logits_ = at::empty({samples, config_.vocab_size}, at::kFloat);
}

std::unique_ptr<CpuEngine::WeightSet> CpuEngine::new_set() const {
  return std::make_unique<WeightSet>(table_, numerics_of(options_.numerics),
                                     gemm_numbers_of(options_.products), config_);
}

Status CpuEngine::make_cache() {
  const AttentionSpec& attention = config_.attention;
  const int64_t cache_rows = static_cast<int64_t>(options_.kv_blocks) * options_.block_size;
  const int64_t width = static_cast<int64_t>(attention.num_kv_heads) * attention.head_dim;
  try {
    const std::vector<int64_t> shape = {config_.num_layers(), cache_rows, width};
    const int64_t count = config_.num_layers() * cache_rows * width;
    keys_ = zero_floats(count).view(shape);
    values_ = zero_floats(count).view(shape);
  } catch (const std::exception&) {
    return no_memory(options_, config_);
  }
  return ok();
}

Status CpuEngine::load(const std::vector<WeightTensor>& tensors) {
  return weights_->own->load(tensors);
}

/// The previous version stays until the whole new one is known to fit.
Status CpuEngine::apply_adapter(const WeightSnapshot& snapshot) {
  ASSIGN_OR_RETURN(const auto config, known_.check(snapshot));
  const bool is_known = known_.number_of(snapshot.key).ok();
  ASSIGN_OR_RETURN(const int32_t number, known_.take(snapshot, config));
  AdapterSlots& slots = scheduler_.slots();
  const bool is_in_slot =
      is_known ? slots.slot_of(number) != AdapterSlots::kNone : slots.place(number);
  if (static_cast<size_t>(number) == adapters_.size()) adapters_.emplace_back();
  AdapterInSlot& held = adapters_[static_cast<size_t>(number)];
  held.is_begun = false;  // of the previous version
  held.coming.clear();
  if (!is_in_slot) return ok();
  if (held.weights != nullptr && held.weights->table().config() == config)
    return held.weights->load(snapshot.tensors);
  auto weights =
      std::make_unique<AdapterWeights>(AdapterTable(table_, config), DecoderWeights::Use::kEngine);
  RETURN_IF_ERROR(weights->load(snapshot.tensors));
  weights_->decoder.adapters().set(slots.slot_of(number), weights.get());
  held.weights = std::move(weights);
  return ok();
}

Status CpuEngine::load_adapter() {
  const auto& load = scheduler_.next_load();
  if (!load) return ok();
  AdapterInSlot& held = adapters_[static_cast<size_t>(load->adapter)];
  if (!held.is_begun) {
    AdapterGemms& gemms = weights_->decoder.adapters();
    gemms.set(load->slot, nullptr);
    for (size_t i = 0; i < adapters_.size(); ++i)  // adapters from before
      if (scheduler_.slots().slot_of(static_cast<int32_t>(i)) == AdapterSlots::kNone)
        adapters_[i].weights.reset();
    held.weights = std::make_unique<AdapterWeights>(
        AdapterTable(table_, known_.at(load->adapter).config), DecoderWeights::Use::kEngine);
    held.coming = known_.tensors_of(load->adapter);
    RETURN_IF_ERROR(held.weights->begin_load(held.coming));
    held.is_begun = true;
  }
  if (!held.weights->load_more(kPreparedElements)) return ok();
  held.is_begun = false;
  held.coming.clear();
  weights_->decoder.adapters().set(load->slot, held.weights.get());
  scheduler_.slots().finish();
  return ok();
}

Status CpuEngine::submit(SequenceRequest request) {
  RETURN_IF_ERROR(known_.check_key(request.key(), scheduler_.versions()));
  ASSIGN_OR_RETURN(const int32_t adapter, known_.number_of(request.key()));
  if (scheduler_.slots().slot_of(adapter) == AdapterSlots::kNone) known_.expect_use(adapter);
  return scheduler_.submit(std::move(request), adapter);
}

/// Copies keys and values of rows that two sequences share so far.
void CpuEngine::copy_rows() {
  const int64_t width = keys_.size(2);
  for (at::Tensor* cache : {&keys_, &values_})
    for (int64_t layer = 0; layer < cache->size(0); ++layer) {
      float* rows = cache->mutable_data_ptr<float>() + layer * cache->stride(0);
      for (const RowCopy& copy : plan_.copies)
        std::memcpy(rows + copy.to * width, rows + copy.from * width,
                    static_cast<size_t>(copy.num_rows * width) * sizeof(float));
    }
  routed_.copy(plan_.copies);
}

Status CpuEngine::forward() {
  copy_rows();
  Decoder& decoder = weights_->decoder;
  StepInput step = decoder.begin(plan_.rows);
  float* hidden = hidden_.mutable_data_ptr<float>();
  decoder.embed(plan_.rows, hidden);
  const int64_t stride = keys_.stride(0);
  int32_t num_mixtures_done = 0;
  step.keys = keys_.mutable_data_ptr<float>();
  step.values = values_.mutable_data_ptr<float>();
  for (size_t i = 0; i < decoder.num_layers(); ++i, step.keys += stride, step.values += stride)
    for (size_t s = 0; s < rows_[i].size(); ++s) {
      decoder.layer(i)[s]->forward(step, rows_[i][s], hidden, hidden);
      if (!routed_.is_empty() && std::holds_alternative<MoeSpec>(config_.layers[i].stages[s]))
        routed_.keep(num_mixtures_done++, plan_.rows.cache_rows,
                     rows_[i][s].integers(experts_index(*config_.moe)));
      if (options_.debug.check_finite) RETURN_IF_ERROR(check_finite(i, s, step.num_rows));
    }
  return ok();
}

Status CpuEngine::check_finite(size_t layer, size_t stage, int64_t num_rows) const {
  const std::string where = first_not_finite(hidden_.narrow(0, 0, num_rows));
  if (where.empty()) return ok();
  return error(Code::kInternal, "activation 'layers.{}.{}.output' is {} (engine step {}, {})",
               layer, stage_name(config_.layers[layer].stages[stage]), where, num_steps_ + 1,
               describe());
}

template <class Row>
float* CpuEngine::make_logits(int64_t count, Row row) {
  const int64_t hidden = config_.hidden_size;
  const float* from = hidden_.const_data_ptr<float>();
  float* picked = sampled_.mutable_data_ptr<float>();
  head_rows_.clear();
  for (int64_t i = 0; i < count; ++i) {
    head_rows_.push_back(row(static_cast<size_t>(i)));
    std::memcpy(picked + i * hidden, from + head_rows_.back() * hidden,
                static_cast<size_t>(hidden) * sizeof(float));
  }
  float* logits = logits_.mutable_data_ptr<float>();
  Decoder& decoder = weights_->decoder;
  decoder.final_norm().forward(decoder.tools(), count, picked, picked, nullptr);
  decoder.head().forward_gathered(decoder.tools(), head_rows_, picked, logits);
  return logits;
}

/// Prompts may have more rows than the head has space for.
void CpuEngine::score() {
  samplers_.resize(static_cast<size_t>(std::max(at::get_num_threads(), 1)));
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  std::span<const StepPlan::Score> left(plan_.scores);
  while (!left.empty()) {
    const auto some = left.first(std::min(left.size(), static_cast<size_t>(sampled_.size(0))));
    const auto count = static_cast<int64_t>(some.size());
    const float* logits = make_logits(count, [&](size_t i) { return some[i].row; });
    scored_.resize(some.size());
    scored_top_.resize(some.size());
    for (size_t i = 0; i < some.size(); ++i)
      scored_top_[i].resize(static_cast<size_t>(some[i].prefill->num_prompt_top));
    share(count, count * config_.vocab_size * kWorkOfLogit, [&](int64_t begin, int64_t end) {
      const Sampler& sampler = samplers_[static_cast<size_t>(at::get_thread_num())];
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        scored_[i] = sampler.score({logits + i * vocab, vocab}, some[i].token, scored_top_[i]);
    });
    for (size_t i = 0; i < some.size(); ++i) scheduler_.accept(some[i], scored_[i], scored_top_[i]);
    left = left.subspan(some.size());
  }
}

void CpuEngine::sample() {
  const auto count = static_cast<int64_t>(plan_.samples.size());
  if (count == 0) return;
  draw(make_logits(count, [this](size_t i) { return plan_.samples[i].row; }));
  for (int64_t i = 0; i < count; ++i) {
    const SampledToken& drawn = drawn_[static_cast<size_t>(i)];
    Sequence& sequence = *plan_.samples[static_cast<size_t>(i)].sequence;
    scheduler_.accept(sequence, drawn.token, drawn.logprob, drawn.rank);
    const int32_t start = sequence.request.sampling.routed_experts_start;
    if (start >= 0 && sequence.ended && is_complete(sequence.reason) && !routed_.is_empty())
      sequence.routed = routed_.of(sequence, start);
  }
}

/// Each row is sampled independently, so threads change nothing.
void CpuEngine::draw(float* logits) {
  const auto count = static_cast<int64_t>(plan_.samples.size());
  const int64_t vocab = config_.vocab_size;
  drawn_.resize(plan_.samples.size());
  samplers_.resize(static_cast<size_t>(std::max(at::get_num_threads(), 1)));
  share(count, count * vocab * kWorkOfLogit, [&](int64_t begin, int64_t end) {
    Sampler& sampler = samplers_[static_cast<size_t>(at::get_thread_num())];
    for (int64_t i = begin; i < end; ++i) {
      Sequence& sequence = *plan_.samples[static_cast<size_t>(i)].sequence;
      const std::span<float> row(logits + i * vocab, static_cast<size_t>(vocab));
      if (sequence.processor != nullptr) sequence.processor->apply(row);
      drawn_[static_cast<size_t>(i)] = sampler.sample(
          row, sequence.request.sampling, sequence.request.seed,
          static_cast<int32_t>(sequence.tokens.size()), &sequence.kept, &sequence.top_logprobs);
    }
  });
}

Status CpuEngine::step() {
  RETURN_IF_ERROR(at_boundary("loading an adapter into a slot", [this] { return load_adapter(); }));
  if (!scheduler_.plan(plan_)) return ok();
  const Status computed = at_boundary("engine step", [&]() -> Status {
    RETURN_IF_ERROR(forward());
    score();
    sample();
    return ok();
  });
  ++num_steps_;
  if (computed.ok())
    scheduler_.finish_step();
  else
    scheduler_.fail_step(plan_, computed.error().text());
  return ok();
}

/// The system may refuse memory that it reported as free: then the engine continues with one set.
bool CpuEngine::make_second_set() {
  if (second_ != nullptr) return true;
  if (!options_.has_second_set) return false;
  return at_boundary("a second set of weights",
                     [&]() -> Status {
                       second_ = new_set();
                       return ok();
                     })
      .ok();
}

/// False: nothing more can be prepared.
bool CpuEngine::prepare_more() {
  return at_boundary("preparing weights",
                     [&]() -> Status {
                       is_prepared_ = second_->own->load_more(kPreparedElements);
                       return ok();
                     })
      .ok();
}

/// Snapshots that cannot be applied are not prepared. Nor are snapshots older than the prepared
/// one: two actors may differ by a version for a while.
bool CpuEngine::prepare(const std::shared_ptr<const WeightSnapshot>& snapshot) {
  if (known_.applies_adapters() || !known_.check_key(snapshot->key, scheduler_.versions()).ok())
    return true;
  if (snapshot->version == scheduler_.versions().of(snapshot->key)) return true;
  if (preparing_ != nullptr && preparing_->version > snapshot->version) return true;
  if (preparing_ != snapshot) {
    forget_preparing();
    if (!make_second_set()) return true;
    is_prepared_ = false;
    const Status begun = at_boundary("preparing weights", [&]() -> Status {
      ASSIGN_OR_RETURN(preparing_tensors_, tensors_on_host(*snapshot));
      return second_->own->begin_load(preparing_tensors_);
    });
    if (!begun.ok()) return true;
    preparing_ = snapshot;
  }
  if (is_prepared_ || prepare_more()) return is_prepared_;
  forget_preparing();  // apply() uses it directly
  return true;
}

Result<uint64_t> CpuEngine::apply(const WeightSnapshot& snapshot) {
  RETURN_IF_ERROR(known_.check_key(snapshot.key, scheduler_.versions()));
  if (snapshot.version == scheduler_.versions().of(snapshot.key)) return uint64_t{0};
  if (preparing_.get() == &snapshot) {
    while (!is_prepared_) is_prepared_ = second_->own->load_more(kPreparedElements);
    if (Status loaded = second_->own->load_status(); !loaded.ok()) {
      forget_preparing();
      return std::move(loaded).error();
    }
    second_->decoder.reuse_angles(weights_->decoder);
    std::swap(weights_, second_);
    forget_preparing();
  } else {
    WeightSnapshot host{snapshot.key, snapshot.version, {}};
    ASSIGN_OR_RETURN(host.tensors, tensors_on_host(snapshot));
    RETURN_IF_ERROR(known_.applies_adapters() ? apply_adapter(host) : load(host.tensors));
  }
  scheduler_.set_version(snapshot.key, snapshot.version);
  return static_cast<uint64_t>(snapshot.tensors.size());
}

void CpuEngine::drop(WeightsKey key) {
  if (preparing_ != nullptr && preparing_->key == key) forget_preparing();
  const auto number = known_.drop(key);
  if (number) {
    const int32_t slot = scheduler_.slots().slot_of(*number);
    if (slot != AdapterSlots::kNone) weights_->decoder.adapters().set(slot, nullptr);
    adapters_[static_cast<size_t>(*number)] = {};
  }
  scheduler_.drop(key, number);
}

WeightManifest CpuEngine::manifest() const {
  WeightManifest manifest;
  if (known_.applies_adapters()) return manifest;
  for (const auto& slice : table_.slices())
    manifest.tensors.push_back({slice.name, DataType::kF32, slice.shape});
  return manifest;
}

std::string CpuEngine::describe() const {
  const EngineState now = scheduler_.state();
  return fmt::format(
      "{} running, {} held, {} waiting, {} of {} blocks free, {}", now.num_running, now.num_held,
      now.num_waiting, now.num_free_blocks, now.num_blocks,
      now.versions.empty() ? "no version applied" : to_string(now.versions.list().front()));
}

Result<std::unique_ptr<Engine>> make_cpu_engine(const EngineOptions& options,
                                                const ModelConfig& config,
                                                const std::filesystem::path& model_folder,
                                                std::shared_ptr<const Tokenizer> tokenizer,
                                                FrozenBases* bases) {
  if (cache_bytes(options, config) > kCacheBytesMax) return no_memory(options, config);
  double bytes = 0;
  for (const MemoryPart& part : engine_memory(options, config))
    if (!part.is_optional) bytes += part.bytes;
  const Status fits = check_memory("the engine (weights in fp32 and KV cache)", bytes);
  if (!fits.ok() && 2 * cache_bytes(options, config) > bytes) return no_memory(options, config);
  RETURN_IF_ERROR(fits);
  return at_boundary("engine", [&]() -> Result<std::unique_ptr<Engine>> {
    use_threads(options.threads);
    std::shared_ptr<const FrozenWeights> base;
    std::vector<WeightTensor> tensors;
    if (options.adapter_slots > 0) {
      ASSIGN_OR_RETURN(
          base, frozen_weights(bases, model_folder, config, gemm_numbers_of(options.products)));
    } else {
      ASSIGN_OR_RETURN(tensors, read_model_tensors(model_folder));
    }
    auto engine = std::make_unique<CpuEngine>(options, config, std::move(tokenizer), base);
    if (Status made = engine->make_cache(); !made.ok()) return std::move(made).error();
    if (base != nullptr) return std::unique_ptr<Engine>(std::move(engine));
    Status loaded = engine->load(tensors);
    if (!loaded.ok()) return Error(loaded.error()).while_doing(model_folder.string());
    return std::unique_ptr<Engine>(std::move(engine));
  });
}

}  // namespace primerl
