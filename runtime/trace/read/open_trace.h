/// OpenTrace: the implementation of Trace: segments with their indices, merged into tables of
/// pieces. Built by Trace::open() in steps (trace_files.cc finds and indexes, trace_tables.cc
/// merges, trace_faults.cc reports what is missing), constant afterwards. A segment's reader is
/// opened at its first use, under its own lock.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "runtime/trace/payload_frame.h"
#include "runtime/trace/read/index_builder.h"
#include "runtime/trace/read/summary.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

/// One file and its index.
struct TraceSegment {
  std::filesystem::path file;
  uint32_t process = 0, incarnation = 0;
  uint64_t number = 0;
  std::shared_ptr<const SegmentIndex> index;

  /// The frame at a position from the index, checked again; kCorrupt when it is of another kind.
  Result<Frame> frame(uint32_t position, TraceFrameKind kind) const;
  /// Opens the file at the first call.
  Result<SegmentReader*> reader() const;

  mutable std::mutex lock;  // held while it is opened
  mutable std::unique_ptr<SegmentReader> opened;
  mutable std::atomic<SegmentReader*> usable{nullptr};
};

struct TraceFiles {
  std::filesystem::path folder;  // of the segments
  TraceCatalog catalog;
  std::vector<std::shared_ptr<const TraceSegment>> segments;  // by process, incarnation, number
  std::vector<TraceFault> faults;                             // unreadable files
  std::optional<TraceExcerpt> excerpt;
  uint64_t num_indexed = 0;
  /// By process name and incarnation: segments up to this number were retired or left out.
  std::map<std::pair<std::string, uint32_t>, uint64_t> gone;
  std::vector<uint64_t> base_steps;  // by GroupId: steps before the cut that the start went on from
};
/// `folder` and `from` as for Trace::open().
Result<TraceFiles> find_trace_files(const std::filesystem::path& folder,
                                    std::span<const CutHead> from);

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

  const std::filesystem::path& folder() const override { return files_.folder; }
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
  const TraceSummary& summary() const override { return summary_; }
  std::optional<Digest> digest(GroupId group, uint64_t block) const override;
  void visit(Time from, Time to,
             const std::function<bool(const TraceStep&)>& visitor) const override;

 private:
  struct OfGroup {
    std::vector<StepPiece> steps;
    std::vector<KeyPiece> emissions, notes, lifecycle;
    std::vector<Digest> digests;  // by block - first_block
    uint64_t first_block = 0;
    bool has_digests = true;  // false: steps were recorded twice
  };
  struct OfLink {
    std::vector<KeyPiece> deliveries, payloads;
  };

  // Called once, by the constructor.
  void add(const TraceSegment& segment);
  void add_steps(OfGroup& group, StepPiece piece);
  void add_summary(const TraceSegment& segment);
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
  uint64_t gone_through(const std::string& process, uint32_t incarnation) const;
  TraceFault::Kind why_missing(const StepPiece* before, const StepPiece* after, GroupId group,
                               uint64_t first) const;

  const StepPiece* piece_of(GroupId group, uint64_t step) const;
  std::optional<Frame> frame_of(GroupId group, uint64_t step, const TraceSegment** where) const;
  std::optional<Frame> find_payload(const MessageKey& key, Status* fault) const;
  /// The frame that delivered a message, according to the table of steps.
  std::optional<Frame> find_delivery(const MessageKey& key) const;
  /// Frames of one step among pieces sorted by step, of the incarnation that recorded the step.
  template <class Visit>
  void for_frames_of_step(const std::vector<KeyPiece>& pieces, TraceFrameKind kind, GroupId group,
                          uint64_t step, const Visit& visit) const;

  const TraceFiles files_;
  std::vector<OfGroup> groups_;
  std::vector<OfLink> links_;
  std::vector<TraceFault> faults_;
  TraceSummary summary_;
  bool is_closed_ = false;
};

}  // namespace primerl
