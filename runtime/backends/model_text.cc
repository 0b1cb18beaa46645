#include "runtime/backends/model_text.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/random.h"
#include "kernels/engine/stop_rule.h"
#include "runtime/backends/chat_input.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr size_t kIdsFileBytesMax = size_t{1} << 30;

/// A model's vocabulary may be larger than its tokenizer's: such completions have ids but no text.
std::optional<std::string> text_of(const FinishEvent& event, const ModelPrompt& prompt,
                                   const GenerateArguments& arguments) {
  if (prompt.tokenizer == nullptr) return std::nullopt;
  const bool is_whole = event.reason != FinishReason::kStop || arguments.include_stop;
  const auto sampling = sampling_of(arguments, prompt);
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

}  // namespace

Result<ModelPrompt> read_prompt(const GenerateArguments& arguments) {
  ModelPrompt prompt;
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

Result<SamplingParams> sampling_of(const GenerateArguments& arguments, const ModelPrompt& prompt) {
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
  if (prompt.turn_end >= 0 && !arguments.ignore_eos) sampling.stop_ids.push_back(prompt.turn_end);
  return sampling;
}

uint64_t sample_seed(const GenerateArguments& arguments, size_t sample) {
  const auto seed = static_cast<uint64_t>(arguments.seed);
  return sample == 0 ? seed : mix(seed, sample);
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

void print_completion(const FinishEvent& event, const ModelPrompt& prompt,
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

void print_scores(std::span<const float> logprobs, bool json) {
  Json list = list_of(logprobs);
  if (json) list = Json::object().set("schema", "primerl.score/1").set("logprobs", std::move(list));
  print_text(list.dump() + "\n");
}

int model_exit_code(const Status& status) {
  if (status.ok()) return kExitDone;
  const Code code = status.error().code();
  const bool is_ours = code == Code::kInternal || code == Code::kDeviceLost;
  return fail(status.error(), is_ours ? kExitFailed : kExitBadConfiguration);
}

}  // namespace primerl
