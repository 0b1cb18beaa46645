/// CutFile: a ProcessCut as a file of the trace folder, `PROCESS.INCARNATION.NUMBER.cut`: from it,
/// and from what was recorded after it, the process goes on after its death.
///
/// Layout (docs/formats/trace.md): 16 bytes of magic, version and size of the head; the head, JSON;
/// the body, msgpack; the Blobs of the body, one after the other; at the end a CRC-32C of all that
/// stands before it. A reader believes nothing before that CRC fits.
///
/// Order of writing: first what was recorded is brought to the disk, then the file is written
/// beside its name, synced and renamed. So a cut that is there has its record, whatever was lost.
///
/// Values, no threads.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/exec/process_cut.h"

namespace primerl {

struct CutHead {
  uint64_t run_id = 0;
  std::string program_version;  // as in TraceCatalog: with the CRC-32C of every plugin
  uint64_t state_hash = 0;      // of the names and schemas of all that is saved
  std::string process;
  uint32_t incarnation = 0;  // of the process that made it
  uint64_t number = 0;       // rises within an incarnation; 0: the start went on from it
  Time at;                   // of the clock of the run: when its last group was saved
  uint64_t segment = 1;      // of the incarnation; no step after the cut stands in an older one
  std::vector<std::pair<uint32_t, uint64_t>> steps;  // by GroupId: that the cut holds
  std::vector<std::pair<uint32_t, int64_t>>
      learner_steps;  // by tenant slot: that learners had taken
  std::vector<std::pair<std::string, uint64_t>> line_files;  // of the run folder: their bytes
};

struct CutFile {
  CutHead head;
  ProcessCut cut;
};

/// What a state is made of, in this plan and this build: a cut of another one is refused.
uint64_t state_hash(const Plan& plan);

/// Writes and syncs; kIo with the file's name.
Status write_cut(const std::filesystem::path& folder, const CutHead& head, const ProcessCut& cut);
/// kCorrupt, with what is wrong, for anything that is no whole cut.
Result<CutFile> read_cut(const std::filesystem::path& file);
/// The head alone, checked as the whole file is.
Result<CutHead> read_cut_head(const std::filesystem::path& file);

/// Those that the start went on from, by their names.
std::vector<std::filesystem::path> list_base_cuts(const std::filesystem::path& folder);
/// Cuts of a process, or with an empty name of all, newest first. A name that cannot be parsed is
/// no cut, nor is what is no file.
std::vector<std::filesystem::path> list_cuts(const std::filesystem::path& folder,
                                             const std::string& process = {});
std::filesystem::path cut_path(const std::filesystem::path& folder, const CutHead& head);

}  // namespace primerl
