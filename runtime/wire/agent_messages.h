/// The wire messages between primerl-graph and the agent of another machine
/// (docs/formats/agent.md). Plain values.
///
///   control -> agent: PrepareRun, LaunchWorker, KillWorker, LeaveRun
///   agent -> control: RunPrepared, WorkerLaunched, WorkerExited, AgentLeaving, RunDropped
///   both ways: TunnelBytes, TunnelCredit, TunnelEnded, AgentBeat
///
/// Before these messages both sides have sent their AgentGreeting (agent_frames.h). A channel is
/// one worker's control socket, carried through the connection. The control plane chooses its
/// number, which is used once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/message.h"
#include "graph/message_type.h"

namespace primerl {

/// Raised when the meaning of an agent message changes.
inline constexpr uint32_t kAgentVersion = 1;

/// Bytes of a channel that may be in transit, in each direction.
inline constexpr uint64_t kTunnelWindowBytes = uint64_t{1} << 20;
/// The maximum size of one TunnelBytes.
inline constexpr size_t kTunnelPieceBytes = size_t{64} << 10;

/// Longest strings of an order, in bytes; an order with a longer string is refused before any other
/// check.
inline constexpr size_t kRunIdBytesMax = 64;
inline constexpr size_t kSocketFolderBytesMax = 64;
inline constexpr size_t kOrderWordBytesMax = 256;   // names, addresses
inline constexpr size_t kRunFolderBytesMax = 3072;  // with a file name still a valid path
/// Limits of an AgentFault and of end reasons; longer texts are cut.
inline constexpr size_t kAgentFaultBytesMax = 16384;
inline constexpr size_t kFaultNotesMax = 8;
inline constexpr size_t kReasonBytesMax = 1024;

/// Asks the agent to serve this run. First the agent must find the challenge of its greeting in the
/// run folder. Before that it changes nothing, and says nothing about a run that it serves. The
/// order is refused while another run is served. Remaining processes of an older start of the same
/// run are killed and reaped before the answer.
struct PrepareRun {
  static constexpr std::string_view kName = "PrepareRun";
  static constexpr uint32_t kVersion = 1;

  std::string run_id;
  std::string graph;          // its name
  uint64_t graph_hash = 0;    // Plan::graph_hash
  uint32_t incarnation = 0;   // number of the run's start, from 1
  std::string host;           // the agent's name in the hosts file
  std::string run_folder;     // the same path on every machine
  std::string socket_folder;  // name of the folder of sockets, equal on every machine
  std::string listen;         // where its processes listen for tcp connections; "": 127.0.0.1
  int64_t dead_after_ms = 0;

  template <class F>
  static void fields(F& f) {
    using P = PrepareRun;
    f("run_id", &P::run_id)("graph", &P::graph)("graph_hash", &P::graph_hash)(
        "incarnation", &P::incarnation)("host", &P::host)("run_folder", &P::run_folder)(
        "links", &P::socket_folder)("listen", &P::listen)("dead_after_ms", &P::dead_after_ms);
  }
};

/// An Error on the wire; `text` empty: none.
struct AgentFault {
  uint8_t code = 0;  // Code
  std::string text;
  std::vector<std::string> notes;
  template <class F>
  static void fields(F& f) {
    f("code", &AgentFault::code)("text", &AgentFault::text)("notes", &AgentFault::notes);
  }
};

struct RunPrepared {
  static constexpr std::string_view kName = "RunPrepared";
  static constexpr uint32_t kVersion = 1;

  AgentFault fault;         // why it was refused
  int64_t pid = 0;          // of the agent
  uint32_t num_killed = 0;  // remaining processes of the older start that it killed

  template <class F>
  static void fields(F& f) {
    using R = RunPrepared;
    f("fault", &R::fault)("pid", &R::pid)("num_killed", &R::num_killed);
  }
};

/// Start a worker. The agent adds its own program, folder of sockets, key files and address.
struct LaunchWorker {
  static constexpr std::string_view kName = "LaunchWorker";
  static constexpr uint32_t kVersion = 1;

  uint32_t channel = 0;
  std::string process;  // PlanProcess::name, for the log
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // "NAME=value"
  std::string log_file;

  template <class F>
  static void fields(F& f) {
    using L = LaunchWorker;
    f("channel", &L::channel)("process", &L::process)("arguments", &L::arguments)(
        "environment", &L::environment)("log_file", &L::log_file);
  }
};

struct WorkerLaunched {
  static constexpr std::string_view kName = "WorkerLaunched";
  static constexpr uint32_t kVersion = 1;

  uint32_t channel = 0;
  AgentFault fault;  // why not; then no WorkerExited follows
  int64_t pid = 0;

  template <class F>
  static void fields(F& f) {
    using W = WorkerLaunched;
    f("channel", &W::channel)("fault", &W::fault)("pid", &W::pid);
  }
};

/// The worker is dead and has been reaped. Only the agent can report this.
struct WorkerExited {
  static constexpr std::string_view kName = "WorkerExited";
  static constexpr uint32_t kVersion = 2;

  uint32_t channel = 0;
  int32_t code = 0;    // as in ProcessExit
  int32_t signal = 0;  // as in ProcessExit
  std::string last_words;
  std::string lack_of_memory{};  // as in ProcessExit

  template <class F>
  static void fields(F& f) {
    using W = WorkerExited;
    f("channel", &W::channel)("code", &W::code)("signal", &W::signal)("last_words", &W::last_words)(
        "lack_of_memory", &W::lack_of_memory);
  }
};

/// SIGKILL; WorkerExited follows, if it has not been sent.
struct KillWorker {
  static constexpr std::string_view kName = "KillWorker";
  static constexpr uint32_t kVersion = 1;
  uint32_t channel = 0;
  template <class F>
  static void fields(F& f) {
    f("channel", &KillWorker::channel);
  }
};

/// The next bytes of a channel.
struct TunnelBytes {
  static constexpr std::string_view kName = "TunnelBytes";
  static constexpr uint32_t kVersion = 1;
  uint32_t channel = 0;
  std::vector<uint8_t> bytes;  // 1 to kTunnelPieceBytes
  template <class F>
  static void fields(F& f) {
    f("channel", &TunnelBytes::channel)("bytes", &TunnelBytes::bytes);
  }
};

/// How many bytes of the channel may be sent, counted from its beginning.
struct TunnelCredit {
  static constexpr std::string_view kName = "TunnelCredit";
  static constexpr uint32_t kVersion = 1;
  uint32_t channel = 0;
  uint64_t granted = 0;
  template <class F>
  static void fields(F& f) {
    f("channel", &TunnelCredit::channel)("granted", &TunnelCredit::granted);
  }
};

/// No more bytes from this end.
struct TunnelEnded {
  static constexpr std::string_view kName = "TunnelEnded";
  static constexpr uint32_t kVersion = 1;
  uint32_t channel = 0;
  template <class F>
  static void fields(F& f) {
    f("channel", &TunnelEnded::channel);
  }
};

/// This end is alive.
struct AgentBeat {
  static constexpr std::string_view kName = "AgentBeat";
  static constexpr uint32_t kVersion = 1;
  uint32_t num_workers = 0;  // workers of the run that have not been reaped
  template <class F>
  static void fields(F& f) {
    f("num_workers", &AgentBeat::num_workers);
  }
};

/// The agent was asked to stop: the control plane must end the run.
struct AgentLeaving {
  static constexpr std::string_view kName = "AgentLeaving";
  static constexpr uint32_t kVersion = 1;
  std::string why;
  template <class F>
  static void fields(F& f) {
    f("why", &AgentLeaving::why);
  }
};

/// The run is over for the control plane: the agent kills its remaining processes and may serve the
/// next run.
struct LeaveRun {
  static constexpr std::string_view kName = "LeaveRun";
  static constexpr uint32_t kVersion = 1;
  std::string why;
  template <class F>
  static void fields(F& f) {
    f("why", &LeaveRun::why);
  }
};

/// The run is over for the agent: its processes have been killed and reaped.
struct RunDropped {
  static constexpr std::string_view kName = "RunDropped";
  static constexpr uint32_t kVersion = 1;
  std::string why;
  template <class F>
  static void fields(F& f) {
    f("why", &RunDropped::why);
  }
};

/// All of the above, for WireTypes.
std::vector<const MessageType*> agent_message_catalog();

}  // namespace primerl
