#include "runtime/replay/record_prefix.h"

#include <algorithm>
#include <optional>

#include "runtime/replay/replay.h"
#include "runtime/replay/replayed_channel.h"
#include "runtime/replay/traced_engine.h"
#include "runtime/replay/traced_learner.h"
#include "runtime/trace/read/tenant_uses.h"
#include "runtime/trace/read/trace_prefix.h"

namespace primerl {
namespace {

/// Whether the cut includes the missing steps.
bool is_before(const RunCuts& cuts, const TraceFault& fault) {
  return cuts.state_of(fault.group) != nullptr && fault.last < cuts.first_step(fault.group);
}

bool is_failed_answer(std::span<const std::byte> note) {
  return is_failed_engine_answer(note) || is_failed_learner_answer(note) ||
         is_failed_channel_answer(note);
}

class Search {
 public:
  Search(const Plan& plan, const Trace& trace, const RunCuts& cuts)
      : plan_(plan),
        trace_(trace),
        cuts_(cuts),
        wiring_(make_wiring(plan)),
        incarnations_(plan.processes.size(), 0),
        is_gone_(plan.processes.size(), false),
        has_holes_(plan.processes.size(), false),
        groups_(plan.groups.size()),
        last_handled_(wiring_->links.size(), 0) {}

  /// Finds the parts of the record that can be replayed. Call it first.
  std::vector<bool> find_absent();
  RecordPrefix run(std::shared_ptr<const Trace> whole);

 private:
  struct OfGroup {
    uint64_t first = 1;           // the first step to follow
    uint64_t last = 0;            // the last step to follow; first - 1: none
    std::vector<uint64_t> needs;  // by GroupId: the newest step whose message it has handled
    // Why the group stops before its record ends: by itself, or because another group stops.
    std::string cause, consequence;
    uint64_t cause_last = 0;  // the last step before its own cause
    Time cause_at;            // of that step
  };

  ProcessId process_of(uint32_t group) const { return plan_.groups[group].process; }
  bool is_absent(uint32_t group) const { return is_gone_[process_of(group).index()]; }
  /// Whether the process has only engines, or environments that only compute rewards: then it may
  /// start fresh without the others.
  bool may_be_absent(ProcessId process) const {
    return plan_.processes.size() > 1 && plan_.is_restartable(process);
  }
  uint32_t sender_of(LinkId link) const { return wiring_->links[link.index()].sender_group.value; }

  void look_at_cut(uint32_t group);
  void look_at_faults();
  void look_at_steps(GroupId group);
  bool is_whole(const TraceStep& step) const;
  bool drains_before_removal(const TraceStep& step) const;
  std::string refusal(uint32_t group, const TraceStep& step) const;
  bool has_ended_run(uint32_t group, const TraceStep& step) const;
  bool has_failed_request(GroupId group, uint64_t step) const;
  void end_before_failed_requests();
  void scan(uint32_t group, bool is_first);
  bool settle(uint32_t group);
  bool is_newer(uint32_t group) const;

  const Plan& plan_;
  const Trace& trace_;
  const RunCuts& cuts_;
  const std::shared_ptr<const Wiring> wiring_;
  Time ended_;
  uint32_t incarnation_ = 0;            // of messages between processes that follow
  std::vector<uint32_t> incarnations_;  // by ProcessId: the newest that others know
  std::vector<bool> is_gone_;           // by ProcessId: absent
  std::vector<bool> has_holes_;         // by ProcessId: frames are missing, so a step may lack some
  std::vector<OfGroup> groups_;         // by GroupId
  std::vector<uint64_t> last_handled_;  // by LinkId: the newest message that was handled
};

/// Reads what a group had received when it was cut.
void Search::look_at_cut(uint32_t group) {
  const GroupState& state = *cuts_.state_of(GroupId(group));
  ended_ = std::max(ended_, state.at);
  for (uint32_t i = 0; i < state.in_links.size(); ++i) {
    const LinkId link = wiring_->groups[group].in[i];
    const ProcessId process = process_of(sender_of(link));
    const uint32_t incarnation = state.in_links[i].incarnation;
    uint32_t& newest = incarnations_[process.index()];
    newest = std::max(newest, incarnation);
    if (incarnation > state.incarnation && may_be_absent(process)) is_gone_[process.index()] = true;
  }
}

/// Processes of engines with faults start fresh.
void Search::look_at_faults() {
  for (const TraceFault& fault : trace_.faults()) {
    if (fault.kind == TraceFault::Kind::kHole || fault.kind == TraceFault::Kind::kDamage)
      for (size_t i = 0; i < plan_.processes.size(); ++i)
        if (fault.group.is_none() || process_of(fault.group.value).index() == i)
          has_holes_[i] = true;
    if (fault.group.is_none() || fault.kind == TraceFault::Kind::kCutTail ||
        is_before(cuts_, fault))
      continue;
    const ProcessId process = process_of(fault.group.value);
    if (may_be_absent(process)) is_gone_[process.index()] = true;
  }
}

/// Reads which events of other processes a group was notified of.
void Search::look_at_steps(GroupId group) {
  const uint64_t first = std::max(groups_[group.index()].first, trace_.first_step(group));
  for (uint64_t number = first; number <= trace_.last_step(group); ++number) {
    const auto step = trace_.step(group, number);
    if (!step) continue;
    ended_ = std::max(ended_, step->began + step->duration);
    InstanceId speaker;
    if (step->kind == StepKind::kPeer)
      speaker = InstanceId(step->subject);
    else if (step->kind == StepKind::kMessage)
      speaker = wiring_->links[step->link.index()].sender;
    if (speaker.is_none()) continue;
    const ProcessId process = plan_.process_of(speaker);
    uint32_t& newest = incarnations_[process.index()];
    newest = std::max(newest, step->incarnation);
    if (step->kind == StepKind::kPeer && may_be_absent(process)) is_gone_[process.index()] = true;
  }
}

bool Search::is_whole(const TraceStep& step) const {
  uint64_t num_notes = 0;
  trace_.visit_notes(step.group, step.step, [&](NoteKind, InstanceId, auto) { ++num_notes; });
  if (std::min<uint64_t>(num_notes, UINT8_MAX) != step.num_notes) return false;
  return (step.flags & kPayloadStored) == 0 || !wiring_->links[step.link.index()].is_remote ||
         trace_.has_payload({step.link, step.incarnation, step.sequence});
}

/// Whether only one tenant drains, because it leaves its slot: the run continues. A drain whose
/// removal is not in the record is not followed, because it may be that of the run.
bool Search::drains_before_removal(const TraceStep& step) const {
  if (step.instance.is_none()) return false;
  const TenantSlot slot = plan_.instance(step.instance).tenant;
  const TenantUse* use = trace_.tenants().at(step.group, step.step, slot);
  return use != nullptr && trace_.tenants().left_at(step.group, *use) > step.step;
}

/// Why a step cannot be repeated; empty: it can.
std::string Search::refusal(uint32_t group, const TraceStep& step) const {
  const std::string& name = plan_.groups[group].name;
  if (step.kind == StepKind::kDrain && !drains_before_removal(step))
    return fmt::format("'{}' had begun to drain", name);
  if (step.kind == StepKind::kPeer) {
    const ProcessId process = plan_.process_of(InstanceId(step.subject));
    if (!is_gone_[process.index()])
      return fmt::format("'{}' had been told that '{}' died", name, plan_.process(process).name);
  }
  if (has_ended_run(group, step))
    return fmt::format("'{}' had {}, which ended the run", name,
                       step.is_failed() ? "failed" : "given up");
  if (has_holes_[process_of(group).index()] && !is_whole(step))
    return fmt::format("a part of step {} of '{}' is missing", step.step, name);
  return {};
}

/// An actor may give up in one step and fail in a later one, after the messages of the first were
/// sent. The first step runs again, because in it the actor got the answer that ended the run.
bool Search::has_ended_run(uint32_t group, const TraceStep& step) const {
  if ((step.flags & kGivenUp) != 0) return true;
  const auto stops = [&](InstanceId instance) {
    return plan_.node(plan_.instance(instance).node).on_error == OnError::kStop &&
           (step.instance.is_none() || step.instance == instance);
  };
  // A tenant that cannot join ends nothing.
  return step.is_failed() && step.kind != StepKind::kCommand && step.kind != StepKind::kTenant &&
         std::ranges::any_of(plan_.groups[group].instances, stops);
}

/// Whether a resource answered in this step that a request failed.
bool Search::has_failed_request(GroupId group, uint64_t step) const {
  bool has_failed = false;
  trace_.visit_notes(group, step, [&](NoteKind kind, InstanceId, auto bytes) {
    has_failed = has_failed || (kind == NoteKind::kResource && is_failed_answer(bytes));
  });
  return has_failed;
}

/// An actor may give up because a message reports a failed request of another group, such as an
/// engine that could not fetch weights. The step that made the request runs again, too.
void Search::end_before_failed_requests() {
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    const auto step = trace_.step(GroupId(group), groups_[group].cause_last + 1);
    if (groups_[group].cause.empty() || !step || step->kind != StepKind::kMessage ||
        !has_ended_run(group, *step) || step->incarnation != incarnation_)
      continue;
    const uint32_t sender = sender_of(step->link);
    OfGroup& of = groups_[sender];
    for (const uint64_t asked : {step->cause.step, step->sender_step}) {
      if (is_absent(sender) || asked < of.first || asked > of.last) continue;
      if (!has_failed_request(GroupId(sender), asked)) continue;
      of.last = of.cause_last = asked - 1;
      of.cause = fmt::format("a request of '{}' had failed, which ended the run",
                             plan_.groups[sender].name);
      of.cause_at = step->began;
      scan(sender, false);
      break;
    }
  }
}

/// Finds the last step of `group` to follow, from what is known about the others.
void Search::scan(uint32_t group, bool is_first) {
  OfGroup& of = groups_[group];
  of.needs.assign(groups_.size(), 0);
  for (const LinkId link : wiring_->groups[group].in) last_handled_[link.index()] = 0;
  const uint64_t end = is_first ? trace_.last_step(GroupId(group)) : of.last;
  of.last = of.first - 1;
  for (uint64_t number = of.first; number <= end; ++number) {
    const auto step = trace_.step(GroupId(group), number);
    if (is_first) {
      of.cause = step ? refusal(group, *step)
                      : fmt::format("step {} of '{}' is missing", number, plan_.groups[group].name);
      if (!of.cause.empty()) {
        of.cause_last = of.last;
        return;
      }
      of.cause_at = step->began;
    }
    if (step->kind == StepKind::kMessage && step->incarnation == incarnation_) {
      const uint32_t sender = sender_of(step->link);
      if (!is_first && !is_absent(sender) && step->sender_step > groups_[sender].last) {
        of.consequence =
            fmt::format("'{}' had handled what '{}' sent in its step {}, which is not recorded",
                        plan_.groups[group].name, plan_.groups[sender].name, step->sender_step);
        return;
      }
      of.needs[sender] = std::max(of.needs[sender], step->sender_step);
      last_handled_[step->link.index()] = step->sequence;
    }
    of.last = number;
  }
}

/// True: something changed.
bool Search::settle(uint32_t group) {
  OfGroup& of = groups_[group];
  for (uint32_t sender = 0; sender < groups_.size(); ++sender) {
    if (of.needs[sender] <= groups_[sender].last || is_absent(sender)) continue;
    const ProcessId process = process_of(sender);
    // Its messages are in the records of the others.
    if (may_be_absent(process) && process != process_of(group)) {
      is_gone_[process.index()] = true;
      return true;
    }
    const uint64_t before = of.last;
    scan(group, false);
    if (of.last != before) return true;
  }
  return false;
}

/// Whether the cut of a group includes messages or steps that are not followed.
bool Search::is_newer(uint32_t group) const {
  const GroupState* state = cuts_.state_of(GroupId(group));
  if (state == nullptr) return false;
  for (uint32_t i = 0; i < state->in_links.size(); ++i) {
    const uint32_t sender = sender_of(wiring_->groups[group].in[i]);
    if (is_absent(sender) || state->in_links[i].incarnation != state->incarnation) continue;
    if (state->in_links[i].last_sender_step > groups_[sender].last) return true;
  }
  for (uint32_t i = 0; i < state->out_links.size(); ++i) {
    const LinkId link = wiring_->groups[group].out[i];
    const WiredLink& wired = wiring_->links[link.index()];
    if (!wired.is_remote || is_absent(wired.target_group.value)) continue;
    uint64_t received = last_handled_[link.index()];
    const uint32_t target = wired.target_group.value;
    if (const GroupState* other = cuts_.state_of(wired.target_group))
      for (uint32_t k = 0; k < other->in_links.size(); ++k)
        if (wiring_->groups[target].in[k] == link &&
            other->in_links[k].incarnation == other->incarnation)
          received = std::max(received, other->in_links[k].last_sequence);
    if (state->out_links[i].last_settled_sequence > received) return true;
  }
  return false;
}

std::vector<bool> Search::find_absent() {
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    groups_[i].first = cuts_.first_step(GroupId(i));
    if (cuts_.state_of(GroupId(i)) != nullptr) look_at_cut(i);
    if (const auto began = trace_.started(GroupId(i))) ended_ = std::max(ended_, *began);
  }
  look_at_faults();
  for (uint32_t i = 0; i < groups_.size(); ++i) look_at_steps(GroupId(i));
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    const bool is_there = cuts_.state_of(GroupId(i)) != nullptr || trace_.started(GroupId(i));
    const bool is_from_start = trace_.first_step(GroupId(i)) <= groups_[i].first;
    if ((!is_there || !is_from_start) && may_be_absent(process_of(i)))
      is_gone_[process_of(i).index()] = true;
  }
  std::vector<bool> absent;
  for (uint32_t i = 0; i < groups_.size(); ++i) absent.push_back(is_absent(i));
  return absent;
}

RecordPrefix Search::run(std::shared_ptr<const Trace> whole) {
  const std::vector<bool> absent = find_absent();
  incarnation_ = incarnation_of(plan_, trace_, absent, cuts_);
  for (uint32_t i = 0; i < groups_.size(); ++i) scan(i, true);
  end_before_failed_requests();
  for (bool changes = true; changes;) {
    changes = false;
    for (uint32_t i = 0; i < groups_.size(); ++i)
      if (!is_absent(i) && settle(i)) changes = true;
  }

  RecordPrefix prefix;
  prefix.ended = ended_;
  prefix.incarnation = incarnation_;
  for (uint32_t i = 0; i < groups_.size(); ++i)
    prefix.first_steps.push_back(trace_.first_step(GroupId(i)));
  std::vector<uint64_t> last;
  size_t num_shortened = 0;
  const OfGroup* first = nullptr;  // the first group that stops by itself
  std::string consequence;
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    const OfGroup& of = groups_[i];
    prefix.is_absent.push_back(is_absent(i));
    const uint64_t recorded = std::max(trace_.last_step(GroupId(i)), of.first - 1);
    last.push_back(is_absent(i) ? recorded : of.last);
    if (is_absent(i) || of.last == recorded) continue;
    prefix.num_dropped += recorded - of.last;
    ++num_shortened;
    const bool is_cause = !of.cause.empty() && of.last == of.cause_last;
    if (is_cause && (first == nullptr || of.cause_at < first->cause_at)) first = &of;
    if (consequence.empty()) consequence = of.consequence;
  }
  for (uint32_t i = 0; i < plan_.processes.size(); ++i) {
    const auto& groups = plan_.processes[i].groups;
    if (groups.empty()) continue;
    if (is_gone_[i]) {
      prefix.absent.push_back({ProcessId(i), incarnations_[i]});
    } else if (std::any_of(groups.begin(), groups.end(),
                           [this](GroupId group) { return is_newer(group.value); })) {
      prefix.newer_cuts.push_back(ProcessId(i));
    }
  }
  if (prefix.num_dropped > 0)
    prefix.dropped =
        fmt::format("{} recorded steps of {} actor groups are not followed: {}", prefix.num_dropped,
                    num_shortened, first == nullptr ? consequence : first->cause);
  prefix.trace =
      prefix.num_dropped == 0 ? std::move(whole) : trace_up_to(std::move(whole), std::move(last));
  return prefix;
}

}  // namespace

std::vector<bool> absent_groups(const Plan& plan, const Trace& trace, const RunCuts& cuts) {
  return Search(plan, trace, cuts).find_absent();
}

RecordPrefix longest_prefix(const Plan& plan, std::shared_ptr<const Trace> trace,
                            const RunCuts& cuts) {
  return Search(plan, *trace, cuts).run(trace);
}

Result<RecordPrefix> prefix_to_follow(const Plan& plan, std::shared_ptr<const Trace> trace,
                                      const RunCuts& cuts) {
  if (const auto excerpt = trace->excerpt())
    return error(Code::kInvalid,
                 "its record is an excerpt (a fixture): steps 1 to {} of '{}' and nothing of the "
                 "other nodes; it can be replayed, not resumed",
                 excerpt->last_step, trace->catalog().groups[excerpt->group.index()].name);
  RETURN_IF_ERROR(check_fits(plan, trace->catalog()));
  for (const TraceFault& fault : trace->faults())
    if (fault.kind == TraceFault::Kind::kSnapshot)
      return error(Code::kInvalid, "its record is a snapshot: the run went on after `trace dump`");
  RecordPrefix prefix = longest_prefix(plan, std::move(trace), cuts);
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const GroupId group(i);
    if (prefix.is_absent[i]) continue;
    const bool has_part = cuts.state_of(group) != nullptr;
    if (!cuts.empty() && !has_part)
      return error(Code::kInvalid, "no state of '{}' was saved", plan.groups[i].name);
    if (!has_part && !prefix.trace->started(group))
      return error(Code::kInvalid, "'{}' had not started yet", plan.groups[i].name);
    if (prefix.first_steps[i] > cuts.first_step(group))
      return error(
          Code::kInvalid,
          "the record of '{}' begins with step {}: earlier steps were deleted (trace.bytes_max)",
          plan.groups[i].name, prefix.first_steps[i]);
  }
  return prefix;
}

}  // namespace primerl
