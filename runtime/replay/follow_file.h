/// FollowFile: how far a record is followed, and from which cuts. The control plane decides it once
/// (record_prefix.h) and writes it into the folder of the record. Every process of the resumed run
/// reads it, so all agree. A process then opens only its own record and those of the processes that
/// it sends to.
///
/// Values, any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/replay/record_prefix.h"
#include "runtime/trace/cut_file.h"

namespace primerl {

struct FollowFile {
  std::filesystem::path record;      // folder of the trace
  std::vector<std::string> cuts;     // cuts of the record where processes begin to follow; empty:
                                     // step 1
  std::vector<uint64_t> last_steps;  // by GroupId: the last step to follow
  std::vector<AbsentProcess> absent;
  Time ended;                             // the record's last time
  uint32_t incarnation = 1;               // of messages between processes that follow
  std::vector<std::string> resumed_from;  // as in the record's catalog
  std::vector<std::pair<std::string, uint64_t>> bytes_before;  // as in the record's catalog
  int64_t zero_ns = 0;                                         // as in the record's catalog: its
                                                               // clock continues
  double wall_zero_seconds = 0;                                // as in the record's catalog

  bool is_absent(ProcessId process) const;
};

/// Writes `record`/follow.json, replaced by rename; kIo with its name. Returns the path.
Result<std::filesystem::path> write_follow_file(const FollowFile& follow);
/// kCorrupt, with the reason, when the file is not for this plan.
Result<FollowFile> read_follow_file(const std::filesystem::path& file, const Plan& plan);

/// Whether a start recorded anything there. A start that dies at once records nothing.
bool has_record(const std::filesystem::path& folder);

/// The record that one process follows: of all groups that it needs.
struct FollowedRecord {
  RecordPrefix prefix;
  RunCuts cuts;
  std::optional<CutHead> base;  // the process's own cut
};
Result<FollowedRecord> open_followed(const Plan& plan, const FollowFile& follow, ProcessId process);

}  // namespace primerl
