#include "runtime/store/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <map>
#include <system_error>
#include <utility>

#include "graph/base/shell_word.h"
#include "runtime/store/checkpoint.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

/// Tries `runs/<time>-<name>`, then `-2`, `-3`, because two runs may start within a second.
constexpr int kNameAttemptsMax = 1000;

Result<fs::path> make_fresh_folder(const fs::path& parent, const std::string& stem) {
  RETURN_IF_ERROR(system_files().make_folder(parent));
  for (int attempt = 1; attempt <= kNameAttemptsMax; ++attempt) {
    const fs::path folder = parent / (attempt == 1 ? stem : fmt::format("{}-{}", stem, attempt));
    if (::mkdir(folder.c_str(), 0700) == 0) return folder;
    if (errno != EEXIST) return io_error("creating folder", folder, errno);
  }
  return error(Code::kExists, "{} folders named '{}' are in '{}' already", kNameAttemptsMax, stem,
               parent.string());
}

/// An existing folder keeps the mode that its creator chose.
Status make_own_folder(const fs::path& folder) {
  if (!folder.has_filename() && folder != folder.root_path())
    return make_own_folder(folder.parent_path());  // "runs/mine/"
  const fs::path parent = folder.parent_path();
  if (!parent.empty()) RETURN_IF_ERROR(system_files().make_folder(parent));
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return io_error("creating folder", folder, errno);
  std::error_code fault;
  if (!fs::is_directory(folder, fault)) return io_error("creating folder", folder, ENOTDIR);
  return ok();
}

/// An existing folder or file at the link's path is not replaced.
Status check_link(const fs::path& link) {
  std::error_code fault;
  if (!fs::exists(fs::symlink_status(link, fault)) || fs::is_symlink(link)) return ok();
  return error(Code::kExists, "'{}' is no symbolic link: move it away", link.string());
}

/// Points the link to a folder, by its name when both are in one folder. Replaces the link by
/// rename, so that it always points to a folder.
Status point_to(const fs::path& folder, const fs::path& link) {
  RETURN_IF_ERROR(system_files().make_folder(link.parent_path()));
  RETURN_IF_ERROR(check_link(link));
  const fs::path beside = link.parent_path() / fmt::format(".latest.{}", ::getpid());
  std::error_code fault;
  fs::remove(beside, fault);
  const bool is_below = folder.parent_path() == link.parent_path();
  fs::create_directory_symlink(is_below ? folder.filename() : folder, beside, fault);
  if (fault) return io_error("linking", beside, fault.value());
  fs::rename(beside, link, fault);
  if (fault) return io_error("linking", link, fault.value());
  return ok();
}

uint64_t bytes_below(const fs::path& folder) {
  uint64_t sum = 0;
  std::error_code fault;
  for (fs::recursive_directory_iterator at(folder, fault), end; !fault && at != end;
       at.increment(fault)) {
    std::error_code gone;
    if (const auto size = at->is_regular_file(gone) ? at->file_size(gone) : 0; !gone) sum += size;
  }
  return sum;
}

Status make_layout(const fs::path& folder) {
  for (const char* name : {"logs", "tb", "checkpoints"})
    RETURN_IF_ERROR(system_files().make_folder(folder / name));
  return ok();
}

}  // namespace

Result<std::unique_ptr<RunFolder>> RunFolder::create(const fs::path& base, const fs::path& out,
                                                     const std::string& name,
                                                     const std::string& time) {
  fs::path folder = out;
  std::error_code ignored;
  const bool was_there = !out.empty() && fs::exists(out, ignored);
  if (out.empty()) {
    RETURN_IF_ERROR(check_link(base / "runs" / "latest"));
    ASSIGN_OR_RETURN(folder, make_fresh_folder(base / "runs", time + "-" + folder_name(name)));
  } else {
    RETURN_IF_ERROR(make_own_folder(folder));
    std::error_code fault;
    const bool is_empty = fs::is_empty(folder, fault);
    if (fault) return io_error("reading", folder, fault.value());
    const bool is_run = fs::exists(folder / "run.json", fault);
    if (!is_empty && is_run)
      return error(Code::kExists, "--out: '{}' already holds a run", folder.string())
          .note("give a new folder, or resume that run: primerl-graph run --resume " +
                shell_word(folder.string()));
    if (!is_empty)
      return error(Code::kExists, "--out: '{}' is not empty, and holds no run", folder.string())
          .note("give a new or an empty folder");
  }
  ASSIGN_OR_RETURN(auto taken, take(folder));
  taken->is_new_ = true;
  taken->was_there_ = was_there;
  taken->latest_ = fs::absolute(base / "runs" / "latest", ignored).lexically_normal();
  RETURN_IF_ERROR(make_layout(folder));
  return taken;
}

Status RunFolder::become_latest() {
  keep();
  return latest_.empty() ? ok() : point_to(path_, latest_);
}

/// Files that a broken disk does not remove are left; they only use space.
void RunFolder::discard() {
  std::error_code ignored;
  for (fs::directory_iterator at(path_, ignored), end; at != end; at.increment(ignored)) {
    std::error_code stays;
    fs::remove_all(at->path(), stays);
  }
  if (!was_there_) fs::remove(path_, ignored);
  if (!latest_.empty()) fs::remove(latest_.parent_path(), ignored);  // only if it is empty
}

Result<std::unique_ptr<RunFolder>> RunFolder::open(const fs::path& folder) {
  std::error_code fault;
  if (!fs::is_directory(folder, fault))
    return error(Code::kNotFound, "no run folder '{}'", folder.string());
  if (!fs::exists(folder / "run.json", fault))
    return error(Code::kNotFound, "'{}' is no run folder: it has no run.json", folder.string());
  ASSIGN_OR_RETURN(auto taken, take(folder));
  ASSIGN_OR_RETURN(const std::string text, read_text_file(folder / "run.json"));
  ASSIGN_OR_RETURN(Json facts, parse_json(text, (folder / "run.json").string()));
  if (!facts.is_object())
    return error(Code::kCorrupt, "'{}' holds no object", (folder / "run.json").string());
  for (const auto& [key, value] : facts.as_object())
    if (key != kChecksum) taken->facts_.set(key, value);
  RETURN_IF_ERROR(make_layout(folder));
  return taken;
}

Result<std::unique_ptr<RunFolder>> RunFolder::take(const fs::path& folder) {
  std::error_code fault;
  const fs::path absolute = fs::absolute(folder, fault).lexically_normal();
  const fs::path file = absolute / ".lock";
  const int lock = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) return io_error("writing", file, errno);
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    const int why = errno;
    ::close(lock);
    if (why == EWOULDBLOCK)
      return error(Code::kExists, "run folder '{}' is in use by another run", absolute.string());
    return io_error("locking", file, why);
  }
  return std::unique_ptr<RunFolder>(new RunFolder(absolute, lock));
}

RunFolder::~RunFolder() {
  if (is_new_) discard();
  ::close(lock_);
}

int64_t RunFolder::num_starts() const {
  const auto incarnation = facts_.get_int("incarnation");
  return incarnation.ok() ? *incarnation : 0;
}

Result<fs::path> RunFolder::set_trace_aside() {
  std::error_code fault;
  if (!fs::exists(trace_folder(), fault)) return fs::path();
  const fs::path aside = path_ / fmt::format("trace.{}", std::max<int64_t>(1, num_starts()));
  RETURN_IF_ERROR(system_files().rename(trace_folder(), aside));
  if (before_) before_->trace = aside;
  return aside;
}

Status RunFolder::remember() {
  auto graph = read_text_file(graph_file());
  // A person may have removed it, and the new start writes its own.
  if (!graph.ok() && graph.error().code() != Code::kNotFound) return graph.error();
  before_ = Before{graph.ok() ? std::optional(*std::move(graph)) : std::nullopt, facts_};
  return ok();
}

Status RunFolder::roll_back() {
  if (!before_) return ok();
  const Before before = *std::exchange(before_, std::nullopt);
  std::error_code fault;
  fs::remove_all(trace_folder(), fault);
  if (fault) return io_error("removing", trace_folder(), fault.value());
  // A record that is larger than its limit may have been removed meanwhile.
  if (fs::exists(before.trace, fault))
    RETURN_IF_ERROR(system_files().rename(before.trace, trace_folder()));
  if (before.graph)
    RETURN_IF_ERROR(write_graph(*before.graph));
  else
    RETURN_IF_ERROR(system_files().remove_all(graph_file()));
  facts_ = before.facts;
  return note(Json::object());
}

std::vector<fs::path> RunFolder::remove_oldest_traces(uint64_t bytes_max, const fs::path& kept) {
  struct Older {
    fs::path folder;
    uint64_t num_bytes = 0;
  };
  std::map<int64_t, Older> older;  // by start
  uint64_t sum = 0;
  std::error_code fault;
  for (fs::directory_iterator at(path_, fault), end; !fault && at != end; at.increment(fault)) {
    const std::string name = at->path().filename().string();
    int64_t start = 0;
    const char* last = name.data() + name.size();
    if (!name.starts_with("trace.")) continue;
    if (const auto read = std::from_chars(name.data() + 6, last, start);
        read.ec != std::errc() || read.ptr != last)
      continue;
    older[start] = {at->path(), bytes_below(at->path())};
    sum += older[start].num_bytes;
  }
  std::vector<fs::path> gone;
  for (const auto& [start, each] : older) {
    if (sum <= bytes_max) break;
    if (each.folder == kept) continue;
    std::error_code refused;  // remaining files only use space
    fs::remove_all(each.folder, refused);
    if (refused) continue;
    sum -= each.num_bytes;
    gone.push_back(each.folder);
  }
  return gone;
}

Status RunFolder::write_graph(const std::string& resolved_toml) {
  return replace_file(system_files(), graph_file(), resolved_toml);
}

Status RunFolder::note(const Json& members) {
  for (const auto& [key, value] : members.as_object()) facts_.set(key, value);
  return replace_file(system_files(), path_ / "run.json", manifest_text(facts_));
}

fs::path checkpoints_folder(const fs::path& run_folder, const std::string& tenant,
                            size_t num_tenants) {
  const fs::path all = run_folder / "checkpoints";
  return num_tenants > 1 ? all / folder_name(tenant) : all;
}

fs::path clients_folder(const fs::path& run_folder, const std::string& tenant) {
  return run_folder / "clients" / tenant;
}

std::string rollouts_file_name(const std::string& tenant, size_t num_tenants) {
  return num_tenants > 1 ? fmt::format("rollouts/{}.jsonl", folder_name(tenant)) : "rollouts.jsonl";
}

std::string evaluations_file_name(const std::string& tenant, size_t num_tenants) {
  return num_tenants > 1 ? fmt::format("evaluations/{}.jsonl", folder_name(tenant))
                         : "evaluations.jsonl";
}

std::string folder_name(const std::string& name) {
  std::string safe;
  for (const char c : name) {
    const bool keep = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                      (c == '.' && !safe.empty());
    safe += keep ? c : '-';
  }
  return safe.empty() ? "run" : safe;
}

}  // namespace primerl
