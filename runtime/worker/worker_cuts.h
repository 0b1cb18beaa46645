/// WorkerCuts: makes the cuts of one process (process_cut.h) and keeps them in its trace folder.
///
/// A process with a learner makes a cut when a checkpoint is begun. Any other process makes one
/// every `trace.cut_every` or `trace.cut_steps`, whichever comes first, and before a drain. A cut
/// that is incomplete when the next one is due is abandoned. With several tenants to train it is
/// not abandoned before `trace.cut_every`, because the next checkpoint may begin at any moment.
/// Work of a learner since its newest checkpoint is in no file. So a cut that is newer than a
/// committed checkpoint waits in memory until one that is not older is committed. Tenants
/// that are late are asked for one (waiting_cuts.h). No checkpoint has open gradients: a cut in
/// which a tenant had some waits for the checkpoint of a later step of that tenant.
/// A process with learners and free slots also makes a cut when none began for `trace.cut_every`,
/// because no tenant may be there.
///
/// The newest two cuts of a start are kept, with the record after them. When every process of the
/// run has a cut, older segments may be removed. Older cuts stay as long as their record, thinned
/// out by age (kept_cuts.h): a replay can begin from them.
///
/// Threads: tick() is called by one thread, checkpoint_begun() by the trainers' threads,
/// checkpoint_committed() by the learners' writers, the CutSink by every actor group's thread. A
/// separate thread writes the files. If the disk fails, one warning is given and the run continues:
/// the older cuts still exist.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <thread>

#include "runtime/trace/cut_file.h"
#include "runtime/worker/kept_cuts.h"
#include "runtime/worker/waiting_cuts.h"

namespace primerl {

/// The tenants whose learners are in this process.
std::vector<TenantSlot> tenants_trained_by(const Plan& plan, ProcessId process);

class WorkerCuts final : public CutSink {
 public:
  struct Setup {
    std::shared_ptr<const Plan> plan;
    ProcessId process;
    CutHead head;                  // run, program, process, incarnation
    std::filesystem::path folder;  // of the trace
    std::filesystem::path run_folder;
    std::vector<int64_t> begun_steps;   // by tenant slot: steps before the recorded start
    std::vector<int64_t> newest_steps;  // by tenant slot: step of the newest checkpoint; empty:
                                        // there is none
    std::function<uint64_t()> segment;  // number of the segment that is written now
    /// Sizes in bytes of the line files in the run folder: of those that the group writes; without
    /// a group, of all.
    std::function<std::vector<std::pair<std::string, uint64_t>>(GroupId)> line_files;
    /// A cut would be useless: two groups write into one line file, or a file could not be written.
    std::function<bool()> is_useless;
    std::function<void(uint64_t segment)> keep;  // segments before this one may be removed
    /// Asks a tenant's trainer for a checkpoint; called by tick().
    std::function<void(WaitingCuts::Request)> request;
    std::function<void(const std::string&)> warn;  // any thread
  };
  /// `order` asks the executor for a new cut. It may be called from every thread that calls this
  /// object.
  WorkerCuts(Setup setup, std::function<void(uint64_t number)> order);
  ~WorkerCuts() override;

  /// Call it regularly while the run is live. `num_steps`: of all groups here so far.
  void tick(Time now, uint64_t num_steps);
  /// The run is about to drain. If the drain is interrupted, a resumed run follows the record up to
  /// this cut.
  void before_drain();
  /// The trainer of `tenant` is in the step that asks for a checkpoint of `step`.
  void checkpoint_begun(TenantSlot tenant, int64_t step);
  void checkpoint_committed(TenantSlot tenant, int64_t step);
  /// The learner closed open gradients of the tenant without a training step, for example because a
  /// client discarded them. If a cut waits for that step, a new one is made. On the trainers'
  /// threads.
  void gradients_discarded(TenantSlot tenant);
  /// A tenant joined the slot, before it trains. Any thread.
  void tenant_joined(TenantSlot slot, uint32_t tenancy);
  /// The tenant has left the slot in all groups. Any thread.
  void tenant_left(TenantSlot slot, uint32_t tenancy);

  // CutSink
  void add_part(uint64_t number, GroupState&& state) override;
  void add_in_transit(uint64_t number, SavedMessage&& message) override;

 private:
  void begin();
  bool may_begin_beside_others();
  bool may_begin_at_intervals(Time now);
  void made(ProcessCut&& cut);
  int64_t steps_before(TenantSlot tenant, const CutHead& head) const;
  void hand_over(std::optional<CutFile> cut);
  void write();
  void retire();
  bool all_have_cuts() const;

  const Setup setup_;
  const std::function<void(uint64_t)> order_;
  const size_t num_trained_;  // tenants whose learners are here
  CutCollector collector_;

  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t number_ = 0;                         // number of the newest cut
  Time now_;                                    // of the newest tick()
  std::optional<Time> began_;                   // now_ when the newest cut began
  uint64_t segment_ = 1;                        // current segment when the newest cut began
  std::map<std::string, uint64_t> line_files_;  // for the open cut
  WaitingCuts waiting_;                         // for checkpoints
  std::optional<CutFile> next_;                 // waits for the writing thread
  bool is_over_ = false;

  // Used by tick() only.
  std::optional<Time> last_at_;
  uint64_t last_steps_ = 0;

  // Used by the writing thread only.
  std::vector<KeptCut> kept_;  // oldest first
  bool has_warned_ = false;

  std::condition_variable changed_;
  std::thread writer_;  // the last member, because it uses the others
};

}  // namespace primerl
