/// The files of a trace folder, by name. `<process>.<incarnation>.<number>.ptr` is a raw segment,
/// `.ptrz` the same segment packed. `<process>.<incarnation>.retired` has the number of the newest
/// segment that was removed to free space. `.dump` marks a snapshot. Functions over a folder; they
/// keep no file open.
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

/// Path of segment `number`, raw or packed.
std::filesystem::path segment_path(const std::filesystem::path& folder, const std::string& process,
                                   uint32_t incarnation, uint64_t number, bool is_packed = false);
/// Name of a segment file before it has a header. Such a file remains when the process dies at that
/// time.
std::filesystem::path unfinished_path(const std::filesystem::path& segment);
/// Parses "main.1.3.ptr" or "main.1.3.ptrz"; none for any other name. Sizes are not read.
std::optional<SegmentFile> parse_segment_path(const std::filesystem::path& path);

/// Every segment of a folder in order of process, incarnation, number. If one exists raw and packed
/// (the packer was stopped between the two), the raw file is listed.
Result<std::vector<SegmentFile>> list_segments(const std::filesystem::path& folder);

/// Whether the folder has a segment: the folder of a start that died at once has none.
bool has_segments(const std::filesystem::path& folder);

/// The folder of segments for a run folder, its `trace/` or a link to either. If the newest start
/// of a run folder recorded nothing, it is the newest `trace.N/`. kNotFound when there is none.
Result<std::filesystem::path> find_trace_folder(const std::filesystem::path& given);

/// Makes the folder of a trace with mode 0700, because the actors' messages are private to its
/// user.
Status make_trace_folder(const std::filesystem::path& folder);
/// Makes the folder for this incarnation; kExists when it already has files of this incarnation.
Status claim_trace_folder(const std::filesystem::path& folder, const std::string& process,
                          uint32_t incarnation);
/// Syncs the raw segments of one incarnation.
Status sync_segments(const std::filesystem::path& folder, const std::string& process,
                     uint32_t incarnation);

/// The newest segment number that was retired, 0 for none: segments up to it do not count as
/// missing.
uint64_t retired_through(const std::filesystem::path& folder, const std::string& process,
                         uint32_t incarnation);
Status set_retired_through(const std::filesystem::path& folder, const std::string& process,
                           uint32_t incarnation, uint64_t number);

/// Removes a segment, packed or not, with the index files of readers. Errors are ignored, because a
/// remaining file does no harm.
void remove_segment(const std::filesystem::path& folder, const std::string& process,
                    uint32_t incarnation, uint64_t number);

/// Path of `<process>.<incarnation>.dump`. It says that the segments of this incarnation are a
/// snapshot of a flight recorder that continued to record. JSON, see docs/formats/trace.md.
std::filesystem::path snapshot_path(const std::filesystem::path& folder, const std::string& process,
                                    uint32_t incarnation);
bool is_snapshot(const std::filesystem::path& folder, const std::string& process,
                 uint32_t incarnation);

}  // namespace primerl
