/// The wire messages between primerl-graph and its primerl-worker processes.
///
///   worker -> control: WorkerHello, Heartbeat, FirstToken, RunRecovered, LogLine, HoldAnswered,
///   TenantAnswered, RunEnded
///   control -> worker: StartRun, HoldEngines, ChangeTenant, DrainTenant, DrainRun, StopRun
///   in runs of several processes also
///   worker -> control: PeersConnected, GroupsReady, GroupsCaughtUp, TenantFinished, GroupsCounted
///   control -> worker: ConnectPeers, GoRun, ResumeLive, SetTenantAside, CountGroups, EndRun,
///   PeerDown, PeerUp
///
/// The worker sends the first message (WorkerHello) and starts nothing before StartRun. RunEnded is
/// its last message. Control messages carry no Blobs. run_coordinator.h has the order of messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/message.h"
#include "graph/message_type.h"
#include "graph/tenant_change.h"
#include "runtime/wire/frame.h"
#include "runtime/wire/process_report.h"

namespace primerl {

/// Raised when the meaning of a control message changes.
inline constexpr uint32_t kControlVersion = 15;

/// One way to reach a process: the addresses of the two lanes of its connections (PeerAddress).
struct AddressEntry {
  std::string frames;
  std::string bulk;

  template <class F>
  static void fields(F& f) {
    f("frames", &AddressEntry::frames)("bulk", &AddressEntry::bulk);
  }
};

/// A worker has started. A hello that differs from what the control plane expects is refused with
/// both values.
struct WorkerHello {
  static constexpr std::string_view kName = "WorkerHello";
  static constexpr uint32_t kVersion = 4;

  uint32_t control_version = kControlVersion;
  uint32_t wire_version = kFrameVersion;
  uint64_t graph_hash = 0;  // Plan::graph_hash of the Plan the worker built
  uint64_t types_hash = 0;  // WireTypes::hash() of the message catalog
  std::string process;      // PlanProcess::name
  uint32_t incarnation = 0;
  int64_t pid = 0;
  std::vector<AddressEntry> addresses;  // where its peers connect to it; none for a run of one
                                        // process
  std::string public_key;               // Z85; "" without keys
  std::string pass;                     // the secret that its peers must send in their greetings

  template <class F>
  static void fields(F& f) {
    using W = WorkerHello;
    f("control_version", &W::control_version)("wire_version", &W::wire_version)(
        "graph_hash", &W::graph_hash)("types_hash", &W::types_hash)("process", &W::process)(
        "incarnation", &W::incarnation)("pid", &W::pid)("addresses", &W::addresses)(
        "public_key", &W::public_key)("pass", &W::pass);
  }
};

/// The addresses and names of one process, for its peers.
struct PeerEntry {
  uint32_t process = 0;  // ProcessId
  std::string name;
  uint32_t incarnation = 0;
  std::vector<AddressEntry> addresses;
  std::string public_key;
  std::string pass;

  template <class F>
  static void fields(F& f) {
    using P = PeerEntry;
    f("process", &P::process)("name", &P::name)("incarnation", &P::incarnation)(
        "addresses", &P::addresses)("public_key", &P::public_key)("pass", &P::pass);
  }
};

/// Connect to these: all processes that share an edge with the worker.
struct ConnectPeers {
  static constexpr std::string_view kName = "ConnectPeers";
  static constexpr uint32_t kVersion = 3;
  std::vector<PeerEntry> peers;
  template <class F>
  static void fields(F& f) {
    f("peers", &ConnectPeers::peers);
  }
};

/// The process is dead: this incarnation will not come back.
struct PeerDown {
  static constexpr std::string_view kName = "PeerDown";
  static constexpr uint32_t kVersion = 1;
  uint32_t process = 0;
  uint32_t incarnation = 0;
  template <class F>
  static void fields(F& f) {
    f("process", &PeerDown::process)("incarnation", &PeerDown::incarnation);
  }
};

/// A dead process has a new incarnation: connect to it.
struct PeerUp {
  static constexpr std::string_view kName = "PeerUp";
  static constexpr uint32_t kVersion = 3;
  PeerEntry peer;
  template <class F>
  static void fields(F& f) {
    f("peer", &PeerUp::peer);
  }
};

/// Every connection of ConnectPeers has exchanged greetings.
struct PeersConnected {
  static constexpr std::string_view kName = "PeersConnected";
  static constexpr uint32_t kVersion = 1;
  uint32_t num_connections = 0;
  template <class F>
  static void fields(F& f) {
    f("num_links", &PeersConnected::num_connections);
  }
};

/// Every group has been made; it accepts no input yet.
struct GroupsReady {
  static constexpr std::string_view kName = "GroupsReady";
  static constexpr uint32_t kVersion = 1;
  uint32_t num_groups = 0;
  template <class F>
  static void fields(F& f) {
    f("num_groups", &GroupsReady::num_groups);
  }
};

/// All processes are ready: accept inputs.
struct GoRun {
  static constexpr std::string_view kName = "GoRun";
  static constexpr uint32_t kVersion = 1;
  uint32_t num_processes = 0;
  template <class F>
  static void fields(F& f) {
    f("num_processes", &GoRun::num_processes);
  }
};

/// All groups of the worker reached the end of their record, and wait for ResumeLive.
struct GroupsCaughtUp {
  static constexpr std::string_view kName = "GroupsCaughtUp";
  static constexpr uint32_t kVersion = 1;
  uint32_t num_groups = 0;
  template <class F>
  static void fields(F& f) {
    f("num_groups", &GroupsCaughtUp::num_groups);
  }
};

/// The groups of all processes reached the end of their records: resume.
struct ResumeLive {
  static constexpr std::string_view kName = "ResumeLive";
  static constexpr uint32_t kVersion = 1;
  uint32_t num_processes = 0;
  template <class F>
  static void fields(F& f) {
    f("num_processes", &ResumeLive::num_processes);
  }
};

struct TenantFinished {
  static constexpr std::string_view kName = "TenantFinished";
  static constexpr uint32_t kVersion = 3;
  TenantSlot tenant;
  std::string fault;     // "": the tenant has made all its steps; otherwise why it cannot continue
  uint32_t tenancy = 0;  // the use of the slot, or kTenancyUnknown
  template <class F>
  static void fields(F& f) {
    f("tenant", &TenantFinished::tenant)("fault", &TenantFinished::fault)("tenancy",
                                                                          &TenantFinished::tenancy);
  }
};

/// The tenant failed in some process: its actors drain, other tenants continue.
struct SetTenantAside {
  static constexpr std::string_view kName = "SetTenantAside";
  static constexpr uint32_t kVersion = 1;
  TenantSlot tenant;
  template <class F>
  static void fields(F& f) {
    f("tenant", &SetTenantAside::tenant);
  }
};

/// One count of a draining run, answered by every worker.
struct CountGroups {
  static constexpr std::string_view kName = "CountGroups";
  static constexpr uint32_t kVersion = 1;
  uint64_t round = 0;
  template <class F>
  static void fields(F& f) {
    f("round", &CountGroups::round);
  }
};

struct GroupsCounted {
  static constexpr std::string_view kName = "GroupsCounted";
  static constexpr uint32_t kVersion = 1;
  uint64_t round = 0;
  uint64_t num_steps = 0;
  bool is_idle = false;    // draining, and no group has anything left to do
  uint64_t in_flight = 0;  // sent - settled over all edges; only the sum over all workers has a
                           // meaning

  template <class F>
  static void fields(F& f) {
    using H = GroupsCounted;
    f("round", &H::round)("num_steps", &H::num_steps)("is_idle", &H::is_idle)("in_flight",
                                                                              &H::in_flight);
  }
};

/// The drain is over: end the worker.
struct EndRun {
  static constexpr std::string_view kName = "EndRun";
  static constexpr uint32_t kVersion = 1;
  uint8_t end = 0;  // RunEnd
  template <class F>
  static void fields(F& f) {
    f("end", &EndRun::end);
  }
};

struct StartRun {
  static constexpr std::string_view kName = "StartRun";
  static constexpr uint32_t kVersion = 3;
  uint32_t incarnation = 0;
  int64_t at_ns = 0;       // time of the run, if it is not the machine's steady clock; otherwise 0
  bool is_served = false;  // tenants come and go: the end of all of them is not the end of the run
  template <class F>
  static void fields(F& f) {
    f("incarnation", &StartRun::incarnation)("at_ns", &StartRun::at_ns)("is_served",
                                                                        &StartRun::is_served);
  }
};

/// Drain: sources stop, work in flight completes.
struct DrainRun {
  static constexpr std::string_view kName = "DrainRun";
  static constexpr uint32_t kVersion = 1;
  std::string reason;
  template <class F>
  static void fields(F& f) {
    f("reason", &DrainRun::reason);
  }
};

/// A person pauses or unpauses the engines of the run. It goes to every actor that can do so (an
/// EngineHold of actors/messages/load.h). Each of them answers with a HoldAnswered.
struct HoldEngines {
  static constexpr std::string_view kName = "HoldEngines";
  static constexpr uint32_t kVersion = 1;

  uint64_t number = 0;  // number of the request; answers repeat it
  TenantSlot tenant;    // none: all engines; else only the engines of this tenant
  std::string owner;
  Duration lease;  // 0: the owner unpauses

  template <class F>
  static void fields(F& f) {
    using H = HoldEngines;
    f("number", &H::number)("tenant", &H::tenant)("owner", &H::owner)("lease", &H::lease);
  }
};

struct HoldAnswered {
  static constexpr std::string_view kName = "HoldAnswered";
  static constexpr uint32_t kVersion = 1;

  uint64_t number = 0;
  uint32_t instance = 0;  // InstanceId
  uint8_t code = 0;       // Code, when text is not empty
  std::string text;       // why it refused; "": it accepted

  template <class F>
  static void fields(F& f) {
    using H = HoldAnswered;
    f("number", &H::number)("instance", &H::instance)("code", &H::code)("text", &H::text);
  }
};

/// Most bytes of a tenant's table: that of a text in a message without Blobs.
inline constexpr size_t kTenantTableBytesMax = kTextBytesInBodyMax;

/// An order about one use of a slot in a run that is served. The worker carries it out in all its
/// actor groups and answers with a TenantAnswered. A repeated order changes nothing and is answered
/// again.
struct ChangeTenant {
  static constexpr std::string_view kName = "ChangeTenant";
  static constexpr uint32_t kVersion = 1;

  TenantChange change;

  template <class F>
  static void fields(F& f) {
    f("change", &ChangeTenant::change);
  }
};

/// The tenant leaves: as at the end of a run, its sources stop and its requests end. Answered when
/// its actors here are idle and everything that they sent is acknowledged. One answer may be too
/// early, because another process may send something afterwards; so the order is given in rounds,
/// until two rounds in a row agree.
struct DrainTenant {
  static constexpr std::string_view kName = "DrainTenant";
  static constexpr uint32_t kVersion = 1;

  TenantSlot slot;
  uint32_t tenancy = 0;
  uint32_t round = 0;  // from 1

  template <class F>
  static void fields(F& f) {
    f("slot", &DrainTenant::slot)("tenancy", &DrainTenant::tenancy)("round", &DrainTenant::round);
  }
};

/// An order of ChangeTenant or DrainTenant is carried out, or cannot be.
struct TenantAnswered {
  static constexpr std::string_view kName = "TenantAnswered";
  static constexpr uint32_t kVersion = 1;

  TenantSlot slot;
  uint32_t tenancy = 0;
  uint8_t change = 0;      // TenantChange::Kind; of an answer to DrainTenant: not used
  uint32_t round = 0;      // of DrainTenant; 0: it answers a ChangeTenant
  uint64_t num_steps = 0;  // of DrainTenant: steps that the tenant's actors here have made
  uint8_t code = 0;        // Code, when text is not empty
  std::string text{};      // why it cannot be carried out; "": it was

  template <class F>
  static void fields(F& f) {
    using T = TenantAnswered;
    f("slot", &T::slot)("tenancy", &T::tenancy)("change", &T::change)("round", &T::round)(
        "num_steps", &T::num_steps)("code", &T::code)("text", &T::text);
  }
};

/// Stop now.
struct StopRun {
  static constexpr std::string_view kName = "StopRun";
  static constexpr uint32_t kVersion = 1;
  std::string reason;
  template <class F>
  static void fields(F& f) {
    f("reason", &StopRun::reason);
  }
};

/// The worker is alive, and this is its progress. Sent every second. If `num_steps` stops rising
/// while the process lives, the run is stalled. No heartbeat for dead_after is a death.
struct Heartbeat {
  static constexpr std::string_view kName = "Heartbeat";
  static constexpr uint32_t kVersion = 10;

  uint64_t num_steps = 0;
  bool is_draining = false;
  int64_t still_ms = 0;             // since the last step or progress() call
  bool is_waiting = false;          // an input waits, or a handler runs
  bool has_alarm = false;           // a timer is set
  std::string stall;                // if it follows a record and is blocked: the message that it
                                    // waits for
  std::vector<EdgeLedger> edges;    // index = EdgeId
  std::vector<EdgeLoad> loads;      // index = EdgeId
  std::vector<GroupReport> groups;  // groups of this process
  std::vector<InstanceLoad> instances;
  std::vector<ConnectionReport> connections;  // to other processes
  std::vector<EngineReport> engines;
  std::vector<EngineUse> engine_uses;
  uint64_t num_dropped_reports = 0;  // log and metric lines dropped here because the outbox was
                                     // full

  template <class F>
  static void fields(F& f) {
    using H = Heartbeat;
    f("num_steps", &H::num_steps)("is_draining", &H::is_draining)("still_ms", &H::still_ms)(
        "is_waiting", &H::is_waiting)("has_alarm", &H::has_alarm)("stall", &H::stall)(
        "edges", &H::edges)("loads", &H::loads)("groups", &H::groups)("instances", &H::instances)(
        "links", &H::connections)("engines", &H::engines)("engine_uses", &H::engine_uses)(
        "num_dropped_reports", &H::num_dropped_reports);
  }
};

/// Removes fields for observers (loads, groups, instances, connections, engines) if the message
/// would be larger than `bytes_max`. A heartbeat must arrive, however large the graph is.
void fit(Heartbeat& beat, size_t bytes_max = kMessageBytesMax);

/// An engine of the worker has made its first token of this start.
struct FirstToken {
  static constexpr std::string_view kName = "FirstToken";
  static constexpr uint32_t kVersion = 1;
  std::string instance;  // the instance that reports it
  template <class F>
  static void fields(F& f) {
    f("instance", &FirstToken::instance);
  }
};

/// The worker has followed the record of the previous start to its end and resumes.
struct RunRecovered {
  static constexpr std::string_view kName = "RunRecovered";
  static constexpr uint32_t kVersion = 1;
  uint64_t num_steps = 0;     // of the record
  uint64_t num_messages = 0;  // messages that were compared with the record
  template <class F>
  static void fields(F& f) {
    f("num_steps", &RunRecovered::num_steps)("num_messages", &RunRecovered::num_messages);
  }
};

struct LogLine {
  static constexpr std::string_view kName = "LogLine";
  static constexpr uint32_t kVersion = 1;

  uint8_t level = 0;  // LogLevel
  std::string instance;
  std::string text;

  template <class F>
  static void fields(F& f) {
    using L = LogLine;
    f("level", &L::level)("instance", &L::instance)("text", &L::text);
  }
};

/// RunOutcome (runtime/exec/executor.h) on the wire: the worker's last message.
struct RunEnded {
  static constexpr std::string_view kName = "RunEnded";
  static constexpr uint32_t kVersion = 1;

  uint8_t end = 0;    // RunEnd
  uint8_t code = 0;   // Code, when text is not empty
  std::string text;   // the reason, for kFailed and kStalled
  std::string stall;  // StallReport::text(), for kStalled
  std::vector<EdgeLedger> edges;

  template <class F>
  static void fields(F& f) {
    using R = RunEnded;
    f("end", &R::end)("code", &R::code)("text", &R::text)("stall", &R::stall)("edges", &R::edges);
  }
};

/// All of the above, for WireTypes.
std::vector<const MessageType*> control_message_catalog();

/// The message as T, or null when it has another type: `if (auto* line = as_if<LogLine>(payload))`.
template <Message T>
const T* as_if(const Payload& payload) {
  return payload.type == &message_type<T>() ? &payload.as<T>() : nullptr;
}

}  // namespace primerl
