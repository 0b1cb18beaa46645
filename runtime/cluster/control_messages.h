/// What primerl-graph and its primerl-worker processes say to each other, as wire messages.
///
///   worker -> control: WorkerHello, Heartbeat, FirstToken, RunRecovered, MetricsLine, LogLine,
///                      RunEnded
///   control -> worker: StartRun, DrainRun, StopRun
///
/// The worker speaks first (WorkerHello) and starts nothing before StartRun. RunEnded is its last
/// message. Control messages carry no Blobs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/message.h"
#include "graph/message_type.h"

namespace primerl {

/// Raised when the meaning of a control message changes.
inline constexpr uint32_t kControlVersion = 3;

/// Who has come up. Any difference from what the control plane expects is refused with both values.
struct WorkerHello {
  static constexpr std::string_view kName = "WorkerHello";
  static constexpr uint32_t kVersion = 1;

  uint32_t control_version = kControlVersion;
  uint64_t graph_hash = 0;  // Plan::graph_hash of the Plan the worker built
  uint64_t types_hash = 0;  // WireTypes::hash() of the message catalog
  std::string process;      // PlanProcess::name
  uint32_t epoch = 0;
  int64_t pid = 0;

  template <class F>
  static void fields(F& f) {
    using W = WorkerHello;
    f("control_version", &W::control_version)("graph_hash", &W::graph_hash)(
        "types_hash", &W::types_hash)("process", &W::process)("epoch", &W::epoch)("pid", &W::pid);
  }
};

struct StartRun {
  static constexpr std::string_view kName = "StartRun";
  static constexpr uint32_t kVersion = 1;
  uint32_t epoch = 0;
  template <class F>
  static void fields(F& f) {
    f("epoch", &StartRun::epoch);
  }
};

/// End gently: sources stop, what is in flight ends.
struct DrainRun {
  static constexpr std::string_view kName = "DrainRun";
  static constexpr uint32_t kVersion = 1;
  std::string reason;
  template <class F>
  static void fields(F& f) {
    f("reason", &DrainRun::reason);
  }
};

/// End now.
struct StopRun {
  static constexpr std::string_view kName = "StopRun";
  static constexpr uint32_t kVersion = 1;
  std::string reason;
  template <class F>
  static void fields(F& f) {
    f("reason", &StopRun::reason);
  }
};

/// EdgeLedger (runtime/exec/executor.h) on the wire.
struct EdgeCounts {
  uint64_t sent = 0;
  uint64_t handled = 0;
  uint64_t in_flight = 0;
  uint64_t returned = 0;
  uint64_t dropped = 0;
  uint64_t failed = 0;
  uint64_t waiting_max = 0;

  template <class F>
  static void fields(F& f) {
    using E = EdgeCounts;
    f("sent", &E::sent)("handled", &E::handled)("in_flight", &E::in_flight)(
        "returned", &E::returned)("dropped", &E::dropped)("failed", &E::failed)("waiting_max",
                                                                                &E::waiting_max);
  }
};

/// The worker lives, and how far it is. Sent every second; `num_steps` that no longer rises while
/// the process lives is a stall, a silence of dead_after is a death.
struct Heartbeat {
  static constexpr std::string_view kName = "Heartbeat";
  static constexpr uint32_t kVersion = 1;

  uint64_t num_steps = 0;
  bool is_draining = false;
  std::vector<EdgeCounts> edges;     // index = EdgeId
  uint64_t num_dropped_reports = 0;  // log and metric lines this side had no room for

  template <class F>
  static void fields(F& f) {
    using H = Heartbeat;
    f("num_steps", &H::num_steps)("is_draining", &H::is_draining)("edges", &H::edges)(
        "num_dropped_reports", &H::num_dropped_reports);
  }
};

/// An engine of the worker has made its first token of this start.
struct FirstToken {
  static constexpr std::string_view kName = "FirstToken";
  static constexpr uint32_t kVersion = 1;
  std::string instance;  // that says so
  template <class F>
  static void fields(F& f) {
    f("instance", &FirstToken::instance);
  }
};

struct NamedNumber {
  std::string name;
  double value = 0;
  template <class F>
  static void fields(F& f) {
    f("name", &NamedNumber::name)("value", &NamedNumber::value);
  }
};

/// The worker has followed the record of the start before to its end and goes on live.
struct RunRecovered {
  static constexpr std::string_view kName = "RunRecovered";
  static constexpr uint32_t kVersion = 1;
  uint64_t num_steps = 0;     // of the record
  uint64_t num_messages = 0;  // that were compared with it
  template <class F>
  static void fields(F& f) {
    f("num_steps", &RunRecovered::num_steps)("num_messages", &RunRecovered::num_messages);
  }
};

/// One line of metrics.jsonl, as services().publish_metrics() was given it.
struct MetricsLine {
  static constexpr std::string_view kName = "MetricsLine";
  static constexpr uint32_t kVersion = 1;

  TenantSlot tenant;
  int64_t step = 0;
  std::vector<NamedNumber> values;  // in the order they were published

  template <class F>
  static void fields(F& f) {
    using M = MetricsLine;
    f("tenant", &M::tenant)("step", &M::step)("values", &M::values);
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
  std::string text;   // why, when failed or stalled
  std::string stall;  // StallReport::text(), when stalled
  std::vector<EdgeCounts> edges;

  template <class F>
  static void fields(F& f) {
    using R = RunEnded;
    f("end", &R::end)("code", &R::code)("text", &R::text)("stall", &R::stall)("edges", &R::edges);
  }
};

/// All of the above, for WireTypes.
std::vector<const MessageType*> control_message_catalog();

/// The message as T, or null when it is another: `if (auto* line = as_if<LogLine>(payload))`.
template <Message T>
const T* as_if(const Payload& payload) {
  return payload.type == &message_type<T>() ? &payload.as<T>() : nullptr;
}

}  // namespace primerl
