#include "runtime/outside/verifiers/episode_assembly.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "runtime/outside/verifiers/msgpack_json.h"
#include "runtime/outside/verifiers/wire_member.h"

namespace primerl {
namespace {

// Of one trace. The versions that are known have fewer than 40.
constexpr size_t kTraceKeysMax = 1024;

constexpr std::string_view kLists[] = {
    "nodes", "calls", "errors", "extra_usage", "request_rewrites", "response_rewrites"};

/// The member, null if it is missing; null values count as missing.
Json* member(Json& object, std::string_view key) {
  for (auto& [name, value] : object.as_object())
    if (name == key) return value.is_null() ? nullptr : &value;
  return nullptr;
}

Error unfit(std::string_view key, const Json& value, std::string_view wanted) {
  return error(Code::kCorrupt, "'{}' of a delta is {}, not {}", key, value.kind(), wanted);
}

Status append_list(std::string_view key, const Json& items, Json& owner) {
  if (!items.is_array()) return unfit(key, items, "a list");
  Json* list = member(owner, key);
  if (list == nullptr) {
    owner.set(key, Json::array());
    list = member(owner, key);
  }
  if (!list->is_array()) return unfit(key, *list, "a list");
  for (const Json& item : items.as_array()) list->push_back(item);
  return ok();
}

/// The node of a trace with the index `text`.
Result<Json*> node_at(Json& trace, const std::string& text) {
  Json* const nodes = member(trace, "nodes");
  size_t index = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), index);
  const bool is_index = fault == std::errc() && end == text.data() + text.size();
  if (!is_index || nodes == nullptr || index >= nodes->as_array().size())
    return error(Code::kCorrupt, "a delta changes node {}, the trace has {}", text,
                 nodes == nullptr ? 0 : nodes->as_array().size());
  Json& node = nodes->as_array()[index];
  if (!node.is_object()) return unfit("nodes", node, "a list of objects");
  return &node;
}

/// Zero-extends each item; only for unsigned items.
std::string widened(const std::string& data, size_t from, size_t to) {
  std::string wide;
  wide.reserve(data.size() / from * to);
  for (size_t at = 0; at < data.size(); at += from) {
    wide.append(data, at, from);
    wide.append(to - from, '\0');
  }
  return wide;
}

/// Gives `array` the dtype of `wider`.
Status widen(WireArray& array, const WireArray& wider) {
  if (array.dtype == wider.dtype) return ok();
  if (!array.dtype.starts_with("uint") || !wider.dtype.starts_with("uint"))
    return error(Code::kCorrupt, "a routing repair changes {} to {}", array.dtype, wider.dtype);
  array.data = widened(array.data, static_cast<size_t>(array.item_bytes()),
                       static_cast<size_t>(wider.item_bytes()));
  array.dtype = wider.dtype;
  return ok();
}

/// Replaces the last row of the node's routing.
Status repair_routing(Json& node, const Json& repair) {
  const Json* const old = present(node, "routed_experts");
  if (old == nullptr) return error(Code::kCorrupt, "a routing repair is of a node without routing");
  ASSIGN_OR_RETURN(WireArray rows, read_wire_array(*old));
  ASSIGN_OR_RETURN(WireArray row, read_wire_array(repair));
  const bool fits = !rows.shape.empty() && rows.shape.front() > 0 &&
                    rows.shape.size() == row.shape.size() && row.shape.front() == 1 &&
                    std::equal(row.shape.begin() + 1, row.shape.end(), rows.shape.begin() + 1);
  if (!fits)
    return error(Code::kCorrupt, "a routing repair of shape [{}] is of routing of shape [{}]",
                 fmt::join(row.shape, ", "), fmt::join(rows.shape, ", "));
  RETURN_IF_ERROR(rows.item_bytes() < row.item_bytes() ? widen(rows, row) : widen(row, rows));
  rows.data.replace(rows.data.size() - row.data.size(), row.data.size(), row.data);
  node.set("routed_experts", write_wire_array(rows));
  return ok();
}

Status add_links(Json& trace, const Json& links) {
  if (!links.is_object()) return unfit("links", links, "a map");
  for (const auto& [index, items] : links.as_object()) {
    ASSIGN_OR_RETURN(Json * node, node_at(trace, index));
    RETURN_IF_ERROR(append_list("semantic_parents", items, *node));
  }
  return ok();
}

Status add_repairs(Json& trace, const Json& repairs) {
  if (!repairs.is_object()) return unfit("routing_repairs", repairs, "a map");
  for (const auto& [index, row] : repairs.as_object()) {
    ASSIGN_OR_RETURN(Json * node, node_at(trace, index));
    RETURN_IF_ERROR(repair_routing(*node, row));
  }
  return ok();
}

/// In the order of the protocol: links, repairs, lists (nodes first), set, pending.
Status apply(const Json& delta, Json& trace) {
  if (const Json* const links = present(delta, "links")) RETURN_IF_ERROR(add_links(trace, *links));
  if (const Json* const repairs = present(delta, "routing_repairs"))
    RETURN_IF_ERROR(add_repairs(trace, *repairs));
  for (const std::string_view key : kLists)
    if (const Json* const items = present(delta, key))
      RETURN_IF_ERROR(append_list(key, *items, trace));
  if (const Json* const changed = present(delta, "set")) {
    if (!changed->is_object()) return unfit("set", *changed, "a map");
    for (const auto& [key, value] : changed->as_object()) {
      for (const std::string_view list : kLists)
        if (list == key) return error(Code::kCorrupt, "a delta sets '{}', which is a list", key);
      // A key is searched for among the others.
      const size_t num_keys = trace.as_object().size();
      if (num_keys > kTraceKeysMax || (num_keys == kTraceKeysMax && trace.find(key) == nullptr))
        return error(Code::kExhausted, "a trace has more than {} keys", kTraceKeysMax);
      trace.set(key, value);
    }
  }
  if (present(delta, "nodes") != nullptr) trace.set("pending", Json::array());
  if (const Json* const pending = delta.find("pending")) trace.set("pending", *pending);
  return ok();
}

size_t size_of(const Json& trace, std::string_view key) {
  const Json* const list = present(trace, key);
  return list == nullptr ? 0 : list->as_array().size();
}

Status check_counts(const std::string& id, const Json& trace, const Json& summary) {
  for (const std::string_view key : {"nodes", "calls"}) {
    ASSIGN_OR_RETURN(const int64_t count, summary.get_int(key));
    if (std::cmp_not_equal(count, size_of(trace, key)))
      return error(Code::kCorrupt, "the deltas of trace '{}' have {} {}, the reply counts {}", id,
                   size_of(trace, key), key, count);
  }
  return ok();
}

}  // namespace

Status EpisodeAssembly::add(const Json& delta) {
  ASSIGN_OR_RETURN(const std::string id, delta.get_string("trace"));
  const Json* const discard = delta.find("discard");
  if (discard != nullptr && discard->is_bool() && discard->as_bool()) {
    traces_.erase(id);
    return ok();
  }
  auto found = traces_.find(id);
  if (found == traces_.end()) {
    const Json* const open = present(delta, "open");
    if (open == nullptr || !open->is_object())
      return error(Code::kCorrupt, "the first delta of trace '{}' has no map 'open'", id);
    Json trace = *open;
    for (const std::string_view key : kLists) trace.set(key, Json::array());
    found = traces_.emplace(id, std::move(trace)).first;
  }
  return apply(delta, found->second);
}

Result<Json> EpisodeAssembly::finish(const Json& reply) {
  const Json* const head = reply.find("head");
  const Json* const summaries = reply.find("traces");
  if (head == nullptr || !head->is_object())
    return error(Code::kCorrupt, "the reply has no map 'head'");
  if (summaries == nullptr || !summaries->is_array())
    return error(Code::kCorrupt, "the reply has no list 'traces'");
  Json traces = Json::array();
  for (const Json& summary : summaries->as_array()) {
    ASSIGN_OR_RETURN(const std::string id, summary.get_string("id"));
    const auto found = traces_.find(id);
    if (found == traces_.end())
      return error(Code::kCorrupt, "the reply counts trace '{}', which no delta opened", id);
    RETURN_IF_ERROR(check_counts(id, found->second, summary));
    Json trace = std::move(found->second);
    traces_.erase(found);  // a second summary of this trace is an error
    traces.push_back(std::move(trace));
  }
  Json episode = *head;
  episode.set("traces", std::move(traces));
  return Json::object()
      .set("success", true)
      .set("error", Json())
      .set("episode", std::move(episode));
}

}  // namespace primerl
