/// Recorder: writes the steps of every group of a process to the trace. It is the DeliveryObserver
/// of a recorded run.
///
/// Per step it writes, in this order: the step's notes (answers of room(), a stop request, the
/// error, answers of resources, engines of a resumed run that answer first); payloads; the
/// delivery. An emission's payload is written if its edge has record = "payload" and stays in the
/// process. The input's payload is written if its edge has "input", or has "payload" and comes from
/// another process. A step is in the trace once its delivery is: notes and payloads without a
/// delivery belong to an incomplete step. All of it is written before the step's messages are
/// shipped. So if a message's receipt is in a trace, its emission is too.
///
/// Threads: on_start(), on_step() and add_answer() on the thread of their group, for different
/// groups concurrently; the rest from one thread.
#pragma once

#include <span>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/trace/catalog.h"
#include "runtime/trace/record/segment_writer.h"

namespace primerl {

class Recorder final : public DeliveryObserver {
 public:
  /// `writer` must stay valid while the recorder exists; `catalog` is the one at the begin of its
  /// segments.
  Recorder(const TraceCatalog& catalog, SegmentWriter& writer);
  ~Recorder() override;

  void on_start(GroupId group, Time now) override;
  void on_step(const StepRecord& record) override;
  bool wants_emissions(LinkId link) const override;
  /// Records an answer that a resource of `group` gave in the current step, as a note of kind
  /// kResource.
  void add_answer(GroupId group, std::vector<std::byte> answer);
  /// Number of messages that could not be stored because they exceed the limit of a message.
  uint64_t num_unstored() const;

 private:
  struct LinkFacts {
    RecordPolicy policy = RecordPolicy::kHeader;
    uint32_t type = 0;
    bool is_remote = false;
    /// A message between processes is stored where it is handled, because a process is resumed from
    /// its own record.
    bool is_stored_at_birth() const { return policy == RecordPolicy::kPayload && !is_remote; }
  };
  struct GroupScratch {
    std::vector<std::vector<std::byte>> answers;
    std::vector<std::byte> bytes;
    uint64_t num_unstored = 0;
  };
  uint64_t write_notes(const StepRecord& record);
  void write_note(const StepRecord& record, NoteKind kind, std::span<const std::byte> bytes);
  bool keeps_input(const StepRecord& record) const;
  bool write_payload(const StepRecord& record, LinkId link, const Envelope& envelope);

  SegmentWriter& writer_;
  std::vector<LinkFacts> links_;       // index = LinkId
  std::vector<GroupScratch> scratch_;  // index = GroupId
};

}  // namespace primerl
