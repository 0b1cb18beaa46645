/// GroupLinks: the links of an actor group. It routes and sends what the actors emit, receives
/// batches into the inbox, grants and applies credit, follows the deaths and restarts of other
/// processes, and counts every message.
///
///   emissions of a step -> release() -> outbox or batch -> flush() -> other groups
///   batch of another group -> accept() -> inbox -> (a step) -> acknowledge() -> grant
///
/// It owns the inbox (Inbox), the open batches (PeerBatches) and, through GroupCommon, the sending
/// sides (Flow). It knows no actor: GroupSteps decides which input is handled next, GroupActors
/// applies what a handler asked for.
///
/// Owned by the ActorGroup. Threads: the group's thread; any thread may call what is below "From
/// any thread". Call set_now() first in every step and batch.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exec/flow.h"
#include "runtime/exec/group_state.h"
#include "runtime/exec/inbox.h"
#include "runtime/exec/peer_batches.h"
#include "runtime/exec/running.h"

namespace primerl {

class GroupLinks {
 public:
  /// `common` must stay valid while the links exist.
  explicit GroupLinks(GroupCommon& common);

  Inbox& inbox() { return inbox_; }
  const Inbox& inbox() const { return inbox_; }
  PeerBatches& peers() { return peers_; }
  const PeerBatches& peers() const { return peers_; }
  /// Time of the current step or batch.
  Time now() const { return now_; }
  void set_now(Time now) {
    now_ = now;
    common_.flow->set_now(now);
  }

  // Sending ---------------------------------------------------------------------------------------

  /// Routes the emissions of a handler and clears them.
  void release(Running& running);
  /// A step completes: its emissions are counted and kept from here on.
  void forget_emissions();
  /// Emissions since forget_emissions(), on links that the observer wants.
  std::span<const BatchedMessage> observed() const { return observed_; }
  /// Number of all emissions since forget_emissions().
  uint32_t num_emissions() const { return num_emissions_; }
  /// Ships the batches that are due.
  void flush() { peers_.flush(inbox_.links); }

  // Receiving -------------------------------------------------------------------------------------

  /// Applies the grants of a batch of `peer` and queues its messages. Skips invalid parts and
  /// returns the first such error.
  Status accept(uint32_t peer, MessageBatch&& batch);
  /// The message was handled: its credit returns to the sender.
  void acknowledge(const Input& input);
  void count_failed(const Input& input) { inbox_.links[input.in_index].num_failed.add(1); }

  // A slot drains --------------------------------------------------------------------------------

  /// While `at_once`, what other processes sent is acknowledged as soon as it is handled, so their
  /// counts of a slot come to rest.
  void grant_at_once(bool at_once);
  /// Whether a message of the slot waits here, in the inbox, for credit or for the acknowledgement
  /// of another process; or a control input waits for an actor of the slot.
  bool holds_of(TenantSlot slot) const;
  /// Messages of the slot between groups of this process. From any thread. 0 in a plan without free
  /// slots or limits.
  uint64_t num_shipped(TenantSlot slot) const { return slot_shipped_[slot.index()].get(); }
  uint64_t num_received(TenantSlot slot) const { return slot_received_[slot.index()].get(); }

  // Other processes -------------------------------------------------------------------------------

  /// The peer's process died: unacknowledged messages are returned, arrivals of incarnations up to
  /// `incarnation` are refused, and every connected actor gets a PeerEvent.
  void peer_down(GroupId peer, uint32_t incarnation);
  /// The peer runs again as `incarnation`: its links restart at sequence 1 with full credit.
  void peer_up(GroupId peer, uint32_t incarnation);
  /// For a replaying group: in the recorded run `actor` was notified of this event, so the links to
  /// the peer had ended or restarted before.
  void follow_peer(uint32_t actor, const PeerEvent& event);

  // A record ends, a state is saved or restored ---------------------------------------------------

  /// The record ends: credit limits sending from now on, and the inbox chooses its own order.
  void resume();
  /// Adds links, peers and the counts of this class.
  void save(GroupState& state) const;
  void restore_peers(const GroupState& state) { peers_.restore(state.peers); }
  void restore_counts(const GroupState& state);
  void restore_in(const GroupState& state);
  /// After restore_in() and the inputs: a group that follows a record sends again what it had sent
  /// before the cut.
  Status restore_out(const GroupState& state);
  /// The input of a saved message; kCorrupt for a link that ends elsewhere.
  Result<Input> restored_input(const SavedMessage& saved) const;

  // From any thread -------------------------------------------------------------------------------

  uint64_t num_shipped() const { return num_shipped_.get(); }
  uint64_t num_received() const { return num_received_.get(); }
  /// Messages in the inbox, in the handler and in outboxes.
  uint64_t num_held() const;
  /// The full outgoing and the paused incoming links.
  void describe(GroupView& view) const;
  /// This group's side of every edge.
  void add_to(std::span<EdgeLedger> ledger) const;
  /// This group's side of the load of every edge, and one entry per instance.
  void add_load(std::span<EdgeLoad> edges, std::vector<InstanceLoad>& instances, Time now) const;

 private:
  const GroupSetup& setup() const { return common_.setup; }
  void choose_observed();
  void route(Running& running, PendingEmission& emission);
  void emit_on(OutLink& out, Envelope&& envelope);
  void ship(OutLink& out, Envelope&& envelope);
  void grant(OutLink& out, uint64_t num_messages, uint64_t num_bytes);
  void grant_when_due(uint32_t in_index);
  Status accept_grant(GroupId from, const Grant& given);
  Status accept_message(GroupId from, BatchedMessage&& message);
  void check_bound(InLink& in);
  void expect_repeated_answers(GroupId dead);
  void notify_actors(GroupId peer, PeerEvent::Kind kind, uint32_t incarnation);
  void settle_as_received(OutLink& out, std::span<const Envelope> unacknowledged,
                          std::span<const Envelope> outbox);
  void send_again(OutLink& out, Envelope&& envelope);

  GroupCommon& common_;
  Inbox inbox_;
  PeerBatches peers_;
  std::vector<uint32_t> in_peer_;   // peer of each incoming link, or PeerBatches::kNone
  std::vector<uint32_t> out_peer_;  // peer of each outgoing link
  /// For a replaying group: the last event of a connected process that each actor was notified of.
  std::map<std::pair<uint32_t, InstanceId>, PeerEvent::Kind> notified_;
  std::vector<bool> observes_;  // by out_index: the observer wants the link's emissions
  Time now_;

  // The step that completes now.
  std::vector<BatchedMessage> observed_;
  uint32_t num_emissions_ = 0;

  bool grants_at_once_ = false;
  const bool counts_slots_;  // tenants may join and leave

  // Read by any thread.
  Counter num_shipped_, num_received_;
  std::vector<Counter> slot_shipped_, slot_received_;  // by tenant slot
};

}  // namespace primerl
