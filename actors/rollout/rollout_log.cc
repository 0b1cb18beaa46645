#include "actors/rollout/rollout_log.h"

#include "graph/base/json.h"

namespace primerl {
namespace {

Json spans_of(const Trajectory& trajectory) {
  Json spans = Json::array();
  for (const auto& span : trajectory.spans) {
    Json one = Json::object();
    one.set("version", span.version.value).set("begin", span.begin).set("end", span.end);
    spans.push_back(std::move(one));
  }
  return spans;
}

Json numbers_of(const std::vector<std::pair<std::string, double>>& numbers) {
  Json json = Json::object();
  for (const auto& [name, value] : numbers) json.set(name, value);
  return json;
}

/// For one message and its answer, prompt and completion are enough. Otherwise they lack the roles,
/// and the environment's messages between the answers.
bool is_conversation(const Group& group, const Member& member) {
  return !group.messages.empty() && group.messages.size() + member.said.size() > 2;
}

Json conversation_of(const Group& group, const Member& member) {
  std::vector<ChatMessage> all = group.messages;
  all.insert(all.end(), member.said.begin(), member.said.end());
  return messages_to_json(all);
}

}  // namespace

std::string rollout_name(std::string_view tenant, const Group& group, size_t member) {
  return fmt::format("{}-{}-{}-{}", tenant, group.ordinal, group.attempt, member);
}

std::string rollout_line(std::string_view tenant, std::string_view environment, const Group& group,
                         size_t index, const RolloutEnded& ended, bool with_tokens) {
  const Member& member = group.members[index];
  const Trajectory& trajectory = member.trajectory;
  std::string completion;
  for (const auto& text : member.texts) completion += text;
  Json line = Json::object();
  line.set("rollout", rollout_name(tenant, group, index))
      .set("tenant", tenant)
      .set("group", group.ordinal)
      .set("attempt", member.attempt)
      .set("end", to_string(ended.end))
      .set("step", ended.step)
      .set("reward", trajectory.reward)
      .set("staleness", ended.staleness)
      .set("version", group.version.value)
      .set("versions", spans_of(trajectory))
      .set("turns", trajectory.num_turns)
      .set("samples", trajectory.num_samples())
      .set("truncated", trajectory.is_truncated)
      .set("prompt", group.prompt)
      .set("completion", completion);
  if (is_conversation(group, member)) line.set("messages", conversation_of(group, member));
  if (!environment.empty()) line.set("environment", environment);
  if (is_evaluation(group.ordinal)) line.set("evaluation", true);
  if (!ended.reason.empty()) line.set("reason", ended.reason);
  if (const auto& report = member.report; report) {
    line.set("branches", report->num_branches)
        .set("branches_left_out", report->num_left_out)
        .set("turns_unmatched", report->num_unmatched)
        .set("tool_calls", report->num_tool_calls)
        .set("scores", numbers_of(report->scores))
        .set("metrics", numbers_of(report->metrics));
    if (!report->stop_condition.empty()) line.set("stop_condition", report->stop_condition);
  }
  if (with_tokens) {
    Json logprobs = Json::array();
    for (const float logprob : trajectory.logprobs)
      logprobs.push_back(static_cast<double>(logprob));
    line.set("prompt_tokens", Json::list(group.prompt_tokens))
        .set("tokens", Json::list(trajectory.tokens))
        .set("sample_begins", Json::list(trajectory.sample_begins))
        .set("logprobs", std::move(logprobs));
  }
  return line.dump();
}

}  // namespace primerl
