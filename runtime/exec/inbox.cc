#include "runtime/exec/inbox.h"

#include <algorithm>

namespace primerl {

Inbox::Inbox(const Plan& plan, const Wiring& wiring, GroupId group, bool is_replaying)
    : num_slots_(wiring.num_slots), is_replaying_(is_replaying), lanes_(2) {
  const auto& instances = plan.group(group).instances;
  for (LinkId id : wiring.groups[group.index()].in) {
    const WiredLink& link = wiring.links[id.index()];
    InLink& in = links.emplace_back();
    in.link = &link;
    in.id = id;
    in.actor = static_cast<uint32_t>(std::find(instances.begin(), instances.end(), link.target) -
                                     instances.begin());
    if (!is_replaying_) {
      open_lane(in);
      continue;
    }
    in.lane = static_cast<uint32_t>(lanes_.size());
    lanes_.emplace_back();
  }
}

void Inbox::open_lane(InLink& in) {
  in.lane = in.link->is_feedback ? kPrompt : lane_of(in.actor, *in.link);
  if (in.link->latest_wins) in.latest.assign(num_slots_ + 1, UINT64_MAX);
}

uint32_t Inbox::lane_of(uint32_t actor, const WiredLink& link) {
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.is_forward && lane.actor == actor && lane.port == link.input) return i;
  }
  Lane& lane = lanes_.emplace_back();
  lane.actor = actor;
  lane.port = link.input;
  lane.is_forward = true;
  return static_cast<uint32_t>(lanes_.size() - 1);
}

void Inbox::push(uint32_t lane, Input&& input, Time now) {
  Input& waiting = append(lane, now);
  input.arrival = waiting.arrival;
  input.arrived = now;
  waiting = std::move(input);
}

Input& Inbox::append(uint32_t lane, Time now) {
  Input& input = lanes_[lane].ring.next();
  input.arrival = ++last_arrival_;
  input.arrived = now;
  ++num_waiting_;
  return input;
}

namespace {

/// The sender gets its credit back, unless it died meanwhile: its next incarnation has its own
/// credit.
void count_overwritten(InLink& in, const Envelope& older) {
  in.num_overwritten.add(1);
  if (older.incarnation != in.incarnation) return;
  in.settled_messages += 1;
  in.settled_bytes += older.blob_bytes;
}

}  // namespace

Status Inbox::receive(uint32_t in_index, Envelope&& envelope, Time now) {
  InLink& in = links[in_index];
  if (!envelope.tenant.is_none() && envelope.tenant.value >= num_slots_)
    return error(Code::kCorrupt,
                 "message {} of link {} is for tenant slot {}, which does not exist",
                 envelope.sequence, in.id.value, envelope.tenant.value);
  if (envelope.incarnation != in.incarnation) {
    if (envelope.incarnation < in.incarnation) {
      in.num_refused_incarnations.add(1);
      return ok();
    }
    reopen(in, envelope.incarnation);
  }
  if (envelope.sequence <= in.last_sequence) {
    in.num_refused_duplicates.add(1);
    return ok();
  }
  // A replaying group gets the messages in between from its record, perhaps later.
  const bool may_skip = in.link->latest_wins || (is_replaying_ && in.link->is_remote);
  if (envelope.sequence != in.last_sequence + 1 && !may_skip)
    return error(Code::kCorrupt, "message {} of link {} arrived after message {}",
                 envelope.sequence, in.id.value, in.last_sequence);
  in.last_sequence = envelope.sequence;
  in.last_sender_step = envelope.sender_step;
  in.num_received_incarnation += 1;
  in.num_received.add(1);
  queue(in, std::move(envelope), now);
  return ok();
}

void Inbox::queue(InLink& in, Envelope&& envelope, Time now) {
  auto& ring = lanes_[in.lane].ring;
  uint64_t* latest = nullptr;
  if (!in.latest.empty()) {
    latest = &in.latest[envelope.tenant.is_none() ? num_slots_ : envelope.tenant.value];
    if (ring.holds(*latest)) {
      Envelope& older = ring.at(*latest).envelope;
      count_overwritten(in, older);
      older = std::move(envelope);
      return;
    }
  }
  if (latest != nullptr) *latest = ring.tail();
  Input& input = append(in.lane, now);
  input.kind = StepKind::kMessage;
  input.actor = in.actor;
  input.port = in.link->input;
  input.in_index = in.link->in_index;
  input.envelope = std::move(envelope);
  input.is_stored = false;
  in.num_waiting.add(1);
  in.waiting_max.raise_to(in.num_waiting.get());
}

void Inbox::put_back(Input&& input) {
  uint32_t lane = input.kind == StepKind::kTimer ? kPrompt : kControl;
  if (input.kind == StepKind::kMessage) {
    InLink& in = links[input.in_index];
    lane = in.lane;
    in.num_waiting.add(1);
    if (!in.latest.empty())
      in.latest[input.envelope.tenant.is_none() ? num_slots_ : input.envelope.tenant.value] =
          lanes_[lane].ring.tail();
  }
  ++num_waiting_;
  lanes_[lane].ring.push(std::move(input));
}

uint32_t Inbox::pick(std::span<const uint32_t> num_full, uint64_t work) const {
  if (!lanes_[kControl].ring.empty()) return kControl;
  uint32_t best = kNone;
  uint64_t oldest = work;
  for (uint32_t i = kPrompt; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.ring.empty() || lane.ring.front().arrival >= oldest) continue;
    if (lane.is_forward && (lane.is_paused || num_full[lane.actor] > 0)) continue;
    oldest = lane.ring.front().arrival;
    best = i;
  }
  return best;
}

bool Inbox::holds(uint32_t in_index, uint32_t incarnation, uint64_t sequence) const {
  const auto& ring = lanes_[links[in_index].lane].ring;
  for (uint64_t at = ring.head(); at != ring.tail(); ++at) {
    const Envelope& envelope = ring.at(at).envelope;
    if (envelope.incarnation == incarnation && envelope.sequence == sequence) return true;
    if (!links[in_index].link->latest_wins) return false;
  }
  return false;
}

Input Inbox::take_message(uint32_t in_index, uint32_t incarnation, uint64_t sequence) {
  InLink& in = links[in_index];
  if (!in.link->latest_wins) {
    Input input = take(in.lane);
    CHECK(input.envelope.incarnation == incarnation && input.envelope.sequence == sequence,
          "a recording asked for a message that does not come next");
    return input;
  }
  auto& ring = lanes_[in.lane].ring;
  const auto is_wanted = [&](const Envelope& envelope) {
    return envelope.incarnation == incarnation && envelope.sequence == sequence;
  };
  uint64_t at = ring.head();
  while (!is_wanted(ring.at(at).envelope)) ++at;
  Input input = ring.remove(at);
  --num_waiting_;
  in.num_waiting.set(in.num_waiting.get() - 1);
  for (uint64_t i = at; i-- != ring.head();) {
    const Envelope& older = ring.at(i).envelope;
    if (older.tenant != input.envelope.tenant) continue;
    count_overwritten(in, older);
    ring.remove(i);
    --num_waiting_;
    in.num_waiting.set(in.num_waiting.get() - 1);
  }
  in.num_in_hand.set(1);
  return input;
}

Input Inbox::take_stored(uint32_t in_index, Envelope&& envelope) {
  InLink& in = links[in_index];
  if (envelope.incarnation > in.incarnation) reopen(in, envelope.incarnation);
  if (envelope.incarnation == in.incarnation) {
    // Messages of this sender that were in transit when the run was interrupted may have arrived
    // already.
    in.last_sequence = std::max(in.last_sequence, envelope.sequence);
    in.last_sender_step = std::max(in.last_sender_step, envelope.sender_step);
    in.num_received_incarnation += 1;
  } else {
    in.sent_by_dead.add(1);
  }
  in.num_received.add(1);
  in.num_in_hand.set(1);
  if (in.link->latest_wins) drop_overwritten(in, envelope);
  Input input;
  input.actor = in.actor;
  input.port = in.link->input;
  input.in_index = in.link->in_index;
  input.envelope = std::move(envelope);
  input.is_stored = true;
  return input;
}

/// In the recorded run this message overwrote an older one that waited since before the cut.
void Inbox::drop_overwritten(InLink& in, const Envelope& newer) {
  auto& ring = lanes_[in.lane].ring;
  for (uint64_t at = ring.tail(); at-- != ring.head();) {
    const Envelope& older = ring.at(at).envelope;
    const bool is_older = older.incarnation == newer.incarnation && older.sequence < newer.sequence;
    if (!is_older || older.tenant != newer.tenant) continue;
    count_overwritten(in, older);
    ring.remove(at);
    --num_waiting_;
    in.num_waiting.set(in.num_waiting.get() - 1);
  }
}

Input&& Inbox::take(uint32_t lane) {
  --num_waiting_;
  Input&& input = lanes_[lane].ring.pop();
  if (input.kind == StepKind::kMessage) {
    auto& in = links[input.in_index];
    in.num_waiting.set(in.num_waiting.get() - 1);
    in.num_in_hand.set(1);
  }
  return std::move(input);
}

void Inbox::pause(uint32_t actor, uint32_t port, bool paused) {
  for (Lane& lane : lanes_)
    if (lane.is_forward && lane.actor == actor && lane.port == port) lane.is_paused = paused;
  for (InLink& in : links)
    if (!in.link->is_feedback && in.actor == actor && in.link->input == port)
      in.is_paused.set(paused ? 1 : 0);
}

void Inbox::resume(Time now) {
  std::vector<Input> waiting;
  for (Lane& lane : lanes_)
    while (!lane.ring.empty()) waiting.push_back(lane.ring.pop());
  std::sort(waiting.begin(), waiting.end(),
            [](const Input& a, const Input& b) { return a.arrival < b.arrival; });
  is_replaying_ = false;
  lanes_.clear();
  lanes_.resize(2);
  num_waiting_ = 0;
  for (InLink& in : links) {
    open_lane(in);
    if (in.is_paused.get() != 0) lanes_[in.lane].is_paused = true;
    in.num_waiting.set(0);
    in.waiting_max.set(0);
  }
  for (Input& input : waiting) queue(links[input.in_index], std::move(input.envelope), now);
}

void Inbox::reopen(InLink& in, uint32_t incarnation) {
  in.incarnation = incarnation;
  in.sent_by_dead.add(in.num_received_incarnation);
  in.last_sequence = in.last_sender_step = in.num_received_incarnation = 0;
  in.settled_messages = in.settled_bytes = 0;
  in.granted_messages = in.granted_bytes = 0;
}

Time Inbox::oldest_arrival() const {
  uint64_t first = UINT64_MAX;
  Time oldest;
  for (const Lane& lane : lanes_) {
    if (lane.ring.empty() || lane.ring.front().arrival >= first) continue;
    first = lane.ring.front().arrival;
    oldest = lane.ring.front().arrived;
  }
  return oldest;
}

}  // namespace primerl
