#include "tests/outside/verifiers/stand_in_server.h"

#include <algorithm>
#include <utility>

#include "runtime/outside/verifiers/msgpack_json.h"

namespace primerl {
namespace {

Json success() { return Json::object().set("success", true).set("error", Json()); }
Json failure(const std::string& text) {
  return Json::object().set("success", false).set("error", text);
}

Json ids(const std::vector<int64_t>& list) { return Json::list(list); }

Json node(Json parent, bool is_sampled, const std::vector<int64_t>& tokens,
          const std::string& fault) {
  Json mask = Json::array();
  for (size_t i = 0; i < tokens.size(); ++i) mask.push_back(is_sampled);
  if (fault == "bad_mask") mask.push_back(true);
  Json made = Json::object();
  made.set("parent", std::move(parent))
      .set("message",
           Json::object().set("role", is_sampled ? "assistant" : "user").set("content", "x"))
      .set("sampled", is_sampled)
      .set("token_ids", ids(fault == "no_tokens" ? std::vector<int64_t>() : tokens))
      .set("mask", fault == "no_tokens" ? Json::array() : mask)
      .set("logprobs", Json::list(std::vector<double>(is_sampled ? tokens.size() : 0, -0.5)));
  if (fault == "short_routing")
    made.set("routed_experts", write_wire_array({"uint8", {1, 2, 2}, std::string("\1\2\3\4")}));
  return made;
}

int64_t fault_index(const std::string& fault) {
  const auto found = std::find(kRunFaults.begin(), kRunFaults.end(), fault);
  return found == kRunFaults.end() ? 0 : found - kRunFaults.begin() + 1;
}

std::string fault_of(const Json& payload) {
  if (const Json* const index = payload.find("task_idx"); index != nullptr)
    return index->as_int() == 0 ? "" : kRunFaults.at(static_cast<size_t>(index->as_int() - 1));
  const Json* task = payload.find("task_data");
  if (task == nullptr) task = payload.find("input");
  if (task == nullptr) task = &payload.find("group_inputs")->as_array().front();
  return *task->get_string("fault");
}

int64_t members_wanted(const Json& payload) {
  if (const Json* const n = payload.find("n"); n != nullptr) return n->as_int();
  const Json* const group = payload.find("group_inputs");
  return group == nullptr ? 1 : static_cast<int64_t>(group->as_array().size());
}

}  // namespace

std::string stand_in_call(VerifiersDialect dialect, const std::string& fault, int64_t members) {
  Json data = Json::object();
  if (dialect == VerifiersDialect::kW1a)
    data.set("task_idx", fault_index(fault));
  else
    data.set(dialect == VerifiersDialect::kW0 ? "input" : "task_data",
             Json::object().set("prompt", "2 + 2 = ").set("example_id", 7).set("fault", fault));
  Json call = Json::object();
  call.set("call", "run")
      .set("data", std::move(data))
      .set("members", members)
      .set("salt", "v3|main.5.0.0@3")
      .set("base_url", "http://127.0.0.1:8000")
      .set("model", "main")
      .set("api_key_var", "PRIMERL_KEY")
      .set("sampling", Json::object().set("temperature", 1.0).set("max_tokens", 64));
  return call.dump();
}

Frames StandInServer::reply(const std::string& id, const Json& payload) const {
  if (dialect_ == VerifiersDialect::kW2) return {id, "reply", write_msgpack(payload)};
  return {id, write_msgpack(payload)};
}

std::vector<Frames> StandInServer::handle(const Frames& request) {
  if (is_silent || is_killed) return {};
  if (dialect_ == VerifiersDialect::kW0) {
    if (request.size() != 2) return {};  // a warning in its log
    if (request[1] == "ping") {
      ++num_health;
      return {reply(request[0], success())};
    }
    if (request[1].empty()) {
      cancelled.push_back(request[0]);
      kept_.erase(request[0]);
      return {reply(request[0], failure("Request was cancelled"))};
    }
    return answer_run(request[0], "", *read_msgpack(request[1]));
  }
  if (request.size() != 3) {
    is_killed = is_pool;
    return {};
  }
  const std::string& method = request[1];
  const Json payload = *read_msgpack(request[2]);
  if (method == "health") {
    ++num_health;
    return {reply(request[0], has_workers ? success() : failure("no worker is left"))};
  }
  if (method == "info" && dialect_ <= VerifiersDialect::kW1b)
    return {
        reply(request[0],
              success()
                  .set("num_tasks", dialect_ == VerifiersDialect::kW1a ? Json(num_tasks) : Json())
                  .set("requires_group_scoring", false))};
  if (method == "cancel" && dialect_ >= VerifiersDialect::kW1c) {
    const std::string run = *payload.get_string("request_id");
    cancelled.push_back(run);
    std::vector<Frames> answers = {reply(request[0], success().set("cancelled", true))};
    if (kept_.erase(run) > 0) answers.push_back(reply(run, failure("Cancelled: rollout aborted")));
    return answers;
  }
  const bool is_run = dialect_ == VerifiersDialect::kW1a
                          ? method == "run_rollout" || method == "run_group"
                          : method == "run";
  if (!is_run) return {reply(request[0], failure("unknown method '" + method + "'"))};
  if (payload.as_object().empty())
    return {reply(request[0], failure("ValidationError: 4 fields are missing"))};
  return answer_run(request[0], method, payload);
}

std::vector<Frames> StandInServer::finish_runs() {
  std::vector<Frames> all;
  for (auto& [id, answers] : kept_)
    for (Frames& each : answers) all.push_back(std::move(each));
  kept_.clear();
  return all;
}

std::vector<Frames> StandInServer::answer_run(const std::string& id, const std::string&,
                                              const Json& payload) {
  runs.push_back(payload);
  const std::string fault = fault_of(payload);
  std::vector<Frames> answers;
  if (fault == "silent")
    return {};
  else if (fault == "one_frame")
    answers = {{id}};
  else if (fault == "five_frames")
    answers = {{id, "reply", "a", "b", "c"}};
  else if (fault == "garbage")
    answers = {reply(id, success())};
  else if (fault == "refuse")
    answers = {reply(id, failure("ValueError: no such task"))};
  else
    answers = good_answer(id, payload, fault);
  if (fault == "garbage") answers.front().back() = "\xc1\xff\x00garbage";
  if (fault == "twice") answers.push_back(answers.back());
  if (!is_slow) return answers;
  kept_[id] = answers;
  return {};
}

Json StandInServer::trace(const std::string& fault) const {
  const bool has_weights = dialect_ != VerifiersDialect::kW1a;
  Json made = Json::object();
  made.set("id", "trace-1")
      .set("nodes", Json::Array{node(Json(), false, {1, 2}, fault), node(0, true, {3, 4}, fault)})
      .set("calls", Json::Array{Json::object().set("node", 1).set("finish_reason", "stop")})
      .set("rewards", Json::object().set(
                          "exact", has_weights ? Json::object().set("score", 1.0).set("weight", 0.5)
                                               : Json(0.5)))
      .set("metrics", Json::object().set("length", 2))
      .set("stop_condition", "agent_completed")
      .set("errors", Json::array());
  if (fault == "not_ok")
    made.set("errors",
             Json::Array{Json::object().set("type", "ToolError").set("message", "broke")});
  if (has_weights)
    made.set("ok", fault != "not_ok").set("agent", Json::object().set("trainable", true));
  return made;
}

std::vector<Frames> StandInServer::good_answer(const std::string& id, const Json& payload,
                                               const std::string& fault) const {
  const int64_t members = members_wanted(payload) + (fault == "wrong_members" ? 1 : 0);
  if (dialect_ == VerifiersDialect::kW0) {
    const bool has_tokens = fault != "no_tokens";
    Json tokens = Json::object();
    tokens.set("prompt_ids", ids({1, 2}))
        .set("completion_ids", ids({3, 4}))
        .set("completion_mask",
             ids(fault == "bad_mask" ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 1}));
    if (fault == "short_routing")
      tokens.set("routed_experts", Json::object().set("data", "AQ==").set("shape", ids({1, 1, 1})));
    Json step = Json::object();
    step.set("tokens", has_tokens ? tokens : Json())
        .set("completion", Json::Array{Json::object().set("role", "assistant")});
    Json output = Json::object();
    output.set("reward", 0.5)
        .set("metrics", Json::object().set("exact", 0.5))
        .set("stop_condition", "agent_completed")
        .set("is_truncated", false)
        .set("error", fault == "not_ok" ? Json::object()
                                              .set("error", "ToolError")
                                              .set("error_chain_str", "ToolError: broke")
                                        : Json())
        .set("trajectory", Json::Array{step});
    if (members == 1) return {reply(id, success().set("output", output))};
    const Json::Array all(static_cast<size_t>(members), output);
    return {reply(id, success().set("outputs", all))};
  }
  if (dialect_ == VerifiersDialect::kW1a) {
    if (members == 1) return {reply(id, success().set("trace", trace(fault)))};
    const Json::Array all(static_cast<size_t>(members), trace(fault));
    return {reply(id, success().set("traces", all))};
  }
  Json head = Json::object();
  head.set("id", "episode-1").set("ok", fault != "not_ok").set("errors", Json::array());
  if (dialect_ != VerifiersDialect::kW2) {
    head.set("traces", Json::Array{trace(fault)});
    if (fault == "wrong_members") head = Json::array();
    return {reply(id, success().set("episode", head))};
  }
  const Json whole = trace(fault);
  Json open =
      Json::object().set("trace", "trace-1").set("open", Json::object().set("id", "trace-1"));
  open.set("nodes", Json::Array{whole.find("nodes")->as_array()[0]}).set("unknown", 1);
  Json rest = Json::object().set("trace", "trace-1");
  rest.set("nodes", Json::Array{whole.find("nodes")->as_array()[1]})
      .set("calls", *whole.find("calls"));
  Json changed = Json::object();
  for (const auto& [key, value] : whole.as_object())
    if (key != "nodes" && key != "calls" && key != "errors" && key != "id") changed.set(key, value);
  rest.set("set", std::move(changed));
  Json summary = Json::object();
  summary.set("id", fault == "wrong_members" ? "trace-2" : "trace-1")
      .set("nodes", fault == "bad_counts" ? 3 : 2)
      .set("calls", 1);
  return {{id, "delta", write_msgpack(open)},
          {id, "delta", write_msgpack(rest)},
          reply(id, success().set("head", head).set("traces", Json::Array{summary}))};
}

}  // namespace primerl
