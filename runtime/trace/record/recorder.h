/// Recorder: writes the steps of every group of a process to the trace. The DeliveryObserver of a
/// recorded run.
///
/// Per step: its notes (answers of room(), a stop that was asked for, the error, answers of
/// resources), the payloads of those emissions whose edge has record = "payload" and stays in the
/// process, and of the input if its edge has "input", or has "payload" and comes from another
/// process, then the delivery itself. A step is in the trace once its delivery is:
/// notes and payloads without one belong to a step that was cut. All of it is written before the
/// step's messages are shipped, so whatever a trace has as received, it also has as sent.
///
/// Threads: on_start(), on_step() and add_answer() on the thread of their group, for different
/// groups concurrently; the rest from one.
#pragma once

#include <span>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/trace/catalog.h"
#include "runtime/trace/record/segment_writer.h"

namespace primerl {

class Recorder final : public DeliveryObserver {
 public:
  /// `writer` outlives the recorder; `catalog` is the one its segments begin with.
  Recorder(const TraceCatalog& catalog, SegmentWriter& writer);
  ~Recorder() override;

  void on_start(GroupId group, Time now) override;
  void on_step(const StepRecord& record) override;
  bool wants_emissions(LinkId link) const override;
  /// An answer of a resource of `group` during the current step: written as a note of kind
  /// kResource.
  void add_answer(GroupId group, std::vector<std::byte> answer);
  /// Messages that could not be stored because they exceed the limit of a message.
  uint64_t num_unstored() const;

 private:
  struct LinkFacts {
    RecordPolicy policy = RecordPolicy::kHeader;
    uint32_t type = 0;
    bool is_remote = false;
    /// Between processes a message is stored where it is handled: a process is resumed from its own
    /// record.
    bool is_stored_at_birth() const { return policy == RecordPolicy::kPayload && !is_remote; }
  };
  struct HostScratch {
    std::vector<std::vector<std::byte>> answers;
    std::vector<std::byte> bytes;
    uint64_t num_unstored = 0;
  };
  uint64_t write_notes(const StepRecord& record);
  void write_note(const StepRecord& record, NoteKind kind, std::span<const std::byte> bytes);
  bool keeps_input(const StepRecord& record) const;
  bool write_payload(const StepRecord& record, LinkId link, const Envelope& envelope);

  SegmentWriter& writer_;
  std::vector<LinkFacts> links_;      // index = LinkId
  std::vector<HostScratch> scratch_;  // index = GroupId
};

}  // namespace primerl
