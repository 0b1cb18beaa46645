/// WorkerServices: the services of a worker process for its actor groups: files, metrics, the log.
///
/// Thread-safe. Referenced objects must stay valid while it exists.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actors/decode/decode.h"
#include "graph/base/real_clock.h"
#include "graph/tenancies.h"
#include "runtime/exec/executor.h"
#include "runtime/log/log.h"
#include "runtime/store/run_folder.h"
#include "runtime/transport/control_channel.h"
#include "runtime/wire/control_messages.h"
#include "runtime/worker/worker_files.h"

namespace primerl {

class WorkerServices final : public ProcessServices {
 public:
  /// `points`: the checkpoints from which the recorded start began, by tenant slot or empty.
  WorkerServices(const Plan& plan, const std::filesystem::path& folder, const std::string& process,
                 Log& log, ControlChannel& control, std::vector<ResumePoint> points,
                 std::function<void(TenantSlot, int64_t)> on_checkpoint,
                 std::function<void(const Error&)> on_fault,
                 std::function<void(TenantSlot, int64_t)> on_begin)
      : log_(log),
        control_(control),
        points_(std::move(points)),
        reports_all_(plan.processes.size() > 1),
        run_folder_(folder),
        layout_tenants_(plan.layout_tenants()),
        files_(plan, folder, process, points_, std::move(on_checkpoint), std::move(on_fault),
               std::move(on_begin)) {}

  /// Until resume() log lines repeat the record: they go to the log file but are not reported
  /// again. `is_from_cut`: actors get their state from a cut, not from a checkpoint.
  void follow(std::vector<std::pair<std::string, uint64_t>> bytes_before,
              std::vector<ResumePoint> newest, bool is_from_cut) {
    files_.follow(std::move(bytes_before), std::move(newest));
    is_following_ = true;
    is_from_cut_ = is_from_cut;
  }
  WorkerFiles& worker_files() { return files_; }
  Status resume(std::span<const TenantSlot> trained) {
    is_following_ = false;
    return files_.resume(trained);
  }

  RunFiles& files() override { return files_; }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override {
    const std::string name = tenant.is_none() ? "" : files_.label(tenant);
    if (name.empty()) return;  // shared instances have no step
    // The files report an error, and refuse the checkpoint that would follow.
    (void)files_.append_step({name, step, wall_seconds(), values});
  }
  void log(LogLevel level, std::string_view instance, std::string_view text) override {
    // Written to the log file again, because it may show why a record could not be followed.
    log_.write(level, instance, text);
    if (is_following_) return;
    if (level == LogLevel::kInfo && text == kFirstTokenLine)
      control_.report(FirstToken{std::string(instance)});
    if (level == LogLevel::kWarning || level == LogLevel::kError ||
        (level == LogLevel::kInfo && reports_all_))
      control_.report(
          LogLine{static_cast<uint8_t>(level), std::string(instance), std::string(text)});
  }
  const ResumePoint* resume_point(TenantSlot tenant) const override {
    if (tenant.index() >= points_.size() || is_from_cut_) return nullptr;
    const ResumePoint& point = points_[tenant.index()];
    return point.folder.empty() ? nullptr : &point;  // the tenant had no checkpoint
  }
  /// All groups here have destroyed its actors. Any thread.
  void end_tenant(const Tenant& tenant) {
    files_.end_tenant(tenant);
    const std::lock_guard<std::mutex> lock(mutex_);
    joined_.erase({tenant.slot, tenant.tenancy});
  }
  /// The step of the newest checkpoint of a tenant that joins; 0: it has none. When the run is
  /// resumed without its record, the tenant continues there. Any thread.
  int64_t newest_step(const TenantChange& change) const {
    Tenant tenant;
    tenant.name = change.name;
    tenant.tenancy = change.tenancy;
    const auto found = find_checkpoints(checkpoints_of(tenant), CheckpointDepth::kContents);
    return found.newest ? found.newest->step : 0;
  }
  /// Where its join says that it continues. A start that follows the record of that join needs the
  /// same checkpoint.
  const ResumePoint* joined_point(const Tenant& tenant) const override {
    if (tenant.begins_at == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [point, is_new] = joined_.try_emplace({tenant.slot, tenant.tenancy});
    if (is_new)
      if (auto found = find_checkpoint(checkpoints_of(tenant), tenant.begins_at))
        point->second = std::move(*found);
    return point->second.folder.empty() ? nullptr : &point->second;
  }

 private:
  std::filesystem::path checkpoints_of(const Tenant& tenant) const {
    return checkpoints_folder(run_folder_, tenancy_name(tenant), layout_tenants_);
  }

  Log& log_;
  ControlChannel& control_;
  const std::vector<ResumePoint> points_;
  const bool reports_all_;  // for the merged log of all processes
  const std::filesystem::path run_folder_;
  const size_t layout_tenants_;
  mutable std::mutex mutex_;                                               // guards joined_
  mutable std::map<std::pair<TenantSlot, uint32_t>, ResumePoint> joined_;  // by slot and number
  WorkerFiles files_;
  std::atomic<bool> is_following_{false};
  bool is_from_cut_ = false;  // constant before the groups start
};

}  // namespace primerl
