/// Flow: the sending side of a group's links: credit, outbox, sequence numbers and ledger. It also
/// decides which forward inputs and work calls may run now.
///
/// A forward message is shipped while its link has credit, in messages and in Blob bytes. A message
/// larger than the byte window is shipped when that window is empty. Without credit it waits in the
/// outbox. A feedback message never waits. On a latest_wins link at most one message per tenant
/// waits: a newer one overwrites it. A message is unsettled from its emission until the receiver
/// grants its credit back. A link whose unsettled messages reach the capacity is full.
///
/// An addressed output is full only when all its live targets are: its handler checks room(target)
/// before it chooses a target. Any other output is full when one of its targets is. That includes
/// keyed outputs: the key chooses the target, and the handler cannot check that target first. With
/// the rule of addressed outputs, a keyed output could exceed the bound of its edge.
///
/// Threads: the group's thread. A handler that runs apart may call room() and targets(). Any thread
/// may read the counters.
#pragma once

#include <span>
#include <vector>

#include "graph/plan.h"
#include "runtime/exec/counter.h"
#include "runtime/exec/ring.h"
#include "runtime/exec/wiring.h"
#include "runtime/wire/message_batch.h"

namespace primerl {

struct OutLink {
  const WiredLink* link = nullptr;
  LinkId id;
  uint32_t actor = 0;  // index among the group's instances
  bool is_live = true;
  bool is_full = false;
  // Counts for the peer's current incarnation.
  Counter num_emitted, num_shipped, num_settled, num_overwritten;
  uint64_t bytes_emitted = 0, bytes_shipped = 0, bytes_settled = 0;
  // Counts for all earlier incarnations.
  Counter past_sent, past_handled, past_dropped, num_returned;
  Counter waiting_max;
  Counter full_since_ns, blocked_ns;  // 0: not full now; sum of earlier full times
  Ring<Envelope> outbox;
  Ring<Envelope> unacknowledged;       // remote links only
  uint64_t last_settled_sequence = 0;  // remote links only

  uint64_t unsettled() const {
    return num_emitted.get() - num_settled.get() - num_overwritten.get();
  }
  /// How long the link was full, in nanoseconds; never less than an earlier answer.
  uint64_t blocked_until(Time now) const;
};

/// One output port of one actor of the group.
struct OutputFlow {
  const OutputPort* port = nullptr;
  std::vector<uint32_t> links;                   // indices into Flow::links, by target
  std::vector<std::vector<InstanceId>> targets;  // live targets, by tenant slot; the last entry is
                                                 // for any tenant
  bool any_blocks = true;                        // false: full only when all live targets are
  uint32_t num_forward = 0;                      // live forward links
  uint32_t num_full = 0;                         // number of those that are full
  bool is_counted = false;  // the output blocks its actor because all its live targets are full
};

class Flow {
 public:
  /// `is_replaying`: the order of steps is recorded, so a message waits for credit only if its
  /// EmissionFate is kSendLater.
  Flow(const Plan& plan, const Wiring& wiring, GroupId group, bool is_replaying);

  /// Counts a message of one link. True: it leaves now, and the caller ships it to an inbox of this
  /// group or in a batch. False: it is in the outbox, or it was returned because the peer died.
  bool emit(OutLink& link, Envelope& envelope, EmissionFate fate = EmissionFate::kSend);
  /// For a replaying group: counts a message that is not sent, because its receiver has received it
  /// or a newer one. `fate` is neither kSend nor kSendLater.
  void emit_known(OutLink& link, const Envelope& envelope, EmissionFate fate);
  /// Like emit(), for a group that follows its record from a cut and a message that is already
  /// counted as emitted. True: the caller ships it.
  bool emit_again(OutLink& link, Envelope& envelope, EmissionFate fate);
  /// Whether these totals are possible: not more messages and bytes than were shipped. Call it
  /// before grant() for totals from another process.
  bool may_settle(const OutLink& link, uint64_t num_messages, uint64_t num_bytes) const;
  /// Applies running totals; calls `ship(link, envelope&&)` for messages that now have credit. Old
  /// or repeated grants change nothing.
  template <class Ship>
  void grant(OutLink& link, uint64_t num_messages, uint64_t num_bytes, const Ship& ship);
  /// For a saved link whose numbers are already set: puts back the messages that waited for credit
  /// and those that waited for their acknowledgement. Nothing is counted or sent.
  void put_back(OutLink& link, std::vector<Envelope> outbox, std::vector<Envelope> unacknowledged);
  /// Returns every unsettled message; the link leaves its output.
  void close(OutLink& link);
  /// Time of the current step or batch.
  void set_now(Time now) { now_ = now; }
  /// From now on credit limits sending. Messages that were emitted without credit stay sent.
  void resume();
  void reopen(OutLink& link);

  /// Number of full forward outputs of each actor. An actor with a full forward output gets no
  /// forward input. While any actor of the group has one, the group gets no work call. Forward
  /// inputs are blocked per actor, not per group. Otherwise a group that is on a path twice (a ->
  /// other group -> b, with a and b in one group) would deadlock.
  std::span<const uint32_t> num_full() const { return num_full_; }
  bool is_open() const { return num_blocked_ == 0; }
  /// Whether a link got free capacity since the last call.
  bool take_got_capacity() { return std::exchange(got_capacity_, false); }
  bool has_outbox() const { return num_in_outboxes_ > 0; }

  int64_t room(uint32_t actor, uint32_t output, InstanceId target) const;
  /// room() without unsettled messages.
  int64_t capacity(uint32_t actor, uint32_t output, InstanceId target) const;
  std::span<const InstanceId> targets(uint32_t actor, uint32_t output, TenantSlot tenant) const;

  std::vector<OutLink> links;                    // index = WiredLink::out_index
  std::vector<std::vector<OutputFlow>> outputs;  // [actor][output]

 private:
  void update_full(OutLink& link);
  void count_full(uint32_t actor, int change);
  void rebuild_targets(OutputFlow& output);
  bool count_known(OutLink& link, const Envelope& envelope, EmissionFate fate);
  bool settle(OutLink& link, uint64_t num_messages, uint64_t num_bytes);
  bool may_leave_outbox(const OutLink& link) const;
  void count_shipped(OutLink& link, const Envelope& envelope);

  const uint32_t num_slots_;
  bool is_replaying_;
  std::vector<uint32_t> num_full_;  // by actor
  uint32_t num_blocked_ = 0;        // number of actors with full outputs
  uint64_t num_in_outboxes_ = 0;
  bool got_capacity_ = false;
  Time now_;
};

template <class Ship>
void Flow::grant(OutLink& out, uint64_t num_messages, uint64_t num_bytes, const Ship& ship) {
  if (!settle(out, num_messages, num_bytes)) return;
  while (may_leave_outbox(out)) {
    --num_in_outboxes_;
    Envelope&& envelope = out.outbox.pop();
    count_shipped(out, envelope);
    ship(out, std::move(envelope));
  }
  update_full(out);
}

}  // namespace primerl
