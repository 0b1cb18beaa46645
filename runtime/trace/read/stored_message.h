/// Messages between groups that are read from a trace instead of from their senders.
///
/// RecordedInputs: which messages between processes a resumed run gets from its record. Every
/// process follows its own steps (recovery.h) with what the others had sent it, so none waits for
/// another: a message is not sent again if the record shows that it was handled and holds its
/// content. One that is not stored (record = "none" or "header", large Blobs) is sent on its link
/// as usual. Processes that are *absent* (recovery.h) do not follow a record at all: what they had
/// sent must be stored, and what is sent to them is dropped. A replay of all processes together
/// takes only the messages of absent ones from the record.
///
/// Threads: immutable; safe to use from several.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/wiring.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

/// The message that a step handled, as its sender had sent it. kNotFound when it is not stored,
/// kCorrupt when it is damaged or not what the step handled.
Result<Envelope> stored_envelope(const Trace& trace, const Plan& plan, const WiredLink& link,
                                 const TraceStep& step);

class RecordedInputs {
 public:
  /// All outlive it. `incarnation`: of the messages of processes that follow; `is_absent`: index =
  /// GroupId; `is_alone`: groups of each process are played without the groups of the others;
  /// `state_of`: the part of a cut from which a group follows, null where it has none.
  RecordedInputs(const Plan& plan, const Wiring& wiring, const Trace& trace, uint32_t incarnation,
                 std::vector<bool> is_absent, bool is_alone,
                 const std::function<const GroupState*(GroupId)>& state_of = {});

  /// Whether this message was handled, comes from another process and will not be sent in this run.
  bool has(const MessageKey& key) const;
  Result<Envelope> of(const TraceStep& step) const;
  EmissionFate emission_fate(LinkId link, uint64_t sequence, uint64_t num_shipped) const;
  /// Messages of a latest_wins link up to `sequence` that the receiver has got, by its cut and its
  /// record; none where the cut says more.
  std::optional<uint64_t> num_received(LinkId link, uint64_t sequence) const;
  bool is_absent(GroupId group) const { return is_absent_[group.index()]; }

 private:
  const Plan& plan_;
  const Wiring& wiring_;
  const Trace& trace_;
  const uint32_t incarnation_;
  const std::vector<bool> is_absent_;
  const bool is_alone_;
  std::vector<uint64_t> last_handled_;          // by link between processes: sequence number
  std::vector<uint64_t> last_received_;         // likewise, before the cut of its receiver
  std::vector<std::vector<uint64_t>> handled_;  // by latest_wins link: sequence numbers, ascending
  std::vector<uint64_t> num_received_;  // messages until then: fewer where latest_wins left gaps
};

}  // namespace primerl
