// Everything that a session publishes about its run: the StatusStore for /metrics and /status, the
// members of run.json by which `ps` finds the run, and the log of all processes. Also handles the
// commands of persons.
#include "graph/base/process.h"
#include "graph/base/real_clock.h"
#include "graph/plan_memory.h"
#include "runtime/control/run_session.h"
#include "runtime/log/log.h"
#include "runtime/monitor/run_server.h"

namespace primerl {

/// Writes the list of processes: after a crash `ps` asks the system whether they still live.
Status RunSession::note_workers() {
  Json processes = Json::array();
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].process == nullptr) continue;
    const int64_t pid = workers_[i].process->pid();
    const std::string& machine = plan_.processes[i].machine;
    Json one = Json::object();
    one.set("name", plan_.processes[i].name).set("pid", pid);
    // A pid of another machine means nothing on this one.
    if (machine.empty())
      one.set("start_ticks", start_ticks(pid));
    else
      one.set("host", machine);
    processes.push_back(std::move(one.set("incarnation", workers_[i].incarnation)));
  }
  return folder_.note(
      Json::object()
          .set("processes", std::move(processes))
          .set("sockets", sockets_ == nullptr ? Json() : Json(sockets_->path().string())));
}

/// Writes the peak memory of each process of this machine, beside the memory that the plan expects.
void RunSession::note_memory() {
  if (lifecycle_.cannot_write()) return;
  Json all = Json::array();
  for (size_t i = 0; i < workers_.size(); ++i) {
    const auto exit = workers_[i].process == nullptr ? std::nullopt : workers_[i].process->poll();
    if (!exit || exit->peak_bytes == 0) continue;
    const ProcessMemory planned = memory_of(plan_, plan_.processes[i]);
    Json one = Json::object();
    one.set("process", plan_.processes[i].name);
    if (!planned.all().empty()) one.set("planned_bytes", static_cast<int64_t>(planned.bytes()));
    one.set("peak_bytes", static_cast<int64_t>(exit->peak_bytes));
    all.push_back(std::move(one));
  }
  // If the disk refuses this, it also refuses metrics.jsonl, where the error is reported.
  (void)folder_.note(Json::object().set("memory", std::move(all)));
}

void RunSession::tell_watchers(const ControlEvent& event) {
  if (event.is_closed()) {
    board_.process_gone(event.peer, workers_[event.peer.index()].restart_at.has_value());
  } else {
    board_.process_said(event.peer, event.message, steady_now());
  }
}

/// Why the run accepts no command now; "": it does.
std::string RunSession::why_no_command() const {
  switch (lifecycle_.phase()) {
    case RunLifecycle::Phase::kStarting:
      return "the run is starting; ask again when it runs";
    case RunLifecycle::Phase::kFollowing:
      return "the run still follows its record; ask again when it has resumed";
    case RunLifecycle::Phase::kRunning:
      return "";
    case RunLifecycle::Phase::kDraining:
    case RunLifecycle::Phase::kStopping:
      return "the run ends: nothing of it can be held any more";
  }
  return "";
}

void RunSession::apply_commands() {
  const Time now = steady_now();
  for (const auto& ask : commands_.take()) pauses_.ask(ask.id, ask.content, why_no_command(), now);
  pauses_.tick(now);
  board_.set_holds(pauses_.holds(now));
}

/// Writes the log lines of all processes into one file, each with its process and its node.
void RunSession::merge_log(ProcessId process, const LogLine& line) {
  if (plan_.processes.size() < 2) return;
  if (merged_log_ == nullptr) {
    auto opened = LineFile::open(folder_.logs_folder() / "run.jsonl");
    // If the disk refuses this, it also refuses metrics.jsonl, where the error is reported.
    if (!opened.ok()) return;
    merged_log_ = std::move(opened).value();
  }
  Json entry = Json::object();
  entry.set("timestamp", iso_time(wall_seconds()))
      .set("level", to_string(static_cast<LogLevel>(line.level)))
      .set("process", plan_.process(process).name)
      .set("instance", line.instance)
      .set("message", line.text);
  (void)merged_log_->append(entry.dump());
}

/// "trainer (training)" in a run of several processes.
std::string RunSession::speaker(ProcessId process, const std::string& instance) const {
  const std::string& name = plan_.process(process).name;
  return workers_.size() < 2 || instance == name ? instance
                                                 : fmt::format("{} ({})", instance, name);
}

/// The table over all processes, if there are several. A single process has already reported its
/// own table.
std::string RunSession::stall_table(const RunEnded& ended) const {
  if (ended.stall.empty()) return "";
  if (workers_.size() > 1) return "over all processes:\n" + board_.stall_report().text();
  return ended.text.find(ended.stall) == std::string::npos ? ended.stall : "";
}

}  // namespace primerl
