/// A process's report about itself in every heartbeat, in addition to its ledger: the state of its
/// groups, the load of its edges, and the state of its connections to other processes. Plain
/// values. Each process reports only its own groups; the control plane adds the reports.
///
/// Times are ages or sums, never clock readings: two processes need not share a clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/wire/request_histograms.h"

namespace primerl {

/// What happened to every message of one edge, summed over its instances. Balanced when
/// sent == handled + in_flight + returned + dropped.
struct EdgeLedger {
  uint64_t sent = 0;
  uint64_t handled = 0;
  uint64_t in_flight = 0;
  uint64_t returned = 0;  // returned to the sender undelivered, because the peer died
  uint64_t dropped = 0;   // overwritten on a latest_wins edge, or arrived from an old incarnation
  uint64_t failed = 0;    // handled messages whose handler returned an error
  /// The maximum number of messages waiting between one sender and one target; <= PlanEdge::bound.
  uint64_t waiting_max = 0;

  template <class F>
  static void fields(F& f) {
    using E = EdgeLedger;
    f("sent", &E::sent)("handled", &E::handled)("in_flight", &E::in_flight)(
        "returned", &E::returned)("dropped", &E::dropped)("failed", &E::failed)("waiting_max",
                                                                                &E::waiting_max);
  }
  bool balances() const { return sent == handled + in_flight + returned + dropped; }
};

/// The load of one edge, summed over its links that begin or end in this process.
struct EdgeLoad {
  uint64_t num_waiting = 0;    // in inboxes of this process
  uint64_t num_held_back = 0;  // in outboxes of this process, without credit
  uint64_t unsettled_max = 0;  // maximum number of unsettled messages of one link whose sender is
                               // here
  uint64_t blocked_ns = 0;     // how long its forward links with senders here were full

  template <class F>
  static void fields(F& f) {
    using E = EdgeLoad;
    f("num_waiting", &E::num_waiting)("num_held_back", &E::num_held_back)(
        "unsettled_max", &E::unsettled_max)("blocked_ns", &E::blocked_ns);
  }
};

/// A sum that an actor keeps with services().count().
struct NamedCount {
  std::string name;
  int64_t value = 0;

  template <class F>
  static void fields(F& f) {
    f("name", &NamedCount::name)("value", &NamedCount::value);
  }
};

/// One instance of a node: the number of its messages, and its own counts.
struct InstanceLoad {
  uint32_t instance = 0;  // InstanceId
  uint64_t num_handled = 0;
  uint64_t num_failed = 0;              // handled messages whose handler returned an error
  uint64_t num_waiting = 0;             // in its inbox
  std::vector<NamedCount> counts = {};  // by name, at most InstanceCounters::kNamesMax + 1

  template <class F>
  static void fields(F& f) {
    using I = InstanceLoad;
    f("instance", &I::instance)("num_handled", &I::num_handled)("num_failed", &I::num_failed)(
        "num_waiting", &I::num_waiting)("counts", &I::counts);
  }
};

/// One actor group: GroupView (runtime/exec/actor_group.h) on the wire.
struct GroupReport {
  uint32_t group = 0;  // GroupId
  uint64_t num_steps = 0;
  uint64_t busy_ns = 0;  // thread time of finished steps
  uint64_t num_waiting = 0;
  int64_t oldest_ns = 0;  // age of the oldest waiting input
  bool is_idle = false;
  bool is_ready = false;
  bool is_running = false;
  int64_t running_ns = 0;      // how long it has been running
  uint32_t handling = 0;       // InstanceId; none for a work call
  std::string handling_type;   // of the message in the handler; "" for a timer
  uint8_t handling_kind = 0;   // StepKind
  uint32_t handling_link = 0;  // LinkId of a message, index of a timer
  uint64_t handling_sequence = 0;
  int64_t silent_ns = 0;         // of the handler, since its begin or its last progress()
  uint64_t num_alarms = 0;       // handlers that passed handler_alarm_after
  std::vector<uint32_t> full;    // LinkIds of outgoing forward links at capacity
  std::vector<uint32_t> paused;  // LinkIds of incoming links with waiting messages whose input is
                                 // paused

  template <class F>
  static void fields(F& f) {
    using H = GroupReport;
    f("group", &H::group)("num_steps", &H::num_steps)("busy_ns", &H::busy_ns)(
        "num_waiting", &H::num_waiting)("oldest_ns", &H::oldest_ns)("is_idle", &H::is_idle)(
        "is_ready", &H::is_ready)("is_running", &H::is_running)("running_ns", &H::running_ns)(
        "handling", &H::handling)("handling_type", &H::handling_type)(
        "handling_kind", &H::handling_kind)("handling_link", &H::handling_link)(
        "handling_sequence", &H::handling_sequence)("silent_ns", &H::silent_ns)(
        "num_alarms", &H::num_alarms)("full", &H::full)("paused", &H::paused);
  }
};

/// One engine and one tenant: the tenant's weights in that engine.
struct EngineReport {
  uint32_t resource = 0;     // index into Plan::resources
  uint32_t group = 0;        // GroupId
  uint32_t tenant = 0;       // TenantSlot
  uint32_t adapter = 0;      // 0: the whole weights
  int64_t version = -1;      // PolicyVersion of the last apply; -1 before the first
  uint64_t num_applied = 0;  // number of applied versions
  uint64_t apply_ns = 0;     // how long the engine was stopped to apply them, in total
  uint64_t num_tokens = 0;   // prompt tokens not found in the cache, and sampled tokens, of the
                             // tenant's ended requests

  template <class F>
  static void fields(F& f) {
    using E = EngineReport;
    f("resource", &E::resource)("group", &E::group)("tenant", &E::tenant)("adapter", &E::adapter)(
        "version", &E::version)("num_applied", &E::num_applied)("apply_ns", &E::apply_ns)(
        "num_tokens", &E::num_tokens);
  }
};

/// An owner that pauses an engine.
struct HolderReport {
  std::string owner;
  int64_t left_ns = 0;  // remaining time of its lease

  template <class F>
  static void fields(F& f) {
    f("owner", &HolderReport::owner)("left_ns", &HolderReport::left_ns);
  }
};

/// How busy one engine is: EngineState (kernels/engine/engine.h) on the wire.
struct EngineUse {
  uint32_t resource = 0;              // index into Plan::resources
  uint32_t group = 0;                 // GroupId
  bool is_held = false;               // it is paused (Engine::set_paused)
  std::vector<HolderReport> holders;  // owners of its pauses
  uint32_t num_running = 0;
  uint32_t num_waiting = 0;
  uint32_t num_held = 0;
  uint32_t num_free_blocks = 0;
  uint32_t num_blocks = 0;
  uint64_t num_prefill_tokens = 0;
  uint64_t num_decode_tokens = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_recomputed_tokens = 0;
  uint64_t num_prefix_queries = 0;
  uint64_t num_prefix_hits = 0;
  uint64_t num_evicted_blocks = 0;
  uint64_t num_adapter_loads = 0;
  uint64_t num_adapter_evictions = 0;
  uint64_t num_kv_events = 0;              // written to the run folder
  uint64_t num_kv_events_dropped = 0;      // not written, because the buffer was full
  std::vector<RequestHistogram> requests;  // in the order of RequestValue; empty: no request ended
                                           // yet

  template <class F>
  static void fields(F& f) {
    using E = EngineUse;
    f("resource", &E::resource)("group", &E::group)("is_held", &E::is_held)("holders", &E::holders)(
        "num_running", &E::num_running)("num_waiting", &E::num_waiting)("num_held", &E::num_held)(
        "num_free_blocks", &E::num_free_blocks)("num_blocks", &E::num_blocks)(
        "num_prefill_tokens", &E::num_prefill_tokens)("num_decode_tokens", &E::num_decode_tokens)(
        "num_preemptions", &E::num_preemptions)("num_recomputed_tokens", &E::num_recomputed_tokens)(
        "num_prefix_queries", &E::num_prefix_queries)("num_prefix_hits", &E::num_prefix_hits)(
        "num_evicted_blocks", &E::num_evicted_blocks)("num_adapter_loads", &E::num_adapter_loads)(
        "num_adapter_evictions", &E::num_adapter_evictions)("num_kv_events", &E::num_kv_events)(
        "num_kv_events_dropped", &E::num_kv_events_dropped)("requests", &E::requests);
  }
};

/// The connection to one other process: ConnectionStatus (runtime/transport/transport.h) on the
/// wire.
struct ConnectionReport {
  uint32_t peer = 0;         // ProcessId
  uint32_t incarnation = 0;  // of the peer
  bool is_up = false;
  uint64_t sent_messages = 0;
  uint64_t sent_bytes = 0;
  uint64_t received_messages = 0;
  uint64_t received_bytes = 0;
  uint64_t unacknowledged_messages = 0;
  uint64_t unacknowledged_bytes = 0;
  uint64_t num_frames_resent = 0;
  uint64_t num_breaks = 0;
  int64_t round_trip_ns = 0;       // of the last greeting; 0 on the side that did not connect
  uint64_t sent_stream_bytes = 0;  // of weights, in addition to the messages
  uint64_t received_stream_bytes = 0;

  template <class F>
  static void fields(F& f) {
    using L = ConnectionReport;
    f("peer", &L::peer)("incarnation", &L::incarnation)("is_up", &L::is_up)(
        "sent_messages", &L::sent_messages)("sent_bytes", &L::sent_bytes)(
        "received_messages", &L::received_messages)("received_bytes", &L::received_bytes)(
        "unacknowledged_messages", &L::unacknowledged_messages)("unacknowledged_bytes",
                                                                &L::unacknowledged_bytes)(
        "num_frames_resent", &L::num_frames_resent)("num_breaks", &L::num_breaks)(
        "round_trip_ns", &L::round_trip_ns)("sent_stream_bytes", &L::sent_stream_bytes)(
        "received_stream_bytes", &L::received_stream_bytes);
  }
};

/// The report of an executor: everything above except the connections.
struct ProcessLoad {
  std::vector<EdgeLoad> edges;  // index = EdgeId
  std::vector<GroupReport> groups;
  std::vector<InstanceLoad> instances;
};

}  // namespace primerl
