#include "runtime/exec/handler_watch.h"

#include <algorithm>

namespace primerl {

std::string rounded_text(Duration duration) {
  const int64_t ms = duration.to_milliseconds();
  return to_string(Duration::milliseconds(ms < 1000 ? ms : ms / 1000 * 1000));
}

std::string handling_text(const Plan& plan, const Wiring& wiring, const GroupView& view) {
  if (view.handling.is_none()) return fmt::format("a work call (step {})", view.num_steps);
  const Contract& contract = plan.contract_of(view.handling);
  switch (view.handling_kind) {
    case StepKind::kMessage:
      if (view.handling_link >= wiring.links.size()) break;
      return fmt::format("message {} of '{}' ({}, step {})", view.handling_sequence,
                         plan.edge(wiring.links[view.handling_link].edge).name,
                         view.handling_type == nullptr ? "" : view.handling_type->name,
                         view.num_steps);
    case StepKind::kTimer:
      if (view.handling_link >= contract.timers.size()) break;
      return fmt::format("timer '{}' (step {})", contract.timers[view.handling_link].name,
                         view.num_steps);
    case StepKind::kDrain:
    case StepKind::kPeer:
    case StepKind::kCommand:
    case StepKind::kTenant:
    case StepKind::kWork:
      return fmt::format("{} (step {})", to_string(view.handling_kind), view.num_steps);
  }
  return fmt::format("step {}", view.num_steps);
}

HandlerWatch::HandlerWatch(const Plan& plan, const Wiring& wiring, Duration alarm_after)
    : plan_(plan), wiring_(wiring), alarm_after_(alarm_after), seen_(plan.groups.size()) {}

std::optional<HandlerWatch::Alarm> HandlerWatch::check(const GroupView& view, Time now,
                                                       bool has_deadline) {
  Seen& seen = seen_[view.group.index()];
  Time activity = std::max(last_activity(view.group), view.running_since);
  if (view.num_progress != std::exchange(seen.num_progress, view.num_progress)) activity = now;
  seen.activity.set(static_cast<uint64_t>(activity.to_nanoseconds()));
  const bool is_same = view.is_running && view.num_steps == seen.alarmed_step;
  if (seen.alarmed_step != 0 && !is_same) {
    seen.alarmed_step = 0;
    return Alarm{seen.alarm.name, fmt::format("'{}' has returned from {} after {}", seen.alarm.name,
                                              seen.alarm.text, rounded_text(now - seen.began))};
  }
  if (is_same || !view.is_running || has_deadline || alarm_after_ == Duration() ||
      now - activity < alarm_after_)
    return std::nullopt;
  seen.alarmed_step = view.num_steps;
  seen.began = view.running_since;
  seen.alarm.name =
      view.handling.is_none() ? plan_.group(view.group).name : plan_.instance(view.handling).name;
  seen.alarm.text = handling_text(plan_, wiring_, view);
  seen.num_alarms.add(1);
  std::string text = fmt::format("'{}' has been handling {} for {}", seen.alarm.name,
                                 seen.alarm.text, rounded_text(now - seen.began));
  if (activity > view.running_since)
    text += fmt::format(", without a sign of life for {}", rounded_text(now - activity));
  return Alarm{seen.alarm.name, std::move(text)};
}

}  // namespace primerl
