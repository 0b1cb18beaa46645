#include "tests/sim/demo_judge.h"

#include "actors/messages/policy.h"

namespace primerl::sim {

void DemoJudge::see_step(const StepRecord& record) {
  for (const auto& emission : record.emissions) see_emission(emission.envelope);
}

void DemoJudge::see_emission(const Envelope& envelope) {
  const MessageType* type = envelope.payload.type;
  if (type == &message_type<GenerateRequest>()) {
    const auto& request = envelope.payload.as<GenerateRequest>();
    // Rollout sends it and router forwards it: the same request is seen twice.
    answers_.try_emplace({request.request, request.attempt}, 0);
    sessions_.insert(request.session);
  } else if (type == &message_type<Completion>()) {
    const auto& completion = envelope.payload.as<Completion>();
    const auto found = answers_.find({completion.request, completion.attempt});
    if (found == answers_.end())
      return broken("a completion of request {}, which was never sent", completion.request);
    if (++found->second > 1) broken("request {} was answered twice", completion.request);
  } else if (type == &message_type<TrajectoryGroup>()) {
    const auto& group = envelope.payload.as<TrajectoryGroup>();
    if (!verdicts_.try_emplace({group.ordinal, group.attempt}, 0).second)
      broken("group {} was delivered twice", group.ordinal);
    if (static_cast<int64_t>(group.members.size()) != demo_.group_size)
      broken("group {} has {} members", group.ordinal, group.members.size());
  } else if (type == &message_type<GroupEnded>()) {
    const auto& ended = envelope.payload.as<GroupEnded>();
    const auto found = verdicts_.find({ended.ordinal, ended.attempt});
    if (found == verdicts_.end())
      return broken("a verdict on group {}, which was not delivered", ended.ordinal);
    if (++found->second > 1) broken("group {} got two verdicts", ended.ordinal);
  } else if (type == &message_type<WeightsReady>()) {
    const auto& ready = envelope.payload.as<WeightsReady>();
    auto& published = published_.try_emplace(envelope.tenant).first->second;
    if (ready.version <= published) broken("version {} was published again", ready.version);
    published = ready.version;
  } else if (type == &message_type<PolicyLive>()) {
    const auto& live = envelope.payload.as<PolicyLive>();
    auto& before = live_.try_emplace(envelope.tenant).first->second;
    if (live.version <= before) broken("live version went from {} to {}", before, live.version);
    before = live.version;
  } else if (type == &message_type<PolicyApplied>()) {
    const auto& applied = envelope.payload.as<PolicyApplied>();
    auto& before = applied_[{envelope.sender, envelope.tenant}];
    if (applied.version < before)
      broken("instance {} went back from version {} to {}", envelope.sender, before,
             applied.version);
    before = applied.version;
  }
}

void DemoJudge::see_line(std::string_view text) {
  const auto parsed = parse_json(text, "rollouts.jsonl");
  if (!parsed.ok()) return broken("a line of rollouts.jsonl is no JSON: {}", text);
  const Json& line = *parsed;
  const std::string name = line.find("rollout")->as_string();
  if (!rollouts_.insert(name).second) broken("rollout '{}' ended twice", name);
  ++ended_of_group_[static_cast<uint64_t>(line.find("group")->as_int())];
  const std::string end = line.find("end")->as_string();
  ++ends_[end];
  // The environment gave no task for this row of an evaluation, so no request was sent.
  if (end == "failed" && line.find("evaluation") != nullptr && line.find("turns")->as_int() == 0 &&
      line.find("prompt")->as_string().empty())
    ++num_without_session_;
  const int64_t step = line.find("step")->as_int();
  if (end == "trained") return see_trained(line, step);
  if (step != 0) broken("rollout '{}' ended as {} in step {}", name, end, step);
}

void DemoJudge::see_trained(const Json& line, int64_t step) {
  const std::string name = line.find("rollout")->as_string();
  groups_of_step_[step].insert(static_cast<uint64_t>(line.find("group")->as_int()));
  const int64_t opened = line.find("version")->as_int();
  const int64_t late = step - 1 - opened;
  if (late < 0 || late > demo_.max_off_policy_steps)
    broken("rollout '{}' of version {} trained in step {}", name, opened, step);
  if (line.find("staleness")->as_int() != late)
    broken("rollout '{}' says staleness {}, it is {}", name, line.find("staleness")->as_int(),
           late);
  int64_t last = -1;
  for (const Json& span : line.find("versions")->as_array()) {
    const int64_t version = span.find("version")->as_int();
    if (version < last) broken("the versions of rollout '{}' go back", name);
    if (version > step - 1) broken("rollout '{}' has tokens of a version after its step", name);
    last = version;
  }
}

void DemoJudge::see_end(const RunOutcome& outcome) {
  if (outcome.end != RunEnd::kFinished)
    broken("the run did not finish: {}\n{}",
           outcome.status.ok() ? "no error" : outcome.status.error().text(), outcome.stall.text());
  for (size_t i = 0; i < outcome.ledger.size(); ++i) {
    if (!outcome.ledger[i].balances()) broken("the ledger of edge {} does not balance", i);
    if (outcome.ledger[i].in_flight != 0)
      broken("edge {} still holds {} messages", i, outcome.ledger[i].in_flight);
  }
  for (const auto& [request, count] : answers_)
    if (count != 1) broken("request {} got {} answers", request.first, count);
  for (const auto& [group, count] : verdicts_)
    if (count != 1) broken("group {} got {} verdicts", group.first, count);
  for (const auto& [group, count] : ended_of_group_)
    if (count != demo_.group_size) broken("{} rollouts of group {} ended", count, group);
  if (rollouts_.size() != sessions_.size() + num_without_session_)
    broken("{} rollouts began, {} ended", sessions_.size(), rollouts_.size());
  for (int64_t step = 1; step <= demo_.max_steps; ++step)
    if (groups_of_step_[step].size() != static_cast<size_t>(demo_.batch_size / demo_.group_size))
      broken("step {} trained on {} groups", step, groups_of_step_[step].size());
}

}  // namespace primerl::sim
