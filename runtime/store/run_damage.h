/// run_damage: checks every file of a run folder that a resumed run reads: run.json,
/// graph.resolved.toml, checkpoints. The record is checked separately
/// (runtime/query/maintenance.h).
///
/// No state; reads files, any thread. Each file is read once and completely.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace primerl {

struct DamagedFile {
  std::filesystem::path file;  // below the run folder
  std::string text;            // a sentence for a person, with the file's name
};

/// `graph_text`: the graph in the record; "": no record, so it is not compared. A missing file is
/// damage only if run.json says that it exists. A folder without run.json is not a run folder:
/// nothing is read.
std::vector<DamagedFile> find_damage(const std::filesystem::path& run_folder,
                                     const std::string& graph_text);

}  // namespace primerl
