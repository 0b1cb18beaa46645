#include "runtime/control/run_session.h"

#include <unistd.h>

#include <utility>

#include "graph/base/process.h"
#include "graph/base/real_clock.h"
#include "runtime/control/stop_signals.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/signals.h"
#include "runtime/wire/timeouts.h"

namespace primerl {
namespace {

// Events that are handled before the terminal is updated again.
constexpr int kEventsMax = 4096;

}  // namespace

RunSession::RunSession(const Plan& plan, RunFolder& folder, const ResumeChoice& resume,
                       StatusLine& status, const PeerKeyFiles& peer_keys, StatusStore& store)
    : plan_(plan),
      folder_(folder),
      resume_(resume),
      peer_keys_(peer_keys),
      inbox_(std::make_shared<ControlInbox>()),
      commands_(folder.path(), {::getpid(), start_ticks(::getpid())}),
      publisher_(plan, folder, resume, status, store) {}

RunResult RunSession::run() {
  report_file_limits();
  const RunStart start = next_start_of(folder_, wall_seconds());
  if (const Status opened = publisher_.open(start); !opened.ok())
    return ended({RunEnding::How::kFailed, opened.error().text()}, start.wall);
  launcher_ = std::make_unique<RunLauncher>(plan_, folder_, resume_, peer_keys_, start, inbox_);
  monitor_ = std::make_unique<RunMonitor>(
      plan_, resume_, folder_, start, *launcher_, publisher_,
      [this](const std::string& id, const Json& answer) {
        if (control_ != nullptr && control_->answer(id, answer, steady_now())) return;
        // The person's command gives up after a while, and reports it.
        (void)commands_.answer(id, answer);
      },
      steady_now);
  if (const Status launched = launch(); !launched.ok()) {
    monitor_->kill_all();
    return ended(monitor_->end_of_launch(launched.error(), SignalCounter::count()), start.wall);
  }
  watch();
  publisher_.note_hidden_warnings();
  return ended(monitor_->end(SignalCounter::count()), start.wall);
}

/// Starts all processes and waits until they are connected.
Status RunSession::launch() {
  ASSIGN_OR_RETURN(const auto notes, launcher_->open_sockets());
  for (const auto& line : notes) publisher_.note(line);
  if (host_setup_ != nullptr)
    RETURN_IF_ERROR(launcher_->connect_agents(*host_setup_, is_again_,
                                              [] { return SignalCounter::count() > 0; }));
  RETURN_IF_ERROR(monitor_->launch(launcher_->socket_folder()));
  const Time give_up = steady_now() + kHelloMax;
  while (monitor_->is_connecting()) {
    if (const auto event = inbox_->take(kSessionTick)) {
      monitor_->handle(*event);
      RETURN_IF_ERROR(monitor_->check_launch(*event));
    }
    RETURN_IF_ERROR(monitor_->check_agents());
    if (SignalCounter::count() > 0) return error(Code::kCancelled, "interrupted");
    RETURN_IF_ERROR(monitor_->check_deadline(give_up));
    publisher_.show(steady_now(), monitor_->lifecycle().phase_text());
  }
  return ok();
}

void RunSession::watch() {
  if (control_ != nullptr) {
    control_->use(*plan_.catalog);
    // The listener's thread may still call it when this session has ended.
    control_->set_wake([inbox = inbox_] { inbox->wake(); });
  }
  commands_.watch();
  monitor_->on_launched();
  while (!monitor_->all_closed()) {
    auto event = inbox_->take(monitor_->time_to_next(kSessionTick), commands_.descriptor());
    for (int i = 0; event && i < kEventsMax; ++i) {
      monitor_->handle(*event);
      event = inbox_->take(Duration());
    }
    monitor_->publish_steps();
    auto asks = commands_.take();
    if (control_ != nullptr)
      for (auto& ask : control_->poll(steady_now())) asks.push_back(std::move(ask));
    monitor_->apply_commands(asks);
    monitor_->apply_signals(SignalCounter::count());
    monitor_->tick();
    publisher_.show(steady_now(), monitor_->lifecycle().phase_text());
  }
}

RunResult RunSession::ended(RunEnding ending, double began) const {
  RunResult result;
  result.was_said = publisher_.has_shown(ending.why);
  result.ending = std::move(ending);
  result.seconds = wall_seconds() - began;
  return result;
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

}  // namespace primerl
