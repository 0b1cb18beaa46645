/// RunFolder: the one folder of one run. It makes the layout, holds the lock that excludes a second
/// run, and writes run.json. Other files in it belong to the code that appends to them.
///
///   graph.resolved.toml  run.json  metrics.jsonl  alarms.jsonl  rollouts.jsonl  logs/  tb/  trace/
///   checkpoints/step_N/
///
/// With several tenants there are rollouts/<tenant>.jsonl and checkpoints/<tenant>/step_N/ instead.
///
/// Only the owner can read the folder (0700) and every file in it that may contain prompts or
/// completions (0600), also after the folder was moved. Weights contain none.
///
/// Owned by the control plane; not thread-safe. Every file is readable after a crash: append-only
/// files by their complete lines, run.json because it is replaced by rename.
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
  /// Makes a new folder. `out` empty: `runs/<time>-<name>` below `base`. Otherwise `out` itself,
  /// which must be empty or missing. `time` is "20261121-062445". The destructor removes the folder
  /// again unless keep() was called: a run that never begins leaves no folder.
  static Result<std::unique_ptr<RunFolder>> create(const std::filesystem::path& base,
                                                   const std::filesystem::path& out,
                                                   const std::string& name,
                                                   const std::string& time);
  /// Opens an existing folder, to continue in it.
  static Result<std::unique_ptr<RunFolder>> open(const std::filesystem::path& folder);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();

  /// Call when the folder has something to look at, or to resume.
  void keep() { is_new_ = false; }
  bool is_kept() const { return !is_new_; }
  /// Call when a run has begun. It calls keep(). If create() made the folder, the symlink
  /// `runs/latest` below `base` then points to it, also when `out` is elsewhere.
  Status become_latest();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path graph_file() const { return path_ / "graph.resolved.toml"; }
  std::filesystem::path metrics_file() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path alarms_file() const { return path_ / "alarms.jsonl"; }
  std::filesystem::path tensorboard_folder() const { return path_ / "tb"; }
  std::filesystem::path logs_folder() const { return path_ / "logs"; }
  std::filesystem::path trace_folder() const { return path_ / "trace"; }

  /// Renames the trace of an earlier start to `trace.<incarnation>/`, so that `trace/` is free for
  /// the next. Returns the new path; empty without a trace.
  Result<std::filesystem::path> set_trace_aside();
  /// While the traces of earlier starts are larger than `bytes_max`, removes the oldest, but never
  /// `kept`. Returns the removed folders.
  std::vector<std::filesystem::path> remove_oldest_traces(uint64_t bytes_max,
                                                          const std::filesystem::path& kept);
  /// Call before a new start of an earlier run changes anything: roll_back() restores what is there
  /// now.
  Status remember();
  /// The start was refused before its first step. Restores graph, run.json and trace as they were
  /// at remember(); its log lines stay. Without remember() it does nothing.
  Status roll_back();
  /// Number of the run's starts so far, which is the incarnation of the newest.
  int64_t num_starts() const;

  Status write_graph(const std::string& resolved_toml);
  /// Adds or replaces members of run.json; the file is replaced by rename.
  Status note(const Json& members);
  const Json& facts() const { return facts_; }

 private:
  RunFolder(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}
  static Result<std::unique_ptr<RunFolder>> take(const std::filesystem::path& folder);
  /// Before the newest start.
  struct Before {
    std::optional<std::string> graph;  // graph.resolved.toml; none: the folder had none
    Json facts;
    std::filesystem::path trace{};  // where trace/ is now; empty: there was none
  };

  void discard();

  const std::filesystem::path path_;
  const int lock_;
  Json facts_ = Json::object();
  std::optional<Before> before_;
  std::filesystem::path latest_{};  // the symlink; empty for a folder that was opened
  bool is_new_ = false;             // created and not kept: the destructor removes it
  bool was_there_ = false;          // the folder existed before create(), so it stays, empty
};

/// `checkpoints/` of a tenant. The tenant's name is a separate level only if there are several
/// tenants.
std::filesystem::path checkpoints_folder(const std::filesystem::path& run_folder,
                                         const std::string& tenant, size_t num_tenants);
/// What clients of a tenant (tenancy_name()) saved.
std::filesystem::path clients_folder(const std::filesystem::path& run_folder,
                                     const std::string& tenant);

/// Stands for a tenant's checkpoint, in a worker's arguments and in a record: the tenant has none
/// and begins with its first step.
inline constexpr std::string_view kNoCheckpoint = "none";

/// "rollouts.jsonl"; with several tenants "rollouts/<tenant>.jsonl". So the lines of a file come
/// from one actor group, in the order of its steps.
std::string rollouts_file_name(const std::string& tenant, size_t num_tenants);
/// "evaluations.jsonl", or "evaluations/<tenant>.jsonl" in the same way.
std::string evaluations_file_name(const std::string& tenant, size_t num_tenants);

/// Makes a folder name ("reverse-text") from any graph name: letters, digits, '-', '_' and '.'
/// stay, all other characters become '-'.
std::string folder_name(const std::string& name);

}  // namespace primerl
