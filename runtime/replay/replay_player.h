/// Player: the internals of a Replay (its manual is in replay.h). Files: replay.cc (start, workers,
/// report) and replay_steps.cc (the work of a worker).
///
/// Threads: every part belongs to one worker; data that workers share is guarded by mutex_ or
/// atomic.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/wiring.h"
#include "runtime/replay/replay.h"
#include "runtime/replay/replay_cursor.h"
#include "runtime/trace/read/stored_message.h"

namespace primerl {

/// One real group with the batches sent to it.
struct Part {
  std::unique_ptr<ReplayCursor> cursor;
  std::unique_ptr<ActorGroup> group;
  uint32_t worker = 0;
  std::mutex mutex;  // guards arrivals and spare
  std::vector<MessageBatch> arrivals;
  std::vector<MessageBatch> spare;  // empty batches, kept for their memory
  std::atomic<bool> has_arrivals{false};
  std::vector<MessageBatch> taken;  // used by its worker only
};

class Player final : public Replay, private GroupExecutor, private ReplayedAnswers {
 public:
  explicit Player(ReplaySetup setup);
  ~Player() override;
  Status prepare();

  Result<ReplayReport> run() override;
  Result<bool> advance() override;
  std::optional<TraceStep> upcoming() override;
  ReplayReport report() override;
  Json describe(GroupId group) const override;

 private:
  void ship(MessageBatch&& batch) override;
  void tenant_finished(TenantSlot, uint32_t) override {}
  void tenant_failed(TenantSlot tenant, uint32_t tenancy, std::string why) override;
  void group_failed(GroupId group, Error error) override;
  const std::vector<std::byte>* take(GroupId group) override {
    return parts_[group.index()]->cursor->take_answer();
  }
  std::optional<EngineResume> next_engine_resume(GroupId group, int32_t resource) override {
    return parts_[group.index()]->cursor->next_engine_resume(resource);
  }
  bool is_parallel() const override { return num_workers_ > 1; }
  void diverged(GroupId group, std::string what) override {
    parts_[group.index()]->cursor->diverged(std::move(what));
  }

  bool is_real(GroupId group) const {
    return setup_.options.is_real.empty() || setup_.options.is_real[group.index()];
  }
  /// The last step that the group plays.
  uint64_t last_step_of(GroupId group) const {
    const auto& last = setup_.options.last_steps;
    return last.empty() ? UINT64_MAX : last[group.index()];
  }
  std::vector<bool> shared_resources() const;
  void assign_workers();
  Status start_parts(uint32_t worker);
  void destroy_parts(uint32_t worker);
  void work(uint32_t worker);
  void play(uint32_t worker);
  void report_stop(uint32_t worker);
  bool wait_for_arrivals(uint32_t worker);
  Part* pick(uint32_t worker);
  void accept(Part& part);
  bool bring_input(Part& part);
  void step(Part& part);
  void find_missing();
  Status start_alone();
  /// An early stop was requested and reached; then groups that still wait are no fault.
  bool has_stopped_early() const;
  std::optional<Divergence> why_stuck(const Part& part) const;

  const ReplaySetup setup_;
  const std::shared_ptr<const Wiring> wiring_;
  const uint32_t incarnation_;                    // of the recorded process
  std::unique_ptr<const RecordedInputs> inputs_;  // null: no group is absent
  std::vector<std::shared_ptr<Resource>> owned_;  // shared by groups
  std::vector<Resource*> shared_;                 // index as Plan::resources
  std::vector<std::unique_ptr<Part>> parts_;      // index = GroupId; null: taken from the record
  uint32_t num_workers_ = 1;
  bool is_started_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t num_idle_ = 0, num_started_ = 0, num_left_ = 0;
  bool is_over_ = false;
  std::optional<Error> fault_;
  std::vector<std::string> failures_;     // group_failed() texts
  std::atomic<uint64_t> num_pending_{0};  // batches that were shipped and not yet accepted
  std::atomic<uint64_t> num_steps_{0};
};

}  // namespace primerl
