#include "runtime/program/model_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "graph/base/device_name.h"

namespace primerl {
namespace {

constexpr int64_t kTokensMax = int64_t{1} << 20;
constexpr int64_t kThreadsMax = 1024;
// Limits of the engine (kernels/engine/sampling_params.h), which checks them again.
constexpr int64_t kTopLogprobsMax = 20;
constexpr double kPenaltyMax = 2;
constexpr double kRepetitionMin = 0.001;
constexpr double kRepetitionMax = 1000;

std::string exact(double value) { return fmt::format("{}", value); }

}  // namespace

void ModelCommandArguments::declare_model(Arguments& arguments) {
  arguments.text(model, "--model", "DIR", "a Hugging Face folder");
  arguments.text(device, "--device", "DEVICE", "where it computes: cpu, or cuda:0, cuda:1, ...");
  arguments.choice(dtype, "--dtype", {"auto", "float32", "bfloat16"},
                   "numbers of activations and products; auto: float32 on the CPU, bfloat16 on a "
                   "CUDA device");
  arguments.integer(threads, "--threads", "N", "compute threads; 0 = one per core", 0, kThreadsMax);
  arguments.flag(json, "--json", "prints one JSON object a line");
}

Status ModelCommandArguments::validate_model() const {
  if (model.empty()) return error(Code::kInvalid, "--model DIR is needed");
  if (is_device_name(device)) return ok();
  const std::string meant = meant_device(device);
  return error(Code::kInvalid, "--device '{}' is no device{}", device,
               meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant))
      .note("devices: cpu, cuda:0, cuda:1, ...");
}

std::vector<std::string> ModelCommandArguments::model_words(std::string command) const {
  std::vector<std::string> all{std::move(command), "--model=" + model, "--device=" + device,
                               "--dtype=" + dtype, fmt::format("--threads={}", threads)};
  if (json) all.push_back("--json");
  return all;
}

void GenerateArguments::declare(Arguments& arguments) {
  declare_model(arguments);
  arguments.text(adapter, "--adapter", "DIR",
                 "a PEFT folder to put on the model, such as weights/ of a checkpoint");
  arguments.text(prompt, "--prompt", "TEXT", "what to continue");
  arguments.text(prompt_ids, "--prompt-ids", "1,2,3", "what to continue, as token ids");
  arguments.text(chat, "--chat", "TEXT|FILE.json",
                 "a user's text, or a file of messages, in the model's chat template");
  arguments.text(chat_kwargs, "--chat-kwargs", "JSON", "variables of the chat template");
  arguments.integer(max_tokens, "--max-tokens", "N", "new tokens", 1, kTokensMax);
  arguments.integer(min_tokens, "--min-tokens", "N", "no end token and no stop before so many", 0,
                    kTokensMax);
  arguments.number(temperature, "--temperature", "T", "0 is greedy", 0, 1e6);
  arguments.number(top_p, "--top-p", "P", "the likeliest tokens of this mass; 1 is off",
                   std::numeric_limits<double>::min(), 1);
  arguments.integer(top_k, "--top-k", "K", "the K likeliest tokens; 0 is off", 0, INT32_MAX);
  arguments.number(min_p, "--min-p", "P", "tokens this likely relative to the likeliest", 0,
                   1 - 1e-9);
  declare_logits(arguments);
  arguments.texts(stop, "--stop", "TEXT", "ends a completion; may be given several times");
  arguments.text(stop_ids, "--stop-ids", "1,2,3", "tokens that end a completion");
  arguments.integer(top_logprobs, "--top-logprobs", "N",
                    "with --json: the likeliest tokens in the place of each", 0, kTopLogprobsMax);
  arguments.flag(prompt_logprobs, "--prompt-logprobs",
                 "with --json: the log-probability of every token of the prompt after the first");
  arguments.integer(seed, "--seed", "S", "of the draws", 0, INT64_MAX);
  arguments.integer(num_samples, "--n", "N", "completions", 1, 4096);
  arguments.flag(ignore_eos, "--ignore-eos", "continues to --max-tokens after an end token");
  arguments.flag(include_stop, "--include-stop",
                 "the text has its stop text, or the text of its stop token, at the end");
  arguments.flag(special_tokens, "--special-tokens",
                 "special tokens written out in --prompt count as such; else they are text");
}

void GenerateArguments::declare_logits(Arguments& arguments) {
  arguments.texts(logit_bias, "--logit-bias", "ID=VALUE",
                  "added to the logit of a token; may be given several times");
  arguments.number(repetition_penalty, "--repetition-penalty", "R",
                   "of tokens in prompt or completion; 1 is off", kRepetitionMin, kRepetitionMax);
  arguments.number(frequency_penalty, "--frequency-penalty", "F",
                   "of a token, each time the completion has it; 0 is off", -kPenaltyMax,
                   kPenaltyMax);
  arguments.number(presence_penalty, "--presence-penalty", "P",
                   "of a token that the completion has; 0 is off", -kPenaltyMax, kPenaltyMax);
}

Status GenerateArguments::validate() const {
  RETURN_IF_ERROR(validate_model());
  const int num_prompts =
      (prompt.empty() ? 0 : 1) + (prompt_ids.empty() ? 0 : 1) + (chat.empty() ? 0 : 1);
  if (num_prompts != 1)
    return error(
        Code::kInvalid,
        "exactly one of --prompt, --prompt-ids and --chat is needed, and not an empty one");
  if (!chat_kwargs.empty() && chat.empty())
    return error(Code::kInvalid, "--chat-kwargs needs --chat");
  if (special_tokens && prompt.empty())
    return error(Code::kInvalid, "--special-tokens needs --prompt");
  if (!prompt_ids.empty()) {
    auto ids = parse_token_ids(prompt_ids);
    if (!ids.ok()) return std::move(ids).error().while_doing("--prompt-ids");
  }
  // words() could not pass on an empty one either: the next word would become its value.
  if (std::find(stop.begin(), stop.end(), "") != stop.end())
    return error(Code::kInvalid, "a text of --stop is empty")
        .note("leave --stop out where no text ends a completion");
  if (!stop_ids.empty()) {
    auto ids = parse_token_ids(stop_ids);
    if (!ids.ok()) return std::move(ids).error().while_doing("--stop-ids");
  }
  if (auto biases = parse_biases(logit_bias); !biases.ok())
    return std::move(biases).error().while_doing("--logit-bias");
  if (min_tokens > max_tokens)
    return error(Code::kInvalid, "--min-tokens {} is above --max-tokens {}", min_tokens,
                 max_tokens);
  if (!json && (top_logprobs > 0 || prompt_logprobs))
    return error(Code::kInvalid,
                 "--top-logprobs and --prompt-logprobs are printed with --json only");
  return ok();
}

std::vector<std::string> GenerateArguments::words() const {
  std::vector<std::string> all = model_words("generate");
  if (!adapter.empty()) all.push_back("--adapter=" + adapter);
  if (!prompt.empty()) all.push_back("--prompt=" + prompt);
  if (!prompt_ids.empty()) all.push_back("--prompt-ids=" + prompt_ids);
  if (!chat.empty()) all.push_back("--chat=" + chat);
  if (!chat_kwargs.empty()) all.push_back("--chat-kwargs=" + chat_kwargs);
  all.push_back(fmt::format("--max-tokens={}", max_tokens));
  all.push_back("--temperature=" + exact(temperature));
  all.push_back("--top-p=" + exact(top_p));
  all.push_back(fmt::format("--top-k={}", top_k));
  all.push_back("--min-p=" + exact(min_p));
  all.push_back(fmt::format("--min-tokens={}", min_tokens));
  all.push_back("--repetition-penalty=" + exact(repetition_penalty));
  all.push_back("--frequency-penalty=" + exact(frequency_penalty));
  all.push_back("--presence-penalty=" + exact(presence_penalty));
  all.push_back(fmt::format("--top-logprobs={}", top_logprobs));
  for (const std::string& one : logit_bias) all.push_back("--logit-bias=" + one);
  for (const std::string& one : stop) all.push_back("--stop=" + one);
  if (!stop_ids.empty()) all.push_back("--stop-ids=" + stop_ids);
  if (prompt_logprobs) all.push_back("--prompt-logprobs");
  all.push_back(fmt::format("--seed={}", seed));
  all.push_back(fmt::format("--n={}", num_samples));
  if (ignore_eos) all.push_back("--ignore-eos");
  if (include_stop) all.push_back("--include-stop");
  if (special_tokens) all.push_back("--special-tokens");
  return all;
}

void ScoreArguments::declare(Arguments& arguments) {
  declare_model(arguments);
  arguments.text(ids_file, "--ids-file", "FILE", "comma-separated token ids, one sequence a line");
}

Status ScoreArguments::validate() const {
  RETURN_IF_ERROR(validate_model());
  if (ids_file.empty()) return error(Code::kInvalid, "--ids-file FILE is needed");
  return ok();
}

std::vector<std::string> ScoreArguments::words() const {
  std::vector<std::string> all = model_words("score");
  all.push_back("--ids-file=" + ids_file);
  return all;
}

void TrainStepArguments::declare(Arguments& arguments) {
  declare_model(arguments);
  arguments.text(batch, "--batch", "FILE", "a batch that a learner kept (debug.batch_folder)");
  arguments.text(checkpoint, "--checkpoint", "DIR",
                 "weights and optimizer of a run's checkpoint, instead of the model's weights");
  arguments.text(dump, "--dump", "DIR", "writes every activation, gradient and new weight");
  arguments.number(lr, "--lr", "LR", "learning rate", 0, 1);
  arguments.integer(micro_batch_tokens, "--micro-batch-tokens", "N", "of one forward and backward",
                    1, INT32_MAX);
  arguments.choice(numerics, "--numerics", {"invariant", "fast"},
                   "of products; without it invariant on the CPU, fast on a CUDA device");
  arguments.choice(recompute, "--recompute", {"none", "keep_attention", "full"},
                   "what backward computes again");
  arguments.flag(check_finite, "--check-finite",
                 "names the first activation that is NaN or infinite");
  arguments.number(jsd_beta, "--jsd-beta", "BETA",
                   "of a batch with a teacher's likeliest tokens (gkd), as in the run's loss; 0 is "
                   "the forward KL, as without it",
                   0, 1);
}

Status TrainStepArguments::validate() const {
  RETURN_IF_ERROR(validate_model());
  if (batch.empty()) return error(Code::kInvalid, "--batch FILE is needed");
  return ok();
}

std::vector<std::string> TrainStepArguments::words() const {
  std::vector<std::string> all = model_words("train-step");
  all.push_back("--batch=" + batch);
  all.push_back("--lr=" + exact(lr));
  all.push_back(fmt::format("--micro-batch-tokens={}", micro_batch_tokens));
  all.push_back("--recompute=" + recompute);
  if (!numerics.empty()) all.push_back("--numerics=" + numerics);
  if (!checkpoint.empty()) all.push_back("--checkpoint=" + checkpoint);
  if (!dump.empty()) all.push_back("--dump=" + dump);
  if (check_finite) all.push_back("--check-finite");
  if (jsd_beta >= 0) all.push_back("--jsd-beta=" + exact(jsd_beta));
  return all;
}

Result<std::vector<int32_t>> parse_token_ids(const std::string& text) {
  std::vector<int32_t> ids;
  size_t at = 0;
  while (true) {
    const size_t comma = std::min(text.find(',', at), text.size());
    std::string_view word = std::string_view(text).substr(at, comma - at);
    while (!word.empty() && (word.front() == ' ' || word.front() == '\t')) word.remove_prefix(1);
    while (!word.empty() && (word.back() == ' ' || word.back() == '\t' || word.back() == '\r'))
      word.remove_suffix(1);
    int32_t id = 0;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), id);
    if (word.empty() || read.ec != std::errc() || read.ptr != word.data() + word.size() || id < 0)
      return error(Code::kInvalid, "'{}' at character {} is no token id", word, at + 1)
          .note(fmt::format("token ids are whole numbers from 0 to {}, separated by commas",
                            std::numeric_limits<int32_t>::max()));
    ids.push_back(id);
    if (comma == text.size()) return ids;
    at = comma + 1;
  }
}

Result<std::vector<std::pair<int32_t, double>>> parse_biases(
    const std::vector<std::string>& words) {
  std::vector<std::pair<int32_t, double>> biases;
  for (const std::string& word : words) {
    const size_t equals = std::min(word.find('='), word.size());
    const char *end = word.data() + word.size(), *middle = word.data() + equals;
    int32_t id = 0;
    double bias = 0;
    const auto id_read = std::from_chars(word.data(), middle, id);
    if (middle == end || id_read.ec != std::errc() || id_read.ptr != middle || id < 0)
      return error(Code::kInvalid, "'{}' is not ID=VALUE", word)
          .note("a token id and a number, as in 17=-2.5");
    const auto read = std::from_chars(middle + 1, end, bias);
    if (read.ec != std::errc() || read.ptr != end || !std::isfinite(bias))
      return error(Code::kInvalid, "'{}' of token {} is not a number", word.substr(equals + 1), id);
    biases.emplace_back(id, bias);
  }
  std::ranges::sort(biases);
  const auto twice = std::ranges::adjacent_find(
      biases, [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != biases.end()) return error(Code::kInvalid, "token {} is there twice", twice->first);
  return biases;
}

}  // namespace primerl
