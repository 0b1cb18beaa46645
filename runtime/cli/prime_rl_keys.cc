#include "runtime/cli/prime_rl_keys.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/base/suggest.h"

namespace primerl {
namespace {

constexpr auto kTaken = KeyFate::kTaken;
constexpr auto kUnneeded = KeyFate::kNotNeeded;
constexpr auto kUnsupported = KeyFate::kNotSupported;
constexpr auto kBool = KeyType::kBool;
constexpr auto kInteger = KeyType::kInteger;
constexpr auto kNumber = KeyType::kNumber;
constexpr auto kString = KeyType::kString;
constexpr auto kStrings = KeyType::kStrings;
constexpr auto kAny = KeyType::kAny;

constexpr std::string_view kMetrics = "metrics are in metrics.jsonl and in TensorBoard files";
constexpr std::string_view kLogs = "levels and files of logs: `primerl-graph run --help`";
constexpr std::string_view kChannel = "the weight channel chooses its own way";
constexpr std::string_view kServer = "engines are nodes of the graph: there is no server";
constexpr std::string_view kKernels = "the learner has kernels of its own";
constexpr std::string_view kOneDevice = "a learner or an engine computes on one device";
constexpr std::string_view kFolder = "the run folder is named by `run --out`";
constexpr std::string_view kEval =
    "evaluations play rows of the tenant's environment: write eval = { interval, rows, samples }";
constexpr std::string_view kInstances =
    "how many processes or slots serve it follows from the plan";
constexpr std::string_view kArguments = "an argument of prime-rl's environment";
constexpr std::string_view kMix = "tenant.main.environments";
constexpr std::string_view kAdvantage =
    "write advantage = { kind = ... }: mean (as here), leave_one_out, z_score, max_rl or batch";
constexpr std::string_view kEqualRewards =
    "filters.zero_advantage drops groups whose rewards are all equal";
constexpr std::string_view kNoOption = "`curriculum` of a tenant has no such option";
constexpr std::string_view kSeed = "all random numbers follow from graph.seed";
constexpr std::string_view kTemplate =
    "the chat template of the model's folder renders prompts and names the form of answers";

constexpr KeyRule kRules[] = {
    // Shared by all parts.
    {"max_steps", kTaken, "tenant.main.max_steps", kInteger},
    {"seq_len", kTaken, "tenant.main.seq_len", kInteger},
    {"model.name", kTaken, "model.policy.path", kString},
    {"wandb.name", kTaken, "graph.name", kString},
    {"run.name", kTaken, "graph.name", kString},
    {"ckpt", kTaken, "tenant.main.checkpoint_every"},
    {"ckpt.interval", kTaken, "tenant.main.checkpoint_every", kInteger},
    {"ckpt.keep_last", kTaken, "tenant.main.keep_last", kInteger},
    {"ckpt.keep_interval", kTaken, "tenant.main.keep_every", kInteger},
    {"ckpt.resume_step", kUnsupported,
     "checkpoints of prime-rl are not read: begin with their weights"},
    {"ckpt.*", kUnneeded, "checkpoints have weights and state, in the run folder"},
    {"resume.*", kUnsupported, "checkpoints of prime-rl are not read: begin with their weights"},
    {"run.*", kUnneeded, kFolder},
    {"output_dir", kUnneeded, kFolder},
    {"clean_output_dir", kUnneeded, kFolder},
    {"wandb.*", kUnneeded, kMetrics},
    {"monitors.wandb.name", kTaken, "graph.name", kString},
    {"monitors.*", kUnneeded, kMetrics},
    {"log.*", kUnneeded, kLogs},
    {"weight_broadcast.quantize_in_weight_transfer", kUnsupported,
     "weights are sent in the type of the engine", kBool, "false"},
    {"weight_broadcast.*", kUnneeded, kChannel},
    {"rollout_transport.*", kUnneeded, "edges choose their transport"},
    {"slurm.*", kUnneeded, "docs/how-to/run-under-slurm.md has a batch script"},
    {"deployment.num_train_gpus", kTaken, "place.training", kInteger},
    {"deployment.num_infer_gpus", kTaken, "place.inference.replicas", kInteger},
    {"deployment.type", kUnsupported, "name the machines in [place] with `host`", kString,
     "\"single_node\""},
    {"deployment.gpus_per_node", kUnneeded, "devices are named one by one"},
    {"deployment.*", kUnsupported, "name the machines in [place] with `host`"},
    {"tokenizer.*", kUnsupported, "tokenizer and chat template are those of the model's folder"},
    {"env_server_base_port", kUnneeded, kServer},
    {"bench", kUnsupported, "`primerl-graph run --max-steps` limits a run", kBool, "false"},
    {"dry_run", kUnsupported, "use `primerl-graph check`", kBool, "false"},
    {"toml_files", kUnsupported, "its files are not read: join them first"},
    {"experimental.*", kUnsupported, "an experiment of prime-rl"},
    // Rollouts.
    {"orchestrator.batch_size", kTaken, "tenant.main.batch_size", kInteger},
    {"orchestrator.group_size", kTaken, "tenant.main.group_size", kInteger},
    {"orchestrator.max_off_policy_steps", kTaken, "tenant.main.max_off_policy_steps", kInteger},
    {"orchestrator.max_inflight_rollouts", kTaken, "node.rollout.max_inflight", kInteger},
    {"orchestrator.oversampling_factor", kTaken, "node.rollout.max_inflight", kNumber},
    {"orchestrator.token_batch_size", kUnsupported, "a step trains a number of rollouts"},
    {"orchestrator.max_async_level", kUnneeded, "max_off_policy_steps limits staleness"},
    {"orchestrator.strict_async_level", kUnneeded, "max_off_policy_steps limits staleness"},
    {"orchestrator.concurrency.*", kUnsupported, "rollouts in flight have one limit"},
    {"orchestrator.tasks_per_minute", kUnsupported, "tasks have no limit of rate"},
    {"orchestrator.train.sampling.temperature", kTaken, "tenant.main.sampling.temperature",
     kNumber},
    {"orchestrator.train.sampling.top_p", kTaken, "tenant.main.sampling.top_p", kNumber},
    {"orchestrator.train.sampling.top_k", kTaken, "tenant.main.sampling.top_k", kInteger},
    {"orchestrator.train.sampling.min_p", kTaken, "tenant.main.sampling.min_p", kNumber},
    {"orchestrator.train.sampling.max_completion_tokens", kTaken, "tenant.main.sampling.max_tokens",
     kInteger},
    {"orchestrator.train.sampling.*", kUnsupported, "`sampling` of a tenant has no such option"},
    {"orchestrator.train.env[].taskset.id", kTaken, "tenant.main.environment", kString},
    {"orchestrator.train.env[].id", kTaken, "tenant.main.environment", kString},
    {"orchestrator.train.env[].timeout", kTaken, "tenant.main.rollout_timeout", kNumber},
    {"orchestrator.train.env[].timeout.rollout", kTaken, "tenant.main.rollout_timeout", kNumber},
    {"orchestrator.train.env[].group_size", kTaken, "tenant.main.group_size", kInteger},
    {"orchestrator.train.env[].sampling.temperature", kTaken, "tenant.main.sampling.temperature",
     kNumber},
    {"orchestrator.train.env[].sampling.max_completion_tokens", kTaken,
     "tenant.main.sampling.max_tokens", kInteger},
    {"orchestrator.train.env[].sampling.*", kUnsupported,
     "`sampling` of a tenant has no such option"},
    {"orchestrator.train.env[].name", kTaken, kMix, kString},
    {"orchestrator.train.env[].ratio", kTaken, kMix, kNumber},
    {"orchestrator.train.env[].harness.id", kUnsupported,
     "an environment speaks with the policy itself", kString, "\"null\""},
    {"orchestrator.train.env[].harness.*", kUnneeded, "environments run in the run's processes"},
    {"orchestrator.train.env[].runtime.*", kUnneeded, "environments run in the run's processes"},
    {"orchestrator.train.env[].num_workers", kUnneeded, kInstances},
    {"orchestrator.train.env[].pool.*", kUnneeded, kInstances},
    {"orchestrator.train.env[].max_retries", kUnsupported,
     "a rollout whose environment fails ends as failed"},
    {"orchestrator.train.env[].algorithms[].id", kUnsupported, kAdvantage, kString, "\"grpo\""},
    {"orchestrator.train.env[].advantage.type", kUnsupported, kAdvantage, kString, "\"default\""},
    {"orchestrator.train.env[].advantage.*", kUnsupported, kAdvantage},
    {"orchestrator.train.env[].address", kUnsupported,
     "write environment = { name = \"verifiers\", id = ..., address = ... }"},
    {"orchestrator.train.env[].taskset.*", kUnsupported, kArguments},
    {"orchestrator.train.env[].args.*", kUnsupported, kArguments},
    {"orchestrator.train.env[].curriculum", kUnneeded, "a table without keys"},
    {"orchestrator.train.env[].curriculum.sampler.type", kTaken, "tenant.main.curriculum", kString},
    {"orchestrator.train.env[].curriculum.sampler.seed", kUnneeded, kSeed},
    {"orchestrator.train.env[].curriculum.sampler.pools.*", kTaken, "tenant.main.curriculum.pools",
     kNumber},
    {"orchestrator.train.env[].curriculum.gates.*", kUnneeded, kEqualRewards},
    {"orchestrator.train.env[].curriculum.*", kUnsupported, kNoOption},
    {"orchestrator.train.env[].*", kUnsupported, kArguments},
    {"orchestrator.train.max_retries", kUnsupported,
     "a rollout whose environment fails ends as failed"},
    {"orchestrator.filters[].enforce", kTaken, "tenant.main.filters", kBool},
    {"orchestrator.filters[].type", kTaken, "tenant.main.filters", kString},
    {"orchestrator.filters[].token_id_threshold", kTaken, "tenant.main.filters", kInteger},
    {"orchestrator.filters[].window", kTaken, "tenant.main.filters", kInteger},
    {"orchestrator.filters[].logprob_offset", kUnsupported,
     "gibberish_from compares with -ln(vocabulary) - 2", kNumber, "2.0"},
    {"orchestrator.filters[].prob_threshold", kUnsupported,
     "repetition_max compares with a probability of 0.99", kNumber, "0.99"},
    {"orchestrator.filters[].*", kUnsupported, "filters of a tenant have no such option"},
    {"orchestrator.algorithms[].id", kUnsupported, kAdvantage, kString, "\"grpo\""},
    {"orchestrator.algorithms[].*", kUnsupported, kAdvantage},
    {"orchestrator.advantage.type", kUnsupported, kAdvantage, kString, "\"default\""},
    {"orchestrator.advantage.*", kUnsupported, kAdvantage},
    {"orchestrator.buffer.easy_threshold", kTaken, "tenant.main.curriculum.easy_threshold",
     kNumber},
    {"orchestrator.buffer.hard_threshold", kTaken, "tenant.main.curriculum.hard_threshold",
     kNumber},
    {"orchestrator.buffer.easy_fraction", kTaken, "tenant.main.curriculum.easy_fraction", kNumber},
    {"orchestrator.buffer.hard_fraction", kTaken, "tenant.main.curriculum.hard_fraction", kNumber},
    {"orchestrator.buffer.online_difficulty_filtering", kUnneeded, kEqualRewards, kBool},
    {"orchestrator.buffer.env_ratios", kUnsupported, "write weight in each item of environments"},
    {"orchestrator.buffer.skip_verification", kUnsupported, "every rollout gets its reward", kBool,
     "false"},
    {"orchestrator.buffer.seed", kUnneeded, kSeed},
    {"orchestrator.buffer.hash_keys", kUnneeded, "a row is known by its number"},
    {"orchestrator.buffer.*", kUnsupported, kNoOption},
    {"orchestrator.eval.*", kUnsupported, kEval},
    {"orchestrator.renderer.*", kUnneeded, kTemplate},
    {"orchestrator.use_renderer", kUnneeded, kTemplate},
    {"orchestrator.pool_size", kUnneeded, kInstances},
    {"orchestrator.num_train_workers", kUnneeded, kInstances},
    {"orchestrator.model.client.*", kUnneeded, kServer},
    {"orchestrator.client.*", kUnneeded, kServer},
    {"orchestrator.models.*", kUnsupported, "a graph has one policy"},
    {"orchestrator.actor", kUnsupported, "rollouts are made by the policy", kString, "\"policy\""},
    {"orchestrator.optim.*", kUnsupported, "write [trainer.optim]: the learner has the optimizer"},
    {"orchestrator.model.lora.*", kUnneeded, "the adapter is the trainer's"},
    {"orchestrator.tokenizer.*", kUnsupported,
     "tokenizer and chat template are those of the model's folder"},
    {"orchestrator.prime_monitor.*", kUnneeded, kMetrics},
    {"orchestrator.wandb.*", kUnneeded, kMetrics},
    {"orchestrator.collect_inference_metrics", kUnneeded, kMetrics},
    {"orchestrator.inference_metrics_roles", kUnneeded, kMetrics},
    {"orchestrator.heartbeat.*", kUnneeded, "`primerl-graph ps` and Prometheus show progress"},
    {"orchestrator.env_install_prerelease", kUnneeded, "no environment is installed"},
    // The trainer.
    {"trainer.model.seq_len", kTaken, "resource.learner.micro_batch_tokens", kInteger},
    {"trainer.optim.lr", kTaken, "resource.learner.optimizer.lr", kNumber},
    {"trainer.optim.weight_decay", kTaken, "resource.learner.optimizer.weight_decay", kNumber},
    {"trainer.optim.max_norm", kTaken, "resource.learner.optimizer.max_norm", kNumber},
    {"trainer.optim.betas1", kTaken, "resource.learner.optimizer.beta1", kNumber},
    {"trainer.optim.betas2", kTaken, "resource.learner.optimizer.beta2", kNumber},
    {"trainer.optim.type", kTaken, "resource.learner.optimizer.kind", kString},
    {"trainer.optim.mu", kTaken, "resource.learner.optimizer.momentum", kNumber},
    {"trainer.optim.momentum", kTaken, "resource.learner.optimizer.momentum", kNumber},
    {"trainer.optim.nesterov", kTaken, "resource.learner.optimizer.nesterov", kBool},
    {"trainer.optim.*", kUnsupported, "the learner's optimizers have no such option"},
    {"trainer.scheduler.type", kTaken, "resource.learner.schedule.kind", kString},
    {"trainer.scheduler.warmup_steps", kTaken, "resource.learner.schedule.warmup_steps", kInteger},
    {"trainer.scheduler.decay_steps", kTaken, "resource.learner.schedule.decay_steps", kInteger},
    {"trainer.scheduler.min_lr", kTaken, "resource.learner.schedule.min_lr", kNumber},
    {"trainer.loss.dppo_mask_low", kTaken, "resource.learner.loss.clip_low", kNumber},
    {"trainer.loss.dppo_mask_high", kTaken, "resource.learner.loss.clip_high", kNumber},
    {"trainer.loss.adv_tau", kTaken, "resource.learner.loss.advantage_weight", kNumber},
    {"trainer.loss.kl_tau", kTaken, "resource.learner.loss.kl_weight", kNumber},
    {"trainer.loss.type", kTaken, "resource.learner.loss.kind", kString},
    {"trainer.loss.*", kUnsupported,
     "a number of another loss: docs/how-to/choose-an-objective.md has the names here"},
    {"trainer.model.lora", kTaken, "tenant.main.adapter"},
    {"trainer.model.lora.rank", kTaken, "tenant.main.adapter.rank", kInteger},
    {"trainer.model.lora.alpha", kTaken, "tenant.main.adapter.alpha", kNumber},
    {"trainer.model.lora.dropout", kTaken, "tenant.main.adapter.dropout", kNumber},
    {"trainer.model.lora.target_modules", kTaken, "tenant.main.adapter.targets", kStrings},
    {"trainer.model.lora.modules_to_save", kUnsupported, "an adapter trains no other weights",
     kStrings, "[]"},
    {"trainer.model.ac", kTaken, "resource.learner.recompute"},
    {"trainer.model.ac.mode", kTaken, "resource.learner.recompute", kString},
    {"trainer.model.ac.freq", kUnsupported, "all layers recompute alike", kInteger, "1"},
    {"trainer.model.ac.targets", kUnsupported,
     "`recompute` has the values keep_attention and full"},
    {"trainer.model.ac_offloading", kUnsupported, "activations stay on the device"},
    {"trainer.model.ac_offloading.*", kUnsupported, "activations stay on the device"},
    {"trainer.model.fp8", kTaken, "resource.learner.products", kBool},
    {"trainer.model.compile", kUnneeded, kKernels},
    {"trainer.model.compile.*", kUnneeded, kKernels},
    {"trainer.model.impl", kUnneeded, kKernels},
    {"trainer.model.attn", kUnneeded, kKernels},
    {"trainer.model.moe_use_grouped_mm", kUnneeded, kKernels},
    {"trainer.model.fused_lm_head_token_chunk_size", kUnneeded, kKernels},
    {"trainer.model.reshard_after_forward", kUnneeded, kKernels},
    {"trainer.matmul_precision", kUnneeded, kKernels},
    {"trainer.model.optimization_dtype", kUnsupported, "weights and moments are float32", kString,
     "\"float32\""},
    {"trainer.model.reduce_dtype", kUnsupported, "gradients are float32", kString, "\"float32\""},
    {"trainer.model.ep", kUnsupported, kOneDevice, kInteger, "1"},
    {"trainer.model.cp", kUnsupported, kOneDevice, kInteger, "1"},
    {"trainer.model.dp_replicate", kUnsupported, kOneDevice, kInteger, "1"},
    {"trainer.model.ep_comm_backend", kUnneeded, kOneDevice},
    {"trainer.model.cp_style", kUnneeded, kOneDevice},
    {"trainer.model.deepep_num_sms", kUnneeded, kOneDevice},
    {"trainer.model.deepep_token_chunk_size", kUnneeded, kOneDevice},
    {"trainer.model.fsdp_cpu_offload", kUnsupported, "weights stay on the device", kBool, "false"},
    {"trainer.model.optim_cpu_offload", kUnsupported,
     "write optimizer.moments_on = \"host\" of the learner", kBool, "false"},
    {"trainer.model.freeze_moe_router", kUnsupported, "all weights train", kBool, "false"},
    {"trainer.model.trust_remote_code", kUnsupported, "no code of a model is run", kBool, "false"},
    {"trainer.model.*", kUnsupported, "the learner has no such option"},
    {"trainer.enable_router_replay", kUnsupported, "experts are routed again", kBool, "false"},
    {"trainer.data.*", kUnsupported, "a run trains on its rollouts"},
    {"trainer.tokenizer.*", kUnsupported,
     "tokenizer and chat template are those of the model's folder"},
    {"trainer.max_concurrent_runs", kUnneeded, "a tenant is a training: write one table for each"},
    {"trainer.wandb.*", kUnneeded, kMetrics},
    {"trainer.metrics_server.*", kUnneeded, "`run --metrics-port` serves Prometheus"},
    {"trainer.heartbeat.*", kUnneeded, "`primerl-graph ps` and Prometheus show progress"},
    {"trainer.gc.*", kUnneeded, "nothing of a run is collected"},
    {"trainer.dist_timeout_seconds", kUnneeded, kOneDevice},
    {"trainer.memory_profiler_path", kUnneeded, "`show --plan` has the memory of each process"},
    {"trainer.trace_path", kUnneeded, "every run is recorded: `primerl-graph trace`"},
    {"trainer.enable_token_export", kUnneeded, "[node.rollout] log_tokens = true writes them"},
    {"trainer", kUnneeded, "a table without keys"},
    // Inference.
    {"inference", kUnneeded, kServer},
    {"inference.model.max_model_len", kTaken, "resource.engine.max_sequence_tokens", kInteger},
    {"inference.model.dtype", kTaken, "resource.engine.dtype", kString},
    {"inference.enable_prefix_caching", kTaken, "resource.engine.prefix_cache", kBool},
    {"inference.parallel.dp", kTaken, "place.inference.replicas", kInteger},
    {"inference.seed", kTaken, "graph.seed", kInteger},
    {"inference.parallel.tp", kUnsupported, kOneDevice, kInteger, "1"},
    {"inference.model.enforce_eager", kUnneeded, "decode steps are CUDA graphs where they can be"},
    {"inference.model.tool_call_parser", kUnneeded, kTemplate},
    {"inference.model.reasoning_parser", kUnneeded, kTemplate},
    {"inference.vllm.tool_call_parser", kUnneeded, kTemplate},
    {"inference.vllm.reasoning_parser", kUnneeded, kTemplate},
    {"inference.model.chat_template", kUnsupported,
     "the chat template is the one of the model's folder"},
    {"inference.model.rope_scaling", kUnsupported, "write it into the model's config.json"},
    {"inference.model.trust_remote_code", kUnsupported, "no code of a model is run", kBool,
     "false"},
    {"inference.gpu_memory_utilization", kUnneeded, "kv_blocks is the memory of the KV cache"},
    {"inference.enable_lora", kUnneeded, "adapter slots follow from the tenants"},
    {"inference.max_loras", kUnneeded, "adapter slots follow from the tenants"},
    {"inference.max_cpu_loras", kUnneeded, "adapter slots follow from the tenants"},
    {"inference.max_lora_rank", kUnneeded, "adapter slots follow from the tenants"},
    {"inference.lora_target_modules", kUnneeded, "adapter slots follow from the tenants"},
    {"inference.server.*", kUnneeded, kServer},
    {"inference.api_server_count", kUnneeded, kServer},
    {"inference.data_parallel_size_local", kUnneeded, kServer},
    {"inference.data_parallel_rpc_port", kUnneeded, kServer},
    {"inference.enable_expert_parallel", kUnsupported, kOneDevice, kBool, "false"},
    {"inference.enable_eplb", kUnsupported, kOneDevice, kBool, "false"},
    {"inference.enable_dbo", kUnsupported, kOneDevice, kBool, "false"},
    {"inference.enable_fp32_lm_head", kUnsupported, "the head has the engine's type", kBool,
     "false"},
    {"inference.enable_return_routed_experts", kUnsupported, "experts are routed again", kBool,
     "false"},
    {"inference.kv_cache_offload.*", kUnsupported, "KV blocks stay on the device"},
    {"inference.deployment.*", kUnsupported, "name the machines in [place] with `host`"},
    {"inference.vllm_extra.*", kUnsupported, "an argument of vLLM"},
    {"inference.vllm.*", kUnsupported, "an argument of vLLM"},
    {"inference.*", kUnsupported, "engines have no such option"},
};

/// Spellings of other versions, by the beginning of the key; applied in this order.
constexpr std::pair<std::string_view, std::string_view> kBeginnings[] = {
    {"orchestrator.env[", "orchestrator.train.env["},
    {"orchestrator.train.source[", "orchestrator.train.env["},
    {"orchestrator.sampling.", "orchestrator.train.sampling."},
    {"orchestrator.train.group_size", "orchestrator.group_size"},
    {"orchestrator.max_inflight_requests", "orchestrator.max_inflight_rollouts"},
    {"orchestrator.concurrency.max_inflight", "orchestrator.max_inflight_rollouts"},
    {"orchestrator.pre_batch_filters[", "orchestrator.filters["},
    {"orchestrator.post_batch_filters[", "orchestrator.filters["},
    {"orchestrator.model.name", "model.name"},
    {"trainer.model.name", "model.name"},
    {"inference.model.name", "model.name"},
    {"orchestrator.seq_len", "seq_len"},
    {"orchestrator.max_steps", "max_steps"},
    {"trainer.max_steps", "max_steps"},
    {"orchestrator.ckpt", "ckpt"},
    {"trainer.ckpt", "ckpt"},
    {"orchestrator.log.", "log."},
    {"trainer.log.", "log."},
    {"inference.log.", "log."},
    {"orchestrator.output_dir", "output_dir"},
    {"trainer.output_dir", "output_dir"},
    {"inference.output_dir", "output_dir"},
    {"orchestrator.weight_broadcast.", "weight_broadcast."},
    {"trainer.weight_broadcast.", "weight_broadcast."},
    {"inference.weight_broadcast.", "weight_broadcast."},
    {"orchestrator.rollout_transport.", "rollout_transport."},
    {"trainer.rollout_transport.", "rollout_transport."},
    {"orchestrator.bench", "bench"},
    {"trainer.bench", "bench"},
    {"inference.slurm.", "slurm."},
    {"inference.dry_run", "dry_run"},
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// "a[].b" for "a[12].b".
std::string without_numbers(std::string_view key) {
  std::string text;
  bool is_inside = false;
  for (const char c : key) {
    if (c == ']') is_inside = false;
    if (!is_inside) text += c;
    if (c == '[') is_inside = true;
  }
  return text;
}

}  // namespace

std::string own_spelling(std::string key) {
  for (const auto& [beginning, own] : kBeginnings)
    if (key.starts_with(beginning)) key.replace(0, beginning.size(), own);
  if (key.starts_with("orchestrator.train.env[")) {
    replace_all(key, "].env.agent.", "].");
    replace_all(key, "].env.", "].");
    replace_all(key, "].sampler.", "].curriculum.sampler.");
  }
  replace_all(key, "rollouts_per_example", "group_size");
  if (key.ends_with("sampling.max_tokens")) replace_all(key, "max_tokens", "max_completion_tokens");
  return key;
}

const KeyRule* find_key_rule(std::string_view key) {
  const std::string wanted = without_numbers(key);
  const auto exact = std::ranges::find(kRules, wanted, &KeyRule::key);
  if (exact != std::end(kRules)) return exact;
  const KeyRule* best = nullptr;
  for (const auto& rule : kRules) {
    if (!rule.key.ends_with(".*")) continue;
    const std::string_view table = rule.key.substr(0, rule.key.size() - 2);
    const bool is_below = wanted == table || wanted.starts_with(std::string(table) + ".") ||
                          wanted.starts_with(std::string(table) + "[");
    if (is_below && (best == nullptr || rule.key.size() > best->key.size())) best = &rule;
  }
  return best;
}

std::string nearest_key(std::string_view key) {
  const std::string wanted = without_numbers(key);
  std::vector<std::string> known;
  for (const auto& rule : kRules)
    if (!rule.key.ends_with(".*")) known.emplace_back(rule.key);
  return nearest_name(wanted, known);
}

std::string_view type_text(KeyType type) {
  switch (type) {
    case KeyType::kBool:
      return "true or false";
    case KeyType::kInteger:
      return "an integer";
    case KeyType::kNumber:
      return "a number";
    case KeyType::kString:
      return "a string";
    case KeyType::kStrings:
      return "a list of strings";
    case KeyType::kAny:
      break;
  }
  return "a value";
}

bool has_key_type(const Value& value, KeyType type) {
  switch (type) {
    case KeyType::kBool:
      return value.is_bool();
    case KeyType::kInteger:
      return value.is_integer();
    case KeyType::kNumber:
      return value.is_number();
    case KeyType::kString:
      return value.is_string();
    case KeyType::kStrings:
      return value.is_array() && std::ranges::all_of(value.as_array(), [](const Value& item) {
               return item.is_string();
             });
    case KeyType::kAny:
      break;
  }
  return true;
}

}  // namespace primerl
