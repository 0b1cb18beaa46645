/// Inbox: the receiving side of a group. It keeps inputs that wait for their handlers. Per incoming
/// link it counts the messages that arrived, were settled and were granted.
///
/// Lanes: one for control; one for feedback and timers (prompt lane, never blocked); one per
/// forward input port, which waits while its actor pauses it or has a full output. Each lane is in
/// order of arrival. Among the inputs at the front of unblocked lanes, control comes first, then
/// the oldest arrival.
///
/// Threads: the group's thread; any thread may read the counters.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/counter.h"
#include "runtime/exec/ring.h"

namespace primerl {

struct Input {
  StepKind kind = StepKind::kMessage;
  uint32_t actor = 0;     // index among the group's instances
  uint32_t port = 0;      // input port of a message or command; index of a timer
  uint32_t in_index = 0;  // for a message
  uint64_t arrival = 0;   // rises by one per input of the group
  Time arrived;
  Envelope envelope;        // for a message; for a command it has only the payload
  uint64_t number = 0;      // for a command
  uint64_t generation = 0;  // for a timer: an older generation is ignored
  PeerEvent peer;           // for kPeer
  std::shared_ptr<const TenantChange> tenant_change;  // for kTenant
  bool drains = false;     // for kTenant: kPause, and the slot's actors drain
  bool is_stored = false;  // for a message: it comes from a record and was not sent in this run
};

struct InLink {
  const WiredLink* link = nullptr;
  LinkId id;
  uint32_t actor = 0;
  uint32_t lane = 0;
  uint32_t incarnation = 0;                          // of the sender; messages of older
                                                     // incarnations are refused
  uint64_t last_sequence = 0;                        // of this incarnation
  uint64_t last_sender_step = 0;                     // sender's step of the last message
  uint64_t num_received_incarnation = 0;             // of this incarnation; fewer than
                                                     // last_sequence if latest_wins left gaps
  uint64_t settled_messages = 0, settled_bytes = 0;  // of this incarnation
  uint64_t granted_messages = 0, granted_bytes = 0;
  uint64_t excess = 0;                // waiting messages beyond the bound, after a record was
                                      // followed
  uint64_t repeated = 0;              // answers that may wait beyond the bound, because their
                                      // requests were repeated after a process died
  bool is_ungranted = false;          // is in its peer's list of ungranted links
  bool is_bound_exceeded = false;     // the bound was exceeded, and that was reported
  std::vector<uint64_t> latest;       // for latest_wins: position of the waiting input, by tenant
                                      // slot
  Counter num_received, num_handled;  // num_received: without refused messages
  Counter num_failed, num_overwritten, num_refused_duplicates, num_refused_incarnations;
  Counter num_waiting, waiting_max;
  Counter num_in_hand;   // removed by a step that has not completed
  Counter is_paused;     // while messages wait at the paused input
  Counter sent_by_dead;  // received of earlier incarnations, whose own counts are lost
};

class Inbox {
 public:
  static constexpr uint32_t kControl = 0;
  static constexpr uint32_t kPrompt = 1;
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint64_t kNoWork = UINT64_MAX;

  struct Lane {
    Ring<Input> ring;
    uint32_t actor = 0;
    uint32_t port = 0;
    bool is_forward = false;
    bool is_paused = false;
  };

  /// `is_replaying`: a record chooses the next input (StepSource). So every link has its own lane,
  /// and a newer latest_wins message overwrites nothing until the recorded choice is known.
  Inbox(const Plan& plan, const Wiring& wiring, GroupId group, bool is_replaying);

  /// Checks tenant, incarnation and sequence, then queues the message. ok: it was queued,
  /// overwritten an older one, or was refused and counted. An Error changes nothing.
  Status receive(uint32_t in_index, Envelope&& envelope, Time now);
  void push_control(Input input, Time now) { push(kControl, std::move(input), now); }
  void push_timer(Input input, Time now) { push(kPrompt, std::move(input), now); }

  /// The lane whose front comes next, or kNone. `num_full`: full outputs of each actor. `work`:
  /// arrival number of a waiting work call; kNone also when it is older than every waiting input.
  uint32_t pick(std::span<const uint32_t> num_full, uint64_t work = kNoWork) const;
  /// Valid until the next arrival.
  Input&& take(uint32_t lane);
  /// For a replaying inbox. holds(): whether exactly this message waits. take_message() removes it.
  /// Older latest_wins messages of the link were overwritten in the recorded run, so they are
  /// settled and removed.
  bool holds(uint32_t in_index, uint32_t incarnation, uint64_t sequence) const;
  Input take_message(uint32_t in_index, uint32_t incarnation, uint64_t sequence);
  /// For a replaying inbox: makes an input of a message that does not arrive on its link.
  Input take_stored(uint32_t in_index, Envelope&& envelope);
  /// An arrival number for the work call, after every input here.
  uint64_t next_arrival() { return ++last_arrival_; }

  /// For a saved inbox, oldest input first: the input keeps its arrival number and is not counted
  /// as received.
  void put_back(Input&& input);
  void set_last_arrival(uint64_t arrival) { last_arrival_ = arrival; }
  uint64_t last_arrival() const { return last_arrival_; }
  template <class Visit>
  void visit(const Visit& visit) const;  // every waiting input, in no particular order

  void pause(uint32_t actor, uint32_t port, bool paused);
  /// Ends the replay: waiting inputs are queued again in order of arrival, a newer latest_wins
  /// message overwrites an older one, and pauses apply.
  void resume(Time now);
  /// The sender of these links restarts at sequence 1.
  void reopen(InLink& in, uint32_t incarnation);

  bool empty() const { return num_waiting_ == 0; }
  uint64_t size() const { return num_waiting_; }
  Time oldest_arrival() const;
  const std::vector<Lane>& lanes() const { return lanes_; }

  std::vector<InLink> links;  // index = WiredLink::in_index

 private:
  void open_lane(InLink& in);
  void drop_overwritten(InLink& in, const Envelope& newer);
  void queue(InLink& in, Envelope&& envelope, Time now);
  void push(uint32_t lane, Input&& input, Time now);
  Input& append(uint32_t lane, Time now);
  uint32_t lane_of(uint32_t actor, const WiredLink& link);

  const uint32_t num_slots_;
  bool is_replaying_;
  std::vector<Lane> lanes_;
  uint64_t last_arrival_ = 0;
  uint64_t num_waiting_ = 0;
};

template <class Visit>
void Inbox::visit(const Visit& visit) const {
  for (const Lane& lane : lanes_)
    for (uint64_t at = lane.ring.head(); at != lane.ring.tail(); ++at) visit(lane.ring.at(at));
}

}  // namespace primerl
