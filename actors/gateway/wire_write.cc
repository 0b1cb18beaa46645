// Writing the bodies of replies. Arrays of tokens are written as text, not as Json values: they are
// long.
#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "actors/gateway/wire.h"

namespace primerl {
namespace {

using Text = fmt::memory_buffer;

template <class... Args>
void add(Text& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}

std::string json_text(std::string_view text) { return Json(text).dump(); }

Status check_numbers(const Completion& completion) {
  if (completion.logprobs.size() != completion.tokens.size())
    return error(Code::kInternal, "the engine gave {} tokens and {} log-probabilities",
                 completion.tokens.size(), completion.logprobs.size());
  for (size_t i = 0; i < completion.logprobs.size(); ++i)
    if (!std::isfinite(completion.logprobs[i]))
      return error(Code::kInternal, "the log-probability of token {} is {}", i,
                   completion.logprobs[i]);
  return ok();
}

void add_ids(Text& text, const std::vector<int32_t>& ids) {
  add(text, "[{}]", fmt::join(ids, ","));
}

/// Both forms of a log-probability: `token` for renderers, `token_id` for newer vLLM. The rank is
/// not known.
void add_wire_logprobs(Text& text, const Completion& completion) {
  add(text, "{{\"content\":[");
  for (size_t i = 0; i < completion.tokens.size(); ++i)
    add(text,
        "{}{{\"token\":\"token_id:{}\",\"token_id\":{},\"logprob\":{},\"rank\":null,"
        "\"top_logprobs\":[]}}",
        i == 0 ? "" : ",", completion.tokens[i], completion.tokens[i], completion.logprobs[i]);
  add(text, "]}}");
}

void add_chat_logprobs(Text& text, const Completion& completion, const Tokenizer& tokenizer) {
  add(text, "{{\"content\":[");
  for (size_t i = 0; i < completion.tokens.size(); ++i) {
    const int32_t id = completion.tokens[i];
    const auto token = tokenizer.decode({id}, false);
    const std::string_view bytes = tokenizer.bytes_of(id);
    std::vector<int> numbers;
    for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
    add(text, "{}{{\"token\":{},\"logprob\":{},\"bytes\":[{}],\"top_logprobs\":[]}}",
        i == 0 ? "" : ",", json_text(token.ok() ? *token : ""), completion.logprobs[i],
        fmt::join(numbers, ","));
  }
  add(text, "]}}");
}

void add_usage(Text& text, const ReplyFacts& facts, const Completion& completion) {
  const auto num_new = static_cast<int64_t>(completion.tokens.size());
  add(text,
      "\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
      "\"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}",
      facts.num_prompt_tokens, num_new, facts.num_prompt_tokens + num_new,
      completion.num_cached_tokens);
}

Json message_of(const ReplyFacts& facts, const ChatMessage& message) {
  Json json = Json::object();
  const std::string content = text_of(message);
  const bool has_calls = !message.tool_calls.empty();
  json.set("role", "assistant")
      .set("content", content.empty() && has_calls ? Json() : Json(content));
  if (!message.reasoning.empty()) json.set("reasoning_content", message.reasoning);
  if (!has_calls) return json;
  Json calls = Json::array();
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    Json function = Json::object();
    function.set("name", call.name).set("arguments", call.arguments);
    calls.push_back(
        Json::object()
            .set("id", call.id.empty() ? fmt::format("{}-call-{}", facts.id, i) : call.id)
            .set("type", "function")
            .set("function", std::move(function)));
  }
  return json.set("tool_calls", std::move(calls));
}

}  // namespace

Result<std::string> generate_reply(const ReplyFacts& facts, const Completion& completion) {
  RETURN_IF_ERROR(check_numbers(completion));
  Text text;
  add(text, "{{\"request_id\":{},\"choices\":[{{\"index\":0,\"token_ids\":", json_text(facts.id));
  add_ids(text, completion.tokens);
  add(text, ",\"logprobs\":");
  add_wire_logprobs(text, completion);
  add(text, ",\"finish_reason\":\"{}\"}}],\"prompt_logprobs\":null,\"kv_transfer_params\":null,",
      to_string(completion.end));
  add_usage(text, facts, completion);
  add(text, "}}");
  return fmt::to_string(text);
}

Result<std::string> chat_reply(const ReplyFacts& facts, const Completion& completion,
                               const chat::ParsedAnswer& answer, const ChatReplyForm& form,
                               const Tokenizer& tokenizer) {
  RETURN_IF_ERROR(check_numbers(completion));
  const bool calls_tools =
      completion.end == FinishReason::kStop && !answer.message.tool_calls.empty();
  Text text;
  // The gateway has no clock of the world outside, so `created` is 0.
  add(text,
      "{{\"id\":{},\"object\":\"chat.completion\",\"created\":0,\"model\":{},\"choices\":[{{"
      "\"index\":0,\"message\":{},\"finish_reason\":\"{}\",\"logprobs\":",
      json_text(facts.id), json_text(facts.model), message_of(facts, answer.message).dump(),
      calls_tools ? "tool_calls" : to_string(completion.end));
  if (form.has_logprobs)
    add_chat_logprobs(text, completion, tokenizer);
  else
    add(text, "null");
  if (form.prompt_tokens != nullptr) {
    add(text, ",\"token_ids\":");
    add_ids(text, completion.tokens);
  }
  add(text, "}}],");
  if (form.prompt_tokens != nullptr) {
    add(text, "\"prompt_token_ids\":");
    add_ids(text, *form.prompt_tokens);
    add(text, ",");
  }
  add_usage(text, facts, completion);
  add(text, "}}");
  return fmt::to_string(text);
}

}  // namespace primerl
