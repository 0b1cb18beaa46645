#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "graph/base/crc32c.h"
#include "graph/base/file_lock.h"
#include "graph/base/files.h"
#include "runtime/query/maintenance.h"
#include "runtime/trace/frame_check.h"
#include "runtime/trace/packed_segment.h"
#include "runtime/trace/record/sealed_segments.h"
#include "runtime/trace/segment_files.h"
#include "runtime/trace/segment_reader.h"

namespace primerl {
namespace {

void remove_index(const std::filesystem::path& segment) {
  std::error_code ignored;  // an index is never authoritative
  std::filesystem::remove(segment.string() + ".index", ignored);
  auto beside = segment;
  std::filesystem::remove(beside.replace_extension(".index"), ignored);
}

struct Scan {
  std::vector<Frame> frames;
  uint64_t end = 0;           // after the last frame
  std::vector<Damage> inner;  // damage with frames after it
};

Scan scan(SegmentReader& reader) {
  Scan found;
  found.end = sizeof(SegmentHeader);
  while (auto frame = reader.next(found.end)) {
    found.frames.push_back(*frame);
    found.end = SegmentReader::next_offset(*frame);
  }
  for (const auto& damage : reader.damage())
    if (!damage.is_tail) found.inner.push_back(damage);
  return found;
}

bool is_never_used(const Scan& found) {
  return found.frames.size() == 1 && found.frames[0].kind() == TraceFrameKind::kCatalog;
}

// Writes the frames one after the other; each gets the CRC of its new offset.
std::vector<std::byte> without_holes(SegmentReader& reader, const Scan& found) {
  const SegmentHeader header = reader.header();
  const auto head = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> bytes(head.begin(), head.end());
  for (const auto& frame : found.frames) {
    const uint64_t at = bytes.size();
    bytes.insert(bytes.end(), frame.bytes.begin(), frame.bytes.end());
    if (frame.kind() == TraceFrameKind::kSync)
      std::memcpy(bytes.data() + at + offsetof(SyncFrame, offset), &at, sizeof(at));
    const uint32_t crc = crc32c(std::span<const std::byte>(bytes).subspan(at + kFrameCrcBegin),
                                crc_start(header.seed, at));
    std::memcpy(bytes.data() + at + offsetof(TraceFrameHeader, crc), &crc, sizeof(crc));
    bytes.resize((bytes.size() + kFrameAlignment - 1) & ~(kFrameAlignment - 1));
  }
  return bytes;
}

class SegmentRepair {
 public:
  SegmentRepair(std::filesystem::path folder, const RecoverOptions& options)
      : folder_(std::move(folder)), options_(options) {}

  Result<std::vector<MaintenanceStep>> run(std::vector<SegmentFile> files) {
    for (const auto& file : files)
      if (!file.is_packed && is_locked(file.path))
        return error(Code::kUnavailable, "'{}' is being written to", file.path.string())
            .note("end its run first");
    RETURN_IF_ERROR(remove_unfinished());
    // From the newest: when an unused segment is removed, the one before it may become the last.
    bool is_last = true;
    for (auto file = files.rbegin(); file != files.rend(); ++file) {
      if (file != files.rbegin())
        is_last = (is_last && was_removed_) || file->process != std::prev(file)->process ||
                  file->incarnation != std::prev(file)->incarnation;
      was_removed_ = false;
      RETURN_IF_ERROR(repair(*file, is_last));
    }
    std::reverse(steps_.begin(), steps_.end());
    return std::move(steps_);
  }

 private:
  void add(const std::filesystem::path& file, std::string text, uint64_t before, uint64_t after,
           bool is_done = true) {
    steps_.push_back({.file = file.filename().string(),
                      .text = std::move(text),
                      .is_done = is_done,
                      .bytes_before = before,
                      .bytes_after = after});
  }

  Status remove_unfinished() {
    std::vector<std::filesystem::path> found;
    for (const auto& place : {folder_, folder_ / "blobs"}) {
      std::error_code fault;
      for (std::filesystem::directory_iterator at(place, fault), end; !fault && at != end;
           at.increment(fault))
        if (at->path().extension() == ".new" || at->path().extension() == ".tmp")
          found.push_back(at->path());
    }
    std::sort(found.rbegin(), found.rend());
    for (const auto& file : found) {
      std::error_code fault;
      const auto size = std::filesystem::file_size(file, fault);
      if (!std::filesystem::remove(file, fault)) return io_error("removing", file, fault.value());
      add(file, "removed: it was never finished", size, 0);
    }
    return ok();
  }

  Status repair(const SegmentFile& file, bool is_last) {
    auto opened = SegmentReader::open(file.path);
    if (!opened.ok()) {
      add(file.path, fmt::format("left as it is: {}", opened.error().message()), file.num_bytes,
          file.num_bytes, false);
      return ok();
    }
    const Scan found = scan(**opened);
    if (is_last && file.number > 1 && is_never_used(found)) return remove(file);
    if (options_.cuts_holes && !found.inner.empty()) return close_up(file, **opened, found);
    if (file.is_packed || found.end == file.num_bytes) return ok();
    return cut(file, **opened, found);
  }

  Status remove(const SegmentFile& file) {
    std::error_code fault;
    if (!std::filesystem::remove(file.path, fault))
      return io_error("removing", file.path, fault.value());
    remove_index(file.path);
    was_removed_ = true;
    add(file.path, "removed: it was prepared and never used", file.num_bytes, 0);
    return ok();
  }

  Status cut(const SegmentFile& file, SegmentReader& reader, const Scan& found) {
    const bool is_torn = std::any_of(reader.damage().begin(), reader.damage().end(),
                                     [](const Damage& damage) { return damage.is_tail; });
    const FileLock lock(file.path, FileLock::When::kNow);
    if (!lock.is_held()) return io_error("cutting", file.path, errno);
    std::error_code fault;
    std::filesystem::resize_file(file.path, found.end, fault);
    if (fault) return io_error("cutting", file.path, fault.value());
    remove_index(file.path);
    add(file.path,
        is_torn ? fmt::format("cut off an unfinished frame at {} and what follows", found.end)
                : fmt::format("cut off the unused room from {} on", found.end),
        file.num_bytes, found.end);
    return ok();
  }

  Status close_up(const SegmentFile& file, SegmentReader& reader, const Scan& found) {
    if (!std::all_of(found.inner.begin(), found.inner.end(),
                     [](const Damage& damage) { return damage.is_hole; })) {
      add(file.path, "left as it is: between its holes there is damage", file.num_bytes,
          file.num_bytes, false);
      return ok();
    }
    std::vector<std::byte> bytes = without_holes(reader, found);
    if (file.is_packed) {
      ASSIGN_OR_RETURN(bytes, pack_segment(bytes));
    }
    RETURN_IF_ERROR(
        replace_file(system_files(), file.path,
                     std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
    remove_index(file.path);
    add(file.path, fmt::format("cut out {} holes", found.inner.size()), file.num_bytes,
        bytes.size());
    return ok();
  }

  const std::filesystem::path folder_;
  const RecoverOptions options_;
  std::vector<MaintenanceStep> steps_;
  bool was_removed_ = false;
};

Result<std::vector<MaintenanceStep>> pack_segments(const std::vector<SegmentFile>& files) {
  std::vector<MaintenanceStep> steps;
  for (const auto& file : files) {
    if (file.is_packed) continue;
    MaintenanceStep step{.file = file.path.filename().string(),
                         .text = "left as it is: a process writes to it",
                         .is_done = false,
                         .bytes_before = file.num_bytes,
                         .bytes_after = file.num_bytes};
    const FileLock lock(file.path, FileLock::When::kNow);  // its writer holds the lock
    if (lock.is_held()) {
      ASSIGN_OR_RETURN(const auto packed, pack_segment_file(file.path));
      remove_index(file.path);
      std::error_code fault;
      step.bytes_after = std::filesystem::file_size(packed, fault);
      step.text = "packed";
      step.is_done = true;
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

/// Calls `work` for every folder of the run, oldest first.
template <class Work>
Result<std::vector<MaintenanceStep>> in_all_folders(const std::filesystem::path& given,
                                                    const Work& work) {
  ASSIGN_OR_RETURN(const auto folders, trace_folders(given));
  std::vector<MaintenanceStep> all;
  for (const auto& folder : folders) {
    ASSIGN_OR_RETURN(auto files, list_segments(folder));
    ASSIGN_OR_RETURN(auto steps, work(folder, std::move(files)));
    for (auto& step : steps) {
      if (folders.size() > 1) step.file = (folder.filename() / step.file).string();
      all.push_back(std::move(step));
    }
  }
  return all;
}

}  // namespace

Result<std::vector<MaintenanceStep>> recover_trace(const std::filesystem::path& folder,
                                                   const RecoverOptions& options) {
  return in_all_folders(folder, [&](const auto& of_start, std::vector<SegmentFile> files) {
    return SegmentRepair(of_start, options).run(std::move(files));
  });
}

Result<std::vector<MaintenanceStep>> pack_trace(const std::filesystem::path& folder) {
  return in_all_folders(folder, [](const auto&, const std::vector<SegmentFile>& files) {
    return pack_segments(files);
  });
}

}  // namespace primerl
