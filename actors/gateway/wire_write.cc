// Writing the bodies of replies.

#include "actors/gateway/base64.h"
#include "actors/gateway/logprob_forms.h"
#include "actors/gateway/text_writer.h"
#include "actors/gateway/wire.h"

namespace primerl {
namespace {

std::string json_text(std::string_view text) { return Json(text).dump(); }

void add_ids(ReplyText& text, std::span<const int32_t> ids) {
  add(text, "[{}]", fmt::join(ids, ","));
}

/// The prompt counts once: its completions share its computed keys.
void add_usage(ReplyText& text, const ReplyFacts& facts, std::span<const Completion> completions) {
  const auto num_prompt = static_cast<int64_t>(facts.prompt.size());
  int64_t num_new = 0;
  for (const Completion& completion : completions)
    num_new += static_cast<int64_t>(completion.tokens.size());
  add(text,
      "\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
      "\"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}",
      num_prompt, num_new, num_prompt + num_new, completions.front().num_cached_tokens);
}

Status check_all(const ReplyFacts& facts, std::span<const Completion> completions) {
  for (const Completion& completion : completions)
    RETURN_IF_ERROR(check_logprobs(completion, facts.sampling.num_top_logprobs));
  return ok();
}

/// The versions of the weights that made the tokens, as vLLM reports them.
void add_versions(ReplyText& text, const Completion& completion) {
  add(text, "\"weight_versions\":[");
  for (size_t i = 0; i < completion.spans.size(); ++i) {
    const VersionSpan& span = completion.spans[i];
    add(text, "{}{{\"version\":\"{}\",\"start\":{},\"end\":{}}}", i == 0 ? "" : ",", span.version,
        span.begin, span.end);
  }
  add(text, "]");
}

/// prime-rl's object. Clients search the bytes for `"routed_experts":{"data":"`.
void add_routed_experts(ReplyText& text, const RoutedExperts& routed) {
  if (routed.num_rows() == 0) return;
  const auto bytes = routed.bytes.bytes();
  add(text, ",\"routed_experts\":{{\"data\":\"{}\",\"shape\":[{},{},{}],\"start\":{}{}}}",
      base64({reinterpret_cast<const char*>(bytes.data()), bytes.size()}), routed.num_rows(),
      routed.num_layers, routed.per_token, routed.start,
      routed.is_wide ? ",\"dtype\":\"uint16\"" : "");
}

/// `prompt_token_ids`, if asked for, and `prompt_logprobs`.
Status add_prompt(ReplyText& text, const ReplyFacts& facts, const Completion& completion) {
  if (facts.has_token_ids) {
    add(text, "\"prompt_token_ids\":");
    add_ids(text, facts.prompt);
    add(text, ",");
  }
  std::string logprobs = "null";
  if (facts.sampling.prompt_logprobs) {
    ASSIGN_OR_RETURN(logprobs, prompt_logprobs(facts.prompt, completion));
  }
  add(text, "\"prompt_logprobs\":{},", logprobs);
  return ok();
}

/// `prefix` makes ids of tool calls that have none unique within the reply.
Json message_of(const std::string& prefix, const ChatMessage& message) {
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
    calls.push_back(Json::object()
                        .set("id", call.id.empty() ? fmt::format("{}-call-{}", prefix, i) : call.id)
                        .set("type", "function")
                        .set("function", std::move(function)));
  }
  return json.set("tool_calls", std::move(calls));
}

}  // namespace

Result<std::string> generate_reply(const ReplyFacts& facts, std::span<const Completion> completions,
                                   int32_t vocab_size) {
  RETURN_IF_ERROR(check_all(facts, completions));
  const int32_t num_top = facts.sampling.num_top_logprobs;
  ReplyText text;
  add(text, "{{\"request_id\":{},\"model\":{},\"created\":{},\"choices\":[", json_text(facts.id),
      json_text(facts.model), facts.created);
  for (size_t i = 0; i < completions.size(); ++i) {
    const Completion& completion = completions[i];
    add(text, "{}{{\"index\":{},\"token_ids\":", i == 0 ? "" : ",", i);
    add_ids(text, completion.tokens);
    if (facts.has_compact_logprobs)
      add(text, ",\"logprobs\":null,\"compact_logprobs\":{}",
          compact_logprobs(completion, num_top, vocab_size));
    else
      add(text, ",\"logprobs\":{}", token_logprobs(completion, num_top, vocab_size));
    add(text, ",\"finish_reason\":\"{}\",", to_string(completion.end));
    add_versions(text, completion);
    add_routed_experts(text, completion.routed);
    add(text, "}}");
  }
  add(text, "],");
  RETURN_IF_ERROR(add_prompt(text, facts, completions.front()));
  add(text, "\"kv_transfer_params\":null,");
  add_usage(text, facts, completions);
  add(text, "}}");
  return fmt::to_string(text);
}

Result<std::string> chat_reply(const ReplyFacts& facts, std::span<const Completion> completions,
                               std::span<const chat::ParsedAnswer> answers,
                               const Tokenizer& tokenizer) {
  RETURN_IF_ERROR(check_all(facts, completions));
  ReplyText text;
  add(text, "{{\"id\":{},\"object\":\"chat.completion\",\"created\":{},\"model\":{},\"choices\":[",
      json_text(facts.id), facts.created, json_text(facts.model));
  for (size_t i = 0; i < completions.size(); ++i) {
    const Completion& completion = completions[i];
    const bool calls_tools =
        completion.end == FinishReason::kStop && !answers[i].message.tool_calls.empty();
    const std::string prefix = i == 0 ? facts.id : fmt::format("{}-{}", facts.id, i);
    add(text, "{}{{\"index\":{},\"message\":{},\"finish_reason\":\"{}\",\"logprobs\":{}",
        i == 0 ? "" : ",", i, message_of(prefix, answers[i].message).dump(),
        calls_tools ? "tool_calls" : to_string(completion.end),
        facts.has_logprobs ? text_logprobs(completion, facts.sampling.num_top_logprobs, tokenizer)
                           : "null");
    if (facts.has_token_ids) {
      add(text, ",\"token_ids\":");
      add_ids(text, completion.tokens);
    }
    add(text, "}}");
  }
  add(text, "],");
  RETURN_IF_ERROR(add_prompt(text, facts, completions.front()));
  add_usage(text, facts, completions);
  add(text, "}}");
  return fmt::to_string(text);
}

}  // namespace primerl
