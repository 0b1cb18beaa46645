#include <filesystem>

#include "runtime/cli/commands.h"
#include "runtime/cli/run_facts.h"
#include "runtime/monitor/run_alarms.h"
#include "runtime/monitor/run_server.h"
#include "runtime/monitor/run_table.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr Duration kAnswerMax = Duration::seconds(5);

struct PsArguments {
  std::string run = "runs/latest";
  bool json = false;
};

/// What `ps` found, and its exit code.
struct Found {
  Json status;
  int exit_code = kExitDone;
};

Json status_of(const fs::path& folder, const Json& facts, std::string_view state) {
  return Json::object()
      .set("schema", "primerl.status/1")
      .set("name", member(facts, "name"))
      .set("run_id", member(facts, "run_id"))
      .set("folder", folder.string())
      .set("state", state);
}

/// The alarms that were raised when the run ended. A file that cannot be read has none: how the run
/// ended is shown anyway.
void add_training_alarms(const fs::path& folder, Json& status) {
  Json alarms = Json::array();
  for (Json& alarm : raised_alarms(folder / "alarms.jsonl")) alarms.push_back(std::move(alarm));
  if (!alarms.as_array().empty()) status.set("training_alarms", std::move(alarms));
}

Found ended(const fs::path& folder, const Json& facts) {
  Json status = status_of(folder, facts, "ended");
  for (const char* key : {"end", "exit_code", "why", "started", "ended"})
    status.set(key, member(facts, key));
  add_training_alarms(folder, status);
  return {std::move(status), kExitDone};
}

Json live_processes(const Json& facts) {
  Json live = Json::array();
  const Json all = member(facts, "processes");
  if (!all.is_array()) return live;
  for (const Json& process : all.as_array())
    if (is_alive(process))
      live.push_back(Json::object()
                         .set("name", member(process, "name"))
                         .set("pid", member(process, "pid"))
                         .set("incarnation", member(process, "incarnation")));
  return live;
}

Found lost(const fs::path& folder, const Json& facts) {
  Json status = status_of(folder, facts, "lost");
  status.set("pid", member(member(facts, "control"), "pid"))
      .set("processes", live_processes(facts));
  std::error_code fault;
  if (const std::string sockets = text_member(facts, "sockets");
      !sockets.empty() && fs::exists(sockets, fault))
    status.set("sockets", sockets);
  add_training_alarms(folder, status);
  return {std::move(status), kExitFailed};
}

/// Asks the run itself.
Result<Json> ask(const Json& facts, int64_t port) {
  HttpGetLimits limits;
  limits.deadline = kAnswerMax;
  if (port < 1 || port > UINT16_MAX) return error(Code::kCorrupt, "run.json names no port");
  ASSIGN_OR_RETURN(const HttpReply reply, http_get(static_cast<uint16_t>(port), "/status", limits));
  if (reply.status != 200)
    return error(Code::kUnavailable, "the run answered with status {}", reply.status);
  ASSIGN_OR_RETURN(Json status, parse_json(reply.body, "the run's answer"));
  // Another run may use the port now.
  if (text_member(status, "run_id") != text_member(facts, "run_id"))
    return error(Code::kUnavailable, "another run listens on 127.0.0.1:{}", port);
  return status;
}

Result<Found> find_out(const fs::path& folder) {
  ASSIGN_OR_RETURN(Json facts, read_run_facts(folder));
  if (text_member(facts, "end") != "running") return ended(folder, facts);
  if (const std::string host = text_member(facts, "host"); host != host_name())
    return error(Code::kUnavailable, "the run is on '{}', this is '{}': ask there", host,
                 host_name());
  const Json control = member(facts, "control");
  const auto port = control.get_int("port");
  if (port.ok()) {
    auto status = ask(facts, *port);
    if (status.ok()) return Found{std::move(status).value(), kExitDone};
    // It may have ended just now, or have been resumed.
    ASSIGN_OR_RETURN(facts, read_run_facts(folder));
    if (text_member(facts, "end") != "running") return ended(folder, facts);
    if (is_alive(member(facts, "control")))
      return Error(status.error())
          .while_doing(fmt::format("asking the run in '{}'", folder.string()));
    return lost(folder, facts);
  }
  if (!is_alive(control)) return lost(folder, facts);
  Json status = status_of(folder, facts, "running");
  Json processes = live_processes(facts);
  for (Json& process : processes.as_array()) process.set("state", "alive");
  status.set("phase", "running, and tells nothing: it was started with --metrics-port off")
      .set("processes", std::move(processes));
  return Found{std::move(status), kExitDone};
}

int run_ps(const PsArguments& arguments) {
  const auto found = find_out(run_path(arguments.run));
  if (!found.ok()) return fail(found.error(), exit_code_of(found.error()));
  if (arguments.json)
    print_json(found->status);
  else
    print_text(run_table(found->status));
  return found->exit_code;
}

}  // namespace

Command ps_command() {
  auto arguments = std::make_shared<PsArguments>();
  return {"ps", "shows the processes, nodes and edges of a run, or how it ended",
          "primerl-graph ps runs/latest",
          [arguments](Arguments& flags) {
            flags.positional(arguments->run, "RUN", "a run folder; default runs/latest", false);
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_ps(*arguments); }};
}

}  // namespace primerl
