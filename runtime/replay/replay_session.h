/// ReplaySession: a recorded run prepared for replay: its trace, the plan of the graph in it, which
/// groups are real, and host services that keep metrics and files.
///
/// The plan comes from the graph text in the trace, not from the run folder's file, so a moved
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

/// One metric line of an actor, with the step in which its group published it.
struct ReplayedMetrics {
  TenantSlot tenant;
  int64_t step = 0;
  MetricValues values;
};

/// Keeps metrics; writes lines to files in `out`, a new folder, when given; checkpoints go to a
/// folder that is removed with it. Write errors are reported by fault() and not to the actors,
/// whose replay continues. Thread-safe.
class ReplayHostServices final : public HostServices, public RunFiles {
 public:
  /// `tenants`: their names, by slot.
  ReplayHostServices(std::filesystem::path out, std::vector<std::string> tenants)
      : out_(std::move(out)), tenants_(std::move(tenants)) {}
  ~ReplayHostServices() override;
  Status open();

  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override;
  void log(LogLevel level, std::string_view instance, std::string_view text) override;
  const ResumePoint* resume_point(TenantSlot) const override;
  Status append_line(std::string_view file, std::string_view line) override;
  Result<std::filesystem::path> begin_checkpoint(TenantSlot tenant, int64_t step) override;
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override;

  void resume_from(std::vector<ResumePoint> points) { points_ = std::move(points); }
  const std::vector<ResumePoint>& resume_points() const { return points_; }
  std::vector<ReplayedMetrics> take_metrics();
  /// Why `out` is not complete: the first write that failed.
  Status fault();

 private:
  const std::filesystem::path out_;
  const std::vector<std::string> tenants_;
  std::filesystem::path scratch_;
  std::vector<ResumePoint> points_;
  std::mutex mutex_;
  std::vector<ReplayedMetrics> metrics_;
  std::map<std::string, std::unique_ptr<LineFile>, std::less<>> files_;  // in out_
  Status fault_;
};

struct ReplaySession {
  std::shared_ptr<const Trace> trace;
  std::shared_ptr<const Plan> plan;
  RunCuts cuts;                      // that the record begins with; empty: with the first step
  std::vector<bool> is_absent;       // by group: died in the run and came back
  std::vector<bool> is_real;         // by group
  std::vector<std::string> reasons;  // why more is replayed than was chosen, and what may differ
  ReplayDepth depth = ReplayDepth::kFull;
  std::optional<TenantSlot> only;  // the tenant that is played; none: all
  std::unique_ptr<ReplayHostServices> host_services;

  ReplaySetup setup(uint32_t num_threads) const;
};

/// What is to be played, in the words of the command.
struct ReplayRequest {
  std::string run;
  std::string depth = "full";
  std::string node = {};    // empty: the whole graph
  std::string tenant = {};  // empty: all
  std::vector<std::string> sets = {};
  std::string out = {};   // empty: what actors write is not kept
  std::string from = {};  // a training step or NODE:STEP; empty: the first step
};

/// A record and its graph, with what the request sets in it. Errors are about these; findings of
/// the graph check (a wrong --set) are in the notes of the error.
struct ReplayRecord {
  std::shared_ptr<const Trace> trace;
  std::shared_ptr<const Plan> plan;
};
Result<ReplayRecord> open_record(const ReplayRequest& request);

/// Whether the record has the node, the tenant and the step that the request names: an error is
/// about the words of the command, not about the record.
Status check_names(const ReplayRecord& record, const ReplayRequest& request);

/// Chooses what is to be played, after check_names(); of an excerpt (a fixture), only its actor
/// group.
Result<ReplaySession> open_replay(ReplayRecord record, const ReplayRequest& request);
/// The three above.
Result<ReplaySession> open_replay(const ReplayRequest& request);

/// "env.main:7: emission: message 3 of ..." with one line per detail.
std::string divergence_text(const Plan& plan, const Divergence& divergence);

/// The actor group of a node, instance or group by name; the error suggests the nearest name.
Result<GroupId> find_group(const Plan& plan, const std::string& name);

}  // namespace primerl
