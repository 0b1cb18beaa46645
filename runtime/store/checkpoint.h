/// Checkpoints of one tenant: `step_N/` folders that are either complete or do not exist.
///
///   begin(N)   .step_N.tmp/ is made; the learner and the trainer fill it
///   commit(N)  sync every file and folder -> manifest.json with sizes and checksums last, synced
///              -> rename to step_N, or exchange with an existing step_N -> sync -> remove what
///              neither `last` nor `every` nor `best` keeps (each is renamed first: no step_N is
///              ever incomplete)
///
/// A folder is complete when its manifest.json can be read and every listed file has the listed
/// size and checksum. Owned by the process of the trainer; not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/base/files.h"
#include "graph/base/services.h"

namespace primerl {

/// Which checkpoints of a tenant are kept when a newer one is written.
struct KeptCheckpoints {
  int64_t last = 2;      // number of newest complete ones; 0: all
  int64_t interval = 0;  // steps between two checkpoints (checkpoint_every); 0: only at the end
  int64_t every = 0;     // checkpoints of steps that are a multiple of every * interval are kept
                         // forever; 0: none
  int64_t best = 0;  // number of complete ones with the highest "score" in their state; of equal
                     // ones the newer

  /// Whether the checkpoint of this step is kept forever.
  bool keeps(int64_t step) const {
    return interval > 0 && every > 0 && step % interval == 0 && step / interval % every == 0;
  }
};

class CheckpointStore {
 public:
  /// `folder` is `checkpoints/` (made when needed).
  CheckpointStore(FileOps& files, std::filesystem::path folder, std::string tenant,
                  KeptCheckpoints kept);

  /// Also keeps the checkpoint of this step, because the record of the current start begins from
  /// it.
  void keep(int64_t step) { kept_step_ = step; }

  /// A new empty folder to fill; remains of an earlier crash are removed.
  Result<std::filesystem::path> begin(int64_t step);
  /// Until it returns ok the folder does not count as a complete checkpoint. The trainer gets
  /// `state` back as ResumePoint::manifest; its "version" is ResumePoint::version.
  Status commit(int64_t step, const Json& state);
  /// Removes checkpoints of later steps: those steps are made again and may have other results.
  void remove_after(int64_t step);

 private:
  std::filesystem::path filling(int64_t step) const;
  Status publish(int64_t step, const Json& state);
  Status prune();
  /// Steps of the best checkpoints.
  std::set<int64_t> best() const;
  Status remove(int64_t step, const std::filesystem::path& path);

  FileOps& files_;
  const std::filesystem::path folder_;
  const std::string tenant_;
  const KeptCheckpoints kept_;
  std::optional<int64_t> kept_step_;
};

/// The member of a manifest that has the checksum.
inline constexpr std::string_view kChecksum = "crc32c";
/// The text of a manifest, with the checksum of everything else in it.
std::string manifest_text(const Json& manifest);
/// kCorrupt when a manifest, the file `name`, has a wrong checksum or none.
Status check_manifest(const Json& manifest, std::string_view name);

/// How much of a checkpoint is checked: the sizes of its files, or every byte.
enum class CheckpointDepth { kSizes, kContents };

/// The contents of a `checkpoints/` folder.
struct FoundCheckpoints {
  std::optional<ResumePoint> newest;  // the newest complete one
  std::vector<std::string> ignored;   // one sentence for each newer checkpoint that is incomplete
};
/// `at_most`: checkpoints of later steps are not checked.
FoundCheckpoints find_checkpoints(const std::filesystem::path& folder, CheckpointDepth depth,
                                  int64_t at_most = INT64_MAX);

/// The checkpoint of this step, of which every byte was checked; none: it is not there or damaged.
std::optional<ResumePoint> find_checkpoint(const std::filesystem::path& folder, int64_t step);

/// Steps of all `step_N` folders in a folder, ascending, complete or not.
std::vector<int64_t> checkpoint_steps(const std::filesystem::path& folder);
/// Those of them whose files exist with the right sizes, ascending.
std::vector<int64_t> complete_steps(const std::filesystem::path& folder);

/// Creates `to`, a new `step_N` folder, with the files of the complete checkpoint `from`. They are
/// hard links if the file system allows that, else copies. The folder is complete or does not
/// exist.
Status take_over_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to);

/// Reads and verifies one `step_N` folder.
Result<ResumePoint> read_checkpoint(const std::filesystem::path& step_folder,
                                    CheckpointDepth depth);

}  // namespace primerl
