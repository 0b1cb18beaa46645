#include "runtime/outside/verifiers/dialect.h"

#include <utility>

#include "runtime/outside/verifiers/msgpack_json.h"
#include "runtime/outside/verifiers/wire_member.h"

namespace primerl {
namespace {

constexpr std::string_view kNames[] = {"w0", "w1a", "w1b", "w1c", "w2"};

// The HTTP client of W0 waits this long for one answer; the deadline of the run ends it earlier.
constexpr int64_t kHttpTimeoutSeconds = 86'400;
constexpr int64_t kHttpConnectSeconds = 30;
constexpr int64_t kHttpConnectionsMax = 28'000;
constexpr int64_t kHttpRetriesMax = 10;

Frames framed(std::string_view method, const std::string& id, const Json& payload) {
  return {id, std::string(method), write_msgpack(payload)};
}

Result<const Json*> object_at(const Json& json, std::string_view key) {
  const Json* const found = json.find(key);
  if (found == nullptr || !found->is_object())
    return error(Code::kInvalid, "the call has no object '{}'", key);
  return found;
}

/// What identifies the task: the key in `data`, and its value.
struct TaskPart {
  std::string_view key;
  const Json* value = nullptr;
};

Result<TaskPart> task_part(VerifiersDialect dialect, const Json& call) {
  ASSIGN_OR_RETURN(const Json* data, object_at(call, "data"));
  std::vector<std::string_view> wanted;
  if (dialect == VerifiersDialect::kW0) wanted = {"input"};
  if (dialect == VerifiersDialect::kW1a) wanted = {"task_idx"};
  if (dialect == VerifiersDialect::kW1b) wanted = {"task_data", "task_idx"};
  if (dialect >= VerifiersDialect::kW1c) wanted = {"task_data"};
  for (const std::string_view key : wanted)
    if (const Json* const value = data->find(key); value != nullptr) {
      const bool is_index = key == "task_idx";
      if (is_index ? value->is_integer() : value->is_object()) return TaskPart{key, value};
      return error(Code::kInvalid, "'{}' of the task is {}", key, value->kind());
    }
  return error(Code::kInvalid, "a server of dialect {} needs '{}' in the data of a task",
               to_string(dialect), fmt::join(wanted, "' or '"))
      .note("the task comes from an environment of another version than the server");
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Result<Json> legacy_sampling(const Json& call, const PolicyClient& policy) {
  ASSIGN_OR_RETURN(const Json* chosen, object_at(call, "sampling"));
  ASSIGN_OR_RETURN(std::string salt, call.get_string("salt"));
  Json sampling = Json::object();
  Json extra = Json::object();
  for (const auto& [key, value] : chosen->as_object()) {
    if (key == "max_tokens")
      sampling.set("max_completion_tokens", value);
    else if (key == "temperature" || key == "top_p" || key == "seed")
      sampling.set(key, value);
    else
      extra.set(key, value);  // the OpenAI client refuses keys that it does not know elsewhere
  }
  if (policy.is_training) sampling.set("logprobs", true);
  extra.set("cache_salt", std::move(salt));
  sampling.set("extra_body", std::move(extra));
  return sampling;
}

Result<Json> sampling_of(const Json& call, bool is_bridged) {
  ASSIGN_OR_RETURN(const Json* chosen, object_at(call, "sampling"));
  ASSIGN_OR_RETURN(std::string salt, call.get_string("salt"));
  Json sampling = *chosen;
  // A bridged environment of W0 gives these keys to the OpenAI client, which refuses `cache_salt`.
  if (is_bridged)
    sampling.set("extra_body", Json::object().set("cache_salt", std::move(salt)));
  else
    sampling.set("cache_salt", std::move(salt));
  return sampling;
}

/// OpenAI clients add paths like "/chat/completions" to it.
Result<std::string> base_url_of(const Json& call) {
  ASSIGN_OR_RETURN(std::string url, call.get_string("base_url"));
  return url + "/v1";
}

Result<Json> legacy_client(const Json& call, const PolicyClient& policy) {
  ASSIGN_OR_RETURN(std::string base_url, base_url_of(call));
  ASSIGN_OR_RETURN(std::string key_variable, call.get_string("api_key_var"));
  const std::string renderer = text_of(policy.renderer, "name");
  Json client = Json::object();
  client.set("client_idx", 0)
      .set("client_type", policy.is_training ? "renderer" : "openai_chat_completions")
      .set("renderer_config", policy.renderer)
      // verifiers 0.1 has the parts of a renderer's config beside each other.
      .set("renderer", renderer.empty() ? "auto" : renderer)
      .set("tool_parser", text_or_null(text_of(policy.renderer, "tool_parser")))
      .set("reasoning_parser", text_or_null(text_of(policy.renderer, "reasoning_parser")))
      .set("renderer_model_name", text_or_null(policy.renderer_model))
      .set("api_key_var", std::move(key_variable))
      .set("api_base_url", std::move(base_url))
      .set("timeout", static_cast<double>(kHttpTimeoutSeconds))
      .set("connect_timeout", static_cast<double>(kHttpConnectSeconds))
      .set("max_connections", kHttpConnectionsMax)
      .set("max_keepalive_connections", kHttpConnectionsMax)
      .set("max_retries", kHttpRetriesMax)
      .set("extra_headers", Json::object())
      .set("extra_headers_from_state", Json::object().set("X-Session-ID", "trajectory_id"));
  return client;
}

Result<Json> client_of(const Json& call, const PolicyClient& policy) {
  ASSIGN_OR_RETURN(std::string base_url, base_url_of(call));
  ASSIGN_OR_RETURN(std::string key_variable, call.get_string("api_key_var"));
  // Unknown keys are refused by the server, so only those of every version are sent.
  Json client = Json::object();
  client.set("type", policy.is_training ? "train" : "eval")
      .set("base_url", std::move(base_url))
      .set("api_key_var", std::move(key_variable))
      .set("headers", Json::object());
  if (policy.is_training)
    client.set("renderer", policy.renderer)
        .set("renderer_model_name", text_or_null(policy.renderer_model));
  return client;
}

Result<Frames> legacy_run(const std::string& id, const Json& call, const PolicyClient& policy,
                          const TaskPart& task, int64_t members) {
  ASSIGN_OR_RETURN(Json client, legacy_client(call, policy));
  ASSIGN_OR_RETURN(Json sampling, legacy_sampling(call, policy));
  ASSIGN_OR_RETURN(std::string model, call.get_string("model"));
  Json payload = Json::object();
  if (members == 1)
    payload.set("request_type", "run_rollout").set("input", *task.value);
  else
    payload.set("request_type", "run_group")
        .set("group_inputs", Json::Array(static_cast<size_t>(members), *task.value));
  // Without the trajectory no token ids come back. A failed model call ends the rollout: what it
  // made earlier stays under the same salt, so the server must not begin it again by itself.
  payload.set("client_config", std::move(client))
      .set("model", std::move(model))
      .set("sampling_args", std::move(sampling))
      .set("max_retries", 0)
      .set("state_columns", Json::list(std::vector<std::string>{"trajectory"}));
  return Frames{id, write_msgpack(payload)};
}

}  // namespace

std::string_view to_string(VerifiersDialect dialect) {
  return kNames[static_cast<size_t>(dialect)];
}

std::optional<VerifiersDialect> verifiers_dialect(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<VerifiersDialect>(i);
  return std::nullopt;
}

Frames health_request(VerifiersDialect dialect, const std::string& id) {
  if (dialect == VerifiersDialect::kW0) return {"health", "ping"};
  return empty_request("health", id);
}

Frames empty_request(std::string_view method, const std::string& id) {
  return framed(method, id, Json::object());
}

std::optional<Frames> cancel_request(VerifiersDialect dialect, const std::string& id,
                                     const std::string& run_id) {
  if (dialect == VerifiersDialect::kW0) return Frames{run_id, ""};
  if (dialect < VerifiersDialect::kW1c) return std::nullopt;
  return framed("cancel", id, Json::object().set("request_id", run_id));
}

Result<int64_t> members_of(const Json& call) {
  if (call.find("members") == nullptr) return 1;
  ASSIGN_OR_RETURN(const int64_t members, call.get_int("members"));
  if (members < 1 || members > kRunMembersMax)
    return error(Code::kInvalid, "'members' {} is not from 1 to {}", members, kRunMembersMax);
  return members;
}

Result<Frames> run_request(VerifiersDialect dialect, const std::string& id, const Json& call,
                           const PolicyClient& policy) {
  ASSIGN_OR_RETURN(const TaskPart task, task_part(dialect, call));
  ASSIGN_OR_RETURN(const int64_t members, members_of(call));
  if (dialect == VerifiersDialect::kW0) return legacy_run(id, call, policy, task, members);
  const bool is_index = task.key == "task_idx";
  if (members > 1 && !is_index)
    return error(Code::kInvalid, "a server of dialect {} runs one member a call, not {}",
                 to_string(dialect), members)
        .note("it scores a group within one episode, if at all");
  const bool is_bridged = is_index && dialect == VerifiersDialect::kW1b;
  ASSIGN_OR_RETURN(Json client, client_of(call, policy));
  ASSIGN_OR_RETURN(Json sampling, sampling_of(call, is_bridged));
  ASSIGN_OR_RETURN(std::string model, call.get_string("model"));
  Json payload = Json::object();
  payload.set(task.key, *task.value);
  if (members > 1) payload.set("n", members);
  payload.set("client", std::move(client))
      .set("model", std::move(model))
      .set("sampling", std::move(sampling));
  const bool has_run = dialect != VerifiersDialect::kW1a;
  return framed(members > 1 ? "run_group" : has_run ? "run" : "run_rollout", id, payload);
}

Result<ServerFrame> read_server_frame(VerifiersDialect dialect, const Frames& frames) {
  const bool is_streamed = dialect == VerifiersDialect::kW2;
  if (frames.size() != (is_streamed ? 3 : 2))
    return error(Code::kCorrupt, "an answer of dialect {} has {} frames, not {}",
                 to_string(dialect), frames.size(), is_streamed ? 3 : 2);
  ServerFrame frame{frames.front(), false, frames.back()};
  if (!is_streamed) return frame;
  frame.is_delta = frames[1] == "delta";
  if (!frame.is_delta && frames[1] != "reply")
    return error(Code::kCorrupt, "an answer is of the kind '{}', not 'delta' or 'reply'",
                 std::string_view(frames[1]).substr(0, 32));
  return frame;
}

Result<std::optional<std::string>> failure_of(const Json& reply) {
  const Json* const success = reply.find("success");
  if (success == nullptr || !success->is_bool())
    return error(Code::kCorrupt, "a reply has no 'success'");
  if (success->as_bool()) return std::optional<std::string>();
  const std::string text = text_of(reply, "error");
  return std::optional<std::string>(text.empty() ? "the server gives no reason" : text);
}

bool is_unknown_method(std::string_view failure) { return failure.starts_with("unknown method"); }

}  // namespace primerl
