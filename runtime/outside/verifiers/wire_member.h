/// WireMember: the result of one member of a run, before it becomes JSON. Values and pure
/// functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/json.h"

namespace primerl {

/// Scores of a member, and as many metrics. A name is searched for among the others.
inline constexpr size_t kMemberNumbersMax = 256;

struct WireBranch {
  std::vector<int64_t> tokens;
  std::vector<std::pair<int64_t, int64_t>> sampled;  // half-open, in order, not touching

  /// Positions come in order.
  void add_sampled(int64_t position);
};

struct WireMember {
  double reward = 0;
  Json scores = Json::object();
  Json metrics = Json::object();
  bool is_truncated = false;
  std::string stop_condition;
  int64_t num_tool_calls = 0;
  int64_t num_turns = 0;
  int64_t num_branch_tokens = 0;
  std::vector<WireBranch> branches;

  /// A branch without sampled tokens is dropped. kExhausted: more than kBranchTokensMax.
  Status add(WireBranch branch);
  /// kExhausted: more than kMemberNumbersMax names.
  Status add_score(const std::string& name, double score);
  /// Keeps finite numbers and booleans. kExhausted: more than kMemberNumbersMax names.
  Status add_metrics(const Json* metrics);
};

/// The JSON of docs/design/verifiers.md. If `read` is an error, the member has failed.
Json member_json(WireMember result, const Status& read);

/// The member; null if it is missing or null.
const Json* present(const Json& object, std::string_view key);
/// The text; empty if it is missing or another kind.
std::string text_of(const Json& object, std::string_view key);
/// Appends a list of token ids; nothing if it is missing. kCorrupt: not token ids.
Status append_ids(const Json& object, std::string_view key, std::vector<int64_t>& ids);
/// A list of booleans or of 0 and 1; empty if it is missing.
Result<std::vector<bool>> read_flags(const Json& object, std::string_view key);
/// Tool calls of an assistant's message.
int64_t num_tool_calls(const Json& message);

}  // namespace primerl
