#include "actors/env/outside_calls.h"

#include <cmath>

#include "graph/base/file_digest.h"
#include "graph/base/json.h"

namespace primerl {
namespace {

Result<Json> read_answer(const std::string& body) {
  ASSIGN_OR_RETURN(Json json, parse_json(body, "the answer"));
  if (!json.is_object())
    return error(Code::kInvalid, "the answer is {}, not an object", json.kind());
  return json;
}

/// The text at `key`; empty if the key is missing or null.
Result<std::string> text_or_none(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  if (value == nullptr || value->is_null()) return std::string();
  return json.get_string(key);
}

Result<double> number_at(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  // Python writes NaN and infinity as names, which JSON does not have; the reader refuses them.
  if (value == nullptr || value->is_null())
    return error(Code::kInvalid, "the answer has no '{}'", key).note("a reward is a finite number");
  if (value->is_bool()) return value->as_bool() ? 1.0 : 0.0;
  ASSIGN_OR_RETURN(const double number, json.get_double(key));
  if (!std::isfinite(number))
    return error(Code::kInvalid, "'{}' is {}", key, number).note("a reward is a finite number");
  return number;
}

Result<std::vector<ChatMessage>> messages_at(const Json& json) {
  const Json* value = json.find("messages");
  if (value == nullptr || value->is_null()) return std::vector<ChatMessage>();
  auto messages = messages_from_json(*value);
  if (!messages.ok()) return std::move(messages).error().while_doing("'messages'");
  return messages;
}

}  // namespace

std::string task_body(uint64_t ordinal, uint32_t seed, bool is_evaluation) {
  Json body = Json::object();
  body.set("call", "task").set("ordinal", ordinal).set("seed", seed);
  if (is_evaluation) body.set("evaluation", true);
  return body.dump();
}

std::string step_body(const OutsideTurns& turns) {
  Json body = Json::object();
  body.set("call", "step")
      .set("trajectory", turns.trajectory)
      .set("ordinal", turns.ordinal)
      .set("seed", turns.seed)
      .set("first_turn", turns.first_turn)
      .set("actions", Json::list(turns.actions));
  if (turns.is_evaluation) body.set("evaluation", true);
  if (!turns.messages.empty()) body.set("messages", messages_to_json(turns.messages));
  return body.dump();
}

std::string reward_body(const EnvironmentTask& task, const std::vector<std::string>& actions,
                        double given, const std::vector<ChatMessage>& messages) {
  Json body = Json::object();
  body.set("call", "reward")
      .set("prompt", task.prompt)
      .set("answer", task.answer)
      .set("actions", Json::list(actions))
      .set("given", given);
  if (!messages.empty()) body.set("messages", messages_to_json(messages));
  std::string text = body.dump();
  // The row is JSON already.
  if (!task.row.empty()) text.insert(text.size() - 1, ",\"row\":" + task.row);
  return text;
}

Result<EnvironmentTask> read_task(const std::string& body) {
  ASSIGN_OR_RETURN(const Json json, read_answer(body));
  EnvironmentTask task;
  ASSIGN_OR_RETURN(task.prompt, text_or_none(json, "prompt"));
  ASSIGN_OR_RETURN(task.answer, text_or_none(json, "answer"));
  ASSIGN_OR_RETURN(task.messages, messages_at(json));
  if (const Json* tools = json.find("tools"); tools != nullptr && !tools->is_null()) {
    RETURN_IF_ERROR(check_tools(*tools));
    task.tools = tools->dump();
  }
  for (const ChatMessage& message : task.messages)
    if (json.find("prompt") == nullptr)
      task.prompt += (task.prompt.empty() ? "" : "\n") + text_of(message);
  if (task.prompt.empty())
    return error(Code::kInvalid, "the answer has neither 'prompt' nor 'messages'");
  return task;
}

Result<OutsideStep> read_step(const std::string& body) {
  ASSIGN_OR_RETURN(const Json json, read_answer(body));
  OutsideStep answer;
  ASSIGN_OR_RETURN(answer.step.done, json.get_bool("done"));
  ASSIGN_OR_RETURN(answer.step.text, text_or_none(json, "text"));
  ASSIGN_OR_RETURN(answer.step.messages, messages_at(json));
  ASSIGN_OR_RETURN(answer.answer, text_or_none(json, "answer"));
  ASSIGN_OR_RETURN(answer.prompt, text_or_none(json, "prompt"));
  if (answer.step.done) {
    ASSIGN_OR_RETURN(answer.step.reward, number_at(json, "reward"));
  }
  const Json* played = json.find("played");
  if (played == nullptr || played->is_null()) return answer;
  if (!played->is_array()) return error(Code::kInvalid, "'played' is {}", played->kind());
  for (const Json& each : played->as_array()) {
    if (!each.is_string()) return error(Code::kInvalid, "'played' has {}", each.kind());
    answer.played.push_back(each.as_string());
  }
  return answer;
}

Result<double> read_score(const std::string& body) {
  ASSIGN_OR_RETURN(const Json json, read_answer(body));
  return number_at(json, "reward");
}

std::string digest(const EnvironmentStep& step) {
  std::string text = step.text;
  for (const ChatMessage& message : step.messages) text += "\n" + text_of(message);
  return text_sha256(text);
}

}  // namespace primerl
