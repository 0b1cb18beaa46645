/// Flow: the sending half of a group's links: credit, outbox, sequence numbers, ledger, and the
/// gate that says which forward inputs and work turns may be handed over.
///
/// A forward message is shipped while the link has credit (messages and Blob bytes; one message
/// larger than the byte window passes when that window is empty) and waits in the outbox else. A
/// feedback message is never held back. A latest_wins message waits at most once per tenant: a
/// newer one overwrites it. Unsettled = emitted and not yet granted back; at capacity the link is
/// full.
///
/// An addressed output is full only when all its live targets are: its handler looks at
/// room(target) before it chooses. Any other is full when one of its targets is. That includes
/// keyed ones, where the key chooses and nobody can look first: with the rule of addressed outputs
/// their bound could not hold.
///
/// Threads: the group's, except room() and targets(), which a handler running apart may call, and
/// the counters, which anyone may read.
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
  // Of this incarnation of the peer.
  Counter num_emitted, num_shipped, num_settled, num_overwritten;
  uint64_t bytes_emitted = 0, bytes_shipped = 0, bytes_settled = 0;
  // Of all incarnations before.
  Counter past_sent, past_handled, past_dropped, num_returned;
  Counter waiting_max;
  Counter full_since_ns, blocked_ns;  // 0: not full now; of all times before
  Ring<Envelope> outbox;
  Ring<Envelope> unacknowledged;  // of remote links alone

  uint64_t unsettled() const {
    return num_emitted.get() - num_settled.get() - num_overwritten.get();
  }
  /// How long it was full, in nanoseconds; never less than it said before.
  uint64_t blocked_until(Time now) const;
};

/// One output port of one actor of the group.
struct OutputFlow {
  const OutputPort* port = nullptr;
  std::vector<uint32_t> links;                   // indices into Flow::links, by target
  std::vector<std::vector<InstanceId>> targets;  // live ones, by tenant slot; the last = any
  bool any_blocks = true;                        // false: full only when all live targets are
  uint32_t num_forward = 0;                      // live forward links
  uint32_t num_full = 0;                         // of those
  bool is_counted = false;  // all its live targets are full: it blocks its actor
};

class Flow {
 public:
  /// `is_replaying`: a recording says what happens when, so nothing waits for credit.
  Flow(const Plan& plan, const Wiring& wiring, GroupId group, bool is_replaying);

  /// Counts a message of one link. True: it leaves now, and the caller ships it, to an inbox of
  /// this group or in a batch. False: it was taken into the outbox, or (dead peer) is returned.
  bool emit(OutLink& link, Envelope& envelope);
  /// Of a replaying group: counts a message that does not leave, since it was handled (or
  /// overwritten) in the run that is followed.
  void emit_known(OutLink& link, Envelope& envelope, bool is_overwritten);
  /// Whether these totals can be: not more than was shipped, and no bytes that were not. Before
  /// grant(), of what another process says.
  bool may_settle(const OutLink& link, uint64_t num_messages, uint64_t num_bytes) const;
  /// Applies running totals; `ship(link, envelope&&)` takes what got credit. Old or repeated grants
  /// change nothing.
  template <class Ship>
  void grant(OutLink& link, uint64_t num_messages, uint64_t num_bytes, const Ship& ship);
  /// Everything unsettled is returned; the link leaves its output.
  void close(OutLink& link);
  /// The time of the step or batch in hand.
  void set_now(Time now) { now_ = now; }
  /// Credit counts from now on; what was emitted without it stays so.
  void resume_live();
  void reopen(OutLink& link);

  /// Full forward outputs of each actor. An actor with one gets no forward input; while there is
  /// any in the group, it gets no work turn. Not the whole group as one: a group that lies on a
  /// path twice (a -> other group -> b, with a and b in one group) would wait for itself.
  std::span<const uint32_t> num_full() const { return num_full_; }
  bool is_open() const { return num_blocked_ == 0; }
  /// Whether a link got room since the last call.
  bool take_got_room() { return std::exchange(got_room_, false); }
  bool has_outbox() const { return num_in_outboxes_ > 0; }

  int64_t room(uint32_t actor, uint32_t output, InstanceId target) const;
  std::span<const InstanceId> targets(uint32_t actor, uint32_t output, TenantSlot tenant) const;

  std::vector<OutLink> links;                    // index = WiredLink::out_index
  std::vector<std::vector<OutputFlow>> outputs;  // [actor][output]

 private:
  void update_full(OutLink& link);
  void count_full(uint32_t actor, int change);
  void rebuild_targets(OutputFlow& output);
  bool settle(OutLink& link, uint64_t num_messages, uint64_t num_bytes);
  bool may_leave_outbox(const OutLink& link) const;
  void count_shipped(OutLink& link, Envelope& envelope);

  const uint32_t num_slots_;
  bool is_replaying_;
  std::vector<uint32_t> num_full_;  // by actor
  uint32_t num_blocked_ = 0;        // actors with full outputs
  uint64_t num_in_outboxes_ = 0;
  bool got_room_ = false;
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
