#include "runtime/store/run_damage.h"

#include <algorithm>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "runtime/store/checkpoint.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

class Search {
 public:
  Search(const fs::path& run_folder, const std::string& graph_text)
      : folder_(run_folder), graph_text_(graph_text) {}

  std::vector<DamagedFile> run() {
    std::error_code missing;
    if (!fs::exists(folder_ / "run.json", missing)) return {};
    check_facts();
    check_graph();
    check_checkpoints(folder_ / "checkpoints");
    return std::move(found_);
  }

 private:
  void add(const fs::path& file, const Error& fault) {
    const fs::path below = file.lexically_relative(folder_);
    found_.push_back({below, fmt::format("'{}': {}", below.string(), fault.message())});
  }

  void check_facts() {
    const fs::path file = folder_ / "run.json";
    const auto text = read_text_file(file);
    if (!text.ok()) return add(file, text.error());
    const auto facts = parse_json(*text, "run.json");
    if (!facts.ok()) return add(file, facts.error());
    const Status intact = check_manifest(*facts, "its text");
    if (!intact.ok()) add(file, intact.error());
  }

  void check_graph() {
    const fs::path file = folder_ / "graph.resolved.toml";
    const auto text = read_text_file(file);
    if (!text.ok()) return add(file, text.error());
    if (!graph_text_.empty() && *text != graph_text_)
      add(file, error(Code::kCorrupt, "it is not the graph that the record has"));
  }

  /// Checks the checkpoints of one tenant, or of several in a folder each.
  void check_checkpoints(const fs::path& folder) {
    for (const int64_t step : checkpoint_steps(folder)) {
      const fs::path of_step = folder / fmt::format("step_{}", step);
      const auto read = read_checkpoint(of_step, CheckpointDepth::kContents);
      if (!read.ok()) add(of_step, read.error());
    }
    std::vector<fs::path> tenants;
    std::error_code none;
    for (fs::directory_iterator at(folder, none), end; !none && at != end; at.increment(none))
      if (at->is_directory() && folder.filename() == "checkpoints" &&
          !at->path().filename().string().starts_with("step_") &&
          !at->path().filename().string().starts_with("."))
        tenants.push_back(at->path());
    std::ranges::sort(tenants);
    for (const fs::path& tenant : tenants) check_checkpoints(tenant);
  }

  const fs::path folder_;
  const std::string& graph_text_;
  std::vector<DamagedFile> found_;
};

}  // namespace

std::vector<DamagedFile> find_damage(const fs::path& run_folder, const std::string& graph_text) {
  return Search(run_folder, graph_text).run();
}

}  // namespace primerl
