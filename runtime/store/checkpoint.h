/// Checkpoints of one tenant: `step_N/` folders that are complete or not there at all.
///
///   begin(N)   .step_N.tmp/ is made; the learner and the trainer fill it
///   commit(N)  sync every file and folder -> manifest.json with sizes and checksums last, synced
///              -> rename to step_N, or exchange with a step_N that is there -> sync -> remove what
///              neither `last` nor `every` keeps (each is renamed first: no step_N is ever
///              incomplete)
///
/// A folder counts as complete when its manifest.json can be read and every file it lists has the
/// size and the checksum it lists. Owned by the process of the trainer; not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/files.h"
#include "graph/base/services.h"

namespace primerl {

/// Which checkpoints of a tenant stay when a newer one is written.
struct KeptCheckpoints {
  int64_t last = 2;      // the newest complete ones; 0 keeps all
  int64_t interval = 0;  // steps between two checkpoints (checkpoint_every); 0: only at the end
  int64_t every = 0;     // each checkpoint of a step N * every * interval stays for good; 0: none

  /// Whether the checkpoint of this step stays for good.
  bool keeps(int64_t step) const {
    return interval > 0 && every > 0 && step % interval == 0 && step / interval % every == 0;
  }
};

class CheckpointStore {
 public:
  /// `folder` is `checkpoints/` (made when needed).
  CheckpointStore(FileOps& files, std::filesystem::path folder, std::string tenant,
                  KeptCheckpoints kept);

  /// Keeps the checkpoint of this step too, because the record of the running start begins from it.
  void keep(int64_t step) { kept_step_ = step; }

  /// A fresh empty folder to fill; what an earlier crash left behind is removed.
  Result<std::filesystem::path> begin(int64_t step);
  /// Until it returns ok the folder does not count as a complete checkpoint. `state` is what the
  /// trainer gets back as ResumePoint::manifest; its "version" is ResumePoint::version.
  Status commit(int64_t step, const Json& state);
  /// Removes checkpoints of later steps: those steps are taken again, and may come out otherwise.
  void remove_after(int64_t step);

 private:
  std::filesystem::path filling(int64_t step) const;
  Status publish(int64_t step, const Json& state);
  Status prune();
  Status remove(int64_t step, const std::filesystem::path& path);

  FileOps& files_;
  const std::filesystem::path folder_;
  const std::string tenant_;
  const KeptCheckpoints kept_;
  std::optional<int64_t> kept_step_;
};

/// The member of a manifest that has the checksum.
inline constexpr std::string_view kChecksum = "crc32c";
/// A manifest as it is written: with the checksum of all else that is in it.
std::string manifest_text(const Json& manifest);
/// kCorrupt when a manifest, the file `name`, lacks the checksum of all else that is in it.
Status check_manifest(const Json& manifest, std::string_view name);

/// How much of a checkpoint is looked at: what its files are, or every byte of them.
enum class CheckpointDepth { kSizes, kContents };

/// What a `checkpoints/` folder holds.
struct FoundCheckpoints {
  std::optional<ResumePoint> newest;  // of the complete ones
  std::vector<std::string> ignored;   // a sentence for each newer one that is not
};
/// `at_most`: looks at no checkpoint of a later step.
FoundCheckpoints find_checkpoints(const std::filesystem::path& folder, CheckpointDepth depth,
                                  int64_t at_most = INT64_MAX);

/// Steps of all `step_N` folders below, ascending, whatever is in them.
std::vector<int64_t> checkpoint_steps(const std::filesystem::path& folder);
/// Those of them whose files are there with their sizes, ascending.
std::vector<int64_t> complete_steps(const std::filesystem::path& folder);

/// Makes `to`, a `step_N` that is not there, with the files of the complete checkpoint `from`: as
/// further names of them where the file system can, as copies elsewhere. Complete or not there.
Status take_over_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to);

/// Reads and verifies one `step_N` folder.
Result<ResumePoint> read_checkpoint(const std::filesystem::path& step_folder,
                                    CheckpointDepth depth);

}  // namespace primerl
