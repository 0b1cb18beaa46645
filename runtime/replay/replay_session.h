/// ReplaySession: a recorded run prepared for replay: its trace, the plan of the graph in it, the
/// choice of real groups, and host services that keep metrics and files.
///
/// The plan comes from the graph text in the trace, not from the run folder's file. So a moved
/// trace can still be replayed as long as its model folders exist.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/replay/replay.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/store/line_file.h"

namespace primerl {

/// One metric line of an actor.
struct ReplayedMetrics {
  TenantSlot tenant;
  int64_t step = 0;
  MetricValues values;
};

/// Keeps metrics. If `out`, a new folder, is given, it writes lines to files there. Checkpoints go
/// to a temporary folder that the destructor removes. Write errors are reported by fault() and not
/// to the actors, whose replay continues. Thread-safe.
class ReplayHostServices final : public ProcessServices, public RunFiles, public DeliveryObserver {
 public:
  /// `tenants`: their names, by slot. As ReplaySetup::watcher it learns the names of tenants that
  /// join.
  ReplayHostServices(std::filesystem::path out, std::vector<std::string> tenants)
      : out_(std::move(out)), tenants_(std::move(tenants)) {}
  ~ReplayHostServices() override;
  Status open();

  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override;
  void log(LogLevel level, std::string_view instance, std::string_view text) override;
  const ResumePoint* resume_point(TenantSlot) const override;
  const ResumePoint* joined_point(const Tenant& tenant) const override;
  void on_step(const StepRecord& record) override;
  Status append_line(std::string_view file, std::string_view line) override;
  Result<std::filesystem::path> begin_checkpoint(TenantSlot tenant, int64_t step) override;
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override;
  // The learner of a replay saves and loads no files: folders of clients only have paths.
  Result<std::filesystem::path> begin_client_folder(TenantSlot, std::string_view path) override {
    return scratch_ / "clients" / path;
  }
  Status commit_client_folder(TenantSlot, std::string_view, bool) override { return ok(); }
  Result<std::filesystem::path> client_folder(TenantSlot, std::string_view path) override {
    return scratch_ / "clients" / path;
  }
  Status remove_client_folder(TenantSlot, std::string_view) override { return ok(); }

  void resume_from(std::vector<ResumePoint> points) { points_ = std::move(points); }
  const std::vector<ResumePoint>& resume_points() const { return points_; }
  /// Finds the checkpoints of tenants that joined in the record and continued at one.
  void find_joined_in(std::filesystem::path run_folder, size_t layout_tenants) {
    run_folder_ = std::move(run_folder);
    layout_tenants_ = layout_tenants;
  }
  std::vector<ReplayedMetrics> take_metrics();
  /// The first write that failed, if `out` is not complete.
  Status fault();

 private:
  const std::filesystem::path out_;
  const std::vector<std::string> tenants_;
  std::filesystem::path scratch_;
  std::vector<ResumePoint> points_;
  std::filesystem::path run_folder_;  // empty: not known
  size_t layout_tenants_ = 1;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<TenantSlot, uint32_t>, ResumePoint> joined_points_;
  std::vector<ReplayedMetrics> metrics_;
  /// Tenants that joined, "alice~2", by the group that made the step and the slot.
  std::map<std::pair<GroupId, TenantSlot>, std::string> joined_;
  std::map<std::string, std::unique_ptr<LineFile>, std::less<>> files_;  // in out_
  Status fault_;
};

struct ReplaySession {
  std::shared_ptr<const Trace> trace;
  std::shared_ptr<const Plan> plan;
  RunCuts cuts;                      // cuts where the record begins; empty: it begins with the
                                     // first step
  std::vector<bool> is_absent;       // by group: the process died in the run and was restarted
  std::vector<bool> is_real;         // by group
  std::vector<std::string> reasons;  // why more is replayed than was chosen, and what may differ
  ReplayDepth depth = ReplayDepth::kFull;
  std::optional<TenantSlot> only;    // the only tenant that is replayed; none: all
  std::vector<uint64_t> last_steps;  // by group: where that tenant left; empty: it stayed
  std::unique_ptr<ReplayHostServices> process_services;

  ReplaySetup setup(uint32_t num_threads) const;
};

/// The choice of what to replay, as options of the command.
struct ReplayRequest {
  std::string run;
  std::string depth = "full";
  std::string node = {};    // empty: the whole graph
  std::string tenant = {};  // empty: all
  std::vector<std::string> sets = {};
  std::string out = {};   // empty: files written by actors are not kept
  std::string from = {};  // a training step or NODE:STEP; empty: the first step
};

/// A record and its graph, with the values that the request sets. Errors are about these; findings
/// of the graph check (a wrong --set) are in the notes of the error.
struct ReplayRecord {
  std::shared_ptr<const Trace> trace;
  std::shared_ptr<const Plan> plan;
};
Result<ReplayRecord> open_record(const ReplayRequest& request);

/// Checks that the record has the node, the tenant and the step of the request. An error is about
/// the command's arguments, not about the record.
Status check_names(const ReplayRecord& record, const ReplayRequest& request);

/// Chooses what to replay, after check_names(). For an excerpt (a fixture) it is only its actor
/// group.
Result<ReplaySession> open_replay(ReplayRecord record, const ReplayRequest& request);
/// The three functions above together.
Result<ReplaySession> open_replay(const ReplayRequest& request);

/// "env.main:7: emission: message 3 of ..." with one line per detail.
std::string divergence_text(const Plan& plan, const Divergence& divergence);

/// Finds the actor group by the name of a node, instance or group; the error suggests the nearest
/// name.
Result<GroupId> find_group(const Plan& plan, const std::string& name);

}  // namespace primerl
