// Workers that died while the run goes on: which come back, when, and how often.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/bin/run_session.h"

namespace primerl {
namespace {

constexpr size_t kRestartsMax = 5;  // of one process, within the window
constexpr Duration kRestartWindow = Duration::seconds(60);
constexpr Duration kRestartAfter = Duration::milliseconds(50);  // the first time
constexpr Duration kExitMax = Duration::seconds(10);            // from its last word to its exit

}  // namespace

/// A process of engines alone: what it knew can be made again, and its neighbours ask again. One
/// that keeps the state of the run goes on from a checkpoint, with --resume.
bool RunSession::can_restart(ProcessId process) const {
  if (plan_.processes.size() < 2 || is_stopping_) return false;
  if (coordinator_->phase() != RunCoordinator::Phase::kRunning) return false;
  for (const auto& instance : plan_.instances) {
    if (plan_.host(instance.host).process != process) continue;
    const bool has_engine =
        std::any_of(instance.resources.begin(), instance.resources.end(), [this](int32_t used) {
          return plan_.resources[static_cast<size_t>(used)].kind == "engine";
        });
    if (!has_engine) return false;
  }
  return true;
}

/// False when the run ends instead.
bool RunSession::plan_restart(ProcessId process) {
  Worker& worker = workers_[process.index()];
  if (!can_restart(process)) return false;
  const auto exit = worker.process->wait(kExitMax);
  const std::string how = exit.ok() ? exit->text() : "closed its control channel";
  std::erase_if(worker.restarts, [this](Time at) { return now() - at >= kRestartWindow; });
  const std::string& name = plan_.process(process).name;
  if (worker.restarts.size() >= kRestartsMax) {
    fault_ = fmt::format("process '{}' {}, after {} restarts within {}", name, how,
                         worker.restarts.size(), to_string(kRestartWindow));
    return false;
  }
  // Twice as long each time, so that one that cannot live does not take the machine with it.
  worker.restart_at =
      now() + Duration::nanoseconds(kRestartAfter.to_nanoseconds() << worker.restarts.size());
  worker.restarts.push_back(now());
  worker.epoch = coordinator_->process_died(process);
  say(fmt::format("warning: process '{}' {}; it is started again as incarnation {}", name, how,
                  worker.epoch));
  return true;
}

void RunSession::restart_due() {
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.restart_at || now() < *worker.restart_at) continue;
    worker.restart_at.reset();
    if (is_stopping_) continue;
    worker.process.reset();
    if (const Status launched = launch_worker(i); !launched.ok()) {
      give_up(launched.error());
      continue;
    }
    worker.is_closed = false;
    worker.closed = ok();
    worker.heard_at = now();
  }
}

}  // namespace primerl
