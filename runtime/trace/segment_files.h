/// The files of a trace folder, by name: `<process>.<incarnation>.<number>.ptr` is a segment as it
/// was written, `.ptrz` the same segment packed, `<process>.<incarnation>.retired` the number of
/// the newest segment that was removed to make room, `.dump` the mark of a snapshot. Functions over
/// a folder; they hold nothing open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

struct SegmentFile {
  std::filesystem::path path;
  std::string process;
  uint32_t incarnation = 0;
  uint64_t number = 0;
  bool is_packed = false;
  uint64_t num_bytes = 0;  // of the file
};

/// `number` of a segment, raw or packed.
std::filesystem::path segment_path(const std::filesystem::path& folder, const std::string& process,
                                   uint32_t incarnation, uint64_t number, bool is_packed = false);
/// Name of a segment file before it has a header; left over when the process dies at that time.
std::filesystem::path unfinished_path(const std::filesystem::path& segment);
/// Parses "main.1.3.ptr" or "main.1.3.ptrz"; none when it is not the name of a segment. Sizes are
/// not read.
std::optional<SegmentFile> parse_segment_path(const std::filesystem::path& path);

/// Every segment of a folder in order of process, incarnation, number. If one is there raw and
/// packed (the packer was stopped between the two), the raw one is listed.
Result<std::vector<SegmentFile>> list_segments(const std::filesystem::path& folder);

/// Whether it has a segment: the folder of a start that died at once has none.
bool has_segments(const std::filesystem::path& folder);

/// The folder of segments, given a run folder, its `trace/` or a link to either; of a run folder
/// whose newest start recorded nothing, the newest `trace.N/`. kNotFound when there is none.
Result<std::filesystem::path> find_trace_folder(const std::filesystem::path& given);

/// Makes the folder of a trace with mode 0700: the messages of the actors are private to its user.
Status make_trace_folder(const std::filesystem::path& folder);
/// Makes it for this incarnation; kExists when it already has files of this incarnation.
Status claim_trace_folder(const std::filesystem::path& folder, const std::string& process,
                          uint32_t incarnation);
/// Syncs the segments of one incarnation that are not packed.
Status sync_segments(const std::filesystem::path& folder, const std::string& process,
                     uint32_t incarnation);

/// The newest segment number that was retired, 0 when none was: segments up to it do not count as
/// missing.
uint64_t retired_through(const std::filesystem::path& folder, const std::string& process,
                         uint32_t incarnation);
Status set_retired_through(const std::filesystem::path& folder, const std::string& process,
                           uint32_t incarnation, uint64_t number);

/// Removes a segment, packed or not, with the index files of readers. Errors are ignored: a file
/// that stays does no harm.
void remove_segment(const std::filesystem::path& folder, const std::string& process,
                    uint32_t incarnation, uint64_t number);

/// `<process>.<incarnation>.dump`: the segments of this incarnation are a snapshot of a flight
/// recorder that recorded on. JSON, see docs/formats/trace.md.
std::filesystem::path snapshot_path(const std::filesystem::path& folder, const std::string& process,
                                    uint32_t incarnation);
bool is_snapshot(const std::filesystem::path& folder, const std::string& process,
                 uint32_t incarnation);

}  // namespace primerl
