// The events of RequestSpans: those of a request, and of the rollout that sent it.
#include <algorithm>
#include <utility>

#include "runtime/query/request_spans.h"
#include "runtime/query/step_text.h"

namespace primerl {
namespace {

// The values of FinishReason after which the rollout continues with the sampled tokens.
constexpr int64_t kStop = 0, kLength = 1;

void set_if(Json& json, std::string_view key, const std::optional<int64_t>& value) {
  if (value) json.set(key, *value);
}

std::string micros(const TraceCatalog& catalog, Time at) {
  return fmt::format("{:.3f}", static_cast<double>(at.to_nanoseconds() - catalog.zero_ns) * 1e-3);
}

Json distinct(const std::vector<int64_t>& versions) {
  Json list = Json::array();
  for (size_t i = 0; i < versions.size(); ++i)
    if (i == 0 || versions[i] != versions[i - 1]) list.push_back(versions[i]);
  return list;
}

}  // namespace

void RequestSpans::edge(const char* phase, const Track& track, std::string_view name, Time at,
                        const Json* facts) {
  add_(fmt::format(R"({{"ph":"{}","cat":"{}","id":{},"name":{},"pid":{},"tid":{},"ts":{}{}}})",
                   phase, track.category, Json(track.id).dump(), Json(name).dump(),
                   track.process + 1, track.instance + 1, micros(catalog_, at),
                   facts == nullptr ? "" : ",\"args\":" + facts->dump()));
}

void RequestSpans::span(const Track& track, std::string_view name, Time begin, Time end,
                        const Json& facts) {
  edge("b", track, name, begin, &facts);
  edge("e", track, name, end, nullptr);
}

void RequestSpans::write(const Open& open, const Ending& ending) {
  const TraceStep& entry = open.way.front();
  const uint32_t asker = catalog_.links[entry.link.index()].sender;
  const Track track{"request", step_name(trace_, entry),
                    catalog_.groups[catalog_.instances[asker].group].process, asker};
  const Time begin = ways_.sent_at(entry);
  const Time end = std::max(begin, ending.at);
  Json facts = Json::object();
  if (!entry.tenant.is_none()) facts.set("tenant", tenant_text(trace_, entry));
  set_if(facts, "request", open.facts.request ? open.facts.request : number_of(entry));
  set_if(facts, "session", open.facts.session);
  set_if(facts, "attempt", open.facts.attempt);
  set_if(facts, "prompt_tokens", open.facts.num_prompt_tokens);
  set_if(facts, "cached_tokens", open.facts.num_cached_tokens);
  set_if(facts, "new_tokens", ending.end.num_new_tokens);
  facts.set("end", ending.reason);
  if (!ending.end.versions.empty()) facts.set("versions", distinct(ending.end.versions));
  if (!ways_.has_sender(entry)) facts.set("begin", "not in the record");
  edge("b", track, "request", begin, &facts);
  write_phases(track, open, ending, begin, end);
  edge("e", track, "request", end, nullptr);
  write_turn(open, ending, begin, end);
}

/// "router to decode" if the record does not show how the request came from one to the other; else
/// "".
std::string RequestSpans::gap_after(const TraceStep& last, const TraceStep* completion) const {
  if (completion == nullptr) return "";
  const uint32_t holder = catalog_.links[last.link.index()].target;
  const uint32_t sender = catalog_.links[completion->link.index()].sender;
  if (sender == holder || !ways_.is_forwarding(InstanceId(holder))) return "";
  return catalog_.instances[holder].actor + " to " + catalog_.instances[sender].actor;
}

/// One phase per actor that had the request, until the next actor was sent it. The phase `answer`
/// lasts until the rollout received the completion.
void RequestSpans::write_phases(const Track& track, const Open& open, const Ending& ending,
                                Time begin, Time end) {
  Time sent = begin;  // to the actor of this phase
  const auto phase = [&](const TraceStep& handled, std::string_view name, Time until) {
    until = std::clamp(until, sent, end);
    const Time taken = std::clamp(handled.began, sent, until);
    const auto& instance = catalog_.instances[catalog_.links[handled.link.index()].target];
    span(track, name, sent, until,
         Json::object()
             .set("instance", instance.name)
             .set("step", step_name(trace_, handled))
             .set("queue_us", static_cast<double>((taken - sent).to_nanoseconds()) * 1e-3));
    sent = until;
  };
  const auto actor_of = [&](const TraceStep& step) -> std::string_view {
    return catalog_.instances[catalog_.links[step.link.index()].target].actor;
  };
  const std::string gap = gap_after(open.way.back(), ending.completion);
  for (size_t hop = 0; hop < open.way.size(); ++hop) {
    const bool is_last = hop + 1 == open.way.size();
    const Time until = !is_last                       ? ways_.sent_at(open.way[hop + 1])
                       : ending.completion != nullptr ? ways_.sent_at(*ending.completion)
                                                      : end;
    phase(open.way[hop], is_last && !gap.empty() ? gap : actor_of(open.way[hop]), until);
  }
  if (ending.completion != nullptr) phase(*ending.completion, "answer", end);
}

void RequestSpans::write_turn(const Open& open, const Ending& ending, Time begin, Time end) {
  const TraceStep& entry = open.way.front();
  if (!open.facts.session || entry.tenant.is_none()) return;
  Rollout& rollout = rollout_of({entry.tenant.value, *open.facts.session}, entry, begin);
  Json facts = Json::object();
  if (rollout.is_whole) facts.set("turn", rollout.num_turns);
  set_if(facts, "request", open.facts.request);
  set_if(facts, "new_tokens", ending.end.num_new_tokens);
  facts.set("end", ending.reason);
  begin = std::max(begin, rollout.ended);
  rollout.ended = std::max(begin, end);
  span(track_of(rollout), "turn", begin, rollout.ended, facts);
  if (ending.end.reason == kStop || ending.end.reason == kLength) ++rollout.num_turns;
  if (ending.completion == nullptr) return;
  const TraceStep& completion = *ending.completion;
  go_on(rollout, {completion.group, completion.step});
}

RequestSpans::Track RequestSpans::track_of(const Rollout& rollout) const {
  return {"rollout", fmt::format("{}/{}", rollout.tenant, rollout.name.second), rollout.process,
          rollout.instance};
}

RequestSpans::Rollout& RequestSpans::rollout_of(const Named& name, const TraceStep& entry,
                                                Time begin) {
  if (const auto found = by_name_.find(name); found != by_name_.end()) {
    rollouts_.splice(rollouts_.end(), rollouts_, found->second);
    return *found->second;
  }
  while (rollouts_.size() >= options_.rollouts_max) end_rollout(rollouts_.begin());
  Rollout rollout;
  rollout.name = name;
  rollout.tenant = tenant_text(trace_, entry);
  rollout.instance = catalog_.links[entry.link.index()].sender;
  rollout.process = catalog_.groups[catalog_.instances[rollout.instance].group].process;
  rollout.ended = begin;
  const auto cause = ways_.cause_of(entry);
  rollout.is_whole = cause && ways_.message_of(*cause) == RequestMessage::kOther;
  rollouts_.push_back(std::move(rollout));
  by_name_[name] = std::prev(rollouts_.end());
  const Json facts =
      Json::object().set("tenant", rollouts_.back().tenant).set("session", name.second);
  edge("b", track_of(rollouts_.back()), "rollout", begin, &facts);
  return rollouts_.back();
}

void RequestSpans::go_on(Rollout& rollout, StepKey step) {
  const auto here = by_name_.at(rollout.name);
  if (const auto before = by_step_.find(rollout.went_on);
      before != by_step_.end() && before->second == here)
    by_step_.erase(before);
  rollout.went_on = step;
  by_step_[step] = here;
}

/// The rollout whose actor made this step; null when it is unknown.
RequestSpans::Rollout* RequestSpans::rollout_after(const StepRef& step) {
  if (step.is_none()) return nullptr;
  const GroupId group(catalog_.instances[step.instance.index()].group);
  const auto found = by_step_.find({group, step.step});
  return found == by_step_.end() ? nullptr : &*found->second;
}

void RequestSpans::see_action(const TraceStep& action) {
  Rollout* const rollout = rollout_after(action.cause);
  if (rollout != nullptr) rollout->acts = ways_.sent_at(action);
}

void RequestSpans::see_observation(const TraceStep& observation) {
  const auto action = ways_.cause_of(observation);
  if (!action || ways_.message_of(*action) != RequestMessage::kAction) return;
  Rollout* const rollout = rollout_after(action->cause);
  if (rollout == nullptr) return;
  const Time sent = ways_.sent_at(*action);
  const Time taken = std::max(sent, action->began);
  const auto& instance = catalog_.instances[catalog_.links[action->link.index()].target];
  write_environment(
      *rollout, sent, observation.began,
      Json::object()
          .set("instance", instance.name)
          .set("step", step_name(trace_, *action))
          .set("queue_us", static_cast<double>((taken - sent).to_nanoseconds()) * 1e-3));
  go_on(*rollout, {observation.group, observation.step});
}

void RequestSpans::write_environment(Rollout& rollout, Time begin, Time end, const Json& facts) {
  rollout.acts.reset();
  begin = std::max(begin, rollout.ended);
  rollout.ended = std::max(begin, end);
  span(track_of(rollout), "environment", begin, rollout.ended, facts);
}

void RequestSpans::end_rollout(std::list<Rollout>::iterator rollout) {
  if (rollout->acts)
    write_environment(*rollout, *rollout->acts, last_, Json::object().set("end", unanswered()));
  edge("e", track_of(*rollout), "rollout", rollout->ended, nullptr);
  if (const auto step = by_step_.find(rollout->went_on);
      step != by_step_.end() && step->second == rollout)
    by_step_.erase(step);
  by_name_.erase(rollout->name);
  rollouts_.erase(rollout);
}

}  // namespace primerl
