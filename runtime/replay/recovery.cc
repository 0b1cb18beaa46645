#include "runtime/replay/recovery.h"

#include <algorithm>

#include "runtime/replay/replay_cursor.h"
#include "runtime/trace/read/stored_message.h"

namespace primerl {
namespace {

/// Collects facts in one pass over all steps.
struct Survey {
  explicit Survey(const Plan& plan)
      : incarnations(plan.processes.size(), 0),
        has_changed(plan.processes.size(), false),
        is_absent(plan.groups.size(), false) {}
  Time ended;
  GroupId drained;                     // none: no group that follows had begun to drain
  std::vector<uint32_t> incarnations;  // newest one of each process known to others
  std::vector<bool> has_changed;  // by process: others were told that it died, or that it is back
  std::vector<bool> is_absent;    // by group: its process has no record to follow
};

/// From the first step, or from the cut.
bool is_whole(const Trace& trace, const RunCuts& cuts, GroupId group) {
  if (cuts.state_of(group) != nullptr) return trace.first_step(group) <= cuts.first_step(group);
  return trace.started(group) && trace.first_step(group) <= 1;
}

/// What is missing is in the cut.
bool is_before(const RunCuts& cuts, const TraceFault& fault) {
  return !fault.group.is_none() && fault.last < cuts.first_step(fault.group) &&
         cuts.state_of(fault.group) != nullptr;
}

/// What a group knew when it was cut.
void look_at(const Plan& plan, const Wiring& wiring, const GroupState& state, Survey& found) {
  found.ended = std::max(found.ended, state.at);
  for (uint32_t i = 0; i < state.in_links.size(); ++i) {
    const WiredLink& link = wiring.links[wiring.groups[state.group.index()].in[i].index()];
    const size_t process = plan.process_of(link.sender).index();
    const uint32_t incarnation = state.in_links[i].incarnation;
    found.incarnations[process] = std::max(found.incarnations[process], incarnation);
    if (incarnation > state.incarnation) found.has_changed[process] = true;
  }
}

void look_at(const Plan& plan, const Trace& trace, const TraceStep& step, Survey& found) {
  found.ended = std::max(found.ended, step.began + step.duration);
  InstanceId speaker;
  if (step.kind == StepKind::kPeer) {
    speaker = InstanceId(step.subject);
    found.has_changed[plan.process_of(speaker).index()] = true;
  } else if (step.kind == StepKind::kMessage) {
    speaker = InstanceId(trace.catalog().links[step.link.index()].sender);
  }
  if (speaker.is_none()) return;
  uint32_t& incarnation = found.incarnations[plan.process_of(speaker).index()];
  incarnation = std::max(incarnation, step.incarnation);
}

/// The record must fit the plan.
Survey survey(const Plan& plan, const Trace& trace, const RunCuts& cuts) {
  Survey found(plan);
  const auto wiring = make_wiring(plan);
  std::vector<GroupId> draining;
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const GroupId group(i);
    if (const auto began = trace.started(group)) found.ended = std::max(found.ended, *began);
    uint64_t first = trace.first_step(group);
    if (const GroupState* state = cuts.state_of(group)) {
      look_at(plan, *wiring, *state, found);
      first = std::max(first, state->num_steps + 1);
    }
    for (uint64_t number = first; number <= trace.last_step(group); ++number) {
      const auto step = trace.step(group, number);
      if (!step) continue;
      look_at(plan, trace, *step, found);
      if (step->kind == StepKind::kDrain) draining.push_back(group);
    }
  }
  std::vector<bool> is_gone = found.has_changed;
  for (const TraceFault& fault : trace.faults())
    if (!fault.group.is_none() && fault.kind != TraceFault::Kind::kCutTail &&
        !is_before(cuts, fault))
      is_gone[plan.group(fault.group).process.index()] = true;
  for (uint32_t i = 0; i < plan.groups.size(); ++i)
    if (!is_whole(trace, cuts, GroupId(i))) is_gone[plan.groups[i].process.index()] = true;
  const bool is_split = plan.processes.size() > 1;
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const ProcessId process = plan.groups[i].process;
    found.is_absent[i] = is_split && is_gone[process.index()] && plan.is_restartable(process);
  }
  for (const GroupId group : draining)
    if (!found.is_absent[group.index()] && found.drained.is_none()) found.drained = group;
  return found;
}

}  // namespace

Status Recovery::check(const Plan& plan, const Trace& trace, const RunCuts& cuts) {
  if (const auto excerpt = trace.excerpt())
    return error(Code::kInvalid,
                 "its record is an excerpt (a fixture): steps 1 to {} of '{}' and nothing of the "
                 "other nodes; it can be replayed, not resumed",
                 excerpt->last_step, trace.catalog().groups[excerpt->group.index()].name);
  RETURN_IF_ERROR(check_fits(plan, trace.catalog()));
  if (trace.is_closed()) return error(Code::kInvalid, "its record has an end: nothing was cut off");
  const Survey found = survey(plan, trace, cuts);
  for (const TraceFault& fault : trace.faults()) {
    if (fault.kind == TraceFault::Kind::kSnapshot)
      return error(Code::kInvalid, "its record is a snapshot: the run went on after `trace dump`");
    if (!fault.group.is_none() && found.is_absent[fault.group.index()]) continue;
    if (is_before(cuts, fault)) continue;
    if (fault.kind == TraceFault::Kind::kReplaced)
      return error(Code::kInvalid, "a process had died in it and come back: {}", fault.text);
    if (fault.kind == TraceFault::Kind::kCutTail || !fault.is_fault()) continue;
    return error(Code::kInvalid, "its record is not whole: {}", fault.text);
  }
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const GroupId group(i);
    if (found.is_absent[i]) continue;
    const bool has_part = cuts.state_of(group) != nullptr;
    if (!cuts.empty() && !has_part)
      return error(Code::kInvalid, "no state of '{}' was saved", plan.groups[i].name);
    if (!has_part && !trace.started(group))
      return error(Code::kInvalid, "'{}' had not started yet", plan.groups[i].name);
    if (trace.first_step(group) > cuts.first_step(group))
      return error(Code::kInvalid,
                   "the record of '{}' begins with step {}: what came before was retired "
                   "(trace.bytes_max)",
                   plan.groups[i].name, trace.first_step(group));
    if (found.has_changed[plan.groups[i].process.index()])
      return error(Code::kInvalid,
                   "process '{}' had died in it and come back: what one incarnation after the "
                   "other did is read, not followed",
                   plan.process(plan.groups[i].process).name);
  }
  if (!found.drained.is_none())
    return error(Code::kInvalid, "'{}' had begun to drain when the run was cut off",
                 plan.group(found.drained).name);
  return ok();
}

namespace {

std::vector<AbsentProcess> absent_of(const Plan& plan, const Survey& found) {
  std::vector<AbsentProcess> absent;
  for (uint32_t i = 0; i < plan.processes.size(); ++i)
    if (const auto& groups = plan.processes[i].groups;
        !groups.empty() && found.is_absent[groups.front().index()])
      absent.push_back({ProcessId(i), found.incarnations[i]});
  return absent;
}

}  // namespace

std::vector<bool> absent_groups(const Plan& plan, const Trace& trace, const RunCuts& cuts) {
  return survey(plan, trace, cuts).is_absent;
}

std::vector<AbsentProcess> Recovery::absent_processes(const Plan& plan, const Trace& trace,
                                                      const RunCuts& cuts) {
  return absent_of(plan, survey(plan, trace, cuts));
}

Result<std::unique_ptr<Recovery>> Recovery::make(std::shared_ptr<const Plan> plan,
                                                 std::shared_ptr<const Trace> trace,
                                                 DeliveryObserver* recorder, ProcessId process,
                                                 RunCuts cuts) {
  RETURN_IF_ERROR(check_fits(*plan, trace->catalog()));
  return std::unique_ptr<Recovery>(
      new Recovery(std::move(plan), std::move(trace), recorder, process, std::move(cuts)));
}

Recovery::Recovery(std::shared_ptr<const Plan> plan, std::shared_ptr<const Trace> trace,
                   DeliveryObserver* recorder, ProcessId process, RunCuts cuts)
    : plan_(std::move(plan)),
      trace_(std::move(trace)),
      wiring_(make_wiring(*plan_)),
      recorder_(recorder),
      process_(process),
      cuts_(std::move(cuts)) {
  const Survey found = survey(*plan_, *trace_, cuts_);
  ended_ = found.ended;
  incarnation_ = incarnation_of(*plan_, *trace_, found.is_absent, cuts_);
  for (const auto& absent : absent_of(*plan_, found)) absent_.push_back(absent.process);
  // Groups of the own process send their messages to each other again.
  if (!process_.is_none() && plan_->processes.size() > 1)
    inputs_ = std::make_unique<const RecordedInputs>(
        *plan_, *wiring_, *trace_, incarnation_, found.is_absent, true,
        [this](GroupId group) { return cuts_.state_of(group); });
  for (uint32_t i = 0; i < plan_->groups.size(); ++i)
    cursors_.push_back(is_here(GroupId(i)) ? std::make_unique<ReplayCursor>(
                                                 *plan_, *wiring_, *trace_, GroupId(i), UINT64_MAX,
                                                 nullptr, inputs_.get(), cuts_.state_of(GroupId(i)))
                                           : nullptr);
}

Recovery::~Recovery() = default;

bool Recovery::is_here(GroupId group) const {
  return process_.is_none() || plan_->group(group).process == process_;
}

StepSource& Recovery::step_source(GroupId group) { return *cursors_[group.index()]; }

Time Recovery::started(GroupId group) const {
  const GroupState* state = cuts_.state_of(group);
  return state != nullptr ? state->at : trace_->started(group).value_or(Time());
}

void Recovery::resume() { is_live_.store(true, std::memory_order_release); }

Error Recovery::text_of(const Divergence& divergence) const {
  Error fault = error(Code::kCorrupt, "the recorded run cannot be followed: {}:{}: {}: {}",
                      plan_->group(divergence.group).name, divergence.step,
                      to_string(divergence.kind), divergence.what);
  for (const auto& detail : divergence.details) fault = Error(std::move(fault)).note(detail);
  return fault;
}

std::optional<Error> Recovery::fault(GroupId group) const {
  const auto& divergence = cursors_[group.index()]->divergence();
  if (!divergence) return std::nullopt;
  return text_of(*divergence);
}

Error Recovery::stuck() const {
  for (const auto& cursor : cursors_)
    if (cursor != nullptr && cursor->divergence()) return text_of(*cursor->divergence());
  const ReplayCursor* first = nullptr;
  for (uint32_t i = 0; i < cursors_.size(); ++i) {
    const ReplayCursor* cursor = cursors_[i].get();
    if (cursor == nullptr || cursor->next() == nullptr) continue;
    if (first == nullptr || cursor->recorded().began < first->recorded().began) first = cursor;
  }
  if (first == nullptr) return error(Code::kCorrupt, "all here have followed the recorded run");
  const TraceStep& step = first->recorded();
  const auto& link = wiring_->links[step.link.index()];
  return error(Code::kCorrupt,
               "the recorded run cannot be followed: '{}' waits at step {} for message {} of '{}', "
               "which '{}' has not sent",
               plan_->group(step.group).name, step.step, step.sequence, plan_->edge(link.edge).name,
               plan_->instance(link.sender).name);
}

void Recovery::on_start(GroupId group, Time now) {
  if (recorder_ != nullptr) recorder_->on_start(group, now);
}

void Recovery::on_step(const StepRecord& record) {
  ReplayCursor& cursor = *cursors_[record.group.index()];
  if (cursor.next() != nullptr || cursor.divergence()) cursor.on_step(record);
  if (recorder_ != nullptr) recorder_->on_step(record);
}

bool Recovery::wants_emissions(LinkId link) const {
  return !is_live() || (recorder_ != nullptr && recorder_->wants_emissions(link));
}

const std::vector<std::byte>* Recovery::take(GroupId group) {
  return is_live() ? nullptr : cursors_[group.index()]->take_answer();
}

void Recovery::diverged(GroupId group, std::string what) {
  cursors_[group.index()]->diverged(std::move(what));
}

uint64_t Recovery::num_steps() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < plan_->groups.size(); ++i)
    if (is_here(GroupId(i)))
      sum += trace_->last_step(GroupId(i)) + 1 -
             std::min(cuts_.first_step(GroupId(i)), trace_->last_step(GroupId(i)) + 1);
  return sum;
}

uint64_t Recovery::num_messages_compared() const {
  uint64_t sum = 0;
  for (const auto& cursor : cursors_)
    if (cursor != nullptr) sum += cursor->num_compared();
  return sum;
}

}  // namespace primerl
