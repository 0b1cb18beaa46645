#include "runtime/worker/worker_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "kernels/engine/engine.h"
#include "kernels/engine/options.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/models/folder.h"
#include "kernels/train/batch_file.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/devices.h"
#include "runtime/backends/model_text.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/backends/torch_backends.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/model_options.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

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

/// Steps the engine until every sample has ended; index = sample.
Result<std::vector<FinishEvent>> generate_all(Engine& engine, const GenerateArguments& arguments,
                                              const ModelPrompt& prompt) {
  const auto count = static_cast<size_t>(arguments.num_samples);
  ASSIGN_OR_RETURN(const SamplingParams sampling, sampling_of(arguments, prompt));
  for (size_t i = 0; i < count; ++i) {
    SequenceRequest request;
    request.id = SequenceId(i);
    request.prompt_tokens = prompt.ids;
    request.sampling = sampling;
    request.seed = sample_seed(arguments, i);
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

/// An engine of the model, with the adapter if one was given.
Result<std::unique_ptr<Engine>> make_engine(const GenerateArguments& arguments,
                                            const ModelPrompt& prompt) {
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
  ASSIGN_OR_RETURN(const ModelPrompt prompt, read_prompt(arguments));
  ASSIGN_OR_RETURN(auto engine, make_engine(arguments, prompt));
  ASSIGN_OR_RETURN(const auto finished, generate_all(*engine, arguments, prompt));
  for (const auto& event : finished) print_completion(event, prompt, arguments);
  return ok();
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
    print_scores(*logprobs, arguments.json);
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
  if (batch.loss == LossKind::kTopK) {
    options.loss.kind = "gkd";  // no other objective reads it
    options.loss.jsd_beta = arguments.jsd_beta;
  } else if (arguments.jsd_beta >= 0) {
    return error(Code::kInvalid, "--jsd-beta has no effect: '{}' has no likeliest tokens",
                 arguments.batch)
        .note("it is of batches that a run with loss = { kind = \"gkd\" } kept; leave it out");
  }
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
            return model_exit_code(generate(*arguments));
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
            return model_exit_code(score(*arguments));
          }};
}

Command worker_train_step_command() {
  auto arguments = std::make_shared<TrainStepArguments>();
  return {"train-step", "runs one training step on a batch that a run kept",
          "primerl-worker train-step --model examples/reverse_text/model --batch b.safetensors",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] {
            const Status valid = arguments->validate();
            if (!valid.ok()) return fail(valid.error(), kExitBadCommandLine);
            return model_exit_code(train_step(*arguments));
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
