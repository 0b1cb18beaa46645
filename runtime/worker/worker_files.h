/// WorkerFiles: the files below the run folder that the process of the Rollout and Trainer nodes
/// writes: append-only lines and checkpoints.
///
/// Thread-safe. The first error of the disk is kept and reported once through `on_fault`, which may
/// be called from the thread of any actor group; the caller also gets it, every time.
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
#include "runtime/store/followed_lines.h"
#include "runtime/store/line_file.h"

namespace primerl {

class WorkerFiles final : public RunFiles {
 public:
  /// `on_checkpoint` is told of committed checkpoints that were not there before. `begun_from`, by
  /// tenant slot or empty, stays on the disk: without it the record of this start could not be
  /// replayed.
  WorkerFiles(const Plan& plan, std::filesystem::path run_folder,
              const std::vector<ResumePoint>& begun_from,
              std::function<void(TenantSlot, int64_t)> on_checkpoint,
              std::function<void(const Error&)> on_fault);

  /// The run is resumed from a record: until resume() lines that are there already are
  /// compared and checkpoints up to `newest` (by tenant slot; step 0: none) are not written again.
  /// Call it before the actor groups start. `bytes_before`: of each file when the recorded start
  /// began.
  void follow(std::vector<std::pair<std::string, uint64_t>> bytes_before,
              std::vector<ResumePoint> newest);
  /// The record has ended: lines beyond it are cut. Call it once, from any thread. `trained`:
  /// this process writes their checkpoints, and those beyond the record are removed.
  Status resume(std::span<const TenantSlot> trained);

  /// Line files and their bytes: of one group those that it writes, of no group all.
  std::vector<std::pair<std::string, uint64_t>> sizes(GroupId writer);
  /// A cut is of no use: two groups write into one file, and where one of them was cut cannot be
  /// told from the file.
  bool shares_files();

  Status append_line(std::string_view file, std::string_view line) override;
  Result<std::filesystem::path> begin_checkpoint(TenantSlot tenant, int64_t step) override;
  Status commit_checkpoint(TenantSlot tenant, int64_t step, const Json& manifest) override;

 private:
  /// What a file that actors name is called below the run folder.
  std::string name_of(std::string_view file) const;
  Status append(const std::string& file, std::string_view line);
  Result<bool> was_there(std::string_view file, std::string_view line);
  const ResumePoint* written_before(TenantSlot tenant, int64_t step) const;
  void tell(const Error& fault);

  const std::filesystem::path run_folder_;
  const std::function<void(TenantSlot, int64_t)> on_checkpoint_;
  const std::function<void(const Error&)> on_fault_;
  std::vector<std::string> rollouts_;                          // file names, by actor group
  std::vector<std::unique_ptr<CheckpointStore>> checkpoints_;  // index = tenant slot
  std::vector<ResumePoint> newest_;                            // likewise; empty: nothing to follow
  std::vector<int64_t> last_steps_;                            // likewise: of checkpoints followed
  std::vector<std::pair<std::string, uint64_t>> bytes_before_;

  std::mutex mutex_;  // guards what follows
  std::map<std::string, std::unique_ptr<LineFile>, std::less<>> lines_;
  std::map<std::string, std::unique_ptr<FollowedLines>, std::less<>> followed_;
  std::map<std::string, GroupId, std::less<>> writers_;  // none: nobody has written since the start
  bool shares_files_ = false;
  bool is_following_ = false;
  bool has_told_ = false;
};

}  // namespace primerl
