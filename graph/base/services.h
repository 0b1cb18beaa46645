/// Services: everything that an actor may know besides its messages.
///
/// The runtime passes it to an actor before start(). It stays valid while the actor exists, and
/// only the actor's own handlers and work() use it. Time, random numbers, files and the outside
/// world come only from here, so a recorded run replays bit for bit and the same actors run on a
/// virtual clock.
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

/// Facts about the message, timer or work call that a handler handles.
struct Delivery {
  TenantSlot tenant;  // none in work() and timers
  InstanceId sender;  // none in work() and timers
  InstanceId origin;  // the instance that began the conversation; to_origin() answers it
  StepRef ref;        // this step; keep it to answer later with answering(ref)
  Time sent_at;
};

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// The answer to a long handler's progress() call.
enum class Progress { kGoOn, kStopRequested };

/// Named numbers of one trainer step, in the order in which metrics.jsonl has them.
using MetricValues = std::vector<std::pair<std::string, double>>;

/// Files below the run folder. Writes are synced as stated. After an error, no more is written to
/// that file.
class RunFiles {
 public:
  virtual ~RunFiles() = default;
  /// Appends one line to an append-only file ("rollouts.jsonl"). Buffered; flushed at the end of
  /// every step.
  virtual Status append_line(std::string_view file, std::string_view line) = 0;
  /// A new temporary folder for the files of the checkpoint of `step`.
  virtual Result<std::filesystem::path> begin_checkpoint(TenantSlot tenant, int64_t step) = 0;
  /// Writes manifest.json last, syncs, renames the folder to `checkpoints/step_N`, then removes
  /// older checkpoints beyond keep_last. Until it returns ok, the folder has no name of a complete
  /// checkpoint.
  virtual Status commit_checkpoint(TenantSlot tenant, int64_t step, const Json& manifest) = 0;

  // Folders of a tenant that a client trains, `clients/<tenant>/<path>`: "weights/step-1". One is
  // complete or does not exist. A host without a run folder has none.
  /// A new temporary folder for the files of `path`.
  virtual Result<std::filesystem::path> begin_client_folder(TenantSlot tenant,
                                                            std::string_view path) {
    return no_client_folder(tenant, path);
  }
  /// Syncs the temporary folder and renames it to `path`, in place of an older one. `weights_only`:
  /// its `weights/` alone. Any thread.
  virtual Status commit_client_folder(TenantSlot tenant, std::string_view path, bool weights_only) {
    (void)weights_only;
    return no_client_folder(tenant, path);
  }
  /// The path of the complete folder, which need not exist.
  virtual Result<std::filesystem::path> client_folder(TenantSlot tenant, std::string_view path) {
    return no_client_folder(tenant, path);
  }
  /// Removes a complete folder; one that does not exist is fine.
  virtual Status remove_client_folder(TenantSlot tenant, std::string_view path) {
    return no_client_folder(tenant, path);
  }

 private:
  static Error no_client_folder(TenantSlot tenant, std::string_view path) {
    return error(Code::kUnavailable, "no folder '{}' of tenant {}: there is no run folder", path,
                 tenant);
  }
};

/// The checkpoint from which a run resumes, with its parsed manifest.json.
struct ResumePoint {
  std::filesystem::path folder;  // checkpoints/step_N
  int64_t step = 0;              // the last step taken
  PolicyVersion version;         // of the weights in the folder
  Json manifest;                 // as passed to commit_checkpoint()
};

class Services {
 public:
  virtual ~Services() = default;

  /// When the current delivery began; constant within a handler.
  virtual Time now() const = 0;
  virtual const Delivery& delivery() const = 0;
  /// Random numbers keyed by (run seed, tenant, this node, purpose, index).
  virtual RandomStream random(TenantSlot tenant, std::string_view purpose,
                              uint64_t index) const = 0;

  /// Sets the timer that the contract declares as `name`; setting it again replaces it. It fires
  /// once, as an input of this actor, not before now() + delay.
  virtual void set_timer(std::string_view name, Duration delay) = 0;
  virtual void cancel_timer(std::string_view name) = 0;

  /// Stops the delivery of messages of a forward input of this actor until resume(); the messages
  /// wait.
  virtual void pause(std::string_view input) = 0;
  virtual void resume(std::string_view input) = 0;

  virtual InstanceId self() const = 0;
  virtual std::string_view self_name() const = 0;  // "rollout.main", "decode#1"
  /// Which replica of its node this instance is, from 0, counted within its tenant.
  virtual int32_t replica() const = 0;
  /// Whether two instances use the same copy of a resource that has one user group, for example the
  /// prefill and the decode of an engine.
  virtual bool share_resource(InstanceId one, InstanceId other) const = 0;
  /// Incarnation of this instance's process. The state of an earlier incarnation is lost.
  virtual uint32_t incarnation() const = 0;
  virtual std::span<const TenantSlot> tenants()
      const = 0;  // live slots; a per_tenant instance has only its own
  virtual const Tenant& tenant(TenantSlot slot) const = 0;
  /// Where this tenant resumes; null in a new run.
  virtual const ResumePoint* resume_point(TenantSlot slot) const = 0;

  /// For handlers longer than a few milliseconds: reports progress to the watchdog, and asks
  /// whether to stop.
  virtual Progress progress() = 0;
  /// The tenant has made its last step. The run drains when all tenants have.
  virtual void finish(TenantSlot tenant) = 0;
  /// The tenant cannot continue, although this actor can. If other tenants share the run, this one
  /// is set aside for the reason `why` and the others continue; otherwise the run fails. The first
  /// reason is kept.
  virtual void fail_tenant(TenantSlot tenant, Error why) = 0;
  /// For an actor that cannot continue: from now on its errors end the run as failed, whatever the
  /// node's `on_error` is.
  virtual void stop_on_error() = 0;

  virtual RunFiles& files() = 0;
  /// One line of metrics.jsonl; the runtime adds "step", "time" and "tenant".
  virtual void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) = 0;
  /// Adds to a named counter of this instance (shown by `metrics.jsonl` and the stall report).
  virtual void count(std::string_view name, int64_t amount) = 0;
  virtual void log(LogLevel level, std::string_view text) = 0;
};

}  // namespace primerl
