/// WorkerCuts: makes the cuts of one process (process_cut.h) and keeps them in its trace folder.
///
/// When: a process with a learner at every checkpoint that it has committed, any other every
/// `trace.cut_every` or `trace.cut_steps`, whichever comes first, and before a drain. A cut that is
/// not complete when the next one is due is given up. What a learner has done since its newest
/// checkpoint is in no file, so a cut that is newer waits in memory for the next checkpoint.
///
/// The newest two cuts of a start are kept, with the record behind them, once every process of the
/// run has a cut; older segments may then be removed. Older cuts stay beside their record, thinned
/// by age (kept_cuts.h): a replay can begin from them.
///
/// Threads: tick() is called by one thread, checkpoint_committed() by trainers', the CutSink by
/// every actor group's. A thread of its own writes the files; a disk that refuses one is told once,
/// and the run goes on: the older cuts are still there.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <thread>

#include "runtime/trace/cut_file.h"
#include "runtime/worker/kept_cuts.h"

namespace primerl {

/// Whose learners this process has.
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
    std::vector<int64_t> newest_steps;  // likewise, of the newest checkpoint; empty: there is none
    std::function<uint64_t()> segment;  // that is written now
    /// Line files of the run folder and their bytes: those that a group writes, or with none all.
    std::function<std::vector<std::pair<std::string, uint64_t>>(GroupId)> line_files;
    /// No cut is of use: two groups write into one line file, or a file could not be written.
    std::function<bool()> is_useless;
    std::function<void(uint64_t segment)> keep;    // older ones may be removed
    std::function<void(const std::string&)> warn;  // any thread
  };
  /// `order` tells the executor of a new cut; it may be called from every thread that calls here.
  WorkerCuts(Setup setup, std::function<void(uint64_t number)> order);
  ~WorkerCuts() override;

  /// The run is live; call it regularly. `num_steps`: of all groups here so far.
  void tick(Time now, uint64_t num_steps);
  /// The run is about to drain: what is followed, if the drain is cut short, ends here.
  void before_drain();
  void checkpoint_committed(TenantSlot tenant, int64_t step);

  // CutSink
  void add_part(uint64_t number, GroupState&& state) override;
  void add_in_transit(uint64_t number, SavedMessage&& message) override;

 private:
  struct Made {
    CutHead head;
    ProcessCut cut;
  };
  void begin();
  void made(ProcessCut&& cut);
  bool may_be_written(const CutHead& head) const;
  void hand_over(Made made);
  void write();
  void retire();
  bool all_have_cuts() const;

  const Setup setup_;
  const std::function<void(uint64_t)> order_;
  const bool has_learner_;
  CutCollector collector_;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<int64_t> checkpoints_;            // newest step, by tenant slot
  uint64_t number_ = 0;                         // of the newest cut
  uint64_t segment_ = 1;                        // when it began
  std::map<std::string, uint64_t> line_files_;  // of the open cut
  std::optional<Made> early_;                   // waits for a checkpoint
  std::optional<Made> next_;                    // for the writing thread
  bool is_over_ = false;

  // Touched by tick() alone.
  std::optional<Time> last_at_;
  uint64_t last_steps_ = 0;

  // Touched by the writing thread alone.
  std::vector<KeptCut> kept_;  // oldest first
  bool has_warned_ = false;

  std::condition_variable changed_;
  std::thread writer_;  // the last member: it uses the others
};

}  // namespace primerl
