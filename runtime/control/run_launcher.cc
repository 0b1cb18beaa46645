#include "runtime/control/run_launcher.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "actors/messages/catalog.h"
#include "runtime/program/programs.h"
#include "runtime/wire/wire_message.h"

namespace primerl {

RunLauncher::RunLauncher(const Plan& plan, const RunFolder& folder, const ResumeChoice& resume,
                         const PeerKeyFiles& peer_keys, const RunStart& start,
                         std::shared_ptr<ControlInbox> inbox)
    : plan_(plan),
      folder_(folder),
      resume_(resume),
      peer_keys_(peer_keys),
      start_(start),
      inbox_(std::move(inbox)) {}

Result<std::vector<std::string>> RunLauncher::open_sockets() {
  std::vector<std::string> notes;
  if (plan_.processes.size() < 2) return notes;
  ASSIGN_OR_RETURN(sockets_,
                   SocketFolder::create({}, fmt::format("{}.{}", start_.run_id, ::getpid())));
  if (!sockets_->reason_for_other_root().empty())
    notes.push_back("note: " + sockets_->reason_for_other_root());
  for (const auto& leftover : sockets_->leftovers())
    notes.push_back("removed sockets that a crashed run left: " + leftover.string());
  return notes;
}

Status RunLauncher::connect_agents(const MachineSetup& setup, bool is_again,
                                   std::function<bool()> is_cancelled) {
  if (setup.hosts.empty()) return ok();
  RunHosts::Start start;
  start.plan = &plan_;
  start.run_id = start_.run_id;
  start.incarnation = start_.incarnation;
  start.folder = folder_.path();
  start.socket_folder = sockets_ != nullptr ? sockets_->path().filename().string() : start_.run_id;
  start.is_again = is_again;
  start.types_hash = WireTypes(message_catalog()).hash();  // agents know no plugins
  start.is_cancelled = std::move(is_cancelled);
  ASSIGN_OR_RETURN(hosts_, RunHosts::connect(setup, start));
  return ok();
}

std::string RunLauncher::socket_folder() const {
  return sockets_ == nullptr ? "" : sockets_->path().string();
}

Result<std::unique_ptr<WorkerProcess>> RunLauncher::launch(ProcessId process, uint32_t incarnation,
                                                           bool follows_record) {
  LaunchOptions options = options_of(process, incarnation, follows_record);
  const std::string& machine = plan_.process(process).machine;
  if (!machine.empty()) {
    CHECK(hosts_ != nullptr, "a process of another machine without agents");
    return hosts_->launch(machine, options, inbox_);
  }
  ASSIGN_OR_RETURN(options.program, worker_program());
  if (sockets_ != nullptr) {
    options.arguments.push_back("--links");
    options.arguments.push_back(sockets_->path().string());
    for (auto& word : peer_keys_.words()) options.arguments.push_back(std::move(word));
  }
  return WorkerProcess::launch(options, inbox_);
}

std::optional<Error> RunLauncher::agent_fault() const {
  return hosts_ == nullptr ? std::nullopt : hosts_->fault();
}

std::optional<std::string> RunLauncher::agent_leaving() const {
  return hosts_ == nullptr ? std::nullopt : hosts_->leaving();
}

LaunchOptions RunLauncher::options_of(ProcessId process, uint32_t incarnation,
                                      bool follows_record) const {
  const PlanProcess& placed = plan_.process(process);
  LaunchOptions options;
  options.arguments = {"host",      "--run",         folder_.path().string(),       "--process",
                       placed.name, "--incarnation", fmt::format("{}", incarnation)};
  for (const auto& checkpoint : checkpoints_of(incarnation)) {
    options.arguments.push_back("--resume");
    options.arguments.push_back(checkpoint);
  }
  if (follows_record) {
    options.arguments.push_back("--recover");
    options.arguments.push_back(resume_.follow_file.string());
  }
  options.environment = process_environment(placed);
  options.log_file = folder_.logs_folder() / (folder_name(placed.name) + ".stderr");
  options.process = process;
  return options;
}

/// A worker that is restarted later starts from the checkpoints where the record begins: those are
/// kept, while a newer one may have been removed by then.
std::vector<std::string> RunLauncher::checkpoints_of(uint32_t incarnation) const {
  if (incarnation != start_.incarnation && !resume_.follow.record.empty())
    return resume_.follow.resumed_from;
  std::vector<std::string> checkpoints;
  for (const auto& point : resume_.points)
    checkpoints.push_back(point.folder.empty() ? std::string(kNoCheckpoint)
                                               : point.folder.string());
  return checkpoints;
}

}  // namespace primerl
