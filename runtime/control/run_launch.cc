// How a session records its start and starts its workers. It connects to the agents of other
// machines, starts the processes, and waits until all have sent their hello and are connected.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "actors/messages/catalog.h"
#include "graph/base/random.h"
#include "graph/base/real_clock.h"
#include "runtime/control/run_session.h"
#include "runtime/control/stop_signals.h"
#include "runtime/program/programs.h"
#include "runtime/program/version.h"
#include "runtime/wire/timeouts.h"
#include "runtime/wire/wire_message.h"

namespace primerl {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

std::string RunSession::fresh_run_id() const {
  // Two runs on one machine differ in time or pid; two runs at the same moment differ in their
  // machine.
  return fmt::format("{:016x}", stable_hash(fmt::format("{} {} {:.9f} {}", host_name(), ::getpid(),
                                                        wall_start_, folder_.path().string())));
}

std::string RunSession::run_id() const {
  const Json* id = folder_.facts().find("run_id");
  return id != nullptr && id->is_string() ? id->as_string() : fresh_run_id();
}

/// For a resumed run: names the plugins whose files have changed.
void RunSession::tell_changed_plugins() {
  const Json* before = folder_.facts().find("plugins");
  if (before == nullptr || !before->is_array()) return;
  for (const Json& plugin : before->as_array()) {
    const auto name = plugin.get_string("name"), checksum = plugin.get_string("crc32c");
    for (const PluginIdentity& now : plan_.catalog->plugins)
      if (name.ok() && checksum.ok() && now.name == *name &&
          fmt::format("{:08x}", now.checksum) != *checksum)
        say(
            fmt::format("note: plugin '{}' is another file than at the last start: version {}, "
                        "CRC-32C {:08x}, before {}",
                        now.name, now.version, now.checksum, *checksum));
  }
}

/// The resumes in run.json and this one; only the newest kResumesMax.
Json RunSession::resumes() const {
  Json all = Json::array();
  if (const Json* before = folder_.facts().find("resumes"); before != nullptr && before->is_array())
    all = *before;
  all.push_back(resume_entry(iso_time(wall_start_), incarnation_, resume_.changed));
  Json::Array& entries = all.as_array();
  if (entries.size() > kResumesMax)
    entries.erase(entries.begin(), entries.end() - static_cast<ptrdiff_t>(kResumesMax));
  return all;
}

Status RunSession::note_start() {
  Json facts = Json::object();
  facts.set("schema", "primerl.run/1").set("name", plan_.settings.name);
  facts.set("version", kProgramVersion).set("host", host_name());
  tell_changed_plugins();
  Json plugins = Json::array();
  for (const PluginIdentity& plugin : plan_.catalog->plugins)
    plugins.push_back(Json::object()
                          .set("name", plugin.name)
                          .set("version", plugin.version)
                          .set("file", plugin.file)
                          .set("crc32c", fmt::format("{:08x}", plugin.checksum)));
  if (!plan_.catalog->plugins.empty()) facts.set("plugins", std::move(plugins));
  facts.set("graph_hash", fmt::format("{:016x}", plan_.graph_hash))
      .set("seed", plan_.settings.seed);
  incarnation_ = static_cast<uint32_t>(folder_.num_starts() + 1);
  facts.set("incarnation", static_cast<int64_t>(incarnation_));
  if (folder_.facts().find("run_id") == nullptr) facts.set("run_id", fresh_run_id());
  Json trace;  // null: not recorded
  if (plan_.trace.is_on())
    trace = Json::object()
                .set("folder", folder_.trace_folder().filename().string())
                .set("level", plan_.trace.level);
  facts.set("trace", std::move(trace));
  if (folder_.facts().find("started_seconds") == nullptr)
    facts.set("started", iso_time(wall_start_)).set("started_seconds", wall_start_);
  if (!points_.empty()) {
    Json resumed = Json::array();
    if (const Json* before = folder_.facts().find("resumed");
        before != nullptr && before->is_array())
      resumed = *before;
    for (const auto& point : points_)
      if (!point.folder.empty())
        resumed.push_back(Json::object()
                              .set("time", iso_time(wall_start_))
                              .set("checkpoint", point.folder.string())
                              .set("step", point.step));
    facts.set("resumed", std::move(resumed));
  }
  if (!resume_.graph_file.empty()) facts.set("resumes", resumes());
  if (!is_supervised(plan_)) facts.set("first_token_seconds", Json());  // no token yet
  return folder_.note(facts.set("end", "running"));
}

/// Writes steps that an earlier start reported but whose control plane was killed before it read
/// them.
Status RunSession::keep_leftover_steps() const {
  const auto files = find_step_lines(folder_.logs_folder());
  if (files.empty()) return ok();
  ASSIGN_OR_RETURN(auto log, MetricsLog::open(folder_, wall_zero_, plan_.tenants.size() > 1));
  RETURN_IF_ERROR(log->skip_written({}));
  for (const auto& file : files) {
    StepReader reader(file);
    while (true) {
      ASSIGN_OR_RETURN(const auto lines, reader.take());
      if (lines.empty()) break;
      for (const StepLine& line : lines) {
        const auto last = resume_.last_steps.find(line.tenant);
        if (last != resume_.last_steps.end() && line.step > last->second) continue;
        RETURN_IF_ERROR(
            log->write(line.tenant, line.step, line.wall_seconds - wall_zero_, line.values));
      }
    }
    RETURN_IF_ERROR(system_files().sync(folder_.metrics_file()));
    reader.remove();
  }
  return ok();
}

Status RunSession::launch_workers() {
  coordinator_ = std::make_unique<RunCoordinator>(
      plan_, WireTypes(plan_.catalog->messages).hash(), incarnation_,
      [this](ProcessId to, Payload message) { tell(to, std::move(message)); });
  coordinator_->tell_stalls_by([this] { return board_.stall_report().text(); });
  if (plan_.processes.size() > 1) {
    ASSIGN_OR_RETURN(sockets_,
                     SocketFolder::create({}, fmt::format("{}.{}", run_id(), ::getpid())));
    if (!sockets_->reason_for_other_root().empty())
      terminal_.say("note: " + sockets_->reason_for_other_root());
    for (const auto& leftover : sockets_->leftovers())
      terminal_.say("removed sockets that a crashed run left: " + leftover.string());
  }
  RETURN_IF_ERROR(connect_hosts());
  workers_.resize(plan_.processes.size());
  for (size_t i = 0; i < workers_.size(); ++i) {
    workers_[i].incarnation = incarnation_;
    workers_[i].steps.emplace(step_lines_file(folder_.logs_folder(), plan_.processes[i].name));
  }
  if (!resume_.follow.record.empty()) coordinator_->continue_from(resume_.follow.ended);
  for (const AbsentProcess& absent : resume_.follow.absent) {
    // Messages of its earlier incarnations are in the record.
    uint32_t& incarnation = workers_[absent.process.index()].incarnation;
    incarnation = std::max(incarnation, absent.incarnation + 1);
    coordinator_->set_absent(absent.process, incarnation);
  }
  for (size_t i = 0; i < workers_.size(); ++i) RETURN_IF_ERROR(launch_worker(i));
  RETURN_IF_ERROR(note_workers());
  const Time give_up = steady_now() + kHelloMax;
  while (coordinator_->phase() <= RunCoordinator::Phase::kConnecting) {
    if (const auto event = inbox_->take(kSessionTick)) {
      handle(*event);
      if (lifecycle_.has_lost_agent()) return *hosts_->fault();
      const Worker& worker = workers_[event->peer.index()];
      if (worker.ended && !worker.ended->text.empty())
        return error(Code::kUnavailable, "process '{}': {}", plan_.process(event->peer).name,
                     worker.ended->text);
      if (event->is_closed()) return error_of_early_death(workers_[event->peer.index()], *event);
    }
    watch_agents();
    if (lifecycle_.has_lost_agent()) return *hosts_->fault();
    RETURN_IF_ERROR(coordination_);
    if (SignalCounter::count() > 0) return error(Code::kCancelled, "interrupted");
    if (steady_now() > give_up)
      return error(
          Code::kDeadline, "{} has not {} within {}", coordinator_->waits_for(),
          coordinator_->phase() == RunCoordinator::Phase::kGreeting ? "spoken" : "linked up",
          to_string(kHelloMax));
    show_status();
  }
  for (auto& worker : workers_) worker.heard_at = steady_now();
  return ok();
}

/// Connects to the agents before anything is started, because they kill what is left of the last
/// start.
Status RunSession::connect_hosts() {
  if (host_setup_ == nullptr || host_setup_->hosts.empty()) return ok();
  RunHosts::Start start;
  start.plan = &plan_;
  start.run_id = run_id();
  start.incarnation = incarnation_;
  start.folder = folder_.path();
  start.socket_folder = sockets_ != nullptr ? sockets_->path().filename().string() : run_id();
  start.is_again = is_again_;
  start.types_hash = WireTypes(message_catalog()).hash();  // agents know no plugins
  start.is_cancelled = [] { return SignalCounter::count() > 0; };
  ASSIGN_OR_RETURN(hosts_, RunHosts::connect(*host_setup_, start));
  return ok();
}

Status RunSession::launch_worker(size_t index) {
  const std::string& machine = plan_.processes[index].machine;
  Worker& worker = workers_[index];
  LaunchOptions options = launch_options(index);
  if (machine.empty()) {
    ASSIGN_OR_RETURN(options.program, worker_program());
    if (sockets_ != nullptr) {
      options.arguments.push_back("--links");
      options.arguments.push_back(sockets_->path().string());
      for (auto& word : peer_keys_.words()) options.arguments.push_back(std::move(word));
    }
    ASSIGN_OR_RETURN(worker.process, WorkerProcess::launch(options, inbox_));
  } else {
    CHECK(hosts_ != nullptr, "a process of another machine without agents");
    ASSIGN_OR_RETURN(worker.process, hosts_->launch(machine, options, inbox_));
  }
  board_.process_started(options.process, worker.incarnation, worker.process->pid());
  return ok();
}

/// Launch options that do not depend on the machine.
LaunchOptions RunSession::launch_options(size_t index) const {
  const PlanProcess& placed = plan_.processes[index];
  const Worker& worker = workers_[index];
  LaunchOptions options;
  options.arguments = {"host",
                       "--run",
                       folder_.path().string(),
                       "--process",
                       placed.name,
                       "--incarnation",
                       fmt::format("{}", worker.incarnation)};
  for (const auto& checkpoint : checkpoints_for(worker)) {
    options.arguments.push_back("--resume");
    options.arguments.push_back(checkpoint);
  }
  if (lifecycle_.is_following()) {
    options.arguments.push_back("--recover");
    options.arguments.push_back(resume_.follow_file.string());
  }
  options.environment = process_environment(placed);
  options.log_file = folder_.logs_folder() / (folder_name(placed.name) + ".stderr");
  options.process = ProcessId(static_cast<uint32_t>(index));
  return options;
}

/// The error of a worker that ended before the run began: how it ended, and its last log lines.
Error RunSession::error_of_early_death(Worker& worker, const ControlEvent& event) {
  const auto exit = worker.process->wait(Duration::seconds(2));
  std::string how = exit.ok() ? exit->text() : "closed its control channel";
  // A worker that exits by itself would exit again, and so would one that lacks memory.
  lifecycle_.on_worker_died_early(exit.ok() && exit->signal != 0 && !exit->needs_more_memory());
  if (!event.closed.ok()) how += fmt::format(" ({})", event.closed.error().message());
  auto fault = error(Code::kUnavailable, "process '{}' {} before it was ready",
                     plan_.process(event.peer).name, how);
  if (exit.ok() && exit->needs_more_memory())
    return Error(fault.code(), fault.message() + memory_advice(event.peer.index()));
  const auto words = worker.process->last_words();
  return words.empty() ? std::move(fault) : std::move(fault).note("its last words:\n" + words);
}

}  // namespace primerl
