/// RunFolder: the one folder of one run. It makes the layout, holds the lock that keeps a second
/// run out, and writes run.json; other files below it belong to whoever appends to them.
///
///   graph.resolved.toml  run.json  metrics.jsonl  rollouts.jsonl  logs/  tb/  trace/
///   checkpoints/step_N/
///
/// With several tenants there are rollouts/<tenant>.jsonl and checkpoints/<tenant>/step_N/ instead.
///
/// Only the owner can read the folder (0700) and every file below it that may contain prompts or
/// completions (0600), wherever it is moved to; weights contain none.
///
/// Owned by the control plane; not thread-safe. Every file is readable after a crash: append-only
/// ones by their whole lines, run.json because it is replaced, never rewritten.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/files.h"
#include "graph/base/json.h"

namespace primerl {

class RunFolder {
 public:
  /// A new folder. `out` empty: `runs/<time>-<name>` below `base`; else `out` itself, which must be
  /// empty or absent. `time` is "20261121-062445". The folder is removed again with this object,
  /// unless keep() was called: a run that never begins leaves none.
  static Result<std::unique_ptr<RunFolder>> create(const std::filesystem::path& base,
                                                   const std::filesystem::path& out,
                                                   const std::string& name,
                                                   const std::string& time);
  /// Opens an existing one, to go on in it.
  static Result<std::unique_ptr<RunFolder>> open(const std::filesystem::path& folder);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();

  /// There is something in the folder to look at, or to resume.
  void keep() { is_new_ = false; }
  bool is_kept() const { return !is_new_; }
  /// For a run that has begun: keep(), and the symlink `runs/latest` below `base` points to a
  /// folder that create() has made, also when `out` is elsewhere.
  Status become_latest();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path graph_file() const { return path_ / "graph.resolved.toml"; }
  std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path tensorboard_folder() const { return path_ / "tb"; }
  std::filesystem::path logs_folder() const { return path_ / "logs"; }
  std::filesystem::path trace_folder() const { return path_ / "trace"; }

  /// What an earlier start recorded becomes `trace.<incarnation>/`, so that `trace/` is free for
  /// the next. Returns the folder; empty when there was none.
  Result<std::filesystem::path> set_trace_aside();
  /// While what earlier starts recorded is larger than `bytes_max`, removes the oldest of it, but
  /// never `kept`. Returns the folders that are gone.
  std::vector<std::filesystem::path> remove_oldest_traces(uint64_t bytes_max,
                                                          const std::filesystem::path& kept);
  /// Starts of the run so far: the incarnation of the newest.
  int64_t num_starts() const;

  Status write_graph(const std::string& resolved_toml);
  /// run.json: members are added or replaced, the file is replaced.
  Status note(const Json& members);
  const Json& facts() const { return facts_; }

 private:
  RunFolder(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}
  static Result<std::unique_ptr<RunFolder>> take(const std::filesystem::path& folder);
  void discard();

  const std::filesystem::path path_;
  const int lock_;
  Json facts_ = Json::object();
  std::filesystem::path latest_{};  // the symlink; empty: of a folder that was opened
  bool is_new_ = false;             // created and not kept: removed at the end
  bool was_there_ = false;          // before create(): then the empty folder stays
};

/// `checkpoints/` of a tenant: the tenant's name is a level of its own only when there are several.
std::filesystem::path checkpoints_folder(const std::filesystem::path& run_folder,
                                         const std::string& tenant, size_t num_tenants);

/// In the place of a tenant's checkpoint, to a worker and in a record: she has none, and begins
/// with her first step.
inline constexpr std::string_view kNoCheckpoint = "none";

/// "rollouts.jsonl"; of one of several tenants "rollouts/<tenant>.jsonl": the lines of a file come
/// from one actor group, in the order of its steps.
std::string rollouts_file_name(const std::string& tenant, size_t num_tenants);

/// "reverse-text" of any graph name: letters, digits, '-', '_' and '.' stay, the rest becomes '-'.
std::string folder_name(const std::string& name);

}  // namespace primerl
