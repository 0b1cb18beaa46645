#include "runtime/transport/peer_connection.h"

#include <algorithm>

#include "graph/base/bytes.h"

namespace primerl {
namespace {

template <Message T>
Blob body_of(T message) {
  auto encoded = encode_in_body(Payload::of(std::move(message)));
  CHECK(encoded.ok() && encoded->body.size() <= kGreetingBytesMax, "a greeting is too long");
  return Blob(std::move(encoded->body));
}

}  // namespace

PeerConnection::PeerConnection(const TransportIdentity& identity, PeerSpec peer,
                               const ConnectionLimits& limits, ConnectionOutbox& outbox,
                               TransportReceiver& receiver, Time now)
    : identity_(identity),
      peer_(std::move(peer)),
      limits_(limits),
      outbox_(outbox),
      receiver_(receiver),
      memory_(peer_.shares_memory ? limits.pool_bytes_max : 0),
      channels_{Channel(limits.window_frames), Channel(limits.window_chunks)},
      greet_until_(now + limits.greet_timeout),
      next_timer_(now),
      bulk_(std::max<uint64_t>(limits.blob_bytes_max, kMessageBytesMax),
            limits.unacknowledged_bytes_max) {
  for (Channel& each : channels_) {
    each.next_hello = now;
    each.last_heard = each.last_progress = each.last_probe = now;
  }
}

void PeerConnection::take_outbox() {
  Outgoing outgoing;
  if (is_over() || !outbox_.take(outgoing)) return;
  size_t next_piece = 0;
  for (Outgoing::Frame& waiting : outgoing.frames) {
    for (size_t i = 0; i < waiting.num_bulk; ++i) push_bulk(outgoing.bulk[next_piece++]);
    LaneFrame frame;
    frame.kind = PeerFrameKind::kBatches;
    const bool is_small = waiting.bytes.size() <= kHeadBytesMax;
    (is_small ? frame.head : frame.data) = Blob(std::move(waiting.bytes));
    const uint64_t sequence = channel(Lane::kFrames).lane.push(std::move(frame));
    receipts_.push_back({sequence, num_chunks_, waiting.counts});
  }
}

void PeerConnection::push_reference(const ShmBlobRef& ref) {
  std::vector<std::byte> head(kReferenceBytes);
  encode_reference({next_object_++, ref.size, ref.offset, ref.slot, ref.turn},
                   std::span(head).first<kReferenceBytes>());
  LaneFrame frame;
  frame.kind = PeerFrameKind::kReference;
  frame.head = Blob(std::move(head));
  num_chunks_ = channel(Lane::kBulk).lane.push(std::move(frame));
}

void PeerConnection::push_bulk(const BulkPiece& piece) {
  if (piece.ref) return push_reference(*piece.ref);
  const auto bytes = piece.bytes.bytes();
  const auto owner = std::make_shared<const Blob>(piece.bytes);
  for (uint64_t offset = 0; offset < bytes.size(); offset += limits_.chunk_bytes) {
    std::vector<std::byte> head(kChunkHeaderBytes);
    encode_chunk_header({next_object_, bytes.size(), offset},
                        std::span(head).first<kChunkHeaderBytes>());
    const auto size = std::min<uint64_t>(limits_.chunk_bytes, bytes.size() - offset);
    LaneFrame frame;
    frame.kind = PeerFrameKind::kChunk;
    frame.head = Blob(std::move(head));
    frame.data = Blob(owner, bytes.subspan(offset, size));
    num_chunks_ = channel(Lane::kBulk).lane.push(std::move(frame));
  }
  ++next_object_;
}

/// Queues one more frame of a stream when few of them are unacknowledged.
void PeerConnection::pull_stream() {
  StreamFrame stream;
  if (is_leaving_ || has_left_ || streamed_.size() >= limits_.window_streams ||
      !receiver_.next_stream(peer_.process, peer_.incarnation, stream))
    return;
  CHECK(stream.num_bytes() + kStreamNumberBytes <= limits_.batch_bytes_max,
        "a frame of a stream is too large");
  std::vector<std::byte> head(kStreamNumberBytes + stream.head.size());
  put_number<uint32_t>(head.data(), stream.stream);
  const auto more = stream.head.bytes();
  std::copy(more.begin(), more.end(), head.begin() + kStreamNumberBytes);
  num_stream_bytes_sent_ += stream.num_bytes();
  LaneFrame frame;
  frame.kind = PeerFrameKind::kStream;
  frame.head = Blob(std::move(head));
  frame.data = std::move(stream.body);
  streamed_.push_back(channel(Lane::kBulk).lane.push(std::move(frame)));
}

PeerFrameHeader PeerConnection::header(PeerFrameKind kind, const Channel& from) const {
  PeerFrameHeader header;
  header.kind = kind;
  header.incarnation = identity_.incarnation;
  header.peer_incarnation = peer_.incarnation;
  header.process = identity_.process;
  header.acknowledged = from.lane.received();
  return header;
}

Blob PeerConnection::greeting(const Channel& from, Time now) const {
  PeerGreeting greeting;
  greeting.pass = peer_.pass;
  greeting.run = identity_.run;
  greeting.graph_hash = identity_.graph_hash;
  greeting.types_hash = identity_.types->hash();
  greeting.name = identity_.name;
  greeting.received = from.lane.received();
  greeting.sent_at_ns = now.to_nanoseconds();
  greeting.echoed_at_ns = from.hello_at_ns;
  memory_.describe(greeting);
  return body_of(std::move(greeting));
}

bool PeerConnection::next(Lane lane, Time now, OutFrame& frame) {
  Channel& from = channel(lane);
  if (state_ == ConnectionState::kEnded) return false;
  if (next_unnumbered(lane, from, now, frame)) {
    frame.header.payload_bytes = frame.head.size();
    frame.header.check =
        frame_check(frame.header, frame_payload_hash(frame.head.bytes(), frame.data.bytes()));
    return true;
  }
  if (is_over() || !from.is_greeted) return false;
  if (lane == Lane::kBulk) pull_stream();
  uint64_t sequence = 0;
  if (const LaneFrame* numbered = from.lane.next(sequence)) {
    frame.header = header(numbered->kind, from);
    frame.header.sequence = sequence;
    frame.header.payload_bytes = numbered->num_bytes();
    frame.header.check = frame_check(frame.header, numbered->hash);
    frame.head = numbered->head;
    frame.data = numbered->data;
    from.owes_ack = false;
    // The probe timer starts when the oldest unacknowledged frame is sent.
    if (sequence == from.lane.acknowledged() + 1) from.last_progress = now;
    next_timer_ = std::min(next_timer_, now + limits_.probe_after);
    return true;
  }
  if (!std::exchange(from.owes_ack, false)) return false;
  frame = {header(PeerFrameKind::kAck, from), {}, {}};
  frame.header.check = frame_check(frame.header, frame_payload_hash({}, {}));
  return true;
}

bool PeerConnection::next_unnumbered(Lane lane, Channel& from, Time now, OutFrame& frame) {
  const auto give = [&](PeerFrameKind kind, Blob head) {
    frame = {header(kind, from), std::move(head), {}};
    return true;
  };
  if (lane == Lane::kFrames && std::exchange(owes_refusal_, false))
    return give(PeerFrameKind::kRefusal, body_of(RefusedGreeting(*refusal_)));
  if (state_ == ConnectionState::kFailed) return false;
  if (std::exchange(from.owes_welcome, false))
    return give(PeerFrameKind::kWelcome, greeting(from, now));
  if (std::exchange(from.owes_hello, false)) {
    from.hello_at_ns = 0;
    return give(PeerFrameKind::kHello, greeting(from, now));
  }
  if (!from.is_greeted) return false;
  if (lane == Lane::kFrames && std::exchange(owes_reads_, false)) {
    std::vector<std::byte> nonce(kReadsBytes);
    put_number<uint64_t>(nonce.data(), memory_.reads());
    return give(PeerFrameKind::kReads, Blob(std::move(nonce)));
  }
  if (std::exchange(from.owes_position, false)) return give(PeerFrameKind::kPosition, {});
  if (std::exchange(from.owes_probe, false)) return give(PeerFrameKind::kProbe, {});
  // Bye is sent only after everything else was sent.
  if (from.owes_bye && !from.lane.has_next()) {
    from.owes_bye = false;
    return give(PeerFrameKind::kBye, {});
  }
  return false;
}

void PeerConnection::retry(Lane lane, const OutFrame& frame) {
  Channel& from = channel(lane);
  switch (frame.header.kind) {
    case PeerFrameKind::kHello:
      from.owes_hello = true;
      return;
    case PeerFrameKind::kWelcome:
      from.owes_welcome = true;
      return;
    case PeerFrameKind::kProbe:
      from.owes_probe = true;
      return;
    case PeerFrameKind::kPosition:
      from.owes_position = true;
      return;
    case PeerFrameKind::kAck:
      from.owes_ack = true;
      return;
    case PeerFrameKind::kReads:
      owes_reads_ = true;
      return;
    case PeerFrameKind::kBye:
    case PeerFrameKind::kRefusal:
      return;  // there is no peer that could read it
    case PeerFrameKind::kBatches:
    case PeerFrameKind::kChunk:
    case PeerFrameKind::kReference:
    case PeerFrameKind::kStream:
      from.lane.retry(frame.header.sequence);
      return;
  }
}

void PeerConnection::settle_receipts() {
  const uint64_t frames = channel(Lane::kFrames).lane.acknowledged();
  const uint64_t bulk = channel(Lane::kBulk).lane.acknowledged();
  while (!streamed_.empty() && streamed_.front() <= bulk) streamed_.pop_front();
  TransferCounts counts;
  while (!receipts_.empty() && receipts_.front().frame <= frames &&
         receipts_.front().bulk <= bulk) {
    add(counts, receipts_.front().counts);
    receipts_.pop_front();
  }
  if (counts.num_batches > 0) outbox_.acknowledge(counts);
}

void PeerConnection::wake(Time now) {
  next_timer_ = now + limits_.probe_after;
  if (is_over() || has_left_) return;
  if (state_ == ConnectionState::kConnecting && now >= greet_until_) {
    return fail(error(Code::kDeadline,
                      "'{}' (process {}, incarnation {}) did not greet within {}{}", peer_.name,
                      peer_.process, peer_.incarnation, to_string(limits_.greet_timeout),
                      connects() ? " at " + peer_.address.frames : std::string()));
  }
  if (state_ == ConnectionState::kConnecting) next_timer_ = std::min(next_timer_, greet_until_);
  for (const Lane lane : kLanes) {
    Channel& each = channel(lane);
    const bool is_silent = now - each.last_heard >= limits_.silent_after;
    if (is_silent && state_ == ConnectionState::kUp) {
      state_ = ConnectionState::kBroken;
      ++num_breaks_;
      receiver_.on_connection_down(peer_.process, peer_.incarnation,
                                   error(Code::kUnavailable, "nothing was heard of '{}' for {}",
                                         peer_.name, to_string(limits_.silent_after)));
    }
    // A new socket connection begins with hello; on a live one hello does no harm.
    if (connects() && (!each.is_greeted || is_silent)) {
      if (now >= each.next_hello) {
        each.owes_hello = true;
        each.next_hello = now + limits_.hello_every;
      }
      next_timer_ = std::min(next_timer_, each.next_hello);
    }
    const bool is_stuck =
        each.lane.has_unanswered() && now - each.last_progress >= limits_.probe_after;
    const bool is_quiet = now - each.last_heard >= limits_.probe_after;
    if (each.is_greeted && (is_stuck || is_quiet) && now - each.last_probe >= limits_.probe_after) {
      each.owes_probe = true;
      each.last_probe = now;
      each.has_gap = false;  // requests missing frames again, too
    }
  }
}

void PeerConnection::connect_again(Time now) {
  for (Channel& each : channels_) {
    each.is_greeted = each.owes_probe = each.owes_position = each.owes_ack = false;
    each.num_bad_checks = 0;
    each.owes_hello = true;
    each.next_hello = now + limits_.hello_every;
  }
  next_timer_ = std::min(next_timer_, now + limits_.hello_every);
}

void PeerConnection::leave() {
  is_leaving_ = true;
  for (Channel& each : channels_) each.owes_bye = each.is_greeted;
}

/// Releases data that arrived and was not delivered, and the shared memory.
void PeerConnection::release() {
  waiting_.clear();
  waiting_bytes_ = 0;
  memory_.close();
}

void PeerConnection::fail(const Error& why) {
  if (is_over()) return;
  state_ = ConnectionState::kFailed;
  outbox_.close(
      error(Code::kUnavailable, "the connection to '{}' failed: {}", peer_.name, why.message()));
  release();
  receiver_.on_connection_failed(peer_.process, peer_.incarnation, why);
}

void PeerConnection::end(std::string_view why) {
  if (state_ == ConnectionState::kEnded) return;
  state_ = ConnectionState::kEnded;
  outbox_.close(error(Code::kUnavailable, "the connection to '{}' (incarnation {}) has ended: {}",
                      peer_.name, peer_.incarnation, why));
  release();
}

void PeerConnection::add_to(ConnectionStatus& status) const {
  status.peer = peer_.process;
  status.name = peer_.name;
  status.incarnation = peer_.incarnation;
  status.state = state_;
  status.received = received_;
  for (const Channel& each : channels_) {
    status.num_frames_sent += each.lane.num_sent();
    status.num_frames_resent += each.lane.num_resent();
  }
  status.num_breaks = num_breaks_;
  status.num_stream_bytes_sent = num_stream_bytes_sent_;
  status.num_stream_bytes_received = num_stream_bytes_received_;
  status.refused = refused_;
  status.round_trip = round_trip_;
  status.clock_offset = clock_offset_;
}

}  // namespace primerl
