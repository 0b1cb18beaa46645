// The part of a CafExecutor for runs of several processes: outgoing and incoming batches, and the
// state that other processes request.
#include <algorithm>

#include "runtime/exec/caf_core.h"
#include "runtime/exec/stall.h"

namespace primerl {

void CafExecutor::Core::send_to_process(MessageBatch&& batch) {
  const ProcessId to = setup_.plan->group(batch.to).process;
  const GroupId from = batch.from;
  const std::shared_lock lock(connections_mutex_);
  const uint32_t live = live_incarnations_[to.index()];
  // The target process is dead or not known yet, so the batch is dropped. The sender gets the
  // messages back when it is notified of the death.
  if (live == 0 || known_incarnation(from, to).load(std::memory_order_relaxed) != live) {
    batch.messages.clear();
    batch.grants.clear();
    return;
  }
  if (const Status sent = setup_.others->send(to, std::move(batch)); !sent.ok())
    group_failed(from, Error(sent.error())
                           .while_doing(fmt::format("sending to process '{}'",
                                                    setup_.plan->process(to).name)));
}

Status CafExecutor::Core::arrive(ProcessId from, MessageBatch&& batch) {
  Status filtered = arrival_check_.filter(from, batch);
  if (!batch.empty()) cells_[batch.to.index()]->push(std::move(batch));
  return filtered;
}

/// If the sender is in this process, it is a bug and the run ends. If it is in another process, the
/// batch is skipped and reported.
void CafExecutor::Core::batch_refused(GroupId group, GroupId from, const Error& why) {
  const ProcessId process = setup_.plan->group(from).process;
  if (process == setup_.process) return group_failed(group, why);
  setup_.others->refused(process, why);
}

void CafExecutor::Core::peer_changed(GroupId group, const PeerChange& change) {
  known_incarnation(group, setup_.plan->group(change.peer).process) =
      change.is_up ? change.incarnation : 0;
}

void CafExecutor::Core::notify_peers(ProcessId process, bool is_up, uint32_t incarnation) {
  for (auto* cell : here_) {
    const auto& peers = wiring_->groups[cell->group().id().index()].peers;
    for (const GroupId peer : peers)
      if (setup_.plan->group(peer).process == process)
        cell->push(PeerChange{peer, is_up, incarnation});
  }
}

void CafExecutor::Core::peer_down(ProcessId process, uint32_t incarnation) {
  {
    const std::unique_lock lock(connections_mutex_);
    live_incarnations_[process.index()] = 0;
  }
  notify_peers(process, false, incarnation);
}

Status CafExecutor::Core::peer_up(ProcessId process, uint32_t incarnation,
                                  const std::function<Status()>& join) {
  // Groups are notified at once, but their sends wait for this lock until the connection is up.
  const std::unique_lock lock(connections_mutex_);
  notify_peers(process, true, incarnation);
  RETURN_IF_ERROR(join());
  live_incarnations_[process.index()] = incarnation;
  return ok();
}

void CafExecutor::Core::finish(RunEnd end) { this->end(end, ok()); }

/// A stall can only be decided over all processes; this one reports its own state.
void CafExecutor::Core::note_idle_since(bool is_waiting) {
  is_waiting_ = is_waiting;
  has_alarm_ = timers_->has_alarm();
  idle_since_ns_ = last_change_.to_nanoseconds();
}

void CafExecutor::Core::add_idle_time(RunStatus& status) const {
  const int64_t since = idle_since_ns_;
  if (since != 0) status.idle_for = clock_.now() - Time::from_nanoseconds(since);
  status.is_waiting = is_waiting_;
  status.has_alarm = has_alarm_;
  status.is_idle = true;
  for (auto* cell : here_)
    status.is_idle = status.is_idle && cell->is_draining() && cell->group().counts().is_idle;
}

ProcessLoad CafExecutor::Core::load() const {
  const Time now = clock_.now();
  ProcessLoad load;
  load.edges.resize(setup_.plan->edges.size());
  for (auto* cell : here_) cell->group().add_load(load.edges, load.instances, now);
  for (const GroupView& view : views()) {
    GroupReport& report = load.groups.emplace_back(to_report(view, now));
    const Time activity = std::max(handler_watch_.last_activity(view.group), view.running_since);
    if (view.is_running) report.silent_ns = std::max<int64_t>((now - activity).to_nanoseconds(), 0);
    report.num_alarms = handler_watch_.num_alarms(view.group);
  }
  return load;
}

StallReport CafExecutor::Core::stall_report() const {
  return make_stall_report(*setup_.plan, *wiring_, views(), clock_.now());
}

}  // namespace primerl
