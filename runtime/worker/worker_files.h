/// WorkerFiles: the files of the run folder that the process of the Rollout and Trainer nodes
/// writes: append-only lines, the trainers' step lines and checkpoints.
///
/// Thread-safe. The first error of the disk is reported once through `on_fault`, which may be
/// called from the thread of any actor group. After it nothing is written: lines get the same
/// error, checkpoints one that does not repeat its text. A checkpoint that is committed after a
/// refused line would hide that the line is missing, because a resumed run begins there.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "graph/base/services.h"
#include "graph/plan.h"
#include "runtime/exec/actor_group.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/client_folders.h"
#include "runtime/store/followed_lines.h"
#include "runtime/store/line_file.h"
#include "runtime/store/step_lines.h"

namespace primerl {

class WorkerFiles final : public RunFiles {
 public:
  /// `on_checkpoint` is called for committed checkpoints that did not exist before, and `on_begin`
  /// (may be null) when one is begun, each on the thread of the call. Checkpoints in
  /// `begun_from` (by tenant slot, or empty) stay on the disk, because the record of this start
  /// cannot be replayed without them.
  WorkerFiles(const Plan& plan, std::filesystem::path run_folder, const std::string& process,
              const std::vector<ResumePoint>& begun_from,
              std::function<void(TenantSlot, int64_t)> on_checkpoint,
              std::function<void(const Error&)> on_fault,
              std::function<void(TenantSlot, int64_t)> on_begin = nullptr);

  /// For a run that is resumed from a record. Until resume(), existing lines are compared instead
  /// of written, and checkpoints up to `newest` (by tenant slot; step 0: none) are not written
  /// again. Call it before the actor groups start. `bytes_before`: size of each file when the
  /// recorded start began.
  void follow(std::vector<std::pair<std::string, uint64_t>> bytes_before,
              std::vector<ResumePoint> newest);
  /// The record has ended: later lines are removed. Call it once, from any thread. `trained`:
  /// tenants whose checkpoints this process writes; checkpoints after the record are removed.
  Status resume(std::span<const TenantSlot> trained);

  /// Line files and their sizes in bytes: those that one group writes; none: all.
  std::vector<std::pair<std::string, uint64_t>> sizes(GroupId writer);
  /// Whether two groups write into one file. Then a cut is useless, because the file does not show
  /// where one of them was cut.
  bool shares_files();

  Status append_line(std::string_view file, std::string_view line) override;
  /// A trainer's report about its step.
  Status append_step(const StepLine& line);
  Result<std::filesystem::path> begin_checkpoint(TenantSlot tenant, int64_t step) override;
  Status commit_checkpoint(TenantSlot tenant, int64_t step, const Json& manifest) override;
  // A fault of these ends the client's request, not the run: it is not kept. While a record is
  // followed, a save that is computed again replaces the same bytes, and nothing is removed.
  Result<std::filesystem::path> begin_client_folder(TenantSlot tenant,
                                                    std::string_view path) override;
  Status commit_client_folder(TenantSlot tenant, std::string_view path, bool weights_only) override;
  Result<std::filesystem::path> client_folder(TenantSlot tenant, std::string_view path) override;
  Status remove_client_folder(TenantSlot tenant, std::string_view path) override;

 private:
  /// Of one tenant, because its trainer begins checkpoints while a writer commits those of others.
  struct Store {
    explicit Store(CheckpointStore store) : checkpoints(std::move(store)) {}
    std::mutex mutex;
    // Guarded by mutex.
    CheckpointStore checkpoints;
    int64_t last_step = 0;  // the newest one of a followed record
  };

  /// The path below the run folder of a file that actors name.
  std::string name_of(std::string_view file) const;
  Status append(const std::string& file, std::string_view line);
  Result<bool> was_there(std::string_view file, std::string_view line);
  const ResumePoint* written_before(TenantSlot tenant, int64_t step) const;
  Status fault();
  /// Why no checkpoint is written any more.
  Status checkpoint_fault(int64_t step);
  Status kept(Status written);

  const std::filesystem::path run_folder_;
  const std::function<void(TenantSlot, int64_t)> on_checkpoint_;
  const std::function<void(const Error&)> on_fault_;
  const std::function<void(TenantSlot, int64_t)> on_begin_;
  const size_t layout_tenants_;       // see Plan
  std::vector<std::string> tenants_;  // names, by actor group
  std::vector<ResumePoint> newest_;   // by tenant slot; empty: no record is followed
  std::vector<std::pair<std::string, uint64_t>> bytes_before_;
  StepWriter steps_;

  std::vector<std::unique_ptr<Store>> checkpoints_;  // index = tenant slot
  std::vector<ClientFolders> clients_;               // index = tenant slot

  std::mutex mutex_;  // guards the members below
  std::map<std::string, std::unique_ptr<LineFile>, std::less<>> lines_;
  std::map<std::string, std::unique_ptr<FollowedLines>, std::less<>> followed_;
  std::map<std::string, GroupId, std::less<>> writers_;  // none: no group has written since the
                                                         // start
  bool shares_files_ = false;
  bool is_following_ = false;
  Status fault_;  // the first error of the disk
};

}  // namespace primerl
