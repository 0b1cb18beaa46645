#include "runtime/backends/resource_catalog.h"

#include <filesystem>

#include "actors/catalog.h"
#include "actors/env/environments/catalog.h"
#include "actors/env/rewards/catalog.h"
#include "actors/messages/catalog.h"
#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/config/diagnostic.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/scripted/scripted_engine.h"
#include "kernels/sizing/memory.h"
#include "kernels/sizing/setup.h"
#include "kernels/text/tokenizer_file.h"
#include "kernels/train/optimizer.h"
#include "kernels/weights/options.h"
#include "runtime/backends/idle_options.h"
#include "runtime/backends/numerics_docs.h"
#include "runtime/backends/outside_backend.h"
#include "runtime/backends/tenant_options.h"
#include "runtime/backends/training_options.h"
#include "runtime/plugins/plugins.h"
#include "runtime/program/version.h"

namespace primerl {
namespace {

/// Converts a pointer to a member of the base struct: options are bound to the derived struct.
template <class S, class M, class B>
M S::*field_of(M B::*member) {
  return member;
}

template <class S>
OptionsOf<S> engine_options() {
  return OptionsOf<S>()
      .field("kv_blocks", field_of<S>(&EngineOptions::kv_blocks), at_least(1) | unit("blocks"),
             "blocks of KV memory")
      .field("block_size", field_of<S>(&EngineOptions::block_size), at_least(1) | unit("tokens"),
             "tokens of one KV block")
      .field("max_running", field_of<S>(&EngineOptions::max_running),
             at_least(1) | unit("sequences"), "sequences decoded in one batch")
      .field("max_waiting", field_of<S>(&EngineOptions::max_waiting),
             at_least(1) | unit("sequences"), "prompts queued; more wait before the engine")
      .field("max_batched_tokens", field_of<S>(&EngineOptions::max_batched_tokens),
             at_least(1) | unit("tokens"), "tokens of one step, prefill and decode together")
      .field("max_prefill_tokens", field_of<S>(&EngineOptions::max_prefill_tokens),
             at_least(0) | unit("tokens"),
             "tokens of prompts in a step in which others decode; 0 = no limit of its own")
      .field("prefix_cache", field_of<S>(&EngineOptions::prefix_cache), any(),
             "blocks are reused by content, so that prompts with a common prefix are computed once")
      .field("adapter_slots", field_of<S>(&EngineOptions::adapter_slots),
             between(0, int64_t{kWeightsKeysMax}) | unit("slots"),
             "adapters in its slots at once; a prompt whose adapter is in none waits until it was "
             "brought in; 0 = one for each tenant with an adapter")
      .field("adapter_host_bytes_max", field_of<S>(&EngineOptions::adapter_host_bytes_max),
             at_least(0) | unit("bytes"),
             "where adapters may have no slot: bytes of their copies in host memory; those used "
             "least recently are in files of the run folder instead; 0 = all are in memory")
      .field("max_sequence_tokens", field_of<S>(&EngineOptions::max_sequence_tokens),
             at_least(0) | unit("tokens"),
             "longest prompt and completion; 0 = what the model's config says, of a scripted one "
             "2048")
      .field("threads", field_of<S>(&EngineOptions::threads), at_least(0),
             "compute threads; 0 = its share of the process's cores");
}

template <class S>
OptionsOf<S> learner_options() {
  return OptionsOf<S>()
      .table("loss", field_of<S>(&LearnerOptions::loss), loss_options(), "what is minimised")
      .table("optimizer", field_of<S>(&LearnerOptions::optimizer), optimizer_options(),
             "how weights follow gradients")
      .table("schedule", field_of<S>(&LearnerOptions::schedule), schedule_options(),
             "the learning rate of every step")
      .field("micro_batch_tokens", field_of<S>(&LearnerOptions::micro_batch_tokens),
             at_least(1) | unit("tokens"), "tokens packed into one forward and backward")
      .field("adapter_batch_tokens", field_of<S>(&LearnerOptions::adapter_batch_tokens),
             at_least(1) | unit("tokens"),
             "the most of them for one tenant's adapter where adapters share passes; other tenants "
             "wait that long; samples with a long common prompt stay together")
      .field("threads", field_of<S>(&LearnerOptions::threads), at_least(0),
             "compute threads; 0 = its share of the process's cores");
}

OptionsOf<EngineOptions> torch_engine_options() {
  const OptionSet debug = OptionsOf<EngineDebugOptions>().field(
      "check_finite", &EngineDebugOptions::check_finite, any(),
      "ends the step at the first activation that is NaN or infinite, and names it");
  return engine_options<EngineOptions>()
      .field("kv_events_bytes_max", &EngineOptions::kv_events_bytes_max,
             at_least(0) | unit("bytes"),
             "the largest size of this engine's file in kv_events/ of the run folder, which lists "
             "the events of its prefix cache; 0 = no events")
      .field("routed_experts", &EngineOptions::routed_experts, any(),
             "keeps the experts that a mixture chose, for replies of a gateway; on the CPU only")
      .field("numerics", &EngineOptions::numerics, one_of({"invariant", "fast"}), kNumericsDoc)
      .field("dtype", &EngineOptions::dtype, one_of({"auto", "float32", "bfloat16"}),
             "type of weights and KV; \"auto\": float32 on the CPU, which has no other, bfloat16 "
             "on a CUDA device")
      .field("products", &EngineOptions::products, one_of({"dtype", "bf16", "fp8"}), kProductsDoc)
      .table("debug", &EngineOptions::debug, debug, "for finding the first NaN or infinity");
}

OptionsOf<LearnerOptions> torch_learner_options() {
  using L = LearnerOptions;
  return learner_options<L>()
      .field("recompute", &L::recompute, one_of({"none", "keep_attention", "full"}),
             "what backward computes again instead of keeping it: less memory, more time")
      .field("numerics", &L::numerics, one_of({"invariant", "fast"}), kNumericsDoc)
      .field("dtype", &L::dtype, one_of({"auto", "float32", "bfloat16"}),
             "type of activations and matmuls; weights are kept in float32. \"auto\": float32 on "
             "the CPU, which has no other, bfloat16 on a CUDA device")
      .field("products", &L::products, one_of({"dtype", "bf16", "fp8"}), kProductsDoc)
      .field("peak_tflops", &L::peak_tflops, at_least(0),
             "dense operations per second of its device, in 10^12, for the metric perf/mfu; 0 = of "
             "known CUDA devices their data sheet, of others no perf/mfu")
      .field("device_snapshots", &L::device_snapshots, between(0, 17) | unit("copies"),
             "on a CUDA device, copies of the weights that engines take from there: one more than "
             "'versions_max' of the weight channel; what finds none free goes through the host")
      .table("debug", &L::debug, learner_debug_options(), "for finding the first NaN or infinity")
      .field("init_seed", &L::init_seed, at_least(-1),
             "a folder without weights starts from random ones of this seed; -1 = such a folder is "
             "refused");
}

OptionSet scripted_engine_options() {
  using S = ScriptedEngineOptions;
  return engine_options<S>()
      .field("seed", &S::seed, any(), "of lengths and tokens, with the request's own seed")
      .field("vocab_size", &S::vocab_size, at_least(2) | unit("tokens"), "size of the vocabulary")
      .field("first_token", &S::first_token, at_least(1), "first token id that is sampled")
      .field("eos_id", &S::eos_id, at_least(0), "ends a sequence; below first_token")
      .field("new_tokens_min", &S::new_tokens_min, at_least(1) | unit("tokens"),
             "shortest completion")
      .field("new_tokens_max", &S::new_tokens_max, at_least(1) | unit("tokens"),
             "longest completion")
      .field("tail_fraction", &S::tail_fraction, between(0, 1), "share of long stragglers")
      .field("tail_factor", &S::tail_factor, at_least(1), "how much longer stragglers are")
      .field("refuse_every", &S::refuse_every, at_least(0),
             "every n-th prompt is refused; 0 = none")
      .field("device_fault_file", &S::device_fault_file, any(),
             "a step removes this file and has the fault named in it, \"lost\" or \"full\"")
      .field("logprob_shift", &S::logprob_shift, any(),
             "added to every log-probability, as the rounding of a device would")
      .field("step_cost", &S::step_cost, at_least(0), "time of a step, whatever its size")
      .field("prefill_token_cost", &S::prefill_token_cost, at_least(0), "time of a prompt token")
      .field("decode_token_cost", &S::decode_token_cost, at_least(0), "time of a sampled token")
      .field("apply_cost", &S::apply_cost, at_least(0), "time of applying new weights")
      .field("adapter_load_cost", &S::adapter_load_cost, at_least(0),
             "time of loading an adapter into a slot");
}

OptionSet scripted_learner_options() {
  using S = ScriptedLearnerOptions;
  return learner_options<S>()
      .field("seed", &S::seed, any(), "of the weights' names")
      .field("vocab_size", &S::vocab_size, at_least(2) | unit("tokens"), "size of the vocabulary")
      .field("max_sequence_tokens", &S::max_sequence_tokens, at_least(1) | unit("tokens"),
             "longest sample")
      .field("step_cost", &S::step_cost, at_least(0),
             "time of a pass, which has a micro-batch of each step that takes part")
      .field("token_cost", &S::token_cost, at_least(0), "time of a token through the model")
      .field("snapshot_cost", &S::snapshot_cost, at_least(0), "time of a snapshot")
      .field("save_time", &S::save_time, at_least(0),
             "how long a checkpoint is being written, beside the steps")
      .field("device_fault_file", &S::device_fault_file, any(),
             "a step removes this file and has the fault named in it, \"lost\" or \"full\"; a "
             "checkpoint does so with \"no space\"")
      .field("loss_shift", &S::loss_shift, any(),
             "of the loss that is reported, relative, as the rounding of a device would");
}

using Memory = Result<std::vector<MemoryPart>>;

Memory memory_of_engine(const void* options, const std::string& folder,
                        std::span<const Tenant> tenants) {
  ASSIGN_OR_RETURN(const auto config, read_model_config(folder));
  auto parts =
      engine_memory(engine_for(*static_cast<const EngineOptions*>(options), tenants), config);
  parts.push_back(libraries_memory());
  return parts;
}

/// `learner`: null if only the adapters matter.
Result<std::vector<TrainedAdapter>> trained_adapters(std::span<const Tenant> tenants,
                                                     const LearnerOptions* learner = nullptr) {
  std::vector<TrainedAdapter> adapters;
  for (const Tenant& tenant : tenants) {
    if (!tenant.adapter.is_there()) continue;
    const AdapterConfig adapter = adapter_of(tenant, 0);
    RETURN_IF_ERROR(validate(adapter));
    TrainedAdapter& trained = adapters.emplace_back(tenant.name, adapter);
    if (learner == nullptr) continue;
    trained.optimizer = rules_of(tenant, *learner).optimizer;
    RETURN_IF_ERROR(validate(trained.optimizer));
  }
  return adapters;
}

Memory memory_of_learner(const void* options, const std::string& folder,
                         std::span<const Tenant> tenants) {
  ASSIGN_OR_RETURN(const auto config, read_model_config(folder));
  LearnerOptions learner = *static_cast<const LearnerOptions*>(options);
  ASSIGN_OR_RETURN(const auto adapters, trained_adapters(tenants, &learner));
  if (adapters.empty() && !tenants.empty()) {  // whole weights belong to the only tenant
    learner.optimizer = rules_of(tenants.front(), learner).optimizer;
    RETURN_IF_ERROR(validate(learner.optimizer));
  }
  auto parts = learner_memory(learner, config, adapters,
                              micro_batch_rows(learner, tenants, config.max_positions));
  add_teacher_tokens(tenants, config.max_positions, parts);
  parts.push_back(libraries_memory());
  return parts;
}

/// `sharing`: how the processes that use the channel share the memory of its versions.
template <Sharing sharing>
Memory memory_of_channel(const void* options, const std::string& folder,
                         std::span<const Tenant> tenants) {
  ASSIGN_OR_RETURN(const auto config, read_model_config(folder));
  ASSIGN_OR_RETURN(const auto adapters, trained_adapters(tenants));
  auto parts = versions_memory(config, adapters,
                               static_cast<const WeightChannelOptions*>(options)->versions_max);
  for (MemoryPart& part : parts) part.sharing = sharing;
  return parts;
}

Status check_engine_model(const void*, const std::string& folder) {
  return check_model_folder(folder);
}

/// The learner may start from random weights.
Status check_learner_model(const void* options, const std::string& folder) {
  Status usable = check_model_folder(folder);
  const bool lacks_weights = !usable.ok() && usable.error().code() == Code::kNotFound;
  const bool may_lack = static_cast<const LearnerOptions*>(options)->init_seed >= 0;
  return lacks_weights && may_lack ? ok() : std::move(usable);
}

Status check_adapter_of(const std::string& folder, const Tenant& tenant) {
  RETURN_IF_ERROR(validate(adapter_of(tenant, 0)));
  if (tenant.adapter.path.empty()) return ok();
  ASSIGN_OR_RETURN(const auto config, read_model_config(folder));
  const auto read = read_adapter_start(tenant.adapter.path, config, adapter_of(tenant, 0));
  return read.ok() ? ok() : Status(read.error());
}

Status check_engine_at(const void* options, const ResourceContract::Setup& setup) {
  const auto config = read_model_config(setup.folder);
  if (!config.ok()) return ok();  // check_engine_model() reports it
  EngineOptions placed = *static_cast<const EngineOptions*>(options);
  placed.device = setup.device;
  return check_engine_setup(placed, *config);
}

Status check_learner_at(const void* options, const ResourceContract::Setup& setup) {
  LearnerOptions placed = *static_cast<const LearnerOptions*>(options);
  placed.device = setup.device;
  return check_learner_setup(placed);
}

/// A whole sequence must fit into the engine's blocks.
template <class S>
ResourceContract::SequenceLimit engine_limit(const void* options, const ModelFacts* model) {
  const auto& engine = *static_cast<const S*>(options);
  ResourceContract::SequenceLimit limit{int64_t{engine.kv_blocks} * engine.block_size, "kv_blocks"};
  if constexpr (std::is_same_v<S, ScriptedEngineOptions>) {
    const int64_t written = engine.max_sequence_tokens;
    const int64_t most = written > 0 ? written : kScriptedSequenceTokens;
    return most < limit.tokens ? ResourceContract::SequenceLimit{most, "max_sequence_tokens"}
                               : limit;
  }
  const int64_t made_for = model != nullptr ? model->max_position_embeddings : 0;
  if (engine.max_sequence_tokens > 0 && engine.max_sequence_tokens < limit.tokens)
    limit = {engine.max_sequence_tokens, "max_sequence_tokens"};
  else if (engine.max_sequence_tokens == 0 && made_for > 0 && made_for < limit.tokens)
    limit = {made_for, "model"};
  return limit;
}

ResourceContract computing(std::string kind, std::string backend, std::string doc,
                           OptionSet options) {
  ResourceContract contract;
  contract.needs_model = backend == "torch";
  contract.computes = true;
  contract.one_per_graph = kind == "learner";
  if (kind == "engine")
    contract.sequence_limit =
        backend == "scripted" ? &engine_limit<ScriptedEngineOptions> : &engine_limit<EngineOptions>;
  if (kind == "engine" && backend == "scripted")
    contract.validate = [](const void* bound) {
      return validate(*static_cast<const ScriptedEngineOptions*>(bound));
    };
  if (kind == "learner")
    contract.validate = backend == "scripted" ? &validate_options<ScriptedLearnerOptions>
                                              : &validate_options<LearnerOptions>;
  if (kind == "learner")
    contract.check_tenant = backend == "scripted" ? &check_tenant_of<ScriptedLearnerOptions>
                                                  : &check_tenant_of<LearnerOptions>;
  if (backend == "torch")
    contract.idle_options = kind == "engine" ? &idle_engine_options : &idle_learner_options;
  else
    contract.idle_options =
        kind == "engine" ? &idle_scripted_engine_options : &idle_scripted_learner_options;
  if (backend == "torch") {
    contract.check_model = kind == "engine" ? &check_engine_model : &check_learner_model;
    contract.check_setup = kind == "engine" ? &check_engine_at : &check_learner_at;
    if (kind == "learner") contract.check_adapter = check_adapter_of;
    contract.memory = kind == "engine" ? &memory_of_engine : &memory_of_learner;
  }
  contract.kind = std::move(kind);
  contract.backend = std::move(backend);
  contract.doc = std::move(doc);
  contract.options = std::move(options);
  return contract;
}

ResourceContract weight_channel(std::string backend, std::string doc) {
  ResourceContract contract;
  contract.kind = "weight_channel";
  contract.backend = std::move(backend);
  contract.doc = std::move(doc);
  contract.options = OptionsOf<WeightChannelOptions>()
                         .field("versions_max", &WeightChannelOptions::versions_max,
                                between(1, 16) | unit("versions"),
                                "newest versions of a tenant that are kept for slow engines")
                         .take();
  if (contract.backend == "stream")
    contract.memory = &memory_of_channel<Sharing::kNone>;
  else if (contract.backend != "files")
    contract.memory = &memory_of_channel<Sharing::kMachine>;
  return contract;
}

}  // namespace

std::vector<ResourceContract> resource_contracts() {
  std::vector<ResourceContract> all;
  all.push_back(computing("engine", "torch", "generates with a model of a Hugging Face folder",
                          torch_engine_options()));
  all.push_back(computing("engine", "scripted",
                          "generates seeded tokens without a model, at stated costs",
                          scripted_engine_options()));
  all.push_back(computing("learner", "torch", "trains a model of a Hugging Face folder",
                          torch_learner_options()));
  all.push_back(computing("learner", "scripted", "makes steps without a model, at stated costs",
                          scripted_learner_options()));
  all.push_back(weight_channel(
      "auto", "memory where one process has all its users, shm on one machine, else stream"));
  all.push_back(weight_channel("memory", "carries weights inside one process, by pointer"));
  all.push_back(weight_channel(
      "shm",
      "carries weights between the processes of one machine, by shared memory, or by the memory of "
      "CUDA devices where all its engines and learners compute on them"));
  all.push_back(weight_channel(
      "files",
      "carries weights as model folders below weights/ of the run folder, on a disk all share"));
  all.push_back(weight_channel(
      "stream",
      "carries weights over the connections between processes, on one machine or several"));
  all.push_back(http_listener_contract());
  return all;
}

Result<ModelFacts> read_model_facts(const std::string& folder) {
  const std::filesystem::path path(folder);
  std::error_code fault;
  if (!std::filesystem::is_directory(path, fault))
    return error(Code::kNotFound, "no model folder '{}'", folder);
  const auto file = path / "config.json";
  if (!std::filesystem::exists(file, fault))
    return error(Code::kNotFound, "model folder '{}' has no config.json", folder);
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const Json config, parse_json(text, file.string()));
  if (!config.is_object()) return error(Code::kCorrupt, "'{}' holds no object", file.string());
  ModelFacts facts;
  auto type = config.get_string("model_type");
  if (!type.ok()) return std::move(type).error().while_doing(file.string());
  facts.model_type = *type;
  // A missing value stays 0; values that are needed are checked when the model is loaded.
  for (const auto& [key, target] :
       {std::pair("max_position_embeddings", &facts.max_position_embeddings),
        std::pair("vocab_size", &facts.vocab_size)}) {
    if (config.find(key) == nullptr) continue;
    auto value = config.get_int(key);
    if (!value.ok()) return std::move(value).error().while_doing(file.string());
    *target = *value;
  }
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "intermediate_size"})
    if (const auto value = config.get_int(key); value.ok()) facts.shape.emplace_back(key, *value);
  if (const auto tied = config.get_bool("tie_word_embeddings"); tied.ok())
    facts.shape.emplace_back("tie_word_embeddings", *tied ? 1 : 0);
  // check_model_folder() reports a config that cannot be read.
  if (const auto read = read_model_config(path); read.ok()) {
    facts.unknown_keys = unknown_keys_text(*read);
    facts.warnings = unused_tensors_text(path, *read);
  }
  return facts;
}

Result<TokenizerFacts> read_tokenizer_facts(const std::string& folder) {
  ASSIGN_OR_RETURN(TokenizerFile file, read_tokenizer_file(folder));
  TokenizerFacts facts{file.name, file.vocabulary.size(), file.end_and_pad.eos_ids,
                       file.end_and_pad.eos_source, file.end_and_pad.warning};
  const auto made = make_tokenizer(std::move(file));
  if (!made.ok()) return made.error();
  return facts;
}

Status check_same_tokens(const std::string& policy, const std::string& teacher) {
  ASSIGN_OR_RETURN(const TokenizerFile own, read_tokenizer_file(policy));
  ASSIGN_OR_RETURN(const TokenizerFile other, read_tokenizer_file(teacher));
  for (int32_t id = 0; id < own.vocabulary.size(); ++id) {
    if (!own.vocabulary.has(id)) continue;
    const std::string& token = own.vocabulary.token(id);
    if (!other.vocabulary.has(id))
      return error(Code::kInvalid, "token {} is '{}' in '{}', and no token in '{}'", id,
                   shown_text(token, 40), own.name, other.name);
    if (other.vocabulary.token(id) != token)
      return error(Code::kInvalid, "token {} is '{}' in '{}', and '{}' in '{}'", id,
                   shown_text(token, 40), own.name, shown_text(other.vocabulary.token(id), 40),
                   other.name);
  }
  return ok();
}

std::string program_text(const Catalog& catalog) {
  std::string text = kProgramVersion;
  for (const PluginIdentity& plugin : catalog.plugins)
    text += fmt::format("{} {} {} ({:08x})", &plugin == catalog.plugins.data() ? " with" : ",",
                        plugin.name, plugin.version, plugin.checksum);
  return text;
}

const Catalog& full_catalog() {
  static const Catalog catalog = [] {
    Catalog all;
    all.actors = actor_catalog();
    all.messages = message_catalog();
    all.resources = resource_contracts();
    all.environments = environment_contracts();
    all.rewards = reward_contracts();
    all.model_facts = read_model_facts;
    all.tokenizer_facts = read_tokenizer_facts;
    all.check_same_tokens = check_same_tokens;
    all.add_plugins = add_plugins;
    return all;
  }();
  return catalog;
}

}  // namespace primerl
