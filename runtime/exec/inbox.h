/// Inbox: the receiving side of a group: inputs that wait to be handed over, and how many messages
/// have arrived, been settled and been granted on every arriving link.
///
/// Lanes: control; prompt (feedback and timers, never held back); one lane per forward input port,
/// which waits while its actor pauses it or has a full output. Each lane is in order of arrival. Of
/// the inputs at the front of a lane that may be handed over, control goes first, then the oldest
/// arrival.
///
/// Threads: the group's; counters may be read by anyone.
#pragma once

#include <span>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/counter.h"
#include "runtime/exec/ring.h"

namespace primerl {

struct Input {
  StepKind kind = StepKind::kMessage;
  uint32_t actor = 0;     // index among the group's instances
  uint32_t port = 0;      // input of a message or a command, timer of a timer
  uint32_t in_index = 0;  // of a message
  uint64_t arrival = 0;   // rises by one per input of the group
  Time arrived;
  Envelope envelope;        // of a message; of a command its payload alone
  uint64_t number = 0;      // of a command
  uint64_t generation = 0;  // of a timer: an older generation is ignored
  PeerEvent peer;           // of kPeer
  bool is_stored = false;   // of a message: from a record, not sent in this run
};

struct InLink {
  const WiredLink* link = nullptr;
  LinkId id;
  uint32_t actor = 0;
  uint32_t lane = 0;
  uint32_t incarnation = 0;                          // of the sender; older messages are refused
  uint64_t last_sequence = 0;                        // of this incarnation
  uint64_t last_sender_step = 0;                     // that it came from
  uint64_t num_received_incarnation = 0;             // likewise; fewer where latest_wins left gaps
  uint64_t settled_messages = 0, settled_bytes = 0;  // of this incarnation
  uint64_t granted_messages = 0, granted_bytes = 0;
  uint64_t excess = 0;                // waiting beyond the bound, since a record was followed
  bool is_ungranted = false;          // is in its peer's list
  bool is_unkept_promise = false;     // the bound was broken and reported
  std::vector<uint64_t> latest;       // latest_wins: position of the waiting input, by slot
  Counter num_received, num_handled;  // num_received: without those refused
  Counter num_failed, num_overwritten, num_refused_duplicates, num_refused_incarnations;
  Counter num_waiting, waiting_max;
  Counter num_in_hand;   // taken by a step that has not completed
  Counter is_paused;     // while messages wait for it
  Counter sent_by_dead;  // received of earlier incarnations, whose senders' counts are gone
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

  /// `is_replaying`: a recording chooses what is handed over (StepSource), so every link has a lane
  /// of its own and a newer latest_wins message overwrites nothing until the chosen one is known.
  Inbox(const Plan& plan, const Wiring& wiring, GroupId group, bool is_replaying);

  /// Checks tenant, incarnation and sequence, then queues. ok = queued, overwritten or refused and
  /// counted; an Error leaves everything as it was.
  Status receive(uint32_t in_index, Envelope&& envelope, Time now);
  void push_control(Input input, Time now) { push(kControl, std::move(input), now); }
  void push_timer(Input input, Time now) { push(kPrompt, std::move(input), now); }

  /// The lane whose front comes next, or kNone. `num_full`: full outputs of each actor. `work` is
  /// the arrival number of a waiting work turn: also kNone when that is older than every waiting
  /// input.
  uint32_t pick(std::span<const uint32_t> num_full, uint64_t work = kNoWork) const;
  /// Valid until the next arrival.
  Input&& take(uint32_t lane);
  /// Of a replaying inbox: whether exactly this message waits, and takes it. Older latest_wins
  /// messages of the link were overwritten in the recorded run: they are settled and removed.
  bool holds(uint32_t in_index, uint32_t incarnation, uint64_t sequence) const;
  Input take_message(uint32_t in_index, uint32_t incarnation, uint64_t sequence);
  /// Of a replaying inbox: hands over a message that does not arrive on its link.
  Input take_stored(uint32_t in_index, Envelope&& envelope);
  /// An arrival number for the work turn, behind everything here.
  uint64_t next_arrival() { return ++last_arrival_; }

  /// Of a saved inbox, oldest first: an input keeps its arrival and is not counted as received.
  void put_back(Input&& input);
  void set_last_arrival(uint64_t arrival) { last_arrival_ = arrival; }
  uint64_t last_arrival() const { return last_arrival_; }
  template <class Visit>
  void visit(const Visit& visit) const;  // everything that waits, in no order

  void pause(uint32_t actor, uint32_t port, bool paused);
  /// Ends the replay: what waits is queued again in order of arrival, a newer latest_wins message
  /// overwrites an older one, pauses hold.
  void resume(Time now);
  /// The sender of these links begins again at sequence 1.
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
