#include "runtime/trace/segment_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>

#include "graph/base/files.h"

namespace primerl {
namespace {

// Removes the last dot of `text` and the digits after it; returns the number.
template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view digits = text.substr(dot + 1);
  Number number = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (fault != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  text = text.substr(0, dot);
  return number;
}

std::filesystem::path retired_path(const std::filesystem::path& folder, const std::string& process,
                                   uint32_t incarnation) {
  return folder / fmt::format("{}.{}.retired", process, incarnation);
}

auto place_of(const SegmentFile& file) {
  return std::tie(file.process, file.incarnation, file.number, file.is_packed);
}

}  // namespace

std::filesystem::path segment_path(const std::filesystem::path& folder, const std::string& process,
                                   uint32_t incarnation, uint64_t number, bool is_packed) {
  return folder /
         fmt::format("{}.{}.{}.{}", process, incarnation, number, is_packed ? "ptrz" : "ptr");
}

std::filesystem::path unfinished_path(const std::filesystem::path& segment) {
  return segment.string() + ".new";
}

std::optional<SegmentFile> parse_segment_path(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension != ".ptr" && extension != ".ptrz") return std::nullopt;
  const std::string stem = path.stem().string();
  std::string_view left = stem;
  const auto number = take_number<uint64_t>(left);
  const auto incarnation = number ? take_number<uint32_t>(left) : std::nullopt;
  if (!incarnation || *number == 0 || left.empty()) return std::nullopt;
  return SegmentFile{.path = path,
                     .process = std::string(left),
                     .incarnation = *incarnation,
                     .number = *number,
                     .is_packed = extension == ".ptrz"};
}

Result<std::vector<SegmentFile>> list_segments(const std::filesystem::path& folder) {
  std::error_code fault;
  std::filesystem::directory_iterator entries(folder, fault);
  if (fault) return io_error("listing", folder, fault.value());
  std::vector<SegmentFile> files;
  for (; entries != std::filesystem::directory_iterator(); entries.increment(fault)) {
    auto file = parse_segment_path(entries->path());
    if (!file) continue;
    std::error_code gone;  // it was retired or packed just now
    file->num_bytes = entries->file_size(gone);
    if (!gone) files.push_back(*std::move(file));
    if (fault) break;
  }
  if (fault) return io_error("listing", folder, fault.value());
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return place_of(a) < place_of(b); });
  const auto same = [](const SegmentFile& a, const SegmentFile& b) {
    return a.process == b.process && a.incarnation == b.incarnation && a.number == b.number;
  };
  files.erase(std::unique(files.begin(), files.end(), same), files.end());
  return files;
}

bool has_segments(const std::filesystem::path& folder) {
  const auto files = list_segments(folder);
  return files.ok() && !files->empty();
}

namespace {

/// The `trace.N/` folders of a run folder by N, newest first.
std::vector<std::filesystem::path> older_traces(const std::filesystem::path& run_folder) {
  std::map<uint64_t, std::filesystem::path, std::greater<>> found;
  std::error_code fault;
  for (std::filesystem::directory_iterator at(run_folder, fault), end; !fault && at != end;
       at.increment(fault)) {
    const std::string name = at->path().filename().string();
    std::string_view stem = name;
    if (const auto number = take_number<uint64_t>(stem); number && stem == "trace")
      found[*number] = at->path();
  }
  std::vector<std::filesystem::path> folders;
  for (auto& [number, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

}  // namespace

Result<std::filesystem::path> find_trace_folder(const std::filesystem::path& given) {
  std::error_code fault;
  if (!std::filesystem::is_directory(given, fault))
    return error(Code::kNotFound, "no folder '{}'", given.string())
        .note("give a run folder, as in runs/latest");
  for (const auto& folder : {given / "trace", given})
    if (has_segments(folder)) return folder;
  for (const auto& folder : older_traces(given))
    if (has_segments(folder)) return folder;
  return error(Code::kNotFound, "no trace in '{}'", given.string())
      .note("a run records one unless its graph says [trace] level = \"off\"");
}

Status make_trace_folder(const std::filesystem::path& folder) {
  RETURN_IF_ERROR(system_files().make_folder(folder));
  if (::chmod(folder.c_str(), 0700) != 0) return io_error("restricting", folder, errno);
  return ok();
}

Status claim_trace_folder(const std::filesystem::path& folder, const std::string& process,
                          uint32_t incarnation) {
  RETURN_IF_ERROR(make_trace_folder(folder));
  ASSIGN_OR_RETURN(const auto there, list_segments(folder));
  for (const auto& file : there)
    if (file.process == process && file.incarnation == incarnation)
      return error(Code::kExists, "'{}' is there already", file.path.string())
          .note("a trace is never written over: choose another incarnation or folder");
  return ok();
}

Status sync_segments(const std::filesystem::path& folder, const std::string& process,
                     uint32_t incarnation) {
  ASSIGN_OR_RETURN(const auto files, list_segments(folder));
  for (const auto& file : files) {
    if (file.process != process || file.incarnation != incarnation || file.is_packed) continue;
    Status synced = system_files().sync(file.path);
    // It was packed or retired after it was listed, and synced at that time.
    if (!synced.ok() && std::filesystem::exists(file.path)) return synced;
  }
  return system_files().sync(folder);
}

uint64_t retired_through(const std::filesystem::path& folder, const std::string& process,
                         uint32_t incarnation) {
  std::ifstream in(retired_path(folder, process, incarnation));
  uint64_t number = 0;
  in >> number;
  return number;
}

Status set_retired_through(const std::filesystem::path& folder, const std::string& process,
                           uint32_t incarnation, uint64_t number) {
  return replace_file(system_files(), retired_path(folder, process, incarnation),
                      fmt::format("{}\n", number));
}

void remove_segment(const std::filesystem::path& folder, const std::string& process,
                    uint32_t incarnation, uint64_t number) {
  std::error_code ignored;
  for (const bool is_packed : {false, true}) {
    const auto file = segment_path(folder, process, incarnation, number, is_packed);
    std::filesystem::remove(file, ignored);
    std::filesystem::remove(file.string() + ".index", ignored);
    auto index = file;
    std::filesystem::remove(index.replace_extension(".index"), ignored);
  }
}

std::filesystem::path snapshot_path(const std::filesystem::path& folder, const std::string& process,
                                    uint32_t incarnation) {
  return folder / fmt::format("{}.{}.dump", process, incarnation);
}

bool is_snapshot(const std::filesystem::path& folder, const std::string& process,
                 uint32_t incarnation) {
  std::error_code fault;
  return std::filesystem::exists(snapshot_path(folder, process, incarnation), fault);
}

}  // namespace primerl
