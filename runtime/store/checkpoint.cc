#include "runtime/store/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "graph/base/crc32c.h"
#include "graph/base/files.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "primerl.checkpoint/2";

/// N of "step_N", or nothing.
std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(begin, end, step);
  if (read.ec != std::errc() || read.ptr != end || step < 0) return std::nullopt;
  return step;
}

struct Tree {
  std::vector<fs::path> files;    // relative, sorted
  std::vector<fs::path> folders;  // relative, deepest first
};

Result<Tree> walk(const fs::path& root) {
  Tree tree;
  std::error_code fault;
  for (fs::recursive_directory_iterator it(root, fault), end; !fault && it != end;
       it.increment(fault)) {
    auto& list = it->is_directory(fault) ? tree.folders : tree.files;
    list.push_back(it->path().lexically_relative(root));
  }
  if (fault) return io_error("listing", root, fault.value());
  std::sort(tree.files.begin(), tree.files.end());
  std::sort(tree.folders.rbegin(), tree.folders.rend());
  return tree;
}

/// Every `step_N` in `folder` that looks complete, newest first.
std::vector<std::pair<int64_t, fs::path>> step_folders(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code fault;
  for (fs::directory_iterator it(folder, fault), end; !fault && it != end; it.increment(fault))
    if (const auto step = step_of(it->path().filename().string()))
      found.emplace_back(*step, it->path());
  std::sort(found.rbegin(), found.rend());
  return found;
}

std::string checksum_text(uint32_t checksum) { return fmt::format("{:08x}", checksum); }

Result<std::string> checksum_of(const fs::path& file, PageCache cache) {
  uint32_t checksum = 0;
  RETURN_IF_ERROR(read_in_pieces(file, cache, [&checksum](std::span<const std::byte> piece) {
    checksum = crc32c(piece, checksum);
  }));
  return checksum_text(checksum);
}

/// Checksum of all members except the checksum itself.
std::string checksum_of(const Json& manifest) {
  Json::Object counted;
  for (const auto& [key, value] : manifest.as_object())
    if (key != kChecksum) counted.emplace_back(key, value);
  return checksum_text(crc32c(Json(std::move(counted)).dump()));
}

Status check_files(const fs::path& folder, const Json& manifest, CheckpointDepth depth) {
  const Json* files = manifest.find("files");
  if (files == nullptr || !files->is_array())
    return error(Code::kCorrupt, "manifest.json lists no files");
  for (const Json& entry : files->as_array()) {
    ASSIGN_OR_RETURN(const std::string path, entry.get_string("path"));
    ASSIGN_OR_RETURN(const int64_t bytes, entry.get_int("bytes"));
    std::error_code fault;
    const auto there = fs::file_size(folder / path, fault);
    if (fault) return error(Code::kCorrupt, "'{}' is missing", path);
    if (static_cast<int64_t>(there) != bytes)
      return error(Code::kCorrupt, "'{}' has {} bytes, {} were written", path, there, bytes);
    ASSIGN_OR_RETURN(const std::string written, entry.get_string(kChecksum));
    if (depth == CheckpointDepth::kSizes) continue;
    ASSIGN_OR_RETURN(const std::string checksum, checksum_of(folder / path, PageCache::kUse));
    if (checksum != written)
      return error(Code::kCorrupt, "'{}' differs from what was written (CRC-32C {}, written {})",
                   path, checksum, written);
  }
  return ok();
}

}  // namespace

CheckpointStore::CheckpointStore(FileOps& files, fs::path folder, std::string tenant,
                                 KeptCheckpoints kept)
    : files_(files), folder_(std::move(folder)), tenant_(std::move(tenant)), kept_(kept) {}

fs::path CheckpointStore::filling(int64_t step) const {
  return folder_ / fmt::format(".step_{}.tmp", step);
}

Result<fs::path> CheckpointStore::begin(int64_t step) {
  CHECK(step >= 0, "a checkpoint of a negative step");
  RETURN_IF_ERROR(files_.make_folder(folder_));
  std::vector<fs::path> leftovers;
  std::error_code fault;
  for (fs::directory_iterator it(folder_, fault), end; !fault && it != end; it.increment(fault))
    if (it->path().filename().string().starts_with(".step_")) leftovers.push_back(it->path());
  for (const auto& leftover : leftovers) RETURN_IF_ERROR(files_.remove_all(leftover));
  RETURN_IF_ERROR(files_.make_folder(filling(step)));
  return filling(step);
}

Status CheckpointStore::commit(int64_t step, const Json& state) {
  Status published = publish(step, state);
  if (!published.ok()) {
    // Frees the space if possible; otherwise the next begin() removes the folder.
    (void)files_.remove_all(filling(step));
    return published;
  }
  return prune();
}

Status CheckpointStore::publish(int64_t step, const Json& state) {
  const fs::path from = filling(step);
  const fs::path to = folder_ / fmt::format("step_{}", step);
  ASSIGN_OR_RETURN(const Tree tree, walk(from));
  Json::Array listed;
  for (const auto& file : tree.files) {
    RETURN_IF_ERROR(files_.sync(from / file));
    std::error_code fault;
    const auto bytes = fs::file_size(from / file, fault);
    if (fault) return io_error("reading", from / file, fault.value());
    ASSIGN_OR_RETURN(const std::string checksum, checksum_of(from / file, PageCache::kBypass));
    listed.push_back(Json::object()
                         .set("path", file.generic_string())
                         .set("bytes", bytes)
                         .set(kChecksum, checksum));
  }
  for (const auto& folder : tree.folders) RETURN_IF_ERROR(files_.sync(from / folder));

  const Json* version = state.find("version");
  Json manifest = Json::object();
  manifest.set("schema", kSchema).set("tenant", tenant_).set("step", step);
  manifest.set("version", version != nullptr && version->is_integer() ? version->as_int() : step);
  manifest.set("files", std::move(listed)).set("state", state);
  RETURN_IF_ERROR(files_.write_file(from / "manifest.json", manifest_text(manifest)));
  RETURN_IF_ERROR(files_.sync(from / "manifest.json"));
  RETURN_IF_ERROR(files_.sync(from));

  std::error_code fault;
  // A resumed run reaches the same step again: its checkpoint replaces the old one.
  if (fs::exists(to, fault)) {
    RETURN_IF_ERROR(files_.exchange(from, to));
    RETURN_IF_ERROR(files_.sync(folder_));
    return files_.remove_all(from);
  }
  RETURN_IF_ERROR(files_.rename(from, to));
  return files_.sync(folder_);
}

std::set<int64_t> CheckpointStore::best() const {
  if (kept_.best <= 0) return {};
  std::vector<std::pair<double, int64_t>> scores;  // with the step
  for (const auto& [step, path] : step_folders(folder_)) {
    const auto read = read_checkpoint(path, CheckpointDepth::kSizes);
    if (!read.ok()) continue;
    const auto score = read->manifest.get_double("score");
    if (score.ok()) scores.emplace_back(*score, step);
  }
  std::sort(scores.rbegin(), scores.rend());
  std::set<int64_t> steps;
  for (const auto& [score, step] : scores)
    if (std::cmp_less(steps.size(), kept_.best)) steps.insert(step);
  return steps;
}

Status CheckpointStore::prune() {
  if (kept_.last <= 0) return ok();
  const std::set<int64_t> best = this->best();
  int64_t num_newest = 0;
  for (const auto& [step, path] : step_folders(folder_)) {
    if (num_newest < kept_.last) {
      // An incomplete folder does not count, because no run can resume from it.
      num_newest += read_checkpoint(path, CheckpointDepth::kSizes).ok() ? 1 : 0;
      continue;
    }
    if (step == kept_step_ || kept_.keeps(step) || best.contains(step)) continue;
    RETURN_IF_ERROR(remove(step, path));
  }
  return ok();
}

Status CheckpointStore::remove(int64_t step, const fs::path& path) {
  const fs::path away = folder_ / fmt::format(".step_{}.old", step);
  RETURN_IF_ERROR(files_.rename(path, away));
  return files_.remove_all(away);
}

void CheckpointStore::remove_after(int64_t step) {
  for (const auto& [later, path] : step_folders(folder_)) {
    if (later <= step || !remove(later, path).ok()) break;
  }
}

Status check_manifest(const Json& manifest, std::string_view name) {
  ASSIGN_OR_RETURN(const std::string written, manifest.get_string(kChecksum));
  if (written == checksum_of(manifest)) return ok();
  return error(Code::kCorrupt, "{} differs from what was written", name);
}

std::string manifest_text(const Json& manifest) {
  Json whole = manifest;
  whole.set(kChecksum, checksum_of(manifest));
  return whole.dump(2) + "\n";
}

FoundCheckpoints find_checkpoints(const fs::path& folder, CheckpointDepth depth, int64_t at_most) {
  FoundCheckpoints found;
  for (const auto& [step, path] : step_folders(folder)) {
    if (step > at_most) continue;
    auto read = read_checkpoint(path, depth);
    if (read.ok()) {
      found.newest = std::move(read).value();
      return found;
    }
    found.ignored.push_back(
        fmt::format("ignoring a damaged checkpoint: {}", read.error().message()));
  }
  return found;
}

std::optional<ResumePoint> find_checkpoint(const fs::path& folder, int64_t step) {
  auto found = find_checkpoints(folder, CheckpointDepth::kContents, step);
  if (!found.newest || found.newest->step != step) return std::nullopt;
  return std::move(found.newest);
}

Status take_over_checkpoint(const fs::path& from, const fs::path& to) {
  const fs::path filling = to.parent_path() / fmt::format(".{}.tmp", to.filename().string());
  std::error_code failed;
  fs::remove_all(filling, failed);
  fs::create_directories(filling, failed);
  for (fs::recursive_directory_iterator at(from, failed), end; !failed && at != end;
       at.increment(failed)) {
    const fs::path target = filling / at->path().lexically_relative(from);
    if (at->is_directory()) {
      fs::create_directory(target, failed);
      continue;
    }
    std::error_code refused;
    fs::create_hard_link(at->path(), target, refused);
    if (refused) fs::copy_file(at->path(), target, failed);
    if (failed) break;
    RETURN_IF_ERROR(system_files().sync(target));
  }
  if (failed)
    return error(Code::kIo, "checkpoint '{}' cannot be taken over to '{}': {}", from.string(),
                 to.string(), failed.message());
  RETURN_IF_ERROR(system_files().sync(filling));
  RETURN_IF_ERROR(system_files().rename(filling, to));
  return system_files().sync(to.parent_path());
}

std::vector<int64_t> checkpoint_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& [step, path] : step_folders(folder)) steps.insert(steps.begin(), step);
  return steps;
}

std::vector<int64_t> complete_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& [step, path] : step_folders(folder))
    if (read_checkpoint(path, CheckpointDepth::kSizes).ok()) steps.insert(steps.begin(), step);
  return steps;
}

Result<ResumePoint> read_checkpoint(const fs::path& step_folder, CheckpointDepth depth) {
  const auto refuse = [&step_folder](Error fault) {
    return std::move(fault).while_doing(step_folder.string());
  };
  std::error_code missing;
  if (!fs::exists(step_folder / "manifest.json", missing))
    return refuse(error(Code::kNotFound, "no manifest.json"));
  auto text = read_text_file(step_folder / "manifest.json");
  if (!text.ok()) return refuse(std::move(text).error());
  auto manifest = parse_json(*text, "manifest.json");
  if (!manifest.ok()) return refuse(std::move(manifest).error());
  const auto schema = manifest->get_string("schema");
  if (!schema.ok() || *schema != kSchema)
    return refuse(error(Code::kCorrupt, "manifest.json is not of schema '{}'", kSchema));
  ResumePoint point;
  point.folder = step_folder;
  const auto step = manifest->get_int("step");
  if (!step.ok()) return refuse(Error(step.error()));
  const auto version = manifest->get_int("version");
  if (!version.ok()) return refuse(Error(version.error()));
  if (auto intact = check_manifest(*manifest, "manifest.json"); !intact.ok())
    return refuse(std::move(intact).error());
  if (auto files = check_files(step_folder, *manifest, depth); !files.ok())
    return refuse(std::move(files).error());
  point.step = *step;
  point.version = PolicyVersion(*version);
  if (const Json* state = manifest->find("state")) point.manifest = *state;
  return point;
}

}  // namespace primerl
