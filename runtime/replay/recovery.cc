#include "runtime/replay/recovery.h"

#include <algorithm>

#include "runtime/replay/replay_cursor.h"
#include "runtime/trace/read/stored_message.h"

namespace primerl {
namespace {

/// Looks at every step once.
struct Survey {
  explicit Survey(const Plan& plan)
      : epochs(plan.processes.size(), 0),
        has_changed(plan.processes.size(), false),
        is_absent(plan.hosts.size(), false) {}
  Time ended;
  HostId drained;                 // none: no host that follows had begun to drain
  std::vector<uint32_t> epochs;   // newest incarnation of each process that others heard of
  std::vector<bool> has_changed;  // by process: others were told that it died, or was back
  std::vector<bool> is_absent;    // by host: its process follows nothing
};

bool is_whole(const Trace& trace, HostId host) {
  return trace.started(host) && trace.first_step(host) <= 1;
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
  uint32_t& epoch = found.epochs[plan.process_of(speaker).index()];
  epoch = std::max(epoch, step.epoch);
}

/// Of a record that fits the plan.
Survey survey(const Plan& plan, const Trace& trace) {
  Survey found(plan);
  std::vector<HostId> draining;
  for (uint32_t i = 0; i < plan.hosts.size(); ++i) {
    const HostId host(i);
    if (const auto began = trace.started(host)) found.ended = std::max(found.ended, *began);
    for (uint64_t number = trace.first_step(host); number <= trace.last_step(host); ++number) {
      const auto step = trace.step(host, number);
      if (!step) continue;
      look_at(plan, trace, *step, found);
      if (step->kind == StepKind::kDrain) draining.push_back(host);
    }
  }
  std::vector<bool> is_gone = found.has_changed;
  for (const TraceFault& fault : trace.faults())
    if (!fault.host.is_none() && fault.kind != TraceFault::Kind::kCutTail)
      is_gone[plan.host(fault.host).process.index()] = true;
  for (uint32_t i = 0; i < plan.hosts.size(); ++i)
    if (!is_whole(trace, HostId(i))) is_gone[plan.hosts[i].process.index()] = true;
  const bool is_split = plan.processes.size() > 1;
  for (uint32_t i = 0; i < plan.hosts.size(); ++i) {
    const ProcessId process = plan.hosts[i].process;
    found.is_absent[i] = is_split && is_gone[process.index()] && plan.is_restartable(process);
  }
  for (const HostId host : draining)
    if (!found.is_absent[host.index()] && found.drained.is_none()) found.drained = host;
  return found;
}

}  // namespace

Status Recovery::check(const Plan& plan, const Trace& trace) {
  if (const auto excerpt = trace.excerpt())
    return error(Code::kInvalid,
                 "its record is an excerpt (a fixture): steps 1 to {} of '{}' and nothing of the "
                 "other nodes; it can be replayed, not taken up",
                 excerpt->last_step, trace.catalog().hosts[excerpt->host.index()].name);
  RETURN_IF_ERROR(check_fits(plan, trace.catalog()));
  if (trace.is_closed()) return error(Code::kInvalid, "its record has an end: nothing was cut off");
  const Survey found = survey(plan, trace);
  for (const TraceFault& fault : trace.faults()) {
    if (fault.kind == TraceFault::Kind::kSnapshot)
      return error(Code::kInvalid, "its record is a snapshot: the run went on after `trace dump`");
    if (!fault.host.is_none() && found.is_absent[fault.host.index()]) continue;
    if (fault.kind == TraceFault::Kind::kReplaced)
      return error(Code::kInvalid, "a process had died in it and come back: {}", fault.text);
    if (fault.kind == TraceFault::Kind::kCutTail || !fault.is_fault()) continue;
    return error(Code::kInvalid, "its record is not whole: {}", fault.text);
  }
  for (uint32_t i = 0; i < plan.hosts.size(); ++i) {
    const HostId host(i);
    if (found.is_absent[i]) continue;
    if (!trace.started(host))
      return error(Code::kInvalid, "'{}' had not started yet", plan.hosts[i].name);
    if (trace.first_step(host) > 1)
      return error(Code::kInvalid,
                   "the record of '{}' begins with step {}: what came before was retired "
                   "(trace.bytes_max)",
                   plan.hosts[i].name, trace.first_step(host));
    if (found.has_changed[plan.hosts[i].process.index()])
      return error(Code::kInvalid,
                   "process '{}' had died in it and come back: what one incarnation after the "
                   "other did is read, not followed",
                   plan.process(plan.hosts[i].process).name);
  }
  if (!found.drained.is_none())
    return error(Code::kInvalid, "'{}' had begun to drain when the run was cut off",
                 plan.host(found.drained).name);
  return ok();
}

namespace {

std::vector<AbsentProcess> absent_of(const Plan& plan, const Survey& found) {
  std::vector<AbsentProcess> absent;
  for (uint32_t i = 0; i < plan.processes.size(); ++i)
    if (const auto& hosts = plan.processes[i].hosts;
        !hosts.empty() && found.is_absent[hosts.front().index()])
      absent.push_back({ProcessId(i), found.epochs[i]});
  return absent;
}

}  // namespace

std::vector<bool> absent_hosts(const Plan& plan, const Trace& trace) {
  return survey(plan, trace).is_absent;
}

std::vector<AbsentProcess> Recovery::absent_processes(const Plan& plan, const Trace& trace) {
  return absent_of(plan, survey(plan, trace));
}

Result<std::unique_ptr<Recovery>> Recovery::make(std::shared_ptr<const Plan> plan,
                                                 std::shared_ptr<const Trace> trace,
                                                 DeliveryObserver* recorder, ProcessId process) {
  RETURN_IF_ERROR(check_fits(*plan, trace->catalog()));
  return std::unique_ptr<Recovery>(
      new Recovery(std::move(plan), std::move(trace), recorder, process));
}

Recovery::Recovery(std::shared_ptr<const Plan> plan, std::shared_ptr<const Trace> trace,
                   DeliveryObserver* recorder, ProcessId process)
    : plan_(std::move(plan)),
      trace_(std::move(trace)),
      wiring_(make_wiring(*plan_)),
      recorder_(recorder),
      process_(process) {
  const Survey found = survey(*plan_, *trace_);
  ended_ = found.ended;
  epoch_ = recorded_epoch(*trace_, found.is_absent);
  for (const auto& absent : absent_of(*plan_, found)) absent_.push_back(absent.process);
  // Hosts of one process send each other all that they sent before.
  if (!process_.is_none() && plan_->processes.size() > 1)
    inputs_ = std::make_unique<const RecordedInputs>(*plan_, *wiring_, *trace_, epoch_,
                                                     found.is_absent, true);
  for (uint32_t i = 0; i < plan_->hosts.size(); ++i)
    cursors_.push_back(is_here(HostId(i))
                           ? std::make_unique<ReplayCursor>(*plan_, *wiring_, *trace_, HostId(i),
                                                            UINT64_MAX, nullptr, inputs_.get())
                           : nullptr);
}

Recovery::~Recovery() = default;

bool Recovery::is_here(HostId host) const {
  return process_.is_none() || plan_->host(host).process == process_;
}

StepGuide& Recovery::guide(HostId host) { return *cursors_[host.index()]; }

Time Recovery::started(HostId host) const { return trace_->started(host).value_or(Time()); }

void Recovery::go_live() { is_live_.store(true, std::memory_order_release); }

Error Recovery::text_of(const Divergence& divergence) const {
  Error fault = error(Code::kCorrupt, "the recorded run cannot be followed: {}:{}: {}: {}",
                      plan_->host(divergence.host).name, divergence.step,
                      to_string(divergence.kind), divergence.what);
  for (const auto& detail : divergence.details) fault = Error(std::move(fault)).note(detail);
  return fault;
}

std::optional<Error> Recovery::fault(HostId host) const {
  const auto& divergence = cursors_[host.index()]->divergence();
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
               plan_->host(step.host).name, step.step, step.sequence, plan_->edge(link.edge).name,
               plan_->instance(link.sender).name);
}

void Recovery::on_start(HostId host, Time now) {
  if (recorder_ != nullptr) recorder_->on_start(host, now);
}

void Recovery::on_step(const StepRecord& record) {
  ReplayCursor& cursor = *cursors_[record.host.index()];
  if (cursor.next() != nullptr || cursor.divergence()) cursor.on_step(record);
  if (recorder_ != nullptr) recorder_->on_step(record);
}

bool Recovery::wants_emissions(LinkId link) const {
  return !is_live() || (recorder_ != nullptr && recorder_->wants_emissions(link));
}

const std::vector<std::byte>* Recovery::take(HostId host) {
  return is_live() ? nullptr : cursors_[host.index()]->take_answer();
}

void Recovery::diverged(HostId host, std::string what) {
  cursors_[host.index()]->diverged(std::move(what));
}

uint64_t Recovery::num_steps() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < plan_->hosts.size(); ++i)
    if (is_here(HostId(i))) sum += trace_->last_step(HostId(i));
  return sum;
}

uint64_t Recovery::num_messages_compared() const {
  uint64_t sum = 0;
  for (const auto& cursor : cursors_)
    if (cursor != nullptr) sum += cursor->num_compared();
  return sum;
}

}  // namespace primerl
