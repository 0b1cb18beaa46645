/// Trace: reads a recorded run: the segments of every process in `runs/x/trace`, as one table of
/// steps per group, with their payloads, notes and gaps.
///
/// A run that was resumed from saved state has one folder per start, and is read as one record.
/// Steps of a group before the cut come from the older folder, later steps from the newer one.
/// Steps of the older folder after the cut were recorded again or are not part of the run any more.
///
/// open() maps the segments and loads or rebuilds their indices (`*.index`, never authoritative).
/// Numbers from the files are checked against the catalog before they are returned. All missing
/// parts are reported, never skipped silently: truncated tails, holes, damage, gaps, retired
/// segments (first_step() > 1). Immutable after open(); safe to read from several threads.
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

/// One decoded step. Plain numbers; names are in the catalog.
struct TraceStep {
  GroupId group;
  uint64_t step = 0;
  StepKind kind = StepKind::kMessage;
  uint8_t flags = 0;  // DeliveryFlags
  uint8_t num_notes = 0;
  InstanceId instance;  // none for a work call
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
  uint64_t sender_step = 0;    // step of the sender's group that emitted the message
  uint32_t type = UINT32_MAX;  // index into the catalog's types
  uint64_t payload_check = 0;
  uint32_t payload_bytes = 0;
  // kTimer, kPeer, kCommand, kTenant
  uint32_t subject = 0;  // timer index; instance of a peer event; input of a command; kind of a
                         // tenant event, whose slot is `tenant` and whose number is `sequence`
  bool is_failed() const { return (flags & kFailed) != 0; }
};

/// Identifies a message; its delivery and its emission have equal keys.
struct MessageKey {
  LinkId link;
  uint32_t incarnation = 0;
  uint64_t sequence = 0;
  friend auto operator<=>(const MessageKey&, const MessageKey&) = default;
};

struct StoredPayload {
  MessageKey key;
  GroupId sender_group;  // none, like `step`, when the message was stored where it was handled
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

/// One missing part, and the reason.
struct TraceFault {
  enum class Kind {
    kCutTail,
    kHole,
    kDamage,
    kGap,
    kMissingSegment,
    kRetired,
    kMissingBlob,
    kMissingStep,   // a record is missing although no frame near it is damaged
    kReplaced,      // a later incarnation, or a later start of the run, recorded these steps again
    kExcerpt,       // only the parts that one actor group needs were copied, on purpose (excerpt.h)
    kOlderMissing,  // the folder of the start that this one resumed from does not exist
    kSnapshot,      // a snapshot of a flight recorder, which continued to record (ring_files.h)
  } kind;
  std::string file;
  uint64_t offset = 0;
  std::string text;    // for people: "tail cut after step 412 of 'trainer'"
  GroupId group = {};  // none when the fault concerns no single group
  uint64_t first = 0;  // its missing steps; for a truncated tail, both are the last step
  uint64_t last = 0;
  bool is_fault() const {
    return kind != Kind::kRetired && kind != Kind::kOlderMissing && kind != Kind::kHole &&
           kind != Kind::kReplaced && kind != Kind::kExcerpt && kind != Kind::kSnapshot;
  }
};
std::string_view to_string(TraceFault::Kind kind);  // "cut_tail", ...

/// {"group": index, "last_step": step}
inline constexpr std::string_view kExcerptFile = "excerpt.json";

/// The group and step for which an excerpt (excerpt.h) was made.
struct TraceExcerpt {
  GroupId group;
  uint64_t last_step = 0;
};

class TenantUses;     // tenant_uses.h
struct TraceSummary;  // summary.h

class Trace {
 public:
  /// `folder`: a run folder, or `runs/latest`: opens the whole run. A run's `trace/` or `trace.N/`:
  /// opens the record of that start. kNotFound without a trace. kCorrupt when no segment is
  /// readable or the segments belong to different runs.
  static Result<std::shared_ptr<const Trace>> open(const std::filesystem::path& folder);
  /// A part of the record of one start.
  struct Part {
    std::span<const CutHead> from = {};    // only steps after these cuts: older segments count as
                                           // retired
    std::set<std::string> processes = {};  // only these; empty: all
  };
  static Result<std::shared_ptr<const Trace>> open(const std::filesystem::path& folder,
                                                   const Part& part);
  virtual ~Trace() = default;

  virtual const std::filesystem::path& folder() const = 0;  // of the newest start
  virtual const std::filesystem::path& oldest_folder() const { return folder(); }
  virtual size_t num_starts() const { return 1; }  // number of starts that are read as one record
  virtual bool begins_with_cut() const {
    return false;
  }  // the record does not begin with step 1: earlier steps are missing
  virtual const TraceCatalog& catalog() const = 0;
  // none: a whole run
  virtual std::optional<TraceExcerpt> excerpt() const { return std::nullopt; }
  virtual bool is_closed() const = 0;    // every process wrote its end frame
  virtual bool is_complete() const = 0;  // no faults, and it begins with step 1
  virtual const std::vector<TraceFault>& faults() const = 0;

  /// A group has the steps from first_step to last_step, without gaps unless a gap or damage is
  /// reported. Both are 0 without steps.
  virtual uint64_t first_step(GroupId group) const = 0;
  virtual uint64_t last_step(GroupId group) const = 0;
  virtual uint64_t num_steps() const = 0;  // of all groups
  virtual std::optional<TraceStep> step(GroupId group, uint64_t step) const = 0;
  virtual std::vector<NondeterministicInput> notes(GroupId group, uint64_t step) const = 0;
  /// Visits the notes in order, without a copy; `bytes` are valid during the call.
  virtual void visit_notes(
      GroupId group, uint64_t step,
      const std::function<void(NoteKind kind, InstanceId instance,
                               std::span<const std::byte> bytes)>& visitor) const;
  virtual std::optional<Time> started(GroupId group) const = 0;

  /// The step that handled a message; none when no step did, or when it is not recorded.
  virtual std::optional<StepRef> delivery(const MessageKey& key) const = 0;
  /// The complete step that handled it.
  virtual std::optional<TraceStep> delivered_step(const MessageKey& key) const;
  /// The message's content. kNotFound: not stored. kCorrupt: damaged, with the fault.
  virtual Result<StoredPayload> payload(const MessageKey& key) const = 0;
  virtual bool has_payload(const MessageKey& key) const = 0;
  /// The stored messages that a step emitted, in order of emission.
  virtual std::vector<MessageKey> stored_emissions(GroupId group, uint64_t step) const = 0;

  /// Which tenant had which slot at which step.
  virtual const TenantUses& tenants() const = 0;
  /// Counts of the whole trace, without reading it (summary.h).
  virtual const TraceSummary& summary() const = 0;
  /// Two numbers for steps [block * 1024, block * 1024 + 1023] of a group: a digest of the steps
  /// and one of their stored payloads. They are equal for equal content. None when steps were
  /// recorded twice.
  struct Digest {
    uint64_t steps = 0, payloads = 0;
    friend bool operator==(const Digest&, const Digest&) = default;
  };
  virtual std::optional<Digest> digest(GroupId group, uint64_t block) const = 0;

  /// Visits every step of all groups from `from` to `to` inclusive, in order of time, then of group
  /// and step. The visitor returns false to stop.
  virtual void visit(Time from, Time to,
                     const std::function<bool(const TraceStep&)>& visitor) const = 0;
};

/// The folders that open(folder) reads, oldest first. kNotFound without a trace.
Result<std::vector<std::filesystem::path>> trace_folders(const std::filesystem::path& folder);

/// Whether the start of a trace folder died before its first step: nothing was recorded besides the
/// start of the processes, and nothing was removed. An unreadable file counts as recorded.
bool died_before_first_step(const std::filesystem::path& folder);

/// "trainer:412", "rollout.main:88", or "router" (the whole group): an instance or a group, and
/// perhaps a step.
struct StepName {
  GroupId group;
  InstanceId instance;  // none when a group was named
  std::optional<uint64_t> step;
};
Result<StepName> parse_step_name(const TraceCatalog& catalog, std::string_view text);
/// "trainer:412".
std::string step_text(const TraceCatalog& catalog, GroupId group, uint64_t step);

/// A body as JSON by the schema in the catalog, without the C++ struct. Blobs are shown by their
/// sizes; long token lists are not cut. kCorrupt when body and schema do not match.
Result<Json> payload_json(const TraceCatalog::Type& type, const StoredPayload& payload);
/// kCorrupt when the content does not have the recorded payload_check.
Status check_payload(const TraceCatalog::Type& type, const StoredPayload& payload);

}  // namespace primerl
