#include "runtime/outside/verifiers/legacy_output.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/random.h"
#include "runtime/outside/verifiers/wire_member.h"

namespace primerl {
namespace {

/// Finds the longest branch that a prompt begins with. Cost: the tokens of the prompt, whatever the
/// number of branches.
class BranchIndex {
 public:
  void add(const WireBranch& branch, size_t number) {
    uint64_t hash = 0;
    for (const int64_t id : branch.tokens) hash = mix(hash, static_cast<uint64_t>(id));
    by_hash_[{branch.tokens.size(), hash}] = number;
  }
  void remove(const WireBranch& branch) {
    uint64_t hash = 0;
    for (const int64_t id : branch.tokens) hash = mix(hash, static_cast<uint64_t>(id));
    by_hash_.erase({branch.tokens.size(), hash});
  }
  /// The number of the branch; none: no branch.
  std::optional<size_t> longest_before(const std::vector<int64_t>& prompt,
                                       const std::vector<WireBranch>& branches) const {
    std::optional<size_t> longest;
    uint64_t hash = 0;
    for (size_t size = 0; size < prompt.size(); ++size) {
      hash = mix(hash, static_cast<uint64_t>(prompt[size]));
      const auto found = by_hash_.find({size + 1, hash});
      if (found == by_hash_.end()) continue;
      const std::vector<int64_t>& tokens = branches[found->second].tokens;
      if (std::equal(tokens.begin(), tokens.end(), prompt.begin())) longest = found->second;
    }
    return longest;
  }

 private:
  std::map<std::pair<size_t, uint64_t>, size_t> by_hash_;
};

struct Step {
  std::vector<int64_t> prompt, completion;
  std::vector<bool> mask;
};

Result<Step> read_step(const Json& tokens) {
  Step step;
  RETURN_IF_ERROR(append_ids(tokens, "prompt_ids", step.prompt));
  RETURN_IF_ERROR(append_ids(tokens, "completion_ids", step.completion));
  ASSIGN_OR_RETURN(step.mask, read_flags(tokens, "completion_mask"));
  if (step.mask.size() != step.completion.size())
    return error(Code::kCorrupt, "a step has {} completion ids, its mask has {}",
                 step.completion.size(), step.mask.size());
  return step;
}

Status add_steps(const Json::Array& trajectory, WireMember& result) {
  std::vector<WireBranch> branches;
  BranchIndex index;
  for (const Json& each : trajectory) {
    const Json* const tokens = present(each, "tokens");
    if (tokens == nullptr) continue;  // the client of the step works on text
    ASSIGN_OR_RETURN(const Step step, read_step(*tokens));
    size_t number = branches.size();
    if (const auto found = index.longest_before(step.prompt, branches)) {
      number = *found;
      index.remove(branches[number]);
    } else {
      branches.emplace_back();
    }
    WireBranch& branch = branches[number];
    const auto num_known = static_cast<std::ptrdiff_t>(branch.tokens.size());
    branch.tokens.insert(branch.tokens.end(), step.prompt.begin() + num_known, step.prompt.end());
    for (size_t i = 0; i < step.completion.size(); ++i) {
      if (step.mask[i]) branch.add_sampled(static_cast<int64_t>(branch.tokens.size()));
      branch.tokens.push_back(step.completion[i]);
    }
    index.add(branch, number);
  }
  for (WireBranch& branch : branches) RETURN_IF_ERROR(result.add(std::move(branch)));
  return ok();
}

Status check_error(const Json& output) {
  const Json* const fault = present(output, "error");
  if (fault == nullptr) return ok();
  if (fault->is_string())
    return error(Code::kInvalid, "the rollout failed: {}", fault->as_string());
  const std::string chain = text_of(*fault, "error_chain_str");
  const std::string message = text_of(*fault, "message");
  return error(Code::kInvalid, "the rollout failed: {}",
               !chain.empty()     ? chain
               : !message.empty() ? message
                                  : text_of(*fault, "error"));
}

Status read_output(const Json& output, WireMember& result) {
  result.stop_condition = text_of(output, "stop_condition");
  RETURN_IF_ERROR(check_error(output));
  const Json* const trajectory = present(output, "trajectory");
  if (trajectory == nullptr || !trajectory->is_array() || trajectory->as_array().empty())
    return error(Code::kInvalid, "the rollout has no steps and no error");
  ASSIGN_OR_RETURN(result.reward, output.get_double("reward"));
  if (!std::isfinite(result.reward))
    return error(Code::kCorrupt, "the reward is not a finite number");
  const Json* const is_truncated = present(output, "is_truncated");
  result.is_truncated =
      is_truncated != nullptr && is_truncated->is_bool() && is_truncated->as_bool();
  RETURN_IF_ERROR(result.add_metrics(present(output, "metrics")));
  result.scores = result.metrics;  // W0 reports reward functions as metrics
  result.num_turns = static_cast<int64_t>(trajectory->as_array().size());
  for (const Json& step : trajectory->as_array()) {
    const Json* const messages = present(step, "completion");
    if (messages == nullptr || !messages->is_array()) continue;
    for (const Json& message : messages->as_array())
      result.num_tool_calls += num_tool_calls(message);
  }
  return add_steps(trajectory->as_array(), result);
}

}  // namespace

Json legacy_member(const Json& output) {
  WireMember result;
  const Status read = read_output(output, result);
  return member_json(std::move(result), read);
}

}  // namespace primerl
