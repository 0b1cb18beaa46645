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

}  // namespace

std::string rollout_name(std::string_view tenant, const Group& group, size_t member) {
  return fmt::format("{}-{}-{}-{}", tenant, group.ordinal, group.attempt, member);
}

std::string rollout_line(std::string_view tenant, const Group& group, size_t index,
                         const RolloutEnded& ended, bool with_tokens) {
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
  if (is_evaluation(group.ordinal)) line.set("evaluation", true);
  if (!ended.reason.empty()) line.set("reason", ended.reason);
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
