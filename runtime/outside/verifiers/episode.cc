#include "runtime/outside/verifiers/episode.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "runtime/outside/verifiers/legacy_output.h"
#include "runtime/outside/verifiers/wire_member.h"

namespace primerl {
namespace {

// Stop conditions of servers that mean "cut off".
constexpr std::string_view kTruncations[] = {
    "max_turns",      "max_input_tokens", "max_output_tokens", "max_total_tokens",
    "context_length", "harness_timeout",  "compaction_failed"};

struct TraceNode {
  int64_t parent = -1;
  const Json* node = nullptr;
  bool has_child = false;
};

/// Parents come before their children, so a path has no cycle.
Result<std::vector<TraceNode>> read_nodes(const Json& trace) {
  std::vector<TraceNode> nodes;
  const Json* const list = present(trace, "nodes");
  if (list == nullptr) return nodes;
  if (!list->is_array()) return error(Code::kCorrupt, "'nodes' is {}", list->kind());
  for (const Json& node : list->as_array()) {
    TraceNode read;
    read.node = &node;
    if (const Json* const parent = present(node, "parent")) {
      read.parent = parent->is_integer() ? parent->as_int() : -1;
      if (read.parent < 0 || std::cmp_greater_equal(read.parent, nodes.size()))
        return error(Code::kCorrupt, "node {} has the parent {}", nodes.size(), parent->dump());
      nodes[static_cast<size_t>(read.parent)].has_child = true;
    }
    nodes.push_back(read);
  }
  return nodes;
}

/// Calls `on_link` for the semantic parents of a node.
template <class OnLink>
void for_links(const Json& node, const OnLink& on_link) {
  const Json* const links = present(node, "semantic_parents");
  if (links == nullptr || !links->is_array()) return;
  for (const Json& link : links->as_array()) on_link(text_of(link, "type"), present(link, "node"));
}

/// Leaves that were attempts to compact a conversation and from which no rollout continued: nothing
/// of them trains.
std::vector<bool> abandoned_leaves(const std::vector<TraceNode>& nodes) {
  std::vector<bool> is_abandoned(nodes.size());
  std::vector<bool> is_accepted(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    for_links(*nodes[i].node, [&](const std::string& type, const Json* node) {
      if (type == "compaction_attempt") is_abandoned[i] = true;
      if (type != "compaction" || node == nullptr || !node->is_integer()) return;
      const int64_t at = node->as_int();
      if (at >= 0 && std::cmp_less(at, nodes.size())) is_accepted[static_cast<size_t>(at)] = true;
    });
  for (size_t i = 0; i < nodes.size(); ++i)
    if (is_accepted[i]) is_abandoned[i] = false;
  return is_abandoned;
}

Status append_node(const Json& node, WireBranch& branch) {
  const size_t begin = branch.tokens.size();
  RETURN_IF_ERROR(append_ids(node, "token_ids", branch.tokens));
  ASSIGN_OR_RETURN(const std::vector<bool> mask, read_flags(node, "mask"));
  const size_t num_tokens = branch.tokens.size() - begin;
  if (mask.size() != num_tokens)
    return error(Code::kCorrupt, "a node has {} token ids, its mask has {}", num_tokens,
                 mask.size());
  for (size_t i = 0; i < num_tokens; ++i)
    if (mask[i]) branch.add_sampled(static_cast<int64_t>(begin + i));
  return ok();
}

Status add_branches(const Json& trace, WireMember& result) {
  ASSIGN_OR_RETURN(const std::vector<TraceNode> nodes, read_nodes(trace));
  const std::vector<bool> is_abandoned = abandoned_leaves(nodes);
  int64_t num_messages = 0;
  for (size_t leaf = 0; leaf < nodes.size(); ++leaf) {
    if (nodes[leaf].has_child || is_abandoned[leaf]) continue;
    std::vector<const Json*> path;
    for (auto at = static_cast<int64_t>(leaf); at >= 0;
         at = nodes[static_cast<size_t>(at)].parent) {
      if (++num_messages > kBranchMessagesMax)
        return error(Code::kExhausted, "its branches have more than {} messages",
                     kBranchMessagesMax);
      path.push_back(nodes[static_cast<size_t>(at)].node);
    }
    WireBranch branch;
    for (auto node = path.rbegin(); node != path.rend(); ++node)
      RETURN_IF_ERROR(append_node(**node, branch));
    RETURN_IF_ERROR(result.add(std::move(branch)));
  }
  return ok();
}

/// Of 0.2 a name has a number; later {"score", "weight"} or null, which was not scored.
Status add_rewards(const Json& trace, WireMember& result) {
  const Json* const rewards = present(trace, "rewards");
  if (rewards == nullptr) return ok();
  if (!rewards->is_object()) return error(Code::kCorrupt, "'rewards' is {}", rewards->kind());
  for (const auto& [name, reward] : rewards->as_object()) {
    if (reward.is_null()) return error(Code::kInvalid, "the reward '{}' was not scored", name);
    double score = 0, weight = 1;
    if (reward.is_number()) {
      score = reward.as_double();
    } else {
      ASSIGN_OR_RETURN(score, reward.get_double("score"));
      if (reward.find("weight") != nullptr) {
        ASSIGN_OR_RETURN(weight, reward.get_double("weight"));
      }
    }
    if (!std::isfinite(score * weight))
      return error(Code::kCorrupt, "the reward '{}' is not a finite number", name);
    result.reward += score * weight;
    RETURN_IF_ERROR(result.add_score(name, score));
  }
  return ok();
}

bool ends_by_length(const Json& trace) {
  const Json* const calls = present(trace, "calls");
  if (calls == nullptr || !calls->is_array() || calls->as_array().empty()) return false;
  return text_of(calls->as_array().back(), "finish_reason") == "length";
}

void add_end(const Json& trace, WireMember& result) {
  const std::string stop = text_of(trace, "stop_condition");
  if (!stop.empty()) result.stop_condition = stop;
  const bool is_cut =
      std::find(std::begin(kTruncations), std::end(kTruncations), stop) != std::end(kTruncations);
  result.is_truncated = result.is_truncated || is_cut || ends_by_length(trace);
  const Json* const nodes = present(trace, "nodes");
  if (nodes == nullptr || !nodes->is_array()) return;
  for (const Json& node : nodes->as_array()) {
    const Json* const message = present(node, "message");
    if (message != nullptr) result.num_tool_calls += num_tool_calls(*message);
    const Json* const sampled = node.find("sampled");
    if (sampled != nullptr && sampled->is_bool() && sampled->as_bool()) ++result.num_turns;
  }
}

bool has_errors(const Json& owner) {
  const Json* const errors = present(owner, "errors");
  return errors != nullptr && errors->is_array() && !errors->as_array().empty();
}

/// Versions with `ok` may have errors of attempts before a good one; 0.2 has no `ok`.
Status check_standing(const Json& owner, std::string_view kind) {
  const Json* const is_ok = present(owner, "ok");
  if (is_ok != nullptr ? is_ok->is_bool() && is_ok->as_bool() : !has_errors(owner)) return ok();
  if (!has_errors(owner)) return error(Code::kInvalid, "the {} failed: 'ok' is false", kind);
  const Json& last = present(owner, "errors")->as_array().back();
  return error(Code::kInvalid, "the {} failed: {}: {}", kind, text_of(last, "type"),
               text_of(last, "message"));
}

bool is_trainable(const Json& trace) {
  const Json* const agent = present(trace, "agent");
  const Json* const trainable = agent == nullptr ? nullptr : present(*agent, "trainable");
  return trainable == nullptr || !trainable->is_bool() || trainable->as_bool();
}

Status add_trace(const Json& trace, WireMember& result) {
  RETURN_IF_ERROR(check_standing(trace, "trace"));
  RETURN_IF_ERROR(add_rewards(trace, result));
  RETURN_IF_ERROR(add_branches(trace, result));
  RETURN_IF_ERROR(result.add_metrics(present(trace, "metrics")));
  add_end(trace, result);
  return ok();
}

/// A member of one episode: the traces of its trainable agents.
Status add_traces(const Json::Array& traces, WireMember& result) {
  std::optional<double> reward;
  for (const Json& trace : traces) {
    if (!is_trainable(trace)) continue;
    result.reward = 0;
    RETURN_IF_ERROR(add_trace(trace, result));
    if (reward && *reward != result.reward)
      return error(Code::kInvalid, "trainable agents of the episode have the rewards {} and {}",
                   *reward, result.reward)
          .note("a rollout has one reward: mark the other agents as not trainable");
    reward = result.reward;
  }
  if (!reward) return error(Code::kInvalid, "the episode has no trace of a trainable agent");
  return ok();
}

Json episode_member(const Json& episode) {
  WireMember result;
  const Json* const traces = present(episode, "traces");
  Status read = check_standing(episode, "episode");
  // An episode without an error of its own failed because of a trace.
  if (!read.ok() && !has_errors(episode) && traces != nullptr && traces->is_array())
    for (const Json& trace : traces->as_array())
      if (Status fault = check_standing(trace, "trace"); !fault.ok()) read = std::move(fault);
  if (read.ok() && (traces == nullptr || !traces->is_array()))
    read = error(Code::kCorrupt, "the episode has no list 'traces'");
  if (read.ok()) read = add_traces(traces->as_array(), result);
  return member_json(std::move(result), read);
}

Json trace_member(const Json& trace) {
  WireMember result;
  const Status read = add_traces({trace}, result);
  return member_json(std::move(result), read);
}

/// The results of a reply: one under the key `one`, or several under `many`.
Result<std::vector<const Json*>> results_of(const Json& reply, std::string_view one,
                                            std::string_view many, int64_t members) {
  std::vector<const Json*> results;
  if (const Json* const found = present(reply, many); found != nullptr && found->is_array())
    for (const Json& each : found->as_array()) results.push_back(&each);
  else if (const Json* const single = present(reply, one))
    results.push_back(single);
  if (std::cmp_not_equal(results.size(), members))
    return error(Code::kCorrupt, "the reply has {} results under '{}' and '{}', not {}",
                 results.size(), one, many, members);
  for (const Json* const each : results)
    if (!each->is_object())
      return error(Code::kCorrupt, "a result of the reply is {}, not a map", each->kind());
  return results;
}

}  // namespace

Result<Json> run_answer(VerifiersDialect dialect, const Json& reply, int64_t members) {
  Json list = Json::array();
  if (dialect == VerifiersDialect::kW0) {
    ASSIGN_OR_RETURN(const auto outputs, results_of(reply, "output", "outputs", members));
    for (const Json* const output : outputs) list.push_back(legacy_member(*output));
  } else if (dialect == VerifiersDialect::kW1a || members > 1) {
    ASSIGN_OR_RETURN(const auto traces, results_of(reply, "trace", "traces", members));
    for (const Json* const trace : traces) list.push_back(trace_member(*trace));
  } else {
    ASSIGN_OR_RETURN(const auto episodes, results_of(reply, "episode", "episodes", members));
    for (const Json* const episode : episodes) list.push_back(episode_member(*episode));
  }
  return Json::object().set("members", std::move(list));
}

}  // namespace primerl
