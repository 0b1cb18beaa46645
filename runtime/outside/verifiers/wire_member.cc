#include "runtime/outside/verifiers/wire_member.h"

#include <cmath>
#include <cstring>

#include "runtime/outside/verifiers/episode.h"
#include "runtime/outside/verifiers/msgpack_json.h"

namespace primerl {
namespace {

constexpr size_t kMemberReasonBytesMax = 2048;

/// An item of a little-endian array.
int64_t item_at(const WireArray& array, size_t index) {
  const auto size = static_cast<size_t>(array.item_bytes());
  uint64_t bits = 0;
  std::memcpy(&bits, array.data.data() + index * size, size);
  if (array.dtype.starts_with("int") && size < 8 && (bits >> (8 * size - 1)) != 0)
    bits |= ~uint64_t{0} << (8 * size);
  return static_cast<int64_t>(bits);
}

/// The integers of a list, or of an array of one dimension.
Status append_integers(const Json& value, std::string_view key, std::vector<int64_t>& out) {
  if (is_wire_array(value)) {
    ASSIGN_OR_RETURN(const WireArray array, read_wire_array(value));
    if (array.shape.size() != 1 || array.dtype.find("float") != std::string::npos)
      return error(Code::kCorrupt, "'{}' is an array of {} dimensions of {}", key,
                   array.shape.size(), array.dtype);
    for (size_t i = 0; std::cmp_less(i, array.shape.front()); ++i) out.push_back(item_at(array, i));
    return ok();
  }
  if (!value.is_array()) return error(Code::kCorrupt, "'{}' is {}, not a list", key, value.kind());
  for (const Json& item : value.as_array()) {
    if (item.is_bool())
      out.push_back(item.as_bool() ? 1 : 0);
    else if (item.is_integer())
      out.push_back(item.as_int());
    else
      return error(Code::kCorrupt, "an item of '{}' is {}", key, item.kind());
  }
  return ok();
}

Status set_number(std::string_view kind, const std::string& name, Json value, Json& numbers) {
  if (numbers.as_object().size() >= kMemberNumbersMax && numbers.find(name) == nullptr)
    return error(Code::kExhausted, "it has more than {} {}", kMemberNumbersMax, kind);
  numbers.set(name, std::move(value));
  return ok();
}

}  // namespace

void WireBranch::add_sampled(int64_t position) {
  if (!sampled.empty() && sampled.back().second == position)
    ++sampled.back().second;
  else
    sampled.emplace_back(position, position + 1);
}

Status WireMember::add(WireBranch branch) {
  if (branch.sampled.empty()) return ok();
  num_branch_tokens += static_cast<int64_t>(branch.tokens.size());
  if (num_branch_tokens > kBranchTokensMax)
    return error(Code::kExhausted, "its branches have more than {} tokens", kBranchTokensMax);
  branches.push_back(std::move(branch));
  return ok();
}

Status WireMember::add_score(const std::string& name, double score) {
  return set_number("scores", name, score, scores);
}

Status WireMember::add_metrics(const Json* given) {
  if (given == nullptr || !given->is_object()) return ok();
  for (const auto& [name, value] : given->as_object()) {
    if (value.is_bool())
      RETURN_IF_ERROR(set_number("metrics", name, value.as_bool() ? 1 : 0, metrics));
    else if (value.is_number() && std::isfinite(value.as_double()))
      RETURN_IF_ERROR(set_number("metrics", name, value, metrics));
  }
  return ok();
}

Json member_json(WireMember result, const Status& read) {
  Json member = Json::object();
  if (!read.ok()) {
    std::string reason = read.error().text();
    reason.resize(std::min(reason.size(), kMemberReasonBytesMax));
    return member.set("end", "failed")
        .set("error", std::move(reason))
        .set("stop_condition", std::move(result.stop_condition))
        .set("branches", Json::array());
  }
  if (result.metrics.find("num_turns") == nullptr)
    result.metrics.set("num_turns", result.num_turns);
  Json branches = Json::array();
  for (const WireBranch& branch : result.branches) {
    Json ranges = Json::array();
    for (const auto& [begin, end] : branch.sampled)
      ranges.push_back(Json::list(std::vector<int64_t>{begin, end}));
    branches.push_back(
        Json::object().set("tokens", Json::list(branch.tokens)).set("sampled", std::move(ranges)));
  }
  return member.set("reward", result.reward)
      .set("scores", std::move(result.scores))
      .set("metrics", std::move(result.metrics))
      .set("end", "done")
      .set("error", "")
      .set("is_truncated", result.is_truncated)
      .set("stop_condition", std::move(result.stop_condition))
      .set("num_tool_calls", result.num_tool_calls)
      .set("branches", std::move(branches));
}

const Json* present(const Json& object, std::string_view key) {
  const Json* const found = object.find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* const found = object.find(key);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}

Status append_ids(const Json& object, std::string_view key, std::vector<int64_t>& ids) {
  const Json* const list = present(object, key);
  if (list == nullptr) return ok();
  const size_t begin = ids.size();
  RETURN_IF_ERROR(append_integers(*list, key, ids));
  for (size_t i = begin; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] > INT32_MAX)
      return error(Code::kCorrupt, "'{}' has {}, which is not a token id", key, ids[i]);
  return ok();
}

Result<std::vector<bool>> read_flags(const Json& object, std::string_view key) {
  const Json* const list = present(object, key);
  std::vector<int64_t> numbers;
  if (list != nullptr) RETURN_IF_ERROR(append_integers(*list, key, numbers));
  std::vector<bool> flags;
  for (const int64_t number : numbers) {
    if (number != 0 && number != 1)
      return error(Code::kCorrupt, "'{}' has {}, not true or false", key, number);
    flags.push_back(number == 1);
  }
  return flags;
}

int64_t num_tool_calls(const Json& message) {
  if (text_of(message, "role") != "assistant") return 0;
  const Json* const calls = present(message, "tool_calls");
  return calls == nullptr || !calls->is_array() ? 0
                                                : static_cast<int64_t>(calls->as_array().size());
}

}  // namespace primerl
