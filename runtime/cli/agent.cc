#include <fmt/format.h>

#include <csignal>

#include "actors/messages/catalog.h"
#include "graph/base/shell_word.h"
#include "kernels/weights/channel.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/graph_options.h"
#include "runtime/control/agent_server.h"
#include "runtime/control/run_hosts.h"
#include "runtime/control/stop_signals.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/programs.h"
#include "runtime/program/signals.h"
#include "runtime/program/version.h"
#include "runtime/store/socket_folder.h"
#include "runtime/transport/peer_keys.h"

namespace primerl {
namespace {

struct AgentArguments {
  std::string listen = "127.0.0.1:0";
  std::string keys;
  std::string allow;
  bool once = false;
};

void say(const std::string& line) { complain("{}\n", line); }

/// The key pair of this machine, and the keys of the control planes that it accepts.
Result<FrameKeys> read_agent_keys(const AgentArguments& arguments) {
  FrameKeys keys;
  if (arguments.keys.empty() && arguments.allow.empty()) return keys;
  if (arguments.keys.empty())
    return error(Code::kInvalid, "--allow '{}' says whose keys are let in; --keys is missing",
                 arguments.allow)
        .note("make a pair with `primerl-graph keys new`");
  if (arguments.allow.empty())
    return error(Code::kInvalid, "--keys '{}' needs a list of those let in: --allow is missing",
                 arguments.keys)
        .note("write one with `primerl-graph keys allow`: without it any key would be accepted");
  ASSIGN_OR_RETURN(keys.own, read_key_file(arguments.keys));
  ASSIGN_OR_RETURN(const auto entries, read_allow_list(arguments.allow));
  for (const AllowedName& entry : entries)
    if (entry.process == kControlName) keys.allowed.push_back({entry.public_key, ProcessId(0), {}});
  if (keys.allowed.empty())
    return error(Code::kInvalid, "'{}' lets no control plane in", arguments.allow)
        .note(fmt::format("primerl-graph keys allow KEY --process {} --list {}", kControlName,
                          shell_word(arguments.allow)));
  return keys;
}

/// Checks that this machine reads the same graph in the run folder as the control plane.
Status check_graph(const PrepareRun& order) {
  const std::string file = order.run_folder + "/graph.resolved.toml";
  const CheckedGraph checked = load_graph(file, {}, full_catalog());
  if (checked.plan == nullptr)
    return error(Code::kInvalid, "'{}' cannot be used here", file)
        .note(render(checked.diagnostics, checked.sources));
  if (checked.plan->graph_hash == order.graph_hash) return ok();
  return error(Code::kInvalid,
               "'{}' has graph hash '{:016x}' here, the control plane's is '{:016x}'", file,
               checked.plan->graph_hash, order.graph_hash)
      .note("are primerl-graph on both machines of the same build, and is the folder shared?");
}

void report_leftovers() {
  for (const auto& removed : remove_shm_leftovers()) say("note: " + removed.text());
}

int run_agent(const AgentArguments& arguments) {
  outlive_readers();
  const SignalCounter signals;
  if (!host_of_address(arguments.listen, 0))
    return fail(error(Code::kInvalid, "--listen: '{}' is no address", arguments.listen)
                    .note("it is ADDRESS:PORT, port 0 for any free one, as in 127.0.0.1:7300 or "
                          "[::1]:7300"),
                kExitBadCommandLine);
  AgentSettings settings;
  settings.listen = "tcp://" + arguments.listen;
  auto keys = read_agent_keys(arguments);
  if (!keys.ok()) return fail(keys.error(), kExitBadConfiguration);
  settings.keys = std::move(keys).value();
  // Each run has a folder in it, "<run id>.<pid>".
  constexpr size_t kRunNameBytes = 16 + 1 + 7;
  auto sockets = SocketFolder::create({}, fmt::format("agent.{}", ::getpid()),
                                      kRunNameBytes + 1 + kSocketNameBytesMax);
  if (!sockets.ok()) return fail(sockets.error(), kExitFailed);
  settings.site.sockets = (*sockets)->path();
  settings.site.key_words = PeerKeyFiles{arguments.keys, arguments.allow, ""}.words();
  settings.greeting = own_greeting(WireTypes(message_catalog()).hash(), kProgramVersion);
  settings.once = arguments.once;
  settings.find_worker = worker_program;
  settings.check_run = check_graph;
  settings.clean_up = report_leftovers;
  settings.say = say;
  settings.num_signals = SignalCounter::count;
  auto server = AgentServer::open(std::move(settings));
  if (!server.ok()) {
    const bool is_refused = server.error().code() == Code::kInvalid;
    return fail(server.error(), is_refused ? kExitBadConfiguration : kExitFailed);
  }
  if (!(*sockets)->reason_for_other_root().empty())
    say("note: " + (*sockets)->reason_for_other_root());
  for (const auto& leftover : (*sockets)->leftovers())
    say("removed sockets that a crashed run left: " + leftover.string());
  report_leftovers();
  say("agent listens on " + (*server)->address());
  (*server)->serve();
  return SignalCounter::first() == SIGINT ? kExitInterrupted : kExitDone;
}

}  // namespace

Command agent_command() {
  auto arguments = std::make_shared<AgentArguments>();
  return {"agent", "starts and watches processes of this machine for a run of another one",
          "primerl-graph agent --listen 127.0.0.1:7300",
          [arguments](Arguments& flags) {
            flags.text(arguments->listen, "--listen", "ADDRESS:PORT",
                       "where `run --hosts` reaches it; port 0 is any free one, which is printed; "
                       "default 127.0.0.1:0, others than loopback need --keys and --allow");
            flags.text(arguments->keys, "--keys", "FILE", "this machine's keys, of `keys new`");
            flags.text(arguments->allow, "--allow", "FILE",
                       "whose keys are let in: those of process 'control' may run programs here");
            flags.flag(arguments->once, "--once", "leaves after the first run");
          },
          [arguments] { return run_agent(*arguments); }};
}

}  // namespace primerl
