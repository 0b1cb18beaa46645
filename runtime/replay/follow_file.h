/// FollowFile: how far a record is followed, and from which cuts. The control plane finds it once
/// (record_prefix.h) and writes it into the folder of the record; every process of the resumed run
/// reads it, so that all agree. A process then opens only its own record and those of the processes
/// that it sends to.
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
  std::vector<std::string> cuts;     // of it, where processes begin to follow; empty: step 1
  std::vector<uint64_t> last_steps;  // by GroupId: followed
  std::vector<AbsentProcess> absent;
  Time ended;                             // of the record
  uint32_t incarnation = 1;               // of the messages between processes that follow
  std::vector<std::string> resumed_from;  // as in the record's catalog
  std::vector<std::pair<std::string, uint64_t>> bytes_before;  // likewise
  int64_t zero_ns = 0;                                         // likewise: its clock goes on
  double wall_zero_seconds = 0;                                // likewise

  bool is_absent(ProcessId process) const;
};

/// `record`/follow.json, replaced in one moment; kIo with its name. Returns the file.
Result<std::filesystem::path> write_follow_file(const FollowFile& follow);
/// kCorrupt when it is not of this plan, with what is wrong.
Result<FollowFile> read_follow_file(const std::filesystem::path& file, const Plan& plan);

/// Whether a start has recorded anything there: one that dies at once has not.
bool has_record(const std::filesystem::path& folder);

/// What one process follows: the record of all groups that it needs.
struct FollowedRecord {
  RecordPrefix prefix;
  RunCuts cuts;
  std::optional<CutHead> base;  // its own cut
};
Result<FollowedRecord> open_followed(const Plan& plan, const FollowFile& follow, ProcessId process);

}  // namespace primerl
