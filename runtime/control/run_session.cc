#include "runtime/control/run_session.h"
#include "runtime/control/stop_signals.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "graph/base/process.h"
#include "graph/base/real_clock.h"
#include "runtime/exec/executor.h"
#include "runtime/log/log.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/programs.h"
#include "runtime/program/signals.h"
#include "runtime/program/version.h"
#include "runtime/wire/timeouts.h"

namespace primerl {
namespace {

// A longer time between turns means that this process was stopped.
constexpr Duration kAwayMin = Duration::seconds(1);

}  // namespace

bool is_supervised(const Plan& plan) {
  for (const auto& resource : plan.resources)
    if (resource.kind == "engine") return false;
  return true;
}

double generated_tokens_per_second(const StepFacts& step) {
  const double seconds = step.get("time/step");
  return seconds > 0 ? step.get("progress/loss_tokens") / seconds : 0;
}

RunSession::RunSession(const Plan& plan, RunFolder& folder, const ResumeChoice& resume,
                       StatusLine& status, const PeerKeyFiles& peer_keys, StatusStore& board)
    : plan_(plan),
      folder_(folder),
      resume_(resume),
      points_(resume.points),
      terminal_(status),
      peer_keys_(peer_keys),
      board_(board),
      inbox_(std::make_shared<ControlInbox>()),
      commands_(folder.path(), {::getpid(), start_ticks(::getpid())}),
      pauses_(
          plan, [this](ProcessId to, Payload message) { tell(to, std::move(message)); },
          [this](const std::string& id, const Json& answer) {
            // The person's command gives up after a while, and reports it.
            (void)commands_.answer(id, answer);
          }),
      lifecycle_(!resume.follow.record.empty(), plan.settings.restarts_max > 0) {}

RunResult RunSession::run() {
  report_file_limits();
  wall_start_ = wall_seconds();
  if (const Status opened = open_files(); !opened.ok()) return failed(opened.error());
  if (const Status launched = launch_workers(); !launched.ok()) {
    kill_all();
    count_signals();
    return ended(lifecycle_.end_of_launch(launched.error()));
  }
  watch();
  return result();
}

Status RunSession::open_files() {
  const Json* first = folder_.facts().find("started_seconds");
  wall_zero_ = first != nullptr && first->is_number() ? first->as_double() : wall_start_;
  RETURN_IF_ERROR(note_start());
  board_.set_facts({run_id(), kProgramVersion, folder_.path().string()});
  RETURN_IF_ERROR(keep_leftover_steps());
  ASSIGN_OR_RETURN(metrics_,
                   MetricsLog::open(folder_, wall_zero_, plan_.tenants.size() > 1,
                                    is_supervised(plan_) ? "loss/mean" : "reward/all/mean"));
  return lifecycle_.is_following() ? metrics_->skip_written(resume_.last_steps) : ok();
}

void RunSession::watch() {
  lifecycle_.on_launched();
  last_turn_ = steady_now();
  while (!all_closed()) {
    // All waiting events are handled before the terminal is updated again.
    auto event = inbox_->take(kSessionTick);
    for (int i = 0; event && i < 4096; ++i) {
      handle(*event);
      event = inbox_->take(Duration());
    }
    for (auto& worker : workers_) take_steps(worker);
    apply_commands();
    apply_signals();
    watch_agents();
    watch_silence();
    if (coordination_.ok()) coordination_ = coordinator_->tick(steady_now());
    if (!coordination_.ok())
      act(lifecycle_.on_cannot_go_on(coordination_.error()), "the run cannot continue");
    restart_due();
    show_status();
  }
}

void RunSession::handle(const ControlEvent& event) {
  Worker& worker = workers_[event.peer.index()];
  worker.heard_at = steady_now();
  worker.has_spoken = true;
  take_steps(worker);  // reported steps come before this message
  if (event.is_closed()) {
    watch_agents();  // a channel that ends with its agent says nothing about the process
    worker.is_closed = true;
    worker.closed = event.closed;
    if (!worker.ended && !lifecycle_.is_stopping()) {
      const auto exit = worker.process->wait(kExitMax);
      was_killed_ = was_killed_ || (exit.ok() && exit->signal != 0);
    }
    if (!worker.ended && !plan_restart(event.peer) && is_needed(event.peer)) lose(event.peer);
    tell_watchers(event);
    return;
  }
  tell_watchers(event);
  if (coordination_.ok())
    coordination_ = coordinator_->handle(event.peer, event.message, steady_now());
  if (as_if<TenantFinished>(event.message) != nullptr) board_.set_aside(coordinator_->set_aside());
  if (const auto* held = as_if<HoldAnswered>(event.message)) pauses_.handle(event.peer, *held);
  if (const auto* beat = as_if<Heartbeat>(event.message)) {
    pauses_.heard(event.peer, beat->engine_uses, steady_now());
    if (beat->num_steps > 0) begin();
  }
  if (as_if<GroupsReady>(event.message) != nullptr) pauses_.process_back(event.peer, steady_now());
  if (const auto* line = as_if<LogLine>(event.message)) show_log(event.peer, *line);
  if (as_if<FirstToken>(event.message) != nullptr) {
    begin();
    note_first_token();
  }
  if (const auto* recovered = as_if<RunRecovered>(event.message)) note_recovered(*recovered);
  if (const auto* ended = as_if<RunEnded>(event.message)) {
    worker.ended = *ended;
    const auto end = static_cast<RunEnd>(ended->end);
    const auto has_sent = [](const auto& edge) { return edge.sent > 0; };
    if (end == RunEnd::kFinished || std::ranges::any_of(ended->edges, has_sent)) begin();
    if (end == RunEnd::kFailed || end == RunEnd::kStalled)
      act(lifecycle_.on_worker_failed(), "another worker failed");
  }
}

/// From its first step on, this run is `runs/latest`.
void RunSession::begin() {
  if (std::exchange(has_begun_, true)) return;
  if (const Status latest = folder_.become_latest(); !latest.ok())
    say("warning: " + latest.error().text());
}

void RunSession::say(const std::string& line) {
  terminal_.say(line);
  said_ += line + "\n";
}

void RunSession::show_log(ProcessId process, const LogLine& line) {
  merge_log(process, line);
  const auto level = static_cast<LogLevel>(line.level);
  if (level != LogLevel::kWarning && level != LogLevel::kError) return;
  const std::string text =
      fmt::format("{}: {}: {}", to_string(level), speaker(process, line.instance), line.text);
  if (warnings_.shows(text)) say(text);
}

void RunSession::take_steps(Worker& worker) {
  while (worker.steps && !lifecycle_.cannot_write()) {
    const auto lines = worker.steps->take();
    if (!lines.ok()) return fail_to_write(lines.error());
    if (lines->empty()) return;
    for (const StepLine& line : *lines) write_metrics(line);
  }
}

void RunSession::write_metrics(const StepLine& line) {
  begin();  // a step that is shown must be in runs/latest
  const auto tenant = std::find_if(plan_.tenants.begin(), plan_.tenants.end(),
                                   [&line](const Tenant& one) { return one.name == line.tenant; });
  if (tenant == plan_.tenants.end()) return;
  lifecycle_.on_step();
  shown_tenant_ = TenantSlot(static_cast<uint32_t>(tenant - plan_.tenants.begin()));
  const Status written =
      metrics_->write(line.tenant, line.step, line.wall_seconds - wall_zero_, line.values);
  board_.step_taken(shown_tenant_, *metrics_->newest(line.tenant), steady_now());
  if (!written.ok()) fail_to_write(written.error());
}

/// metrics.jsonl cannot be written: reported once, and the run stops.
void RunSession::fail_to_write(const Error& why) {
  const auto action = lifecycle_.on_cannot_write(why);
  if (action != RunLifecycle::Action::kNothing) say("error: " + why.text());
  act(action, "the run folder cannot be written");
}

void RunSession::note_first_token() {
  if (std::exchange(has_first_token_, true)) return;
  const auto age = program_age_seconds();
  // If the disk refuses this, it also refuses metrics.jsonl, where the error is reported.
  if (age) (void)folder_.note(Json::object().set("first_token_seconds", *age));
}

void RunSession::apply_signals() {
  while (num_signals_applied_ < SignalCounter::count()) {
    ++num_signals_applied_;
    terminal_.say(num_signals_applied_ == 1
                      ? "draining: what is in flight ends and a checkpoint is written "
                        "(Ctrl-C again stops now)"
                  : num_signals_applied_ == 2 ? "stopping now (Ctrl-C again kills)"
                                              : "killed");
    act(lifecycle_.on_signal(), "interrupted");
  }
}

/// Counts signals that arrived too late to react to.
void RunSession::count_signals() {
  for (; num_signals_applied_ < SignalCounter::count(); ++num_signals_applied_)
    (void)lifecycle_.on_signal();
}

void RunSession::watch_silence() {
  // While this process itself was stopped (SIGSTOP, or the machine slept), it read no messages.
  const Time turn = steady_now();
  const Duration away = turn - std::exchange(last_turn_, turn);
  if (away > kAwayMin)
    for (auto& worker : workers_) worker.heard_at = worker.heard_at + away;
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    // A restarted worker loads its libraries before its first message.
    const Duration limit =
        worker.has_spoken ? plan_.settings.dead_after : hello_max(plan_.settings.dead_after);
    if (worker.is_closed || steady_now() - worker.heard_at < limit) continue;
    worker.process->kill();
    worker.was_silent = true;
    worker.heard_at = steady_now();
  }
}

void RunSession::act(RunLifecycle::Action action, const std::string& reason) {
  using Action = RunLifecycle::Action;
  if (action == Action::kDrain &&
      !coordinator_->drain(reason, static_cast<uint8_t>(RunEnd::kInterrupted)))
    action = lifecycle_.on_nothing_to_drain();
  if (action != Action::kNothing) pauses_.end("the run ends");
  if (action == Action::kKillAll) kill_all();
  if (action != Action::kStop) return;
  for (auto& worker : workers_)
    if (!worker.is_closed) (void)worker.process->control().send(StopRun{reason});
}

/// A failed send is ignored: the worker's own channel shows its end.
void RunSession::tell(ProcessId to, Payload message) {
  Worker& worker = workers_[to.index()];
  if (!worker.is_closed) (void)worker.process->control().send(std::move(message));
}

void RunSession::kill_all() {
  for (auto& worker : workers_)
    if (worker.process != nullptr && !worker.is_closed) worker.process->kill();
}

void RunSession::show_status() {
  StatusFacts facts;
  const Tenant& tenant = plan_.tenants[shown_tenant_.index()];
  if (plan_.tenants.size() > 1) facts.tenant = tenant.name;
  facts.phase = lifecycle_.phase_text();
  facts.max_steps = tenant.max_steps;
  if (!points_.empty()) facts.step = points_[shown_tenant_.index()].step;
  if (const StepFacts* newest = metrics_->newest(tenant.name)) {
    facts.has_metrics = true;
    facts.step = newest->step;
    if (is_supervised(plan_)) {
      facts.score_name = "loss";
      facts.has_staleness = false;
    }
    facts.score = newest->get(facts.score_name == "loss" ? "loss/mean" : "reward/all/mean");
    facts.off_policy_mean = newest->get("off_policy/mean");
    facts.off_policy_max = newest->get("off_policy/max");
    facts.tokens_per_second = generated_tokens_per_second(*newest);
    facts.seconds_per_step = metrics_->seconds_per_step(tenant.name);
  }
  terminal_.update(steady_now(), facts);
  board_.set_phase(lifecycle_.phase_text());
}

bool RunSession::all_closed() const {
  for (const auto& worker : workers_)
    if (!worker.is_closed || (worker.restart_at && !lifecycle_.is_stopping())) return false;
  return true;
}

RunResult RunSession::ended(RunEnding ending) const {
  RunResult result;
  result.was_said = !ending.why.empty() &&
                    said_.find(ending.why.substr(0, ending.why.find('\n'))) != std::string::npos;
  result.ending = std::move(ending);
  result.seconds = wall_seconds() - wall_start_;
  return result;
}

RunResult RunSession::failed(const Error& why) const {
  return ended({RunEnding::How::kFailed, why.text()});
}

int RunResult::exit_code() const {
  switch (ending.how) {
    case RunEnding::How::kFinished:
      return kExitDone;
    case RunEnding::How::kInterrupted:
      return kExitInterrupted;
    case RunEnding::How::kFailed:
    case RunEnding::How::kStalled:
      return kExitFailed;
  }
  return kExitFailed;
}

std::string RunResult::end() const {
  switch (ending.how) {
    case RunEnding::How::kFinished:
      return "finished";
    case RunEnding::How::kInterrupted:
      return "interrupted";
    case RunEnding::How::kFailed:
      return "failed";
    case RunEnding::How::kStalled:
      return "stalled";
  }
  return "failed";
}

/// A drained run has lost nothing, so the counts of all its processes must balance. They are
/// unknown for a process that died before its last report.
Status RunSession::check_end() const {
  if (coordinator_ == nullptr || plan_.processes.size() < 2) return ok();
  if (coordinator_->phase() != RunCoordinator::Phase::kEnding || lifecycle_.is_stopping())
    return ok();
  if (std::ranges::any_of(workers_, [](const Worker& one) { return one.died_at_end; })) return ok();
  return check_ledger(plan_, coordinator_->total_edges());
}

RunResult RunSession::result() {
  for (const auto& line : warnings_.hidden())
    terminal_.say(fmt::format("note: {} (in {})", line, folder_.logs_folder().string()));
  std::string why = lifecycle_.fault();
  bool is_stalled = false;
  bool has_died =
      false;  // `why` describes a death; failures of other workers may be its cause or its effect
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.process == nullptr) continue;
    auto exit = worker.process->wait(kExitMax);
    if (!exit.ok()) worker.process->kill();
    take_steps(worker);
    if (!lifecycle_.cannot_write()) worker.steps->remove();
    const auto end = worker.ended ? static_cast<RunEnd>(worker.ended->end) : RunEnd::kFailed;
    if (worker.ended && (end == RunEnd::kFinished || end == RunEnd::kInterrupted)) continue;
    if (worker.died_at_end) continue;
    is_stalled = is_stalled || end == RunEnd::kStalled;
    if (lifecycle_.is_forced()) continue;
    if (worker.ended && (why.empty() || has_died)) {
      why += why.empty()
                 ? worker.ended->text
                 : fmt::format("\nprocess '{}': {}", plan_.processes[i].name, worker.ended->text);
      if (const auto table = stall_table(*worker.ended); !table.empty()) why += "\n" + table;
    } else if (why.empty()) {
      why = death_of(i);
      has_died = true;
    }
  }
  if (why.empty() && coordinator_ != nullptr && !coordinator_->set_aside().empty())
    why = why_set_aside(plan_, coordinator_->set_aside()).text();
  if (const Status balanced = check_end(); why.empty() && !balanced.ok())
    why = balanced.error().text();
  note_memory();
  count_signals();
  // A disk without space says nothing about the record, which is followed by the next start.
  const auto may_blame_record = [](const Worker& each) {
    if (!each.ended) return false;
    const auto code = static_cast<Code>(each.ended->code);
    return code != Code::kIo && code != Code::kExhausted;
  };
  return ended(
      lifecycle_.end(std::move(why), is_stalled, std::ranges::all_of(workers_, may_blame_record)));
}

}  // namespace primerl
