/// Flow: the sending side of a group's links: credit, outbox, sequence numbers, ledger, and the
/// check which forward inputs and work turns may be handed over.
///
/// A forward message is shipped while the link has credit (messages and Blob bytes; one message
/// larger than the byte window passes when that window is empty) and waits in the outbox otherwise.
/// A feedback message is never held back. A latest_wins message waits at most once per tenant: a
/// newer one overwrites it. Unsettled = emitted and not yet granted back; at capacity the link is
/// full.
///
/// An addressed output is full only when all its live targets are: its handler checks room(target)
/// before it chooses a target. Any other output is full when one of its targets is. That includes
/// keyed outputs: the key chooses the target and the handler cannot check it before, so with the
/// rule of addressed outputs the bound of the edge could be exceeded.
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
  // Of the peer's current incarnation.
  Counter num_emitted, num_shipped, num_settled, num_overwritten;
  uint64_t bytes_emitted = 0, bytes_shipped = 0, bytes_settled = 0;
  // Of all earlier incarnations.
  Counter past_sent, past_handled, past_dropped, num_returned;
  Counter waiting_max;
  Counter full_since_ns, blocked_ns;  // 0: not full now; sum of earlier full times
  Ring<Envelope> outbox;
  Ring<Envelope> unacknowledged;       // of remote links only
  uint64_t last_settled_sequence = 0;  // likewise

  uint64_t unsettled() const {
    return num_emitted.get() - num_settled.get() - num_overwritten.get();
  }
  /// How long it was full, in nanoseconds; never less than an earlier answer.
  uint64_t blocked_until(Time now) const;
};

/// One output port of one actor of the group.
struct OutputFlow {
  const OutputPort* port = nullptr;
  std::vector<uint32_t> links;                   // indices into Flow::links, by target
  std::vector<std::vector<InstanceId>> targets;  // live ones, by tenant slot; last = any tenant
  bool any_blocks = true;                        // false: full only when all live targets are
  uint32_t num_forward = 0;                      // live forward links
  uint32_t num_full = 0;                         // of those
  bool is_counted = false;  // all its live targets are full: it blocks its actor
};

class Flow {
 public:
  /// `is_replaying`: the order of steps is recorded, so nothing waits for credit but what is said
  /// to (EmissionFate::kSendLater).
  Flow(const Plan& plan, const Wiring& wiring, GroupId group, bool is_replaying);

  /// Counts a message of one link. True: it leaves now, and the caller ships it, to an inbox of
  /// this group or in a batch. False: it went into the outbox, or is returned (dead peer).
  bool emit(OutLink& link, Envelope& envelope, EmissionFate fate = EmissionFate::kSend);
  /// For a replaying group: counts a message that is not sent, because its receiver has it or had
  /// a newer one. `fate` is neither kSend nor kSendLater.
  void emit_known(OutLink& link, const Envelope& envelope, EmissionFate fate);
  /// For a group that follows its record from a cut: the same of a message that is counted as
  /// emitted already. True: the caller ships it.
  bool emit_again(OutLink& link, Envelope& envelope, EmissionFate fate);
  /// Whether these totals are possible: at most the messages and bytes that were shipped. Call
  /// before grant() for totals that come from another process.
  bool may_settle(const OutLink& link, uint64_t num_messages, uint64_t num_bytes) const;
  /// Applies running totals; `ship(link, envelope&&)` takes what got credit. Old or repeated grants
  /// change nothing.
  template <class Ship>
  void grant(OutLink& link, uint64_t num_messages, uint64_t num_bytes, const Ship& ship);
  /// Of a saved link, whose numbers are set: what waited for credit, and what waits for its
  /// acknowledgement. Nothing is counted or sent.
  void put_back(OutLink& link, std::vector<Envelope> outbox, std::vector<Envelope> unacknowledged);
  /// Everything unsettled is returned; the link leaves its output.
  void close(OutLink& link);
  /// Time of the current step or batch.
  void set_now(Time now) { now_ = now; }
  /// Credit limits sending from now on; what was emitted without credit stays sent.
  void resume();
  void reopen(OutLink& link);

  /// Number of full forward outputs of each actor. An actor with one gets no forward input; while
  /// any actor of the group has one, the group gets no work turn. Forward inputs are held back per
  /// actor, not per group: a group that is on a path twice (a -> other group -> b, with a and b in
  /// one group) would deadlock.
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
  bool count_known(OutLink& link, const Envelope& envelope, EmissionFate fate);
  bool settle(OutLink& link, uint64_t num_messages, uint64_t num_bytes);
  bool may_leave_outbox(const OutLink& link) const;
  void count_shipped(OutLink& link, const Envelope& envelope);

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
