/// Services: everything an actor may know of the world besides its messages.
///
/// Handed to an actor by its host before start(); valid until the actor dies; used only from the
/// actor's own handlers and work(). Because time, chance, files and the outside come in here, a
/// recorded run replays bit for bit and the same actors run on a virtual clock.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/ids.h"
#include "graph/base/json.h"
#include "graph/base/random.h"
#include "graph/base/result.h"

namespace primerl {

struct Tenant;  // graph/tenant.h

/// What a handler may ask about the message (or timer, or work turn) it handles.
struct Delivery {
  TenantSlot tenant;  // none in work() and timers
  InstanceId sender;  // none in work() and timers
  InstanceId origin;  // who began the conversation: where to_origin() answers
  StepRef ref;        // this very step: keep it to answer later with answering(ref)
  Time sent_at;
};

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Answer of a long handler's progress() call.
enum class Progress { kGoOn, kStopRequested };

/// Named numbers of one trainer step, in the order they are written to metrics.jsonl.
using MetricValues = std::vector<std::pair<std::string, double>>;

/// Files below the run folder. Writes are synced as stated; an error is final for that file.
class RunFiles {
 public:
  virtual ~RunFiles() = default;
  /// Appends one line to an append-only file ("rollouts.jsonl"). Buffered; flushed at every step
  /// end.
  virtual Status append_line(std::string_view file, std::string_view line) = 0;
  /// A fresh temporary folder to fill for the checkpoint of `step`.
  virtual Result<std::filesystem::path> begin_checkpoint(TenantSlot tenant, int64_t step) = 0;
  /// Writes manifest.json last, syncs, renames to `checkpoints/step_N`, then removes what keep_last
  /// no longer covers. Before it returns ok nobody can mistake the folder for a complete one.
  virtual Status commit_checkpoint(TenantSlot tenant, int64_t step, const Json& manifest) = 0;
};

/// Where a resumed run goes on; the parsed manifest.json of the checkpoint.
struct ResumePoint {
  std::filesystem::path folder;  // checkpoints/step_N
  int64_t step = 0;              // the last step taken
  PolicyVersion version;         // of the weights in the folder
  Json manifest;                 // all that commit_checkpoint() was given
};

class Services {
 public:
  virtual ~Services() = default;

  /// When the current delivery began; constant within a handler.
  virtual Time now() const = 0;
  virtual const Delivery& delivery() const = 0;
  /// A stream keyed by (run seed, tenant, this node, purpose, index).
  virtual RandomStream random(TenantSlot tenant, std::string_view purpose,
                              uint64_t index) const = 0;

  /// Arms the timer declared as `name` in the contract; arming again replaces it. Fires once, as an
  /// input of this actor, not before now() + delay.
  virtual void set_timer(std::string_view name, Duration delay) = 0;
  virtual void cancel_timer(std::string_view name) = 0;

  /// Stops handing over messages of a forward input of this actor until resume(); the messages
  /// wait.
  virtual void pause(std::string_view input) = 0;
  virtual void resume(std::string_view input) = 0;

  virtual InstanceId self() const = 0;
  virtual std::string_view self_name() const = 0;  // "rollout.main", "decode#1"
  /// Which replica of its node this instance is, from 0; those of another tenant do not count.
  virtual int32_t replica() const = 0;
  /// Incarnation of this instance's process: what an earlier one held is gone.
  virtual uint32_t incarnation() const = 0;
  virtual std::span<const TenantSlot> tenants()
      const = 0;  // live slots, this instance's alone if per_tenant
  virtual const Tenant& tenant(TenantSlot slot) const = 0;
  /// Where this tenant resumes; null in a fresh run.
  virtual const ResumePoint* resume_point(TenantSlot slot) const = 0;

  /// For handlers longer than a few milliseconds: tells the watchdog that they live, and asks.
  virtual Progress progress() = 0;
  /// The tenant has taken its last step: the run drains when all have.
  virtual void finish(TenantSlot tenant) = 0;
  /// The tenant cannot go on, though this actor can: where others share the run she is set aside
  /// for this reason and they go on, else the run ends as failed. The first reason counts.
  virtual void fail_tenant(TenantSlot tenant, Error why) = 0;
  /// For an actor that cannot go on: from now on its errors end the run as failed, whatever the
  /// node's `on_error` says.
  virtual void stop_on_error() = 0;

  virtual RunFiles& files() = 0;
  /// One line of metrics.jsonl; "step", "time" and "tenant" are added by the sink.
  virtual void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) = 0;
  /// Adds to a named counter of this instance (shown by `metrics.jsonl` and the stall report).
  virtual void count(std::string_view name, int64_t amount) = 0;
  virtual void log(LogLevel level, std::string_view text) = 0;
};

}  // namespace primerl
