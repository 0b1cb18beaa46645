#include "runtime/worker/worker_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <span>
#include <thread>

#include "graph/base/files.h"
#include "graph/base/random.h"
#include "kernels/engine/engine.h"
#include "kernels/engine/options.h"
#include "kernels/engine/stop_rule.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/models/folder.h"
#include "kernels/text/tokenizer.h"
#include "kernels/train/batch_file.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/chat_input.h"
#include "runtime/backends/devices.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/backends/torch_backends.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/model_options.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr size_t kIdsFileBytesMax = size_t{1} << 30;
constexpr int32_t kHeadRows = 64;  // enough rows for a matmul to be bound by arithmetic

int32_t thread_count(int64_t asked) {
  const auto cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  return static_cast<int32_t>(asked > 0 ? asked : cores);
}

Error without_torch() {
  return error(Code::kUnavailable, "this primerl-worker was built without libtorch")
      .note("configure with -DPRIMERL_TORCH=ON");
}

/// Matmuls on a CUDA device do not have invariant numerics.
std::string numerics_on(const std::string& device) {
  return device == "cpu" ? "invariant" : "fast";
}

/// Whether libtorch can compute on the device of `--device`.
Status check_device(const std::string& device, std::string_view kind) {
  if (torch_backends() == nullptr) return without_torch();
  const std::string why = torch_backends()->why_not_on(device, std::string(kind));
  if (why.empty()) return ok();
  return error(Code::kUnavailable, "--device {} {}", device, why)
      .note("--device cpu works everywhere; `primerl-graph doctor` says what this machine has");
}

Result<std::unique_ptr<Engine>> load_engine(const EngineOptions& options, const std::string& model,
                                            std::shared_ptr<const Tokenizer> tokenizer) {
  RETURN_IF_ERROR(check_device(options.device, Engine::kResourceKind));
  return torch_backends()->make_engine(options, model, std::move(tokenizer), nullptr);
}

Result<std::unique_ptr<Learner>> load_learner(const LearnerOptions& options,
                                              const std::string& model) {
  RETURN_IF_ERROR(check_device(options.device, Learner::kResourceKind));
  return torch_backends()->make_learner(options, model);
}

/// The prompt as ids, and the tokenizer that decodes completions. Null when the folder has no
/// tokenizer and the prompt was given as ids.
struct Prompt {
  std::vector<int32_t> ids;
  std::shared_ptr<Tokenizer> tokenizer;
  int32_t turn_end = -1;  // the token that ends an answer of a chat; -1: the model's own end ids
};

Result<Prompt> read_prompt(const GenerateArguments& arguments) {
  Prompt prompt;
  auto tokenizer = load_tokenizer(arguments.model);
  if (tokenizer.ok()) prompt.tokenizer = std::move(tokenizer).value();
  if (!arguments.prompt_ids.empty()) {
    std::error_code ignored;
    const auto file = std::filesystem::path(arguments.model) / "tokenizer.json";
    if (!tokenizer.ok() && std::filesystem::exists(file, ignored))
      return std::move(tokenizer).error();
    ASSIGN_OR_RETURN(prompt.ids, parse_token_ids(arguments.prompt_ids));
    return prompt;
  }
  if (!tokenizer.ok()) return std::move(tokenizer).error();
  const Tokenizer& encoder = *prompt.tokenizer;
  if (!arguments.chat.empty()) {
    ASSIGN_OR_RETURN(const ChatInput input, read_chat_input(arguments.chat, arguments.chat_kwargs));
    ASSIGN_OR_RETURN(const auto format, chat_format_of_folder(encoder, input.kwargs));
    ASSIGN_OR_RETURN(prompt.ids,
                     format.prompt(input.messages, input.tools ? &*input.tools : nullptr));
    prompt.turn_end = format.end_id();
    return prompt;
  }
  ASSIGN_OR_RETURN(prompt.ids, arguments.special_tokens
                                   ? encoder.encode_with_specials(arguments.prompt)
                                   : encode_start(encoder, arguments.prompt));
  if (prompt.ids.empty()) return error(Code::kInvalid, "the prompt has no tokens");
  return prompt;
}

/// Enough blocks for all samples at once, so nothing is preempted. If prompt log-probabilities are
/// requested, the prompt's rows go through the head in groups of max_running.
EngineOptions engine_options(const GenerateArguments& arguments, size_t prompt_tokens) {
  EngineOptions options;
  const auto tokens = static_cast<int64_t>(prompt_tokens) + arguments.max_tokens + 1;
  const int64_t blocks = (tokens + options.block_size - 1) / options.block_size + 1;
  options.kv_blocks =
      static_cast<int32_t>(std::min<int64_t>(blocks * arguments.num_samples, int64_t{1} << 30));
  options.max_running = static_cast<int32_t>(std::max<int64_t>(arguments.num_samples, 1));
  options.max_waiting = options.max_running;
  if (arguments.prompt_logprobs) options.max_running = std::max(options.max_running, kHeadRows);
  options.max_batched_tokens = static_cast<int32_t>(std::max<int64_t>(
      options.max_batched_tokens, std::max<int64_t>(tokens, options.max_running)));
  options.threads = thread_count(arguments.threads);
  options.device = arguments.device;
  options.dtype = arguments.dtype;
  options.numerics = numerics_on(arguments.device);
  return options;
}

/// The arguments were validated already; the engine may still refuse some values.
Result<SamplingParams> sampling_of(const GenerateArguments& arguments) {
  SamplingParams sampling;
  sampling.temperature = arguments.temperature;
  sampling.top_k = static_cast<int32_t>(arguments.top_k);
  sampling.top_p = arguments.top_p;
  sampling.min_p = arguments.min_p;
  sampling.max_tokens = static_cast<int32_t>(arguments.max_tokens);
  sampling.ignore_eos = arguments.ignore_eos;
  sampling.min_tokens = static_cast<int32_t>(arguments.min_tokens);
  sampling.repetition_penalty = arguments.repetition_penalty;
  sampling.frequency_penalty = arguments.frequency_penalty;
  sampling.presence_penalty = arguments.presence_penalty;
  sampling.num_top_logprobs = static_cast<int32_t>(arguments.top_logprobs);
  sampling.prompt_logprobs = arguments.prompt_logprobs;
  sampling.stop = arguments.stop;
  if (!arguments.stop_ids.empty()) {
    ASSIGN_OR_RETURN(sampling.stop_ids, parse_token_ids(arguments.stop_ids));
  }
  ASSIGN_OR_RETURN(const auto biases, parse_biases(arguments.logit_bias));
  for (const auto& [token, bias] : biases) sampling.logit_bias.push_back({token, bias});
  return sampling;
}

/// Steps the engine until every sample has ended; index = sample.
Result<std::vector<FinishEvent>> generate_all(Engine& engine, const GenerateArguments& arguments,
                                              const Prompt& prompt) {
  const auto count = static_cast<size_t>(arguments.num_samples);
  ASSIGN_OR_RETURN(SamplingParams sampling, sampling_of(arguments));
  if (prompt.turn_end >= 0 && !arguments.ignore_eos) sampling.stop_ids.push_back(prompt.turn_end);
  for (size_t i = 0; i < count; ++i) {
    SequenceRequest request;
    request.id = SequenceId(i);
    request.prompt_tokens = prompt.ids;
    request.sampling = sampling;
    // The first sample uses the seed itself, so --n 1 and the first of --n 4 give the same text.
    request.seed = i == 0 ? static_cast<uint64_t>(arguments.seed)
                          : mix(static_cast<uint64_t>(arguments.seed), i);
    RETURN_IF_ERROR(engine.submit(std::move(request)));
  }
  std::vector<FinishEvent> finished(count);
  size_t num_finished = 0;
  while (num_finished < count) {
    if (!engine.has_work()) return error(Code::kInternal, "the engine stopped before the end");
    RETURN_IF_ERROR(engine.step());
    for (const auto& event : engine.take_prefilled()) RETURN_IF_ERROR(engine.take_over(event.id));
    for (auto& event : engine.take_finished()) {
      if (event.reason == FinishReason::kRefused) return error(Code::kInvalid, "{}", event.detail);
      if (event.reason == FinishReason::kFailed) return error(Code::kInternal, "{}", event.detail);
      const size_t index = static_cast<size_t>(event.id.value);
      finished[index] = std::move(event);
      ++num_finished;
    }
  }
  return finished;
}

/// A model's vocabulary may be larger than its tokenizer's: such completions have ids but no text.
std::optional<std::string> text_of(const FinishEvent& event, const Prompt& prompt,
                                   const GenerateArguments& arguments) {
  if (prompt.tokenizer == nullptr) return std::nullopt;
  const bool is_whole = event.reason != FinishReason::kStop || arguments.include_stop;
  const auto sampling = sampling_of(arguments);
  auto text = is_whole || !sampling.ok()
                  ? prompt.tokenizer->decode(event.tokens)
                  : text_before_stop(event.tokens, *sampling, *prompt.tokenizer);
  if (text.ok()) return std::move(text).value();
  complain("warning: no text: {}\n", text.error().message());
  return std::nullopt;
}

Json list_of(std::span<const float> logprobs) {
  Json list = Json::array();
  for (const float value : logprobs) list.push_back(static_cast<double>(value));
  return list;
}

/// For each sampled token the most likely tokens at its position, if there are any.
Json top_of(const FinishEvent& event, size_t count) {
  Json all = Json::array();
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    Json likeliest = Json::array();
    for (const auto& one : std::span(event.top_logprobs).subspan(i * count, count))
      if (one.token >= 0)
        likeliest.push_back(Json::object()
                                .set("token_id", static_cast<int64_t>(one.token))
                                .set("logprob", static_cast<double>(one.logprob)));
    all.push_back(std::move(likeliest));
  }
  return all;
}

void print_completion(const FinishEvent& event, const Prompt& prompt,
                      const GenerateArguments& arguments) {
  const auto text = text_of(event, prompt, arguments);
  if (!arguments.json) {
    print_text((text ? *text : Json::list(event.tokens).dump()) + "\n");
    return;
  }
  Json json = Json::object()
                  .set("schema", "primerl.generate/1")
                  .set("token_ids", Json::list(event.tokens))
                  .set("text", text ? Json(*text) : Json())
                  .set("logprobs", list_of(event.logprobs))
                  .set("finish_reason", to_string(event.reason))
                  .set("num_cached_tokens", static_cast<int64_t>(event.num_cached_tokens));
  if (arguments.top_logprobs > 0)
    json.set("top_logprobs", top_of(event, static_cast<size_t>(arguments.top_logprobs)));
  if (arguments.prompt_logprobs) json.set("prompt_logprobs", list_of(event.prompt_logprobs));
  print_text(json.dump() + "\n");
}

/// An engine of the model, with the adapter if one was given.
Result<std::unique_ptr<Engine>> make_engine(const GenerateArguments& arguments,
                                            const Prompt& prompt) {
  EngineOptions options = engine_options(arguments, prompt.ids.size());
  if (arguments.adapter.empty()) return load_engine(options, arguments.model, prompt.tokenizer);
  ASSIGN_OR_RETURN(const ModelFolder model, read_model_folder(arguments.model));
  ASSIGN_OR_RETURN(AdapterFolder adapter, read_adapter_folder(arguments.adapter, model.config));
  options.adapter_slots = 1;
  options.max_adapter_rank = adapter.config.rank;
  options.adapter_targets = adapter.config.targets;
  ASSIGN_OR_RETURN(auto engine, load_engine(options, arguments.model, prompt.tokenizer));
  WeightSnapshot snapshot;
  snapshot.key = SequenceRequest().key();
  snapshot.version = PolicyVersion(0);
  snapshot.tensors = std::move(adapter.tensors);
  RETURN_IF_ERROR(engine->apply(snapshot));
  return engine;
}

Status generate(const GenerateArguments& arguments) {
  ASSIGN_OR_RETURN(const Prompt prompt, read_prompt(arguments));
  ASSIGN_OR_RETURN(auto engine, make_engine(arguments, prompt));
  ASSIGN_OR_RETURN(const auto finished, generate_all(*engine, arguments, prompt));
  for (const auto& event : finished) print_completion(event, prompt, arguments);
  return ok();
}

Result<std::vector<std::vector<int32_t>>> read_ids_file(const std::string& file) {
  std::error_code fault;
  if (std::filesystem::file_size(file, fault) > kIdsFileBytesMax && !fault)
    return error(Code::kExhausted, "'{}' is larger than {} bytes", file, kIdsFileBytesMax);
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  std::vector<std::vector<int32_t>> all;
  size_t line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto ids = parse_token_ids(line);
    if (!ids.ok())
      return std::move(ids).error().while_doing(fmt::format("{}:{}", file, line_number));
    all.push_back(std::move(ids).value());
  }
  if (all.empty()) return error(Code::kInvalid, "'{}' has no token ids", file);
  return all;
}

Status score(const ScoreArguments& arguments) {
  ASSIGN_OR_RETURN(const auto sequences, read_ids_file(arguments.ids_file));
  LearnerOptions options;
  options.threads = thread_count(arguments.threads);
  options.device = arguments.device;
  options.dtype = arguments.dtype;
  options.numerics = numerics_on(arguments.device);
  ASSIGN_OR_RETURN(auto learner, load_learner(options, arguments.model));
  for (size_t i = 0; i < sequences.size(); ++i) {
    auto logprobs = learner->score(TenantSlot(0), sequences[i]);
    if (!logprobs.ok())
      return std::move(logprobs).error().while_doing(fmt::format("sequence {}", i + 1));
    Json list = list_of(*logprobs);
    if (!arguments.json) {
      print_text(list.dump() + "\n");
      continue;
    }
    print_text(
        Json::object().set("schema", "primerl.score/1").set("logprobs", std::move(list)).dump() +
        "\n");
  }
  return ok();
}

Status train_step(const TrainStepArguments& arguments) {
  std::error_code ignored;
  if (std::filesystem::equivalent(
          arguments.batch, std::filesystem::path(arguments.dump) / "step.safetensors", ignored))
    return error(Code::kInvalid, "--dump {} would replace the batch {}", arguments.dump,
                 arguments.batch)
        .note("choose another folder for the dump");
  ASSIGN_OR_RETURN(const TrainBatch batch, read_train_batch(arguments.batch));
  LearnerOptions options;
  options.optimizer.lr = arguments.lr;
  options.micro_batch_tokens = static_cast<int32_t>(arguments.micro_batch_tokens);
  options.device = arguments.device;
  options.dtype = arguments.dtype;
  options.numerics =
      arguments.numerics.empty() ? numerics_on(arguments.device) : arguments.numerics;
  options.recompute = arguments.recompute;
  options.threads = thread_count(arguments.threads);
  options.debug.check_finite = arguments.check_finite;
  options.debug.dump_folder = arguments.dump;
  ASSIGN_OR_RETURN(auto learner, load_learner(options, arguments.model));
  if (!arguments.checkpoint.empty())
    RETURN_IF_ERROR(learner->load(batch.tenant, arguments.checkpoint));
  ASSIGN_OR_RETURN(const TrainReport report, learner->step(batch, nullptr));
  if (arguments.json) {
    print_text(Json::object()
                   .set("schema", "primerl.train_step/1")
                   .set("loss", report.loss)
                   .set("grad_norm", report.grad_norm)
                   .set("entropy_mean", report.entropy_mean)
                   .set("mismatch_kl_mean", report.mismatch_kl_mean)
                   .set("num_tokens", report.num_tokens)
                   .set("num_loss_tokens", report.num_loss_tokens)
                   .set("num_micro_batches", report.num_micro_batches)
                   .set("skipped", report.skipped)
                   .set("skip_reason", report.skip_reason)
                   .dump() +
               "\n");
  } else {
    print_text(fmt::format("loss {}, gradient norm {}, mismatch KL {}, {} tokens, {} with a loss\n",
                           report.loss, report.grad_norm, report.mismatch_kl_mean,
                           report.num_tokens, report.num_loss_tokens));
  }
  if (!report.skipped) return ok();
  return error(Code::kUnavailable, "the step was skipped: {}", report.skip_reason);
}

/// Exit codes: 3 for wrong flags, 2 for errors in the model or the input, 1 for other failures.
int exit_code_of(const Status& status) {
  if (status.ok()) return kExitDone;
  const Code code = status.error().code();
  const bool is_ours = code == Code::kInternal || code == Code::kDeviceLost;
  return fail(status.error(), is_ours ? kExitFailed : kExitBadConfiguration);
}

constexpr int kRoomTriesMax = 6;  // one second apart

/// Waits, because a device frees the memory of a killed process some time after its death.
Status wait_for_devices(const Plan& plan) {
  for (int tries = 1;; ++tries) {
    Status enough = check_devices(plan, &why_no_torch_on, torch_device_memory());
    const bool is_full = !enough.ok() && enough.error().code() == Code::kExhausted;
    if (!is_full || tries == kRoomTriesMax) return enough;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace

Command worker_generate_command() {
  auto arguments = std::make_shared<GenerateArguments>();
  return {"generate", "continues a prompt with a model",
          "primerl-worker generate --model examples/reverse_text/model --prompt abc",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] {
            const Status valid = arguments->validate();
            if (!valid.ok()) return fail(valid.error(), kExitBadCommandLine);
            return exit_code_of(generate(*arguments));
          }};
}

Command worker_score_command() {
  auto arguments = std::make_shared<ScoreArguments>();
  return {"score", "prints the log-probability of every token after the first",
          "primerl-worker score --model examples/reverse_text/model --ids-file ids.txt",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] {
            const Status valid = arguments->validate();
            if (!valid.ok()) return fail(valid.error(), kExitBadCommandLine);
            return exit_code_of(score(*arguments));
          }};
}

Command worker_train_step_command() {
  auto arguments = std::make_shared<TrainStepArguments>();
  return {"train-step", "takes one training step on a batch that a run kept",
          "primerl-worker train-step --model examples/reverse_text/model --batch b.safetensors",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] {
            const Status valid = arguments->validate();
            if (!valid.ok()) return fail(valid.error(), kExitBadCommandLine);
            return exit_code_of(train_step(*arguments));
          }};
}

Command device_command() {
  auto name = std::make_shared<std::string>("cpu");
  auto kind = std::make_shared<std::string>("engine");
  auto asks_speed = std::make_shared<bool>(false);
  return {"device", "says why models cannot compute on a device, or nothing where they can",
          "primerl-worker device --name cuda:0 --for engine",
          [name, kind, asks_speed](Arguments& flags) {
            flags.text(*name, "--name", "DEVICE", "cpu, cuda:0, ...");
            flags.text(*kind, "--for", "KIND", "engine or learner");
            flags.flag(*asks_speed, "--speed", "say by what they compute there, if it is slow");
          },
          [name, kind, asks_speed] {
            const std::string text =
                *asks_speed ? slow_torch_way_on(*name) : why_no_torch_on(*name, *kind);
            if (!text.empty()) print_text(text + "\n");
            return static_cast<int>(kExitDone);
          }};
}

Command devices_command() {
  auto graph = std::make_shared<std::string>();
  return {"devices", "says why the devices of this machine are not enough for a graph, or nothing",
          "primerl-worker devices --graph runs/latest/graph.resolved.toml",
          [graph](Arguments& flags) { flags.text(*graph, "--graph", "FILE", "a resolved graph"); },
          [graph] {
            const CheckedGraph checked = load_graph(*graph, {}, full_catalog());
            if (checked.plan == nullptr) {
              complain_text(render(checked.diagnostics, checked.sources));
              return static_cast<int>(kExitBadConfiguration);
            }
            const Status enough = wait_for_devices(*checked.plan);
            if (!enough.ok()) print_text(enough.error().text() + "\n");
            return static_cast<int>(kExitDone);
          }};
}

Command backends_command() {
  return {"backends", "lists the resources this build can make", "primerl-worker backends",
          [](Arguments&) {},
          [] {
            print_text(fmt::format("{}\n", fmt::join(backend_names(), ", ")));
            return static_cast<int>(kExitDone);
          }};
}

}  // namespace primerl
