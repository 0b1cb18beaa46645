/// OpenTrace: the implementation of Trace: segments with their indices, merged into tables of
/// pieces. Trace::open() builds it in steps: trace_files.cc finds and indexes, trace_tables.cc
/// merges, trace_faults.cc reports what is missing. Constant afterwards. A segment's reader is
/// opened at its first use, under its own lock.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>

#include "runtime/trace/payload_frame.h"
#include "runtime/trace/read/index_builder.h"
#include "runtime/trace/read/summary.h"
#include "runtime/trace/read/tenant_uses.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

/// One file and its index.
struct TraceSegment {
  std::filesystem::path file;
  uint32_t start = 0;  // of the run: index into TraceFiles::starts
  uint32_t process = 0, incarnation = 0;
  uint64_t number = 0;
  std::shared_ptr<const SegmentIndex> index;

  /// Whether one process wrote this segment and `other`, one after the other.
  bool continues(const TraceSegment& other) const {
    return start == other.start && process == other.process && incarnation == other.incarnation;
  }
  std::filesystem::path folder() const { return file.parent_path(); }

  /// The frame at a position from the index, checked again; kCorrupt when it has another kind.
  Result<Frame> frame(uint32_t position, TraceFrameKind kind) const;
  /// Opens the file at the first call.
  Result<SegmentReader*> reader() const;

  mutable std::mutex lock;  // held while the file is opened
  mutable std::unique_ptr<SegmentReader> opened;
  mutable std::atomic<SegmentReader*> usable{nullptr};
};

/// The folder of one start of a run.
struct TraceStart {
  std::filesystem::path folder;
  /// By GroupId: steps before the cut that the start resumed from; none: the group started from the
  /// beginning.
  std::vector<std::optional<uint64_t>> base_steps;
  /// By process name and incarnation: segments up to this number were retired or skipped.
  std::map<std::pair<std::string, uint32_t>, uint64_t> gone;
};

struct TraceFiles {
  std::vector<TraceStart> starts;  // oldest first; each resumed from a cut of the one before
  TraceCatalog catalog;            // of the oldest start, with the options of the newest
  std::vector<std::shared_ptr<const TraceSegment>>
      // by process, start, incarnation, number
      segments;
  std::vector<TraceFault> faults;  // unreadable files
  std::vector<CutHead> saved;      // whose slots name tenants with a join that is not in the record
  std::optional<TraceExcerpt> excerpt;
  uint64_t num_indexed = 0;
  bool is_run = false;  // the path was a run folder, not the folder of one start
};
/// `folder` and `part` as for Trace::open(); null `part`: the whole trace.
Result<TraceFiles> find_trace_files(const std::filesystem::path& folder, const Trace::Part* part);

/// Steps [first, last] of a group, in one segment.
struct StepPiece {
  uint64_t first = 0, last = 0;
  const TraceSegment* segment = nullptr;
  std::span<const uint32_t> positions;
  uint64_t positions_first = 0;  // the step of positions[0]
  uint64_t num_missing = 0;
};
/// Deliveries, payloads, emissions or notes of one segment, sorted by their key.
struct KeyPiece {
  uint32_t first_incarnation = 0, last_incarnation = 0;
  uint64_t first = 0, last = 0;
  const TraceSegment* segment = nullptr;
  std::span<const uint32_t> positions;
};

class OpenTrace final : public Trace {
 public:
  explicit OpenTrace(TraceFiles files);

  const std::filesystem::path& folder() const override { return files_.starts.back().folder; }
  const std::filesystem::path& oldest_folder() const override {
    return files_.starts.front().folder;
  }
  size_t num_starts() const override { return files_.starts.size(); }
  bool begins_with_cut() const override;
  const TraceCatalog& catalog() const override { return files_.catalog; }
  std::optional<TraceExcerpt> excerpt() const override { return files_.excerpt; }
  bool is_closed() const override { return is_closed_; }
  bool is_complete() const override;
  const std::vector<TraceFault>& faults() const override { return faults_; }
  uint64_t first_step(GroupId group) const override;
  uint64_t last_step(GroupId group) const override;
  uint64_t num_steps() const override { return summary_.num_steps; }
  std::optional<TraceStep> step(GroupId group, uint64_t step) const override;
  std::vector<NondeterministicInput> notes(GroupId group, uint64_t step) const override;
  void visit_notes(GroupId group, uint64_t step,
                   const std::function<void(NoteKind, InstanceId, std::span<const std::byte>)>&
                       visitor) const override;
  std::optional<Time> started(GroupId group) const override;
  std::optional<StepRef> delivery(const MessageKey& key) const override;
  std::optional<TraceStep> delivered_step(const MessageKey& key) const override;
  Result<StoredPayload> payload(const MessageKey& key) const override;
  bool has_payload(const MessageKey& key) const override;
  std::vector<MessageKey> stored_emissions(GroupId group, uint64_t step) const override;
  const TenantUses& tenants() const override { return tenants_; }
  const TraceSummary& summary() const override { return summary_; }
  std::optional<Digest> digest(GroupId group, uint64_t block) const override;
  void visit(Time from, Time to,
             const std::function<bool(const TraceStep&)>& visitor) const override;

 private:
  struct OfGroup {
    std::vector<StepPiece> steps;
    std::vector<KeyPiece> emissions, notes, lifecycle, tenant_steps;
    std::vector<Digest> digests;  // by block - first_block; empty: no digests
    uint64_t first_block = 0;
    std::vector<std::pair<uint64_t, uint64_t>> replaced;  // steps that later segments record again
  };
  struct OfLink {
    std::vector<KeyPiece> deliveries, payloads;
  };

  struct TenantStep {
    GroupId group;
    uint64_t step = 0;
    Time began;
    TenantChange change;
  };

  // Called once, by the constructor.
  void add(const TraceSegment& segment);
  void add_steps(OfGroup& group, StepPiece piece);
  void begin_start(const TraceSegment& segment);
  static void drop_steps(OfGroup& group, uint64_t first);
  void subtract_steps(const OfGroup& group, uint64_t first);
  void subtract_payloads(const OfGroup& group, uint64_t first);
  void add_summary(const TraceSegment& segment);
  void find_tenants();  // trace_tenants.cc
  void read_tenant_step(GroupId group, uint64_t step, std::vector<TenantStep>& steps);
  void place_versions();
  void add_digests();
  void count_skipped();
  void find_faults();  // trace_faults.cc
  void find_segment_faults();
  void find_order_faults(const TraceSegment* before, const TraceSegment& segment);
  void find_damage(const TraceSegment& segment, bool is_last);
  void find_gaps(const TraceSegment& segment);
  void find_snapshot(const TraceSegment& newest);
  bool is_damaged(const TraceSegment& segment) const;
  void find_missing_steps(GroupId group);
  void find_cut_tails();
  void find_missing_blobs();
  uint64_t retired_through_number(const TraceSegment& segment) const;
  TraceFault::Kind why_missing(const StepPiece* before, const StepPiece* after, GroupId group,
                               uint64_t first) const;

  const StepPiece* piece_of(GroupId group, uint64_t step) const;
  std::optional<Frame> frame_of(GroupId group, uint64_t step, const TraceSegment** where) const;
  std::optional<Frame> find_payload(const MessageKey& key, Status* fault,
                                    const TraceSegment** where = nullptr) const;
  bool is_of_run(const PayloadFrame& payload, const TraceSegment& segment) const;
  /// The frame of the delivery of a message, found by the table of steps.
  std::optional<Frame> find_delivery(const MessageKey& key) const;
  /// Visits frames of one step among pieces that are sorted by step; only frames of the incarnation
  /// that recorded the step.
  template <class Visit>
  void for_frames_of_step(const std::vector<KeyPiece>& pieces, TraceFrameKind kind, GroupId group,
                          uint64_t step, const Visit& visit) const;

  const TraceFiles files_;
  std::vector<OfGroup> groups_;
  std::vector<OfLink> links_;
  std::vector<uint64_t> num_left_;  // by start: number of steps after the cut from which the next
                                    // start resumed
  std::vector<TraceFault> faults_;
  TraceSummary summary_;
  TenantUses tenants_;
  bool is_closed_ = false;
};

}  // namespace primerl
