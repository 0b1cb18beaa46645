/// Trace: a recorded run, read: the segments of every process of `runs/x/trace`, as one table of
/// steps per group, with their payloads, notes and gaps.
///
/// A run that was resumed from saved state has a folder for each start, and is read as one record:
/// of each group the steps before the cut from the older folder, the later ones from the newer.
/// What the older one holds after the cut was recorded again, or is no part of the run any more.
///
/// Opening maps the segments and loads or rebuilds their indices (`*.index`, never authoritative).
/// Numbers from the files are checked against the catalog before they are returned. Everything that
/// is missing is reported, never skipped silently: cut tails, holes, damage, gaps, retired segments
/// (first_step() > 1). Immutable after open(); safe to read from several threads.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "graph/base/ids.h"
#include "graph/base/result.h"
#include "graph/message_type.h"
#include "runtime/exec/actor_group.h"
#include "runtime/trace/catalog.h"
#include "runtime/trace/cut_file.h"
#include "runtime/trace/frames.h"

namespace primerl {

/// One step, decoded. Plain numbers; names are in the catalog.
struct TraceStep {
  GroupId group;
  uint64_t step = 0;
  StepKind kind = StepKind::kMessage;
  uint8_t flags = 0;  // DeliveryFlags
  uint8_t num_notes = 0;
  InstanceId instance;  // none for a work turn
  uint32_t num_emissions = 0;
  Time began;
  Duration duration;
  // kMessage
  LinkId link;
  uint64_t sequence = 0;
  uint32_t incarnation = 0;
  TenantSlot tenant;
  InstanceId origin;
  StepRef cause;
  uint64_t sender_step = 0;    // of the sender's group: the step that emitted it
  uint32_t type = UINT32_MAX;  // index into the catalog's types
  uint64_t payload_check = 0;
  uint32_t payload_bytes = 0;
  // kTimer, kPeer, kCommand
  uint32_t subject = 0;  // timer index; instance of a peer event; input of a command
  bool is_failed() const { return (flags & kFailed) != 0; }
};

/// Names a message: what a delivery has in common with the emission it came from.
struct MessageKey {
  LinkId link;
  uint32_t incarnation = 0;
  uint64_t sequence = 0;
  friend auto operator<=>(const MessageKey&, const MessageKey&) = default;
};

struct StoredPayload {
  MessageKey key;
  GroupId sender_group;  // none, like `step`, when it was stored where it was handled
  uint64_t step = 0;     // the step that emitted it
  Time sent_at;
  TenantSlot tenant;
  InstanceId origin;
  StepRef cause;
  uint32_t type = 0;
  uint64_t payload_check = 0;
  std::vector<std::byte> body;
  std::vector<Blob> blobs;
};

struct NondeterministicInput {
  NoteKind kind = NoteKind::kRoom;
  InstanceId instance;
  std::vector<std::byte> bytes;
};

/// One part that is missing, and why.
struct TraceFault {
  enum class Kind {
    kCutTail,
    kHole,
    kDamage,
    kGap,
    kMissingSegment,
    kRetired,
    kMissingBlob,
    kMissingStep,   // a record is missing although nothing around it is damaged
    kReplaced,      // a later incarnation, or a later start of the run, has these steps instead
    kExcerpt,       // only what one actor group needs was copied, on purpose (excerpt.h)
    kOlderMissing,  // the folder of the start that this one went on from is not there
    kSnapshot,      // a snapshot of a flight recorder, which recorded on after it (ring_files.h)
  } kind;
  std::string file;
  uint64_t offset = 0;
  std::string text;    // for people: "tail cut after step 412 of 'trainer'"
  GroupId group = {};  // none when it is not about one group
  uint64_t first = 0;  // its missing steps; of a cut tail, both are the last step
  uint64_t last = 0;
  bool is_fault() const {
    return kind != Kind::kRetired && kind != Kind::kOlderMissing && kind != Kind::kHole &&
           kind != Kind::kReplaced && kind != Kind::kExcerpt && kind != Kind::kSnapshot;
  }
};
std::string_view to_string(TraceFault::Kind kind);  // "cut_tail", ...

/// {"group": index, "last_step": step}
inline constexpr std::string_view kExcerptFile = "excerpt.json";

/// What an excerpt (excerpt.h) was cut for.
struct TraceExcerpt {
  GroupId group;
  uint64_t last_step = 0;
};

struct TraceSummary;  // summary.h

class Trace {
 public:
  /// `folder`: a run folder, or `runs/latest`: the whole run; its `trace/` or `trace.N/`: what this
  /// start recorded. kNotFound without a trace, kCorrupt when no segment is readable or the
  /// segments are of different runs.
  static Result<std::shared_ptr<const Trace>> open(const std::filesystem::path& folder);
  /// What one start recorded, in parts.
  struct Part {
    std::span<const CutHead> from = {};    // only what came after: older segments count as retired
    std::set<std::string> processes = {};  // only these; empty: all
  };
  static Result<std::shared_ptr<const Trace>> open(const std::filesystem::path& folder,
                                                   const Part& part);
  virtual ~Trace() = default;

  virtual const std::filesystem::path& folder() const = 0;  // of the newest start
  virtual const std::filesystem::path& oldest_folder() const { return folder(); }
  virtual size_t num_starts() const { return 1; }  // that are read as one record
  virtual bool begins_with_cut() const {
    return false;
  }  // not with step 1: what came before is gone
  virtual const TraceCatalog& catalog() const = 0;
  virtual std::optional<TraceExcerpt> excerpt() const { return std::nullopt; }  // none: a whole run
  virtual bool is_closed() const = 0;    // every process wrote its end frame
  virtual bool is_complete() const = 0;  // no faults, from step 1
  virtual const std::vector<TraceFault>& faults() const = 0;

  /// Steps of a group run from first_step to last_step, dense unless a gap or damage is reported;
  /// both 0 when there are none.
  virtual uint64_t first_step(GroupId group) const = 0;
  virtual uint64_t last_step(GroupId group) const = 0;
  virtual uint64_t num_steps() const = 0;  // of all groups
  virtual std::optional<TraceStep> step(GroupId group, uint64_t step) const = 0;
  virtual std::vector<NondeterministicInput> notes(GroupId group, uint64_t step) const = 0;
  /// The same without a copy: in order, `bytes` valid during the call.
  virtual void visit_notes(
      GroupId group, uint64_t step,
      const std::function<void(NoteKind kind, InstanceId instance,
                               std::span<const std::byte> bytes)>& visitor) const;
  virtual std::optional<Time> started(GroupId group) const = 0;

  /// The step that handled a message; none when no step did (or it is not recorded).
  virtual std::optional<StepRef> delivery(const MessageKey& key) const = 0;
  /// The whole step that handled it.
  virtual std::optional<TraceStep> delivered_step(const MessageKey& key) const;
  /// Its content, when stored: kNotFound: not stored; kCorrupt: with the fault.
  virtual Result<StoredPayload> payload(const MessageKey& key) const = 0;
  virtual bool has_payload(const MessageKey& key) const = 0;
  /// Messages a step emitted and stored, in order of emission.
  virtual std::vector<MessageKey> stored_emissions(GroupId group, uint64_t step) const = 0;

  /// Counts of the whole trace, without reading it (summary.h).
  virtual const TraceSummary& summary() const = 0;
  /// Two numbers for steps [block * 1024, block * 1024 + 1023] of a group: what they did, and what
  /// they stored; equal for equal content. None when steps were recorded twice.
  struct Digest {
    uint64_t steps = 0, payloads = 0;
    friend bool operator==(const Digest&, const Digest&) = default;
  };
  virtual std::optional<Digest> digest(GroupId group, uint64_t block) const = 0;

  /// Every step of all groups in order of time, ties by group and step, from `from` to `to`
  /// inclusive. The visitor returns false to stop.
  virtual void visit(Time from, Time to,
                     const std::function<bool(const TraceStep&)>& visitor) const = 0;
};

/// The folders that open(folder) reads, oldest first. kNotFound without a trace.
Result<std::vector<std::filesystem::path>> trace_folders(const std::filesystem::path& folder);

/// "trainer:412", "rollout.main:88", or "router" (the whole group): an instance or a group, and a
/// step.
struct StepName {
  GroupId group;
  InstanceId instance;  // none when a group was named
  std::optional<uint64_t> step;
};
Result<StepName> parse_step_name(const TraceCatalog& catalog, std::string_view text);
/// "trainer:412".
std::string step_text(const TraceCatalog& catalog, GroupId group, uint64_t step);

/// A body as JSON by the schema in the catalog, without the C++ struct. Blobs are shown as their
/// sizes; long token lists are not cut. kCorrupt when body and schema do not fit.
Result<Json> payload_json(const TraceCatalog::Type& type, const StoredPayload& payload);
/// kCorrupt when the content does not match its check.
Status check_payload(const TraceCatalog::Type& type, const StoredPayload& payload);

}  // namespace primerl
