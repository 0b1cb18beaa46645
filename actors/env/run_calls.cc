#include "actors/env/run_calls.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "actors/messages/rollout.h"
#include "graph/base/json.h"

namespace primerl {
namespace {

constexpr size_t kFaultTextMax = 4096;

Json sampling_json(const SamplingParams& sampling) {
  Json json = Json::object();
  json.set("temperature", sampling.temperature)
      .set("top_p", sampling.top_p)
      .set("max_tokens", sampling.max_tokens);
  if (sampling.top_k > 0) json.set("top_k", sampling.top_k);
  if (sampling.min_p > 0) json.set("min_p", sampling.min_p);
  if (sampling.ignore_eos) json.set("ignore_eos", true);
  if (!sampling.stop.empty()) json.set("stop", Json::list(sampling.stop));
  if (!sampling.stop_ids.empty()) json.set("stop_token_ids", Json::list(sampling.stop_ids));
  return json;
}

/// The value at `key`, unless it is missing or null.
const Json* value_at(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::string> text_at(const Json& json, std::string_view key, size_t bytes_max) {
  if (value_at(json, key) == nullptr) return std::string();
  ASSIGN_OR_RETURN(std::string text, json.get_string(key));
  if (text.size() > bytes_max) text.resize(bytes_max);
  return text;
}

Result<bool> bool_at(const Json& json, std::string_view key) {
  return value_at(json, key) == nullptr ? Result<bool>(false) : json.get_bool(key);
}

Result<double> number_of(const Json& value, std::string_view what) {
  if (value.is_bool()) return value.as_bool() ? 1.0 : 0.0;
  if (!value.is_number()) return error(Code::kInvalid, "{} is {}", what, value.kind());
  const double number = value.as_double();
  if (!std::isfinite(number)) return error(Code::kInvalid, "{} is {}", what, number);
  return number;
}

/// Names and numbers; a value that is null is left out.
Result<std::vector<std::pair<std::string, double>>> numbers_at(const Json& json,
                                                               std::string_view key) {
  std::vector<std::pair<std::string, double>> numbers;
  const Json* value = value_at(json, key);
  if (value == nullptr) return numbers;
  if (!value->is_object()) return error(Code::kInvalid, "'{}' is {}", key, value->kind());
  for (const auto& [name, each] : value->as_object()) {
    if (each.is_null()) continue;
    if (numbers.size() == kRunNumbersMax)
      return error(Code::kExhausted, "'{}' has more than {} numbers", key, kRunNumbersMax);
    if (name.size() > kRunNameBytesMax)
      return error(Code::kExhausted, "'{}' has a name of {} bytes, at most {} are valid", key,
                   name.size(), kRunNameBytesMax);
    ASSIGN_OR_RETURN(const double number, number_of(each, fmt::format("'{}.{}'", key, name)));
    numbers.emplace_back(name, number);
  }
  return numbers;
}

Result<int32_t> id_of(const Json& value, std::string_view what) {
  if (!value.is_integer() || value.as_int() < 0 ||
      value.as_int() > std::numeric_limits<int32_t>::max())
    return error(
        Code::kInvalid, "{} has {}", what,
        value.is_integer() ? fmt::format("{}", value.as_int()) : std::string(value.kind()));
  return static_cast<int32_t>(value.as_int());
}

Result<Branch> branch_of(const Json& json, int64_t tokens_left) {
  const Json* tokens = json.is_object() ? value_at(json, "tokens") : nullptr;
  if (tokens == nullptr || !tokens->is_array())
    return error(Code::kInvalid, "a branch has no array 'tokens'");
  if (std::ssize(tokens->as_array()) > tokens_left)
    return error(Code::kExhausted, "its branches have more than {} tokens", kMemberTokensMax);
  Branch branch;
  branch.tokens.reserve(tokens->as_array().size());
  for (const Json& each : tokens->as_array()) {
    ASSIGN_OR_RETURN(const int32_t id, id_of(each, "'tokens'"));
    branch.tokens.push_back(id);
  }
  const Json* sampled = value_at(json, "sampled");
  if (sampled == nullptr) return branch;
  if (!sampled->is_array()) return error(Code::kInvalid, "'sampled' is {}", sampled->kind());
  int32_t end = 0;
  for (const Json& each : sampled->as_array()) {
    if (!each.is_array() || each.as_array().size() != 2)
      return error(Code::kInvalid, "'sampled' has {}, not a pair of positions", each.kind());
    ASSIGN_OR_RETURN(const int32_t first, id_of(each.as_array()[0], "'sampled'"));
    ASSIGN_OR_RETURN(const int32_t last, id_of(each.as_array()[1], "'sampled'"));
    if (first < end || last < first || std::cmp_greater(last, branch.tokens.size()))
      return error(Code::kInvalid,
                   "'sampled' has [{}, {}) after position {} of a branch with {} tokens", first,
                   last, end, branch.tokens.size());
    end = last;
    branch.sampled.emplace_back(first, last);
  }
  return branch;
}

Result<MemberResult> member_of(const Json& json) {
  if (!json.is_object()) return error(Code::kInvalid, "a member is {}, not an object", json.kind());
  MemberResult member;
  ASSIGN_OR_RETURN(const std::string end, json.get_string("end"));
  ASSIGN_OR_RETURN(member.fault, text_at(json, "error", kFaultTextMax));
  if (end == "failed") {
    if (member.fault.empty()) member.fault = "the run failed without an error";
    return member;
  }
  if (end != "done") return error(Code::kInvalid, "'end' is '{}', not 'done' or 'failed'", end);
  if (!member.fault.empty()) return member;
  const Json* reward = value_at(json, "reward");
  if (reward == nullptr)
    return error(Code::kInvalid, "it has no 'reward'").note("a reward is a finite number");
  ASSIGN_OR_RETURN(member.reward, number_of(*reward, "'reward'"));
  ASSIGN_OR_RETURN(member.scores, numbers_at(json, "scores"));
  ASSIGN_OR_RETURN(member.metrics, numbers_at(json, "metrics"));
  ASSIGN_OR_RETURN(member.is_truncated, bool_at(json, "is_truncated"));
  ASSIGN_OR_RETURN(member.stop_condition, text_at(json, "stop_condition", kRunNameBytesMax));
  if (const Json* count = value_at(json, "num_tool_calls"); count != nullptr) {
    ASSIGN_OR_RETURN(member.num_tool_calls, id_of(*count, "'num_tool_calls'"));
  }
  const Json* branches = value_at(json, "branches");
  if (branches == nullptr) return member;
  if (!branches->is_array()) return error(Code::kInvalid, "'branches' is {}", branches->kind());
  if (branches->as_array().size() > kBranchesMax)
    return error(Code::kExhausted, "it has {} branches, at most {} are valid",
                 branches->as_array().size(), kBranchesMax);
  int64_t tokens_left = kMemberTokensMax;
  for (const Json& each : branches->as_array()) {
    ASSIGN_OR_RETURN(Branch branch, branch_of(each, tokens_left));
    tokens_left -= std::ssize(branch.tokens);
    member.branches.push_back(std::move(branch));
  }
  return member;
}

Result<Json> read_object(const std::string& body) {
  ASSIGN_OR_RETURN(Json json, parse_json(body, "the answer"));
  if (!json.is_object())
    return error(Code::kInvalid, "the answer is {}, not an object", json.kind());
  return json;
}

}  // namespace

std::string run_body(const Run& run, std::string_view model, const OutsidePool& pool) {
  Json body = Json::object();
  const Duration time = std::min(run.time_left, pool.run_timeout);
  body.set("call", "run")
      .set("members", run.num_members)
      .set("salt", run.salt)
      .set("base_url", run.base_url)
      .set("model", model)
      .set("api_key_var", pool.verifiers.api_key_var)
      .set("sampling", sampling_json(run.sampling))
      .set("deadline_ms", static_cast<int64_t>(time.to_seconds() * 1000));
  std::string text = body.dump();
  // The data is JSON already.
  text.insert(text.size() - 1, ",\"data\":" + run.data);
  return text;
}

Status check_num_tasks(const std::string& body, int64_t num_tasks) {
  ASSIGN_OR_RETURN(const Json json, read_object(body));
  const Json* count = value_at(json, "num_tasks");
  if (count == nullptr || !count->is_integer())
    return error(Code::kInvalid, "'num_tasks' is {}, but the environment's tasks have no end",
                 num_tasks)
        .note("leave it out, and 'epochs' of the tenant, too");
  if (count->as_int() != num_tasks)
    return error(Code::kInvalid, "'num_tasks' is {}, but the environment has {} tasks", num_tasks,
                 count->as_int())
        .note("write the number that it has");
  return ok();
}

Result<EnvironmentTask> read_driven_task(const std::string& body) {
  ASSIGN_OR_RETURN(const Json json, read_object(body));
  EnvironmentTask task;
  const Json* data = value_at(json, "data");
  if (data == nullptr || !data->is_object())
    return error(Code::kInvalid, "the answer has no object 'data'")
        .note("a server that drives rollouts gives tasks with 'data'");
  task.data = data->dump();
  ASSIGN_OR_RETURN(task.scores_groups, bool_at(json, "scores_groups"));
  ASSIGN_OR_RETURN(task.prompt, text_at(json, "prompt", std::string::npos));
  return task;
}

Result<std::vector<MemberResult>> read_run(const std::string& body, int32_t num_members) {
  ASSIGN_OR_RETURN(const Json json, read_object(body));
  const Json* members = value_at(json, "members");
  if (members == nullptr || !members->is_array())
    return error(Code::kInvalid, "the answer has no array 'members'");
  if (std::cmp_not_equal(members->as_array().size(), num_members))
    return error(Code::kInvalid, "the answer has {} members, {} were asked for",
                 members->as_array().size(), num_members);
  std::vector<MemberResult> results;
  for (const Json& each : members->as_array()) {
    auto read = member_of(each);
    if (!read.ok()) {
      MemberResult wrong;
      wrong.fault = "the answer: " + read.error().text();
      read = std::move(wrong);
    }
    results.push_back(std::move(*read));
  }
  return results;
}

}  // namespace primerl
