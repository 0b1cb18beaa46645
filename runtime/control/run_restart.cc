// Restarts of workers that died: which ones are restarted while the run continues, when and how
// often. And the end of the record that all workers follow when the run was resumed after a death.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "graph/base/counted.h"
#include "graph/base/real_clock.h"
#include "graph/plan_memory.h"
#include "runtime/control/run_session.h"

namespace primerl {

/// A process that keeps state of the run is not restarted alone: all processes resume from their
/// records. A draining run does not restart processes either, because messages in flight may need
/// an answer from the dead process.
bool RunSession::can_restart(ProcessId process) const {
  if (plan_.processes.size() < 2 || lifecycle_.is_stopping() || lifecycle_.is_following())
    return false;
  const auto phase = coordinator_->phase();
  if (phase != RunCoordinator::Phase::kRunning && phase != RunCoordinator::Phase::kDraining)
    return false;
  return plan_.is_restartable(process);
}

/// False when the run ends instead.
bool RunSession::plan_restart(ProcessId process) {
  Worker& worker = workers_[process.index()];
  if (!can_restart(process)) return false;
  const auto exit = worker.process->wait(kExitMax);
  if (!exit.ok() && !plan_.process(process).machine.empty()) {
    // The process may be alive until the agent confirms its death.
    lifecycle_.note_fault(exit.error().text());
    return false;
  }
  if (exit.ok() && exit->needs_more_memory()) return false;
  const std::string how = worker.was_silent ? fmt::format("sent nothing for {} and was killed",
                                                          to_string(plan_.settings.dead_after))
                          : exit.ok()       ? exit->text()
                                            : "closed its control channel";
  const GraphSettings& settings = plan_.settings;
  if (!worker.restarts) worker.restarts.emplace(settings.restarts_max, settings.restart_window);
  worker.restarts->forget_old(steady_now());
  const std::string& name = plan_.process(process).name;
  const auto pause = worker.restarts->take(steady_now());
  if (!pause) {
    if (settings.restarts_max > 0)
      lifecycle_.note_fault(fmt::format("process '{}' {}, after {} restarts within {}", name, how,
                                        worker.restarts->num_taken(),
                                        to_string(settings.restart_window)));
    return false;
  }
  worker.restart_at = steady_now() + *pause;
  worker.incarnation = coordinator_->process_died(process);
  say(fmt::format("warning: process '{}' {}; it is restarted as incarnation {}", name, how,
                  worker.incarnation));
  return true;
}

/// The checkpoints that the worker starts from. A worker that is restarted later starts from the
/// checkpoints where the record begins: those are kept, while a newer one may have been removed by
/// then.
std::vector<std::string> RunSession::checkpoints_for(const Worker& worker) const {
  if (worker.incarnation != incarnation_ && !resume_.follow.record.empty())
    return resume_.follow.resumed_from;
  std::vector<std::string> checkpoints;
  for (const auto& point : points_)
    checkpoints.push_back(point.folder.empty() ? std::string(kNoCheckpoint)
                                               : point.folder.string());
  return checkpoints;
}

/// After the last count, a process that keeps no state of the run has nothing more to do or report.
/// Its death then does not change the end of the run.
bool RunSession::is_needed(ProcessId process) {
  if (coordinator_->phase() != RunCoordinator::Phase::kEnding || lifecycle_.is_stopping() ||
      !plan_.is_restartable(process))
    return true;
  workers_[process.index()].died_at_end = true;
  say(fmt::format("warning: process '{}' died when the run had ended",
                  plan_.process(process).name));
  return false;
}

/// When an agent is lost, its processes count as lost. Only the agent can say whether they are
/// dead, when the run is resumed. An agent that was asked to stop asks the run to drain.
void RunSession::watch_agents() {
  if (hosts_ == nullptr) return;
  if (const auto why = hosts_->leaving()) {
    const auto action = lifecycle_.on_agent_leaving();
    if (action != RunLifecycle::Action::kNothing)
      say(fmt::format("warning: {}; the run drains", *why));
    act(action, *why);
  }
  if (const auto fault = hosts_->fault())
    act(lifecycle_.on_agent_lost(*fault, coordinator_->is_up()), "an agent is lost");
}

/// The other processes cannot continue without this one. Their work is in their records. If the run
/// may be resumed they are killed at once; otherwise they stop as at any other end.
void RunSession::lose(ProcessId process) {
  if (lifecycle_.is_stopping()) return;
  // Before the run has started, a worker that exits by itself would exit again. One that was killed
  // for lack of memory would be killed again.
  const auto exit = workers_[process.index()].process->wait(kExitMax);
  const bool lacks_memory = exit.ok() && exit->needs_more_memory();
  const bool was_up = !lacks_memory && (coordinator_->is_up() || (exit.ok() && exit->signal != 0));
  act(lifecycle_.on_worker_lost(death_of(process.index()), was_up), "a worker has died");
}

/// Advice for a person after a process was killed for lack of memory.
std::string RunSession::memory_advice(size_t index) const {
  return fmt::format(
      "\nnote: the plan counts {} for it; `primerl-graph show '{}' --plan` lists the parts\nnote: "
      "it "
      "is not started again, since it would need as much again. Give it more memory, or lower "
      "micro_batch_tokens, kv_blocks, max_batched_tokens or batch_size with --set; then "
      "`primerl-graph run --resume '{}'` continues the run",
      memory_text(memory_of(plan_, plan_.processes[index]).bytes()),
      (folder_.path() / "graph.resolved.toml").string(), folder_.path().string());
}

/// Describes how a process ended without RunEnded, with the end of its log.
std::string RunSession::death_of(size_t index) {
  Worker& worker = workers_[index];
  const std::string& name = plan_.processes[index].name;
  const auto exit = worker.process->wait(kExitMax);
  if (!exit.ok()) worker.process->kill();
  std::string death = worker.was_silent
                          ? fmt::format("process '{}' sent nothing for {} and was killed", name,
                                        to_string(plan_.settings.dead_after))
                          : fmt::format("process '{}' {}", name,
                                        exit.ok() ? exit->text() : "did not end and was killed");
  if (exit.ok() && exit->needs_more_memory()) return death + memory_advice(index);
  if (!worker.closed.ok()) death += ": " + worker.closed.error().text();
  const std::string words = worker.process->last_words();
  return words.empty() ? death : death + "\nits last words:\n" + words;
}

void RunSession::restart_due() {
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.restart_at || steady_now() < *worker.restart_at) continue;
    worker.restart_at.reset();
    if (lifecycle_.is_stopping()) continue;
    worker.process.reset();
    if (const Status launched = launch_worker(i); !launched.ok()) {
      act(lifecycle_.on_cannot_go_on(launched.error()), "the run cannot continue");
      continue;
    }
    // If the disk refuses this, it also refuses metrics.jsonl, where the error is reported.
    (void)note_workers();
    worker.is_closed = false;
    worker.closed = ok();
    worker.has_spoken = worker.was_silent = false;
    worker.heard_at = steady_now();
  }
}

void RunSession::note_recovered(const RunRecovered& recovered) {
  recovered_.num_steps += recovered.num_steps;
  recovered_.num_messages += recovered.num_messages;
  if (++num_recovered_ < workers_.size() - resume_.follow.absent.size()) return;
  lifecycle_.on_followed();
  say(fmt::format("recovered: {} and {} as recorded; the run is live",
                  counted(recovered_.num_steps, "step"),
                  counted(recovered_.num_messages, "message")));
  for (const AbsentProcess& absent : resume_.follow.absent)
    say(fmt::format(
        "process '{}' starts fresh: it died in the record, or a part of its record is missing",
        plan_.process(absent.process).name));
  // If the disk refuses this, it also refuses metrics.jsonl, where the error is reported.
  (void)folder_.note(
      Json::object().set("recovered", Json::object()
                                          .set("time", iso_time(wall_seconds()))
                                          .set("record", resume_.follow.record.filename().string())
                                          .set("steps", recovered_.num_steps)
                                          .set("messages", recovered_.num_messages)));
}

}  // namespace primerl
