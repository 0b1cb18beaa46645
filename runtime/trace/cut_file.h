/// CutFile: a ProcessCut as a file of the trace folder, `PROCESS.INCARNATION.NUMBER.cut`. After its
/// death the process resumes from this file and from the record after it.
///
/// Layout (docs/formats/trace.md): 16 bytes of magic, version and size of the head; the head, JSON;
/// the body, msgpack; the Blobs of the body, one after the other; at the end a CRC-32C of all bytes
/// before it. A reader checks that CRC before it uses anything else.
///
/// Order of writing: first the record up to the cut is synced to the disk. Then the file is written
/// under a temporary name, synced and renamed. So if a cut exists, its record exists too, whatever
/// was lost.
///
/// Values, no threads.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/exec/process_cut.h"

namespace primerl {

/// A tenant that had joined a free slot when a group of the cut was saved, and had not left it.
/// Its table is in the body (GroupState::slots).
struct CutSlot {
  TenantSlot slot;
  uint32_t tenancy = 0;
  std::string name;
  friend bool operator==(const CutSlot&, const CutSlot&) = default;
};

struct CutHead {
  uint64_t run_id = 0;
  std::string program_version;  // as in TraceCatalog; includes the CRC-32C of every plugin
  uint64_t state_hash = 0;      // hash of the names and schemas of all saved fields
  std::string process;
  uint32_t incarnation = 0;  // of the process that made it
  uint64_t number = 0;       // rises within an incarnation; 0: the start resumed from this cut
  Time at;                   // by the run's clock: when its last group was saved
  uint64_t segment = 1;      // of the incarnation; older segments contain no step after the cut
  std::vector<std::pair<uint32_t, uint64_t>> steps;  // by GroupId: steps included in the cut
  std::vector<std::pair<uint32_t, int64_t>>
      // by tenant slot: learner steps included in the cut
      learner_steps;
  /// Tenant slots with open gradients, which no checkpoint has: they need one of a later step.
  std::vector<uint32_t> open_tenants;
  std::vector<CutSlot> slots;                                // in order of slot and number
  std::vector<std::pair<std::string, uint64_t>> line_files;  // sizes in bytes of line files of the
                                                             // run folder
};

/// The step of the checkpoint that each tenant slot of the cut needs, or of a later one.
std::vector<std::pair<uint32_t, int64_t>> checkpoints_needed(const CutHead& head);

struct CutFile {
  CutHead head;
  ProcessCut cut;
};

/// Hash of the fields that a state has in this plan and this build; a cut with another hash is
/// refused.
uint64_t state_hash(const Plan& plan);

/// Writes and syncs the file; kIo with the file's name.
Status write_cut(const std::filesystem::path& folder, const CutHead& head, const ProcessCut& cut);
/// kCorrupt, with the reason, for anything but a complete cut.
Result<CutFile> read_cut(const std::filesystem::path& file);
/// Reads only the head, after the same checks as for the whole file.
Result<CutHead> read_cut_head(const std::filesystem::path& file);

/// The cuts that the start resumed from, by name.
std::vector<std::filesystem::path> list_base_cuts(const std::filesystem::path& folder);
/// Cuts of a process, or of all processes if the name is empty, newest first. Entries with another
/// kind of name, and entries that are not files, are ignored.
std::vector<std::filesystem::path> list_cuts(const std::filesystem::path& folder,
                                             const std::string& process = {});
std::filesystem::path cut_path(const std::filesystem::path& folder, const CutHead& head);

}  // namespace primerl
