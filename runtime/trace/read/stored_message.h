/// Messages between groups that are read from a trace instead of received from their senders.
///
/// RecordedInputs: the messages between processes that a resumed run reads from its record. Every
/// process follows its own steps (recovery.h) with the recorded messages of the others, so no
/// process waits for another. A message is not sent again if the record shows that it was handled
/// and has its content. A message without stored content (record = "none" or "header", large Blobs)
/// is sent on its link as usual. *Absent* processes (recovery.h) follow no record. Messages from
/// them must be stored; messages to them are dropped. A replay of all processes together reads only
/// the messages of absent processes from the record.
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

/// The message that a step handled, as its sender sent it. kNotFound when it is not stored.
/// kCorrupt when it is damaged or differs from the message that the step handled.
Result<Envelope> stored_envelope(const Trace& trace, const Plan& plan, const WiredLink& link,
                                 const TraceStep& step);

class RecordedInputs {
 public:
  /// All arguments must stay valid while the object exists. `incarnation`: of messages of processes
  /// that follow. `is_absent`: index = GroupId. `is_alone`: the groups of each process are replayed
  /// without the groups of other processes. `state_of`: the part of a cut from which a group
  /// follows; null without one.
  RecordedInputs(const Plan& plan, const Wiring& wiring, const Trace& trace, uint32_t incarnation,
                 std::vector<bool> is_absent, bool is_alone,
                 const std::function<const GroupState*(GroupId)>& state_of = {});

  /// Whether this message was handled, comes from another process and will not be sent in this run.
  bool has(const MessageKey& key) const;
  Result<Envelope> of(const TraceStep& step) const;
  EmissionFate emission_fate(LinkId link, uint64_t sequence, uint64_t num_shipped) const;
  /// How many messages of a latest_wins link up to `sequence` the receiver received, by its cut and
  /// its record. None if the cut includes more messages.
  std::optional<uint64_t> num_received(LinkId link, uint64_t sequence) const;
  bool is_absent(GroupId group) const { return is_absent_[group.index()]; }

 private:
  const Plan& plan_;
  const Wiring& wiring_;
  const Trace& trace_;
  const uint32_t incarnation_;
  const std::vector<bool> is_absent_;
  const bool is_alone_;
  std::vector<uint64_t> last_handled_;          // by link between processes: last handled sequence
                                                // number
  std::vector<uint64_t> last_received_;         // by link between processes: last sequence number
                                                // before the receiver's cut
  std::vector<std::vector<uint64_t>> handled_;  // by latest_wins link: sequence numbers, ascending
  std::vector<uint64_t> num_received_;  // number of messages up to last_received_: fewer than that
                                        // if latest_wins left gaps
};

}  // namespace primerl
