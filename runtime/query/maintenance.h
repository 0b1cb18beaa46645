/// Maintenance of a trace that is not being written: verify (all checks), recover (removes
/// unfinished data of a dead process) and pack. Used by `primerl-graph trace verify|recover|pack`.
///
/// `folder` is a run folder, for all its starts that are one record (trace.h), or the `trace/` of
/// one start. kNotFound when it has no segment. Only recover ever truncates a file. recover and
/// pack do not touch files that a live process writes. Functions without state; one at a time on a
/// folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/result.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

struct VerifyReport {
  uint64_t num_starts = 0;  // starts of the run that are read as one record (trace.h)
  uint64_t num_segments = 0;
  uint64_t num_bytes = 0;  // of the segment files
  uint64_t num_frames = 0;
  uint64_t num_deliveries = 0;
  uint64_t num_blobs = 0;  // blobs of the content store that frames refer to
  uint64_t num_indices = 0;
  uint64_t num_cuts = 0;
  std::string graph_text;          // of the newest start's catalog; "": the trace cannot be opened
  bool is_closed = true;           // every process wrote its end frame
  std::vector<TraceFault> faults;  // in order of start, process, segment, offset
  /// Whether nothing is missing or damaged. Holes and retired segments are not faults.
  bool is_sound() const;
};

/// Checks everything: CRCs of frames and of packed blocks, order and completeness of the segments,
/// equal catalogs, totals of the end frames, hashes of blobs, checksums of indices and cuts.
Result<VerifyReport> verify_trace(const std::filesystem::path& folder);

/// One file that was changed, or that could not be changed.
struct MaintenanceStep {
  std::string file;  // name in the trace folder; with the folder's name if there are several
  std::string text;  // "cut 41 bytes of an unfinished frame at 1024", for people
  bool is_done = true;
  uint64_t bytes_before = 0, bytes_after = 0;
};

struct RecoverOptions {
  /// Also rewrites segments without their holes. Frames move, so indices are rebuilt.
  bool cuts_holes = false;
};
/// Removes unused space and unfinished frames from the ends of raw segments. Deletes segments that
/// were prepared and never used, unfinished files, and indices of changed segments (readers rebuild
/// them). Damage is not removed; verify reports it. kUnavailable while a process writes to the
/// trace.
Result<std::vector<MaintenanceStep>> recover_trace(const std::filesystem::path& folder,
                                                   const RecoverOptions& options = {});

/// Packs every raw segment. A segment that a process writes to is skipped and reported.
Result<std::vector<MaintenanceStep>> pack_trace(const std::filesystem::path& folder);

}  // namespace primerl
