#include "runtime/cli/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "graph/base/counted.h"
#include "graph/base/files.h"
#include "graph/base/real_clock.h"
#include "graph/base/shell_word.h"
#include "kernels/weights/channel.h"
#include "runtime/backends/devices.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/chat_dates.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/outside_trial.h"
#include "runtime/cli/run_facts.h"
#include "runtime/cli/summary.h"
#include "runtime/control/changed_values.h"
#include "runtime/control/run_session.h"
#include "runtime/control/start_policy.h"
#include "runtime/control/stop_signals.h"
#include "runtime/control/tenant_control.h"
#include "runtime/monitor/run_server.h"
#include "runtime/program/allocator_settings.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/signals.h"

namespace primerl {
namespace {

/// The checkpoints of a resumed run, its graph and its folder. Every fault is reported here.
struct Prepared {
  int exit_code = kExitDone;  // otherwise the exit code of a failure
  std::shared_ptr<const Plan> plan;
  MachineSetup hosts;
  ResumeChoice resume;
  std::unique_ptr<RunFolder> folder;
};

Prepared refuse(const Error& why, int exit_code) {
  Prepared prepared;
  prepared.exit_code = fail(why, exit_code);
  return prepared;
}

/// Reads the agents' addresses; false after an error, which has been reported.
bool read_host_setup(const RunArguments& arguments, const Plan& plan, MachineSetup& setup) {
  if (arguments.hosts.empty()) {
    for (const auto& process : plan.processes)
      if (!process.machine.empty()) {
        fail(error(Code::kInvalid,
                   "process '{}' is placed on host '{}'; where its agent is, is not "
                   "known",
                   process.name, process.machine)
                 .note("say it in a hosts file and give --hosts FILE, or leave out 'host' of its "
                       "[place]"),
             kExitBadConfiguration);
        return false;
      }
    return true;
  }
  auto file = read_hosts(arguments.hosts, plan);
  if (!file.ok()) {
    fail(file.error(), kExitBadConfiguration);
    return false;
  }
  if (!file->diagnostics.all().empty())
    complain_text(render(file->diagnostics, file->sources, wants_color(STDERR_FILENO)));
  if (file->diagnostics.has_errors()) return false;
  setup.hosts = std::move(file->hosts);
  const Status fits = check_host_setup(setup, plan, arguments.peer_keys.listen);
  if (!fits.ok()) fail(fits.error(), kExitBadConfiguration);
  return fits.ok();
}

/// Must be called before the graph of the last start is replaced.
Status note_changes(const Plan& plan, ResumeChoice& resume) {
  constexpr size_t kSaidMax = 8;
  if (resume.graph_file.empty()) return ok();
  ASSIGN_OR_RETURN(const std::string before, read_text_file(resume.graph_file));
  ASSIGN_OR_RETURN(resume.changed, changed_values(before, plan.resolved_toml));
  for (size_t i = 0; i < std::min(kSaidMax, resume.changed.size()); ++i) {
    const ChangedValue& one = resume.changed[i];
    resume.notes.push_back(fmt::format("changed: {} = {} (before: {})", one.key,
                                       one.now.empty() ? "none" : one.now,
                                       one.before.empty() ? "none" : one.before));
  }
  if (resume.changed.size() > kSaidMax)
    resume.notes.push_back(fmt::format("{} more values are changed: `resumes` of run.json has them",
                                       resume.changed.size() - kSaidMax));
  return ok();
}

/// The command that resumes a run that `arguments` started.
std::string resume_command(const RunArguments& arguments, const std::filesystem::path& folder) {
  std::string command = "primerl-graph run --resume " + shell_word(shown_path(folder));
  const PeerKeyFiles& keys = arguments.peer_keys;
  for (const auto& [flag, value] :
       {std::pair("--hosts", arguments.hosts), std::pair("--keys", keys.keys),
        std::pair("--allow", keys.allow), std::pair("--listen", keys.listen)})
    if (!value.empty()) command += fmt::format(" {} {}", flag, shell_word(value));
  return command;
}

/// Checks the environment variables that libtorch reads, for every process of this machine.
Status check_variables(const Plan& plan) {
  for (const PlanProcess& process : plan.processes) {
    if (!process.machine.empty()) continue;  // its agent checks them
    Status valid = check_allocator_settings(process.variables);
    if (!valid.ok())
      return Error(valid.error()).while_doing(fmt::format("process '{}'", process.name));
  }
  return ok();
}

/// Gives tenants whose chat template prints the date the day of the run's first start.
Status set_dates(GraphArguments& graph, Prepared& prepared) {
  const std::string today = utc_day(wall_seconds());
  if (dates_to_set(*prepared.plan, nullptr, today).empty()) return ok();
  std::shared_ptr<const Plan> before;
  if (!prepared.resume.graph_file.empty()) {
    Overrides as_it_was;
    as_it_was.may_lack_weights = true;
    before = load_graph(prepared.resume.graph_file.string(), as_it_was, full_catalog()).plan;
  }
  const auto dates = dates_to_set(*prepared.plan, before.get(), today);
  auto& sets = graph.overrides.sets;
  sets.insert(sets.end(), dates.begin(), dates.end());
  auto dated = load(graph).plan;  // its findings were shown
  if (dated == nullptr)
    return error(Code::kInvalid, "the graph changed while it was read").note("run it again");
  prepared.plan = std::move(dated);
  return ok();
}

/// Whether the run of this folder was started by `serve`. Without a readable run.json it was not;
/// what is wrong with it is reported where it is opened.
bool was_served(const std::filesystem::path& folder) {
  if (folder.empty()) return false;
  const auto facts = read_run_facts(folder);
  if (!facts.ok()) return false;
  const Json served = member(*facts, "served");
  return served.is_bool() && served.as_bool();
}

/// `serve` needs slots, and `run` needs a tenant.
Status check_service(const RunArguments& arguments, const Plan& plan) {
  const bool has_slots = plan.settings.tenant_limits.are_set();
  if (arguments.serves && !has_slots)
    return error(Code::kInvalid, "graph '{}' has no slots for tenants that join",
                 plan.settings.name)
        .note(
            "write [graph.tenant_limits] with tenants_max and rank, as in "
            "examples/hosted/graph.toml; `primerl-graph run` trains the tenants of the file");
  if (!arguments.serves && has_slots && plan.tenants.empty())
    return error(Code::kInvalid, "graph '{}' has slots, but no tenant to train", plan.settings.name)
        .note(
            "add a table [tenant.<name>] with environment = { name = ... }, or serve the graph: "
            "primerl-graph serve GRAPH");
  return ok();
}

Prepared prepare(RunArguments arguments) {
  Prepared prepared;
  auto resume = read_resume(arguments.place);
  if (!resume.ok()) return refuse(resume.error(), kExitBadConfiguration);
  prepared.resume = std::move(resume).value();
  if (arguments.graph.file.empty()) arguments.graph.file = prepared.resume.graph_file.string();
  const bool continues = arguments.place.out.empty() && !prepared.resume.run_folder.empty();
  arguments.serves = arguments.serves || (continues && was_served(prepared.resume.run_folder));
  prepared.resume.is_served = arguments.serves;
  if (arguments.graph.file.empty())
    return refuse(error(Code::kInvalid, "a GRAPH to run is needed"), kExitBadCommandLine);
  prepared.plan = load_or_complain(arguments.graph);
  if (prepared.plan == nullptr) {
    prepared.exit_code = kExitBadConfiguration;
    return prepared;
  }
  if (const Status fits = check_service(arguments, *prepared.plan); !fits.ok())
    return refuse(fits.error(), kExitBadConfiguration);
  if (const Status dated = set_dates(arguments.graph, prepared); !dated.ok())
    return refuse(dated.error(), kExitBadConfiguration);
  if (const Status valid = check_variables(*prepared.plan); !valid.ok())
    return refuse(valid.error(), kExitBadConfiguration);
  if (const Status usable = check_devices_here(*prepared.plan); !usable.ok())
    return refuse(usable.error(), kExitBadConfiguration);
  if (prepared.resume.run_folder.empty())
    if (const auto tried = try_outside(*prepared.plan); !tried.ok())
      return refuse(tried.error(), tried.error().code() == Code::kCancelled
                                       ? kExitInterrupted
                                       : kExitBadConfiguration);
  const auto keys = read_peer_keys(arguments.peer_keys, *prepared.plan);
  if (!keys.ok()) return refuse(keys.error(), kExitBadConfiguration);
  if (*keys) prepared.hosts.keys = (*keys)->own;
  if (!read_host_setup(arguments, *prepared.plan, prepared.hosts)) {
    prepared.exit_code = kExitBadConfiguration;
    return prepared;
  }
  // Opens the folder before it reads a file in it. A run that is still ending may still write.
  if (!prepared.resume.run_folder.empty() && arguments.place.out.empty()) {
    auto taken = RunFolder::open(prepared.resume.run_folder);
    if (!taken.ok()) return refuse(taken.error(), kExitFailed);
    prepared.folder = std::move(taken).value();
  }
  choose_record(arguments.place, *prepared.plan, prepared.resume);
  const Status chosen = choose_checkpoints(arguments.place, *prepared.plan, prepared.resume);
  const auto say_notes = [&prepared] {
    for (const auto& note : std::exchange(prepared.resume.notes, {})) complain("note: {}\n", note);
  };
  say_notes();
  if (!chosen.ok()) return refuse(chosen.error(), kExitBadConfiguration);
  if (const Status compared = note_changes(*prepared.plan, prepared.resume); !compared.ok())
    return refuse(compared.error(), kExitBadConfiguration);
  auto folder = make_run_folder(arguments.place.out, std::move(prepared.folder), prepared.resume,
                                *prepared.plan);
  say_notes();
  if (!folder.ok())
    return refuse(folder.error(),
                  folder.error().code() == Code::kCancelled ? kExitInterrupted : kExitFailed);
  prepared.folder = std::move(folder).value();
  if (arguments.serves)
    if (const Status noted = prepared.folder->note(Json::object().set("served", true)); !noted.ok())
      return refuse(noted.error(), kExitFailed);
  return prepared;
}

/// Removes and reports what crashed runs left in shared memory, except data of this run.
void report_leftovers(StatusLine& status, const std::filesystem::path& own) {
  for (const auto& removed : remove_shm_leftovers())
    if (own.empty() || removed.run_folder != own.string()) status.say("note: " + removed.text());
}

/// The starts of one command: the first one, and those that resume the run after a death.
class RunStarts {
 public:
  explicit RunStarts(RunArguments arguments) : arguments_(std::move(arguments)) {}
  int run();

 private:
  RunResult run_once(RunSession& session, Prepared& prepared, StatusLine& status);
  StartPolicy::Next next_start(const Plan& plan, std::set<std::string> joined,
                               const RunResult& result, const MetricsLog* metrics);
  int end(Prepared& prepared, const RunResult& result, const MetricsLog* metrics);
  void undo_if_refused(RunFolder& folder, const RunResult& result);
  int leave(const std::string& why, int exit_code);
  int open_server();

  RunArguments arguments_;
  std::unique_ptr<RunServer> server_;         // null: no HTTP server
  std::unique_ptr<ControlApi> control_;       // of a run that is served; keeps its address
  std::shared_ptr<const StatusStore> board_;  // of the newest start
  std::optional<StartPolicy> policy_;
  double seconds_ = 0;  // of all starts so far
};

int RunStarts::run() {
  outlive_readers();
  const SignalCounter signals;
  if (const Status valid = arguments_.control.check(); !valid.ok())
    return fail(valid.error(), kExitBadCommandLine);
  if (const int code = open_server(); code != kExitDone) return code;
  std::string why;  // end of the last start
  while (true) {
    Prepared prepared = prepare(arguments_);
    if (prepared.exit_code != kExitDone)
      return why.empty() ? prepared.exit_code : leave(why, prepared.exit_code);
    if (prepared.resume.is_served && control_ == nullptr) {
      auto control = open_control(arguments_.control, *prepared.folder);
      if (!control.ok()) return fail(control.error(), kExitFailed);
      control_ = std::move(control).value();
    }
    StatusLine status(STDERR_FILENO, terminal_of(STDERR_FILENO));
    auto board = std::make_shared<StatusStore>(prepared.plan, steady_now(), board_.get());
    if (server_ != nullptr) server_->show(board);
    board_ = board;
    RunSession session(*prepared.plan, *prepared.folder, prepared.resume, status,
                       arguments_.peer_keys, *board);
    session.use_hosts(prepared.hosts, !why.empty());
    if (control_ != nullptr) session.use_control(*control_);
    RunResult result = run_once(session, prepared, status);
    seconds_ = result.seconds += seconds_;
    const auto joined = hosted_names(prepared.folder->path());
    const auto next =
        next_start(*prepared.plan, {joined.begin(), joined.end()}, result, session.metrics());
    const bool is_again = next.what == StartPolicy::Next::What::kAgain;
    const bool has_failed = result.ending.how == RunEnding::How::kFailed;
    if (is_again || !has_failed || session.has_begun() || session.was_killed())
      prepared.folder->keep();
    if (!is_again) {
      const int code = end(prepared, result, session.metrics());
      if (has_failed && why.empty() && !session.has_begun() && !session.was_killed())
        undo_if_refused(*prepared.folder, result);
      return code;
    }
    why = result.ending.why;
    RunArguments again;
    again.place.resume = prepared.folder->path().string();
    again.json = arguments_.json;
    again.peer_keys = arguments_.peer_keys;
    again.hosts = arguments_.hosts;
    again.serves = arguments_.serves;
    again.control = arguments_.control;
    again.report = arguments_.report;
    again.graph.has_run = true;
    again.place.from_checkpoint = next.from_checkpoint;
    arguments_ = std::move(again);
  }
}

/// One server for all starts, so that the address stays the same. Without a free port the run
/// continues without a server; but a port that was requested must be free.
int RunStarts::open_server() {
  const auto port = parse_watch_port(arguments_.metrics_port);
  if (!port.ok())
    return fail(Error(port.error()).while_doing("--metrics-port"), kExitBadCommandLine);
  auto server = RunServer::open(*port);
  if (server.ok()) {
    server_ = std::move(server).value();
  } else if (port->port != 0) {
    return fail(Error(server.error())
                    .while_doing("serving /metrics")
                    .note("--metrics-port 0 takes a free port, --metrics-port off serves nothing"),
                kExitFailed);
  } else {
    complain("warning: this run serves no /metrics: {}\n", server.error().text());
  }
  return kExitDone;
}

/// A resume that was refused, perhaps because of a value of --set, leaves the run as it was. A
/// start from a checkpoint has a new folder, which is removed.
void RunStarts::undo_if_refused(RunFolder& folder, const RunResult& result) {
  std::error_code missing;
  if (!std::filesystem::equivalent(arguments_.place.resume, folder.path(), missing)) return;
  if (!was_refused(folder, result.ending)) return;
  if (const Status undone = folder.roll_back(); !undone.ok())
    complain("warning: {}\n", undone.error().text());
  else
    complain("note: nothing was changed: '{}' can be resumed as before\n", folder.path().string());
}

/// The run cannot be resumed, which has been reported: it ends like its last start.
int RunStarts::leave(const std::string& why, int exit_code) {
  auto folder = RunFolder::open(arguments_.place.resume);
  if (!folder.ok()) return fail(folder.error(), exit_code);
  const Status noted = (*folder)->note(Json::object()
                                           .set("end", "failed")
                                           .set("exit_code", kExitFailed)
                                           .set("why", why)
                                           .set("ended", iso_time(wall_seconds())));
  return noted.ok() ? kExitFailed : fail(noted.error(), kExitFailed);
}

/// Decides what follows this start, reports it, and waits before the next start.
StartPolicy::Next RunStarts::next_start(const Plan& plan, std::set<std::string> joined,
                                        const RunResult& result, const MetricsLog* metrics) {
  using What = StartPolicy::Next::What;
  const GraphSettings& settings = plan.settings;
  if (!policy_) policy_.emplace(settings.restarts_max, settings.restart_window);
  int64_t num_steps = 0;
  std::set<std::string> names;
  for (const auto& tenant : plan.tenants) names.insert(tenant.name);
  names.merge(joined);
  for (const auto& name : names)
    if (const auto* newest = metrics == nullptr ? nullptr : metrics->newest(name))
      num_steps += newest->step;
  const auto next = policy_->after(result.ending, num_steps, steady_now());
  const std::string window = to_string(settings.restart_window);
  if (next.what == What::kExhausted)
    complain(
        "warning: the run has resumed {} within {} or without a further step: it "
        "ends\n",
        counted(policy_->num_restarts(), "time"), window);
  if (next.what != What::kAgain) return next;
  if (result.ending.must_skip_record)
    complain("warning: {}\nwarning: resuming from the checkpoint only\n", result.ending.why);
  else
    complain("warning: {}\nwarning: the run resumes{} ({} of at most {} within {})\n",
             result.ending.why,
             next.from_checkpoint ? fmt::format(" from the checkpoint only: workers died {} times "
                                                "in a row while they followed its record",
                                                StartPolicy::kDeathsFollowingMax)
                                  : "",
             policy_->num_restarts(), counted(settings.restarts_max, "time"), window);
  // After Ctrl-C the next start ends at once.
  const Time until = steady_now() + next.pause;
  while (SignalCounter::count() == 0 && steady_now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return next;
}

RunResult RunStarts::run_once(RunSession& session, Prepared& prepared, StatusLine& status) {
  RunFolder& folder = *prepared.folder;
  report_leftovers(status, {});
  status.say(fmt::format("run folder {}", folder.path().string()));
  if (server_ != nullptr)
    status.say(fmt::format("metrics http://127.0.0.1:{}/metrics", server_->port()));
  if (const Status noted = folder.note(control_facts(server_.get())); !noted.ok())
    return {.ending = {RunEnding::How::kFailed, noted.error().text()}};
  for (const auto& point : prepared.resume.points) {
    if (point.folder.empty()) continue;  // the tenant has none
    status.say(
        fmt::format("{} after step {} from {}",
                    prepared.resume.follow.record.empty() ? "resuming" : "the learner resumes",
                    point.step, point.folder.string()));
  }
  if (!arguments_.graph.file.empty()) {
    std::error_code ignored;
    const auto graph = std::filesystem::absolute(arguments_.graph.file, ignored).lexically_normal();
    if (const Status noted = folder.note(Json::object().set("graph", graph.string())); !noted.ok())
      return {.ending = {RunEnding::How::kFailed, noted.error().text()}};
  }
  RunResult result = session.run();
  status.clear();
  report_leftovers(status, folder.path());  // of workers that were killed
  return result;
}

int RunStarts::end(Prepared& prepared, const RunResult& how, const MetricsLog* metrics) {
  RunResult result = how;
  const Plan& plan = *prepared.plan;
  RunFolder& folder = *prepared.folder;
  if (!result.ending.why.empty() && !result.was_said) complain("error: {}\n", result.ending.why);
  const Status noted = folder.note(Json::object()
                                       .set("end", result.end())
                                       .set("exit_code", result.exit_code())
                                       .set("control", Json())
                                       .set("control_api", Json())
                                       .set("processes", Json())
                                       .set("sockets", Json())
                                       .set("why", result.ending.why)
                                       .set("ended", iso_time(wall_seconds())));
  if (!noted.ok() && result.ending.why.empty()) {
    fail(noted.error(), kExitFailed);
    result.ending.how = RunEnding::How::kFailed;
  }
  if (!folder.is_kept())
    complain("note: nothing had begun: run folder '{}' is removed\n", folder.path().string());
  if (!folder.is_kept() && !arguments_.json) return result.exit_code();
  if (arguments_.report) return arguments_.report(plan, folder, result);
  const bool is_done = result.ending.how == RunEnding::How::kFinished;
  const std::string resume = is_done ? "" : resume_command(arguments_, folder.path());
  if (arguments_.json)
    print_json(summary_json(plan, folder, metrics, result, resume));
  else
    print_text(summary_text(plan, folder, metrics, result, resume, terminal_of(STDOUT_FILENO)));
  return result.exit_code();
}

}  // namespace

int run_graph(const RunArguments& arguments) { return RunStarts(arguments).run(); }

void declare_run(RunArguments& arguments, Arguments& flags) {
  arguments.graph.declare(flags, false);
  arguments.graph.declare_rehearsal(flags);
  flags.text(arguments.place.out, "--out", "DIR",
             "the run folder; default runs/<time>-<name>; runs/latest points to it");
  flags.text(arguments.place.resume, "--resume", "DIR",
             "a run folder: continues that run; or checkpoints/step_N: starts a new run from it");
  flags.text(arguments.place.fork, "--fork", "RUN@step=N",
             "starts a new run after step N of RUN; --set changes the graph");
  flags.flag(arguments.place.from_checkpoint, "--from-checkpoint",
             "resumes after the newest checkpoint, without what was recorded after it");
  flags.text(arguments.peer_keys.keys, "--keys", "FILE",
             "encrypts the connections between processes with these keys, of `keys new`");
  flags.text(arguments.peer_keys.allow, "--allow", "FILE",
             "the list of keys that they let in, of `keys allow`");
  flags.text(arguments.peer_keys.listen, "--listen", "ADDRESS",
             "where connections by tcp listen; default 127.0.0.1, others need --keys and --allow");
  flags.text(arguments.hosts, "--hosts", "FILE",
             "where the agents of the graph's hosts are: runs its processes on several machines");
  flags.flag(arguments.json, "--json", "prints the summary as JSON");
  flags.text(arguments.metrics_port, "--metrics-port", "PORT",
             "serves /metrics on 127.0.0.1; 0, the default, takes any free port; or off");
}

Command run_command() {
  auto arguments = std::make_shared<RunArguments>();
  return {"run", "trains: runs a graph until its tenants have taken their steps",
          "primerl-graph run examples/reverse_text/graph.toml --max-steps 20",
          [arguments](Arguments& flags) { declare_run(*arguments, flags); },
          [arguments] { return run_graph(*arguments); }};
}

}  // namespace primerl
