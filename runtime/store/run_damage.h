/// run_damage: reads every file of a run folder that a resumed run reads, but its record
/// (runtime/query/maintenance.h verifies that): run.json, graph.resolved.toml, checkpoints.
///
/// No state; reads files, any thread. Each file is read once and whole.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace primerl {

struct DamagedFile {
  std::filesystem::path file;  // below the run folder
  std::string text;            // a sentence for a person, with the file's name
};

/// `graph_text`: the graph as the record has it; "": no record, so it is not compared. A file that
/// is absent is damage only where run.json promises it. A folder without run.json is no run folder:
/// nothing is read.
std::vector<DamagedFile> find_damage(const std::filesystem::path& run_folder,
                                     const std::string& graph_text);

}  // namespace primerl
