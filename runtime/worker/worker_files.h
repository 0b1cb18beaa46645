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
#include <set>
#include <span>
#include <utility>

#include "graph/base/services.h"
#include "graph/plan.h"
#include "runtime/exec/actor_group.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/client_folders.h"
#include "runtime/store/followed_lines.h"
#include "runtime/store/line_file.h"
#include "runtime/store/removed_tenants.h"
#include "runtime/store/step_lines.h"

namespace primerl {

/// Whether the process writes rollouts.jsonl: all Rollout nodes of a run share a process.
bool runs_rollout(const Plan& plan, ProcessId process);

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
  /// recorded start began. Tenants whose files were removed since write no lines, and what their
  /// trainers write is removed again.
  void follow(std::vector<std::pair<std::string, uint64_t>> bytes_before,
              std::vector<ResumePoint> newest);
  /// The record has ended: later lines are removed. Call it once, from any thread. `trained`:
  /// tenants whose checkpoints this process writes; checkpoints after the record are removed.
  Status resume(std::span<const TenantSlot> trained);

  /// A group is about to make the actors of a tenant that joined: what they write goes to the
  /// tenant's files from now on. Call it on the group's thread. True: the group trains the tenant.
  bool begin_tenant(const Tenant& tenant);
  /// The name in files of the tenant that has the slot, as the running group knows it. "": the slot
  /// is free there.
  std::string label(TenantSlot slot);
  /// All groups have destroyed the actors of a tenant: closes its files. Any thread.
  void end_tenant(const Tenant& tenant);

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
    Store(CheckpointStore store, ClientFolders folders)
        : checkpoints(std::move(store)), clients(std::move(folders)) {}
    std::mutex mutex;
    // Guarded by mutex.
    CheckpointStore checkpoints;
    int64_t last_step = 0;  // the newest one of a followed record
    // Constant while the store is used.
    ClientFolders clients;
    ResumePoint newest{};  // of a followed record; step 0: none, or no record is followed
  };

  /// The path below the run folder of a file that actors name.
  std::string name_of(std::string_view file);
  Status append(const std::string& file, std::string_view line);
  Result<bool> was_there(std::string_view file, std::string_view line);
  /// Removes what the trainers of removed tenants wrote; `name`: of one of them.
  void remove_again(const std::string* name);
  std::shared_ptr<Store> make_store(const Tenant& tenant) const;
  std::shared_ptr<Store> store_of(TenantSlot tenant);
  Status fault();
  /// Why no checkpoint is written any more.
  Status checkpoint_fault(int64_t step);
  Status kept(Status written);

  const std::filesystem::path run_folder_;
  const std::function<void(TenantSlot, int64_t)> on_checkpoint_;
  const std::function<void(const Error&)> on_fault_;
  const std::function<void(TenantSlot, int64_t)> on_begin_;
  const size_t layout_tenants_;  // see Plan
  struct Group {
    TenantSlot slot;           // of its first instance; 0 if all tenants share it
    bool has_learner = false;  // it writes checkpoints
  };
  const std::vector<std::string> planned_;  // names in files of the plan's tenants, by slot
  std::vector<Group> groups_;               // by actor group; constant
  std::vector<std::pair<std::string, uint64_t>> bytes_before_;
  // Constant after follow().
  std::vector<RemovedTenant> removed_;
  std::set<std::string, std::less<>> removed_lines_;  // their line files
  StepWriter steps_;

  std::mutex mutex_;  // guards the members below
  /// Names in files of tenants that joined, as each actor group knows them.
  std::map<std::pair<GroupId, TenantSlot>, std::string> joined_;
  std::vector<std::shared_ptr<Store>> checkpoints_;  // by tenant slot; null: the slot is free
  std::map<std::string, std::unique_ptr<LineFile>, std::less<>> lines_;
  std::map<std::string, std::unique_ptr<FollowedLines>, std::less<>> followed_;
  std::map<std::string, GroupId, std::less<>> writers_;  // none: no group has written since the
                                                         // start
  bool shares_files_ = false;
  bool is_following_ = false;
  Status fault_;  // the first error of the disk
};

}  // namespace primerl
