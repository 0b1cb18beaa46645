#include "runtime/control/run_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "graph/plan_memory.h"
#include "runtime/exec/executor.h"
#include "runtime/wire/timeouts.h"
#include "runtime/wire/wire_message.h"

namespace primerl {
namespace {

// A longer time between two looks means that this process was stopped.
constexpr Duration kAwayMin = Duration::seconds(1);

}  // namespace

RunMonitor::RunMonitor(const Plan& plan, const ResumeChoice& resume, const RunFolder& folder,
                       const RunStart& start, WorkerStarter& starter, StatusPublisher& publisher,
                       PauseController::Answer answer, Clock clock)
    : plan_(plan),
      resume_(resume),
      folder_(folder),
      answer_(std::move(answer)),
      starter_(starter),
      publisher_(publisher),
      clock_(std::move(clock)),
      workers_(plan.processes.size()),
      coordinator_(plan, WireTypes(plan.catalog->messages).hash(), start.incarnation,
                   [this](ProcessId to, Payload message) { send(to, std::move(message)); }),
      pauses_(
          plan, [this](ProcessId to, Payload message) { send(to, std::move(message)); }, answer_),
      lifecycle_(!resume.follow.record.empty(), plan.settings.restarts_max > 0) {
  coordinator_.tell_stalls_by([this] { return publisher_.store().stall_report().text(); });
  for (Worker& worker : workers_) worker.incarnation = start.incarnation;
  if (!resume.follow.record.empty()) coordinator_.continue_from(resume.follow.ended);
  for (const AbsentProcess& absent : resume.follow.absent) {
    // Messages of its earlier incarnations are in the record.
    uint32_t& incarnation = worker(absent.process).incarnation;
    incarnation = std::max(incarnation, absent.incarnation + 1);
    coordinator_.set_absent(absent.process, incarnation);
  }
  if (is_served(folder)) make_tenants();
}

Status RunMonitor::launch(const std::string& sockets) {
  sockets_ = sockets;
  if (tenants_ != nullptr) RETURN_IF_ERROR(tenants_->open());
  for (uint32_t i = 0; i < workers_.size(); ++i) RETURN_IF_ERROR(launch_worker(ProcessId(i)));
  return note_processes();
}

Status RunMonitor::launch_worker(ProcessId process) {
  Worker& worker = workers_[process.index()];
  ASSIGN_OR_RETURN(worker.process,
                   starter_.launch(process, worker.incarnation, lifecycle_.is_following()));
  publisher_.store().process_started(process, worker.incarnation, worker.process->pid());
  return ok();
}

Status RunMonitor::note_processes() {
  std::vector<StartedProcess> started;
  for (uint32_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].process != nullptr)
      started.push_back({ProcessId(i), workers_[i].incarnation, workers_[i].process->pid()});
  return publisher_.note_processes(started, sockets_);
}

Status RunMonitor::check_launch(const ControlEvent& event) {
  if (lifecycle_.has_lost_agent()) return *starter_.agent_fault();
  const Worker& from = workers_[event.peer.index()];
  if (from.ended && !from.ended->text.empty())
    return error(Code::kUnavailable, "process '{}': {}", plan_.process(event.peer).name,
                 from.ended->text);
  if (event.is_closed()) return error_of_early_death(event);
  return ok();
}

Status RunMonitor::check_agents() {
  watch_agents();
  if (lifecycle_.has_lost_agent()) return *starter_.agent_fault();
  return coordination_;
}

Status RunMonitor::check_deadline(Time give_up) const {
  if (clock_() <= give_up) return ok();
  return error(Code::kDeadline, "{} has not {} within {}", coordinator_.waits_for(),
               coordinator_.phase() == RunCoordinator::Phase::kGreeting ? "spoken" : "linked up",
               to_string(kHelloMax));
}

void RunMonitor::on_launched() {
  lifecycle_.on_launched();
  last_look_ = clock_();
  for (Worker& worker : workers_) worker.heard_at = last_look_;
}

void RunMonitor::handle(const ControlEvent& event) {
  Worker& from = worker(event.peer);
  from.heard_at = clock_();
  from.has_spoken = true;
  publish_steps(event.peer);  // reported steps come before this message
  if (event.is_closed()) {
    close(event);
  } else {
    handle_message(event);
  }
}

void RunMonitor::close(const ControlEvent& event) {
  watch_agents();  // a channel that ends with its agent says nothing about the process
  Worker& from = worker(event.peer);
  from.is_closed = true;
  from.closed = event.closed;
  if (tenants_ != nullptr) tenants_->process_died(event.peer);
  if (!from.ended && !lifecycle_.is_stopping()) {
    const auto exit = from.process->wait(kExitMax);
    was_killed_ = was_killed_ || (exit.ok() && exit->signal != 0);
  }
  if (!from.ended && !plan_restart(event.peer) && is_needed(event.peer)) lose(event.peer);
  publisher_.store().process_gone(event.peer, from.restart_at.has_value());
}

void RunMonitor::handle_message(const ControlEvent& event) {
  const Time now = clock_();
  StatusStore& store = publisher_.store();
  store.process_said(event.peer, event.message, now);
  if (tenants_ != nullptr) handle_of_tenants(event);
  if (coordination_.ok()) coordination_ = coordinator_.handle(event.peer, event.message, now);
  if (as_if<TenantFinished>(event.message) != nullptr) store.set_aside(coordinator_.set_aside());
  if (const auto* held = as_if<HoldAnswered>(event.message)) pauses_.handle(event.peer, *held);
  if (const auto* beat = as_if<Heartbeat>(event.message)) {
    pauses_.heard(event.peer, beat->engine_uses, now);
    if (beat->num_steps > 0) publisher_.begin();
  }
  if (as_if<GroupsReady>(event.message) != nullptr) pauses_.process_back(event.peer, now);
  if (const auto* line = as_if<LogLine>(event.message)) publisher_.show_log(event.peer, *line);
  if (as_if<FirstToken>(event.message) != nullptr) {
    publisher_.begin();
    publisher_.note_first_token();
  }
  if (const auto* recovered = as_if<RunRecovered>(event.message)) count_recovered(*recovered);
  if (const auto* ended = as_if<RunEnded>(event.message)) {
    worker(event.peer).ended = *ended;
    const auto end = static_cast<RunEnd>(ended->end);
    const auto has_sent = [](const auto& edge) { return edge.sent > 0; };
    if (end == RunEnd::kFinished || std::ranges::any_of(ended->edges, has_sent)) publisher_.begin();
    if (end == RunEnd::kFailed || end == RunEnd::kStalled)
      act(lifecycle_.on_worker_failed(), "another worker failed");
  }
  open_tenants();
}

void RunMonitor::publish_steps() {
  for (uint32_t i = 0; i < workers_.size(); ++i) publish_steps(ProcessId(i));
}

void RunMonitor::publish_steps(ProcessId process) {
  if (lifecycle_.cannot_write()) return;
  const auto published = publisher_.publish_steps(process, clock_());
  if (published.num_steps > 0) lifecycle_.on_step();
  if (!published.fault.ok()) cannot_write(published.fault.error());
}

void RunMonitor::cannot_write(const Error& why) {
  const auto action = lifecycle_.on_cannot_write(why);
  if (action != RunLifecycle::Action::kNothing) publisher_.say("error: " + why.text());
  act(action, "the run folder cannot be written");
}

void RunMonitor::tick() {
  watch_agents();
  watch_silence();
  if (coordination_.ok()) coordination_ = coordinator_.tick(clock_());
  if (!coordination_.ok())
    act(lifecycle_.on_cannot_go_on(coordination_.error()), "the run cannot continue");
  restart_due();
}

void RunMonitor::apply_signals(int num_signals) {
  while (num_signals_applied_ < num_signals) {
    ++num_signals_applied_;
    publisher_.note(num_signals_applied_ == 1
                        ? "draining: what is in flight ends and a checkpoint is written "
                          "(Ctrl-C again stops now)"
                    : num_signals_applied_ == 2 ? "stopping now (Ctrl-C again kills)"
                                                : "killed");
    act(lifecycle_.on_signal(), "interrupted");
  }
}

/// Counts signals that arrived too late to react to.
void RunMonitor::count_signals(int num_signals) {
  for (; num_signals_applied_ < num_signals; ++num_signals_applied_) (void)lifecycle_.on_signal();
}

void RunMonitor::act(RunLifecycle::Action action, const std::string& reason) {
  using Action = RunLifecycle::Action;
  if (action == Action::kDrain &&
      !coordinator_.drain(reason, static_cast<uint8_t>(RunEnd::kInterrupted)))
    action = lifecycle_.on_nothing_to_drain();
  if (action != Action::kNothing) pauses_.end("the run ends");
  if (action == Action::kKillAll) kill_all();
  if (action != Action::kStop) return;
  for (uint32_t i = 0; i < workers_.size(); ++i) send(ProcessId(i), Payload::of(StopRun{reason}));
}

/// A failed send is ignored: the worker's own channel shows its end.
void RunMonitor::send(ProcessId to, Payload message) {
  Worker& target = worker(to);
  if (!target.is_closed) (void)target.process->control().send(std::move(message));
}

void RunMonitor::kill_all() {
  for (Worker& worker : workers_)
    if (worker.process != nullptr && !worker.is_closed) worker.process->kill();
}

bool RunMonitor::all_closed() const {
  for (const Worker& worker : workers_)
    if (!worker.is_closed || (worker.restart_at && !lifecycle_.is_stopping())) return false;
  return true;
}

/// When an agent is lost, its processes count as lost. Only the agent can say whether they are
/// dead, when the run is resumed. An agent that was asked to stop asks the run to drain.
void RunMonitor::watch_agents() {
  if (const auto why = starter_.agent_leaving()) {
    const auto action = lifecycle_.on_agent_leaving();
    if (action != RunLifecycle::Action::kNothing)
      publisher_.say(fmt::format("warning: {}; the run drains", *why));
    act(action, *why);
  }
  if (const auto fault = starter_.agent_fault())
    act(lifecycle_.on_agent_lost(*fault, coordinator_.is_up()), "an agent is lost");
}

void RunMonitor::watch_silence() {
  // While this process itself was stopped (SIGSTOP, or the machine slept), it read no messages.
  const Time now = clock_();
  const Duration away = now - std::exchange(last_look_, now);
  if (away > kAwayMin)
    for (Worker& worker : workers_) worker.heard_at = worker.heard_at + away;
  for (Worker& worker : workers_) {
    // A restarted worker loads its libraries before its first message.
    const Duration limit =
        worker.has_spoken ? plan_.settings.dead_after : hello_max(plan_.settings.dead_after);
    if (worker.is_closed || now - worker.heard_at < limit) continue;
    worker.process->kill();
    worker.was_silent = true;
    worker.heard_at = now;
  }
}

void RunMonitor::count_recovered(const RunRecovered& recovered) {
  recovered_.num_steps += recovered.num_steps;
  recovered_.num_messages += recovered.num_messages;
  if (++num_recovered_ < workers_.size() - resume_.follow.absent.size()) return;
  lifecycle_.on_followed();
  publisher_.note_recovered(recovered_);
}

/// A process that keeps state of the run is not restarted alone: all processes resume from their
/// records. A draining run does not restart processes either, because messages in flight may need
/// an answer from the dead process.
bool RunMonitor::can_restart(ProcessId process) const {
  if (plan_.processes.size() < 2 || lifecycle_.is_stopping() || lifecycle_.is_following())
    return false;
  const auto phase = coordinator_.phase();
  if (phase != RunCoordinator::Phase::kRunning && phase != RunCoordinator::Phase::kDraining)
    return false;
  return plan_.is_restartable(process);
}

/// False when the run ends instead.
bool RunMonitor::plan_restart(ProcessId process) {
  Worker& dead = worker(process);
  if (!can_restart(process)) return false;
  const auto exit = dead.process->wait(kExitMax);
  if (!exit.ok() && !plan_.process(process).machine.empty()) {
    // The process may be alive until the agent confirms its death.
    lifecycle_.note_fault(exit.error().text());
    return false;
  }
  if (exit.ok() && exit->needs_more_memory()) return false;
  const std::string how = dead.was_silent ? fmt::format("sent nothing for {} and was killed",
                                                        to_string(plan_.settings.dead_after))
                          : exit.ok()     ? exit->text()
                                          : "closed its control channel";
  const GraphSettings& settings = plan_.settings;
  if (!dead.restarts) dead.restarts.emplace(settings.restarts_max, settings.restart_window);
  dead.restarts->forget_old(clock_());
  const std::string& name = plan_.process(process).name;
  const auto pause = dead.restarts->take(clock_());
  if (!pause) {
    if (settings.restarts_max > 0)
      lifecycle_.note_fault(fmt::format("process '{}' {}, after {} restarts within {}", name, how,
                                        dead.restarts->num_taken(),
                                        to_string(settings.restart_window)));
    return false;
  }
  dead.restart_at = clock_() + *pause;
  dead.incarnation = coordinator_.process_died(process);
  publisher_.say(fmt::format("warning: process '{}' {}; it is restarted as incarnation {}", name,
                             how, dead.incarnation));
  return true;
}

void RunMonitor::restart_due() {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    Worker& due = workers_[i];
    if (!due.restart_at || clock_() < *due.restart_at) continue;
    due.restart_at.reset();
    if (lifecycle_.is_stopping()) continue;
    due.process.reset();
    if (const Status launched = launch_worker(ProcessId(i)); !launched.ok()) {
      act(lifecycle_.on_cannot_go_on(launched.error()), "the run cannot continue");
      continue;
    }
    // If the disk refuses this, it also refuses metrics.jsonl, where the error is reported.
    (void)note_processes();
    due.is_closed = false;
    due.closed = ok();
    due.has_spoken = due.was_silent = false;
    due.heard_at = clock_();
  }
}

/// After the last count, a process that keeps no state of the run has nothing more to do or report.
/// Its death then does not change the end of the run.
bool RunMonitor::is_needed(ProcessId process) {
  if (coordinator_.phase() != RunCoordinator::Phase::kEnding || lifecycle_.is_stopping() ||
      !plan_.is_restartable(process))
    return true;
  worker(process).died_at_end = true;
  publisher_.say(fmt::format("warning: process '{}' died when the run had ended",
                             plan_.process(process).name));
  return false;
}

/// The other processes cannot continue without this one. Their work is in their records. If the run
/// may be resumed they are killed at once; otherwise they stop as at any other end.
void RunMonitor::lose(ProcessId process) {
  if (lifecycle_.is_stopping()) return;
  // Before the run has started, a worker that exits by itself would exit again. One that was killed
  // for lack of memory would be killed again.
  const auto exit = worker(process).process->wait(kExitMax);
  const bool lacks_memory = exit.ok() && exit->needs_more_memory();
  const bool was_up = !lacks_memory && (coordinator_.is_up() || (exit.ok() && exit->signal != 0));
  act(lifecycle_.on_worker_lost(death_of(process), was_up), "a worker has died");
}

/// The error of a worker that ended before the run began: how it ended, and its last log lines.
Error RunMonitor::error_of_early_death(const ControlEvent& event) {
  Worker& dead = worker(event.peer);
  const auto exit = dead.process->wait(Duration::seconds(2));
  std::string how = exit.ok() ? exit->text() : "closed its control channel";
  // A worker that exits by itself would exit again, and so would one that lacks memory.
  lifecycle_.on_worker_died_early(exit.ok() && exit->signal != 0 && !exit->needs_more_memory());
  if (!event.closed.ok()) how += fmt::format(" ({})", event.closed.error().message());
  auto fault = error(Code::kUnavailable, "process '{}' {} before it was ready",
                     plan_.process(event.peer).name, how);
  if (exit.ok() && exit->needs_more_memory())
    return Error(fault.code(), fault.message() + memory_advice(event.peer));
  const auto words = dead.process->last_words();
  return words.empty() ? std::move(fault) : std::move(fault).note("its last words:\n" + words);
}

/// Advice for a person after a process was killed for lack of memory.
std::string RunMonitor::memory_advice(ProcessId process) const {
  return fmt::format(
      "\nnote: the plan counts {} for it; `primerl-graph show '{}' --plan` lists the parts\nnote: "
      "it "
      "is not started again, since it would need as much again. Give it more memory, or lower "
      "micro_batch_tokens, kv_blocks, max_batched_tokens or batch_size with --set; then "
      "`primerl-graph run --resume '{}'` continues the run",
      memory_text(memory_of(plan_, plan_.process(process)).bytes()),
      (folder_.path() / "graph.resolved.toml").string(), folder_.path().string());
}

/// Describes how a process ended without RunEnded, with the end of its log.
std::string RunMonitor::death_of(ProcessId process) {
  Worker& dead = worker(process);
  const std::string& name = plan_.process(process).name;
  const auto exit = dead.process->wait(kExitMax);
  if (!exit.ok()) dead.process->kill();
  std::string death = dead.was_silent
                          ? fmt::format("process '{}' sent nothing for {} and was killed", name,
                                        to_string(plan_.settings.dead_after))
                          : fmt::format("process '{}' {}", name,
                                        exit.ok() ? exit->text() : "did not end and was killed");
  if (exit.ok() && exit->needs_more_memory()) return death + memory_advice(process);
  if (!dead.closed.ok()) death += ": " + dead.closed.error().text();
  const std::string words = dead.process->last_words();
  return words.empty() ? death : death + "\nits last words:\n" + words;
}

RunEnding RunMonitor::end_of_launch(const Error& why, int num_signals) {
  count_signals(num_signals);
  return lifecycle_.end_of_launch(why);
}

RunEnding RunMonitor::end(int num_signals) {
  bool is_stalled = false;
  std::string why = reports_of_workers(is_stalled);
  if (why.empty() && !coordinator_.set_aside().empty())
    why = why_set_aside(plan_, coordinator_.set_aside()).text();
  if (const Status balanced = check_end(); why.empty() && !balanced.ok())
    why = balanced.error().text();
  note_memory();
  count_signals(num_signals);
  // A disk without space says nothing about the record, which is followed by the next start.
  const auto may_blame_record = [](const Worker& each) {
    if (!each.ended) return false;
    const auto code = static_cast<Code>(each.ended->code);
    return code != Code::kIo && code != Code::kExhausted;
  };
  return lifecycle_.end(std::move(why), is_stalled,
                        std::ranges::all_of(workers_, may_blame_record));
}

/// Waits for every process. Returns the first fault of the run, and what other workers reported
/// about it; "" after an orderly end.
std::string RunMonitor::reports_of_workers(bool& is_stalled) {
  std::string why = lifecycle_.fault();
  // `why` describes a death; failures of other workers may be its cause or its effect.
  bool has_died = false;
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    const ProcessId process(i);
    Worker& worker = workers_[i];
    if (worker.process == nullptr) continue;
    auto exit = worker.process->wait(kExitMax);
    if (!exit.ok()) worker.process->kill();
    publish_steps(process);
    if (!lifecycle_.cannot_write()) publisher_.remove_steps(process);
    const auto end = worker.ended ? static_cast<RunEnd>(worker.ended->end) : RunEnd::kFailed;
    if (worker.ended && (end == RunEnd::kFinished || end == RunEnd::kInterrupted)) continue;
    if (worker.died_at_end) continue;
    is_stalled = is_stalled || end == RunEnd::kStalled;
    if (lifecycle_.is_forced()) continue;
    if (worker.ended && (why.empty() || has_died)) {
      why += why.empty() ? worker.ended->text
                         : fmt::format("\nprocess '{}': {}", plan_.process(process).name,
                                       worker.ended->text);
      if (const auto table = publisher_.stall_table(*worker.ended); !table.empty())
        why += "\n" + table;
    } else if (why.empty()) {
      why = death_of(process);
      has_died = true;
    }
  }
  return why;
}

/// A drained run has lost nothing, so the counts of all its processes must balance. They are
/// unknown for a process that died before its last report.
Status RunMonitor::check_end() const {
  if (plan_.processes.size() < 2) return ok();
  if (coordinator_.phase() != RunCoordinator::Phase::kEnding || lifecycle_.is_stopping())
    return ok();
  if (std::ranges::any_of(workers_, [](const Worker& one) { return one.died_at_end; })) return ok();
  return check_ledger(plan_, coordinator_.total_edges());
}

void RunMonitor::note_memory() {
  if (lifecycle_.cannot_write()) return;
  std::vector<std::optional<ProcessExit>> exits;
  for (const Worker& worker : workers_)
    exits.push_back(worker.process == nullptr ? std::nullopt : worker.process->poll());
  publisher_.note_memory(exits);
}

}  // namespace primerl
