#include "runtime/control/run_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "graph/base/real_clock.h"
#include "runtime/exec/executor.h"
#include "runtime/log/log.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/programs.h"
#include "runtime/program/version.h"

namespace primerl {
namespace {

constexpr Duration kTick = Duration::milliseconds(100);
constexpr Duration kExitMax = Duration::seconds(10);  // from the last word to the exit
constexpr Duration kAwayMin = Duration::seconds(1);   // between two turns: more is standing still
constexpr uint32_t kLinesShownMax = 50;               // log lines on the terminal
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t num_signals = 0;

volatile std::sig_atomic_t first_signal = 0;

void count_signal(int number) {
  if (num_signals == 0) first_signal = number;
  num_signals = num_signals + 1;
}

}  // namespace

SignalCounter::SignalCounter() {
  num_signals = 0;
  struct sigaction action {};
  action.sa_handler = count_signal;
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
}

SignalCounter::~SignalCounter() {
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

int SignalCounter::count() { return num_signals; }
int SignalCounter::first() { return num_signals == 0 ? 0 : first_signal; }

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
                       StatusLine& status, const LinkKeyFiles& link_keys, RunBoard& board)
    : plan_(plan),
      folder_(folder),
      resume_(resume),
      points_(resume.points),
      terminal_(status),
      link_keys_(link_keys),
      board_(board),
      inbox_(std::make_shared<ControlInbox>()),
      is_recovering_(!resume.record.empty()) {}

RunResult RunSession::run() {
  std::signal(SIGXFSZ, SIG_IGN);  // a file limit is then an error of write(), as a full disk is
  wall_start_ = wall_seconds();
  if (const Status opened = open_files(); !opened.ok()) return failed(opened.error().text());
  if (const Status launched = launch_workers(); !launched.ok()) {
    kill_all();
    if (SignalCounter::count() > 0 || is_told_to_leave_)
      return {kExitInterrupted, "interrupted", "", false, wall_seconds() - wall_start_};
    RunResult result = failed(launched.error().text());
    result.has_lost_worker = has_lost_worker_;
    result.was_recovering = is_recovering_ && coordinator_->is_up();
    return result;
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
  return is_recovering_ ? metrics_->skip_written(folder_.metrics_file()) : ok();
}

void RunSession::watch() {
  phase_ = is_recovering_ ? "following the record" : "starting";
  last_turn_ = steady_now();
  while (!all_closed()) {
    // A burst is handled whole before the terminal is touched again.
    auto event = inbox_->take(kTick);
    for (int i = 0; event && i < 4096; ++i) {
      handle(*event);
      event = inbox_->take(Duration());
    }
    for (auto& worker : workers_) take_steps(worker);
    obey_signals();
    watch_agents();
    watch_silence();
    if (coordination_.ok()) coordination_ = coordinator_->tick(steady_now());
    if (!coordination_.ok()) give_up(coordination_.error());
    restart_due();
    show_status();
  }
}

/// Nobody gets on, or a worker does not belong here: said once, and the end.
void RunSession::give_up(const Error& why) {
  if (fault_.empty()) fault_ = why.text();
  is_stalled_ = is_stalled_ || why.code() == Code::kDeadline;
  has_left_record_ = has_left_record_ || (is_recovering_ && is_stalled_);
  stop("the run cannot go on");
}

void RunSession::handle(const ControlEvent& event) {
  Worker& worker = workers_[event.peer.index()];
  worker.heard_at = steady_now();
  worker.has_spoken = true;
  take_steps(worker);  // what it reported comes before what it says now
  if (event.is_closed()) {
    watch_agents();  // a channel that ends with its agent says nothing about the process
    worker.is_closed = true;
    worker.closed = event.closed;
    if (!worker.ended && !plan_restart(event.peer)) lose(event.peer);
    tell_watchers(event);
    return;
  }
  tell_watchers(event);
  if (coordination_.ok())
    coordination_ = coordinator_->handle(event.peer, event.message, steady_now());
  if (const auto* line = as_if<LogLine>(event.message)) show_log(event.peer, *line);
  if (as_if<FirstToken>(event.message) != nullptr) note_first_token();
  if (const auto* recovered = as_if<RunRecovered>(event.message)) note_recovered(*recovered);
  if (const auto* ended = as_if<RunEnded>(event.message)) {
    worker.ended = *ended;
    const auto end = static_cast<RunEnd>(ended->end);
    if (end == RunEnd::kFailed || end == RunEnd::kStalled) stop("another worker failed");
  }
}

void RunSession::say(const std::string& line) {
  terminal_.say(line);
  said_ += line + "\n";
}

void RunSession::show_log(ProcessId process, const LogLine& line) {
  merge_log(process, line);
  const auto level = static_cast<LogLevel>(line.level);
  if (level != LogLevel::kWarning && level != LogLevel::kError) return;
  if (num_lines_shown_ >= kLinesShownMax) {
    ++num_lines_hidden_;
    return;
  }
  ++num_lines_shown_;
  say(fmt::format("{}: {}: {}", level == LogLevel::kError ? "error" : "warning",
                  speaker(process, line.instance), line.text));
}

void RunSession::take_steps(Worker& worker) {
  while (worker.steps && !cannot_write_) {
    const auto lines = worker.steps->take();
    if (!lines.ok()) return fail_to_write(lines.error());
    if (lines->empty()) return;
    for (const StepLine& line : *lines) write_metrics(line);
  }
}

void RunSession::write_metrics(const StepLine& line) {
  const auto tenant = std::find_if(plan_.tenants.begin(), plan_.tenants.end(),
                                   [&line](const Tenant& one) { return one.name == line.tenant; });
  if (tenant == plan_.tenants.end()) return;
  if (!is_recovering_) phase_.clear();
  shown_tenant_ = TenantSlot(static_cast<uint32_t>(tenant - plan_.tenants.begin()));
  const Status written =
      metrics_->write(line.tenant, line.step, line.wall_seconds - wall_zero_, line.values);
  board_.step_taken(shown_tenant_, *metrics_->newest(line.tenant), steady_now());
  if (!written.ok()) fail_to_write(written.error());
}

/// metrics.jsonl: said once, and the end.
void RunSession::fail_to_write(const Error& why) {
  if (std::exchange(cannot_write_, true) || !fault_.empty()) return;
  fault_ = why.text();
  say("error: " + fault_);
  stop("the run folder cannot be written");
}

void RunSession::note_first_token() {
  if (std::exchange(has_first_token_, true)) return;
  const auto age = program_age_seconds();
  // A disk that refuses this refuses metrics.jsonl too, and that is said there.
  if (age) (void)folder_.note(Json::object().set("first_token_seconds", *age));
}

void RunSession::obey_signals() {
  while (num_signals_obeyed_ < SignalCounter::count()) {
    ++num_signals_obeyed_;
    if (num_signals_obeyed_ == 1) {
      terminal_.say(
          "draining: what is in flight ends and a checkpoint is written "
          "(Ctrl-C again stops now)");
      drain("interrupted");
    } else if (num_signals_obeyed_ == 2) {
      terminal_.say("stopping now (Ctrl-C again kills)");
      stop("interrupted");
    } else {
      terminal_.say("killed");
      was_killed_ = true;
      kill_all();
    }
  }
}

void RunSession::watch_silence() {
  // While this side itself stood still (SIGSTOP, a machine that slept) nobody was listened to.
  const Time turn = steady_now();
  const Duration away = turn - std::exchange(last_turn_, turn);
  if (away > kAwayMin)
    for (auto& worker : workers_) worker.heard_at = worker.heard_at + away;
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    // One that has been started again has a library or two to load before its first word.
    const Duration limit = worker.has_spoken ? plan_.settings.dead_after
                                             : std::max(kHelloMax, plan_.settings.dead_after);
    if (worker.is_closed || steady_now() - worker.heard_at < limit) continue;
    worker.process->kill();
    worker.was_silent = true;
    worker.heard_at = steady_now();
  }
}

void RunSession::drain(const std::string& reason) {
  phase_ = "draining";
  // Before it has begun there is nothing to drain.
  if (!coordinator_->drain(reason, static_cast<uint8_t>(RunEnd::kInterrupted))) stop(reason);
}

void RunSession::stop(const std::string& reason) {
  if (is_stopping_) return;
  is_stopping_ = true;
  phase_ = "stopping";
  for (auto& worker : workers_)
    if (!worker.is_closed) (void)worker.process->control().send(StopRun{reason});
}

void RunSession::kill_all() {
  for (auto& worker : workers_)
    if (worker.process != nullptr && !worker.is_closed) worker.process->kill();
}

void RunSession::show_status() {
  StatusFacts facts;
  const Tenant& tenant = plan_.tenants[shown_tenant_.index()];
  if (plan_.tenants.size() > 1) facts.tenant = tenant.name;
  facts.phase = phase_;
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
  board_.set_phase(phase_);
}

bool RunSession::all_closed() const {
  for (const auto& worker : workers_)
    if (!worker.is_closed || (worker.restart_at && !is_stopping_)) return false;
  return true;
}

RunResult RunSession::failed(std::string why) const {
  return {kExitFailed, "failed", std::move(why), false, wall_seconds() - wall_start_};
}

/// A run that drained has lost nothing: what its processes say together must add up.
Status RunSession::check_end() const {
  if (coordinator_ == nullptr || plan_.processes.size() < 2) return ok();
  if (coordinator_->phase() != RunCoordinator::Phase::kEnding || is_stopping_) return ok();
  return check_ledger(plan_, coordinator_->total_edges());
}

RunResult RunSession::result() {
  if (num_lines_hidden_ > 0)
    terminal_.say(fmt::format("{} more warnings are in {}", num_lines_hidden_,
                              folder_.logs_folder().string()));
  std::string why = fault_;
  bool stalled = is_stalled_;
  bool has_died =
      false;  // `why` is about a death; what others failed of may be its cause or effect
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.process == nullptr) continue;
    auto exit = worker.process->wait(kExitMax);
    if (!exit.ok()) worker.process->kill();
    take_steps(worker);
    if (!cannot_write_) worker.steps->remove();
    const auto end = worker.ended ? static_cast<RunEnd>(worker.ended->end) : RunEnd::kFailed;
    if (worker.ended && (end == RunEnd::kFinished || end == RunEnd::kInterrupted)) continue;
    stalled = stalled || end == RunEnd::kStalled;
    if (num_signals_obeyed_ >= 2) continue;
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
  if (const Status balanced = check_end(); why.empty() && !balanced.ok())
    why = balanced.error().text();
  const double seconds = wall_seconds() - wall_start_;
  if (!why.empty()) {
    const bool was_said = said_.find(why.substr(0, why.find('\n'))) != std::string::npos;
    RunResult failed{kExitFailed, stalled ? "stalled" : "failed", why, was_said, seconds};
    // What a worker says of its record is known; one that died may die of the checkpoint, too.
    failed.has_left_record =
        has_left_record_ || (is_recovering_ && fault_.empty() && SignalCounter::count() == 0 &&
                             std::all_of(workers_.begin(), workers_.end(), [](const Worker& each) {
                               return each.ended.has_value();
                             }));
    failed.has_lost_worker = has_lost_worker_ && SignalCounter::count() == 0;
    failed.was_recovering = is_recovering_;
    if (is_recovering_ && !failed.has_left_record && !failed.has_lost_worker)
      failed.why += "\nit was following its record; --from-checkpoint goes on without";
    return failed;
  }
  if (SignalCounter::count() > 0 || was_killed_ || is_told_to_leave_)
    return {kExitInterrupted, "interrupted", "", false, seconds};
  return {kExitDone, "finished", "", false, seconds};
}

}  // namespace primerl
