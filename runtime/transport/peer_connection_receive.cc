#include <algorithm>

#include "graph/base/bytes.h"
#include "runtime/transport/peer_connection.h"

namespace primerl {
namespace {

constexpr uint32_t kBadChecksMax = 16;  // this many in a row are not accidental
constexpr uint32_t kOtherVersionsMax = 3;

template <Message T>
std::optional<T> read_body(std::span<const std::byte> body) {
  const auto payload = decode_message(message_type<T>(), body);
  if (!payload.ok()) return std::nullopt;
  return payload->template as<T>();
}

std::string hex(uint64_t number) { return fmt::format("{:016x}", number); }

/// Makes text from another process safe for logs and for the peer: shortens it and removes control
/// characters.
std::string clipped(std::string word) {
  if (word.size() > kGreetingWordBytesMax) word.resize(kGreetingWordBytesMax);
  for (char& c : word)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  return word;
}

std::optional<PeerGreeting> read_greeting(std::span<const std::byte> body) {
  auto greeting = read_body<PeerGreeting>(body);
  if (!greeting || greeting->run.size() > kGreetingWordBytesMax ||
      greeting->name.size() > kGreetingWordBytesMax)
    return std::nullopt;
  return greeting;
}

/// Compares in constant time, so that the duration does not show where the texts differ.
bool are_equal(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < one.size(); ++i)
    difference |= static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i]);
  return difference == 0;
}

/// The first difference between two processes that should belong to one run.
std::optional<RefusedGreeting> difference(const TransportIdentity& own, const PeerSpec& peer,
                                          const PeerGreeting& greeting) {
  const auto differ = [&](std::string_view field, std::string ours, std::string theirs) {
    return RefusedGreeting{own.name, std::string(field), std::move(ours), std::move(theirs)};
  };
  if (greeting.run != own.run) return differ("run", own.run, greeting.run);
  if (greeting.graph_hash != own.graph_hash)
    return differ("graph hash", hex(own.graph_hash), hex(greeting.graph_hash));
  if (greeting.types_hash != own.types->hash())
    return differ("message types", hex(own.types->hash()), hex(greeting.types_hash));
  if (greeting.name != peer.name) return differ("process", peer.name, greeting.name);
  return std::nullopt;
}

}  // namespace

void PeerConnection::receive(Lane lane, const FrameOrigin& origin, InFrame frame, Time now) {
  if (state_ == ConnectionState::kEnded) return;
  const PeerFrameHeader& header = frame.header;
  // A frame of an unknown sender is read and hashed, but does not change the connection.
  if (header.process != peer_.process || origin.is_own != connects())
    return refuse(FrameRefusal::kUnknownPeer);
  const bool is_peer = is_bound(lane, origin);
  const uint64_t num_bytes = frame.head.bytes.size() + frame.data.bytes.size();
  if (num_bytes != header.payload_bytes) return refuse(FrameRefusal::kBytesDiffer);
  if (frame_check(header, frame_payload_hash(frame.head.bytes, frame.data.bytes)) != header.check) {
    refuse(FrameRefusal::kCheck);
    if (is_peer && !is_over() && ++channel(lane).num_bad_checks >= kBadChecksMax)
      fail_frame(FrameRefusal::kCheck, "frames arrive damaged, again and again");
    return;
  }
  if (header.kind == PeerFrameKind::kHello || header.kind == PeerFrameKind::kWelcome)
    return receive_greeting(lane, origin, frame, now);
  if (is_over()) return;
  if (!is_peer) return refuse(FrameRefusal::kNotGreeted);
  channel(lane).num_bad_checks = 0;
  if (!check_incarnations(lane, origin, frame)) return;
  if (header.kind == PeerFrameKind::kRefusal) return receive_refusal(frame);
  Channel& to = channel(lane);
  if (!to.is_greeted) return refuse(FrameRefusal::kNotGreeted);
  note_alive(lane, now);
  switch (header.kind) {
    case PeerFrameKind::kProbe:
      acknowledge(lane, header.acknowledged, now);
      to.owes_position = true;
      return;
    case PeerFrameKind::kPosition:
      if (!to.lane.rewind(header.acknowledged))
        return fail_frame(FrameRefusal::kGap, "it claims to have what was never sent");
      to.last_progress = now;
      return settle_receipts();
    case PeerFrameKind::kBye:
      acknowledge(lane, header.acknowledged, now);
      if (has_left_ || lane != Lane::kFrames) return;
      has_left_ = true;
      state_ = ConnectionState::kBroken;
      return receiver_.on_connection_down(
          peer_.process, peer_.incarnation,
          error(Code::kCancelled, "'{}' ended the connection in order", peer_.name));
    case PeerFrameKind::kReads:
      acknowledge(lane, header.acknowledged, now);
      return receive_reads(frame);
    case PeerFrameKind::kBatches:
    case PeerFrameKind::kChunk:
    case PeerFrameKind::kReference:
    case PeerFrameKind::kStream:
      acknowledge(lane, header.acknowledged, now);
      return receive_numbered(lane, frame, now);
    default:
      return acknowledge(lane, header.acknowledged, now);
  }
}

bool PeerConnection::check_incarnations(Lane lane, const FrameOrigin& origin,
                                        const InFrame& frame) {
  const PeerFrameHeader& header = frame.header;
  const bool is_hello = header.kind == PeerFrameKind::kHello;
  if (header.incarnation < peer_.incarnation) {
    refuse(FrameRefusal::kIncarnation);
    // Sent once per greeting, on one lane. It tells a process that it was declared dead.
    if (!is_hello || lane != Lane::kFrames) return false;
    set_refusal({identity_.name, "incarnation", std::to_string(peer_.incarnation),
                 std::to_string(header.incarnation)});
    owe_refusal(lane, origin.route);
    if (!std::exchange(has_told_of_outdated_, true))
      receiver_.on_refused({header.process, peer_.name, "incarnation",
                            std::to_string(peer_.incarnation), std::to_string(header.incarnation),
                            false, false});
    return false;
  }
  // A newer incarnation is admitted by add_peer(); until then it repeats hello. So does a peer that
  // does not know this incarnation yet.
  if (header.incarnation > peer_.incarnation || header.peer_incarnation < identity_.incarnation) {
    refuse(FrameRefusal::kNotGreeted);
    return false;
  }
  if (header.peer_incarnation > identity_.incarnation) {
    if (header.kind == PeerFrameKind::kRefusal) return true;
    refuse(FrameRefusal::kIncarnation);
    return false;
  }
  return true;
}

bool PeerConnection::has_greeted() const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [](const Channel& each) { return each.is_greeted; });
}

void PeerConnection::receive_greeting(Lane lane, const FrameOrigin& origin, const InFrame& frame,
                                      Time now) {
  const bool is_hello = frame.header.kind == PeerFrameKind::kHello;
  // Only the connecting side sends hello; only the other side sends welcome.
  if (is_hello == connects()) return refuse(FrameRefusal::kKind);
  const auto greeting = read_greeting(frame.head.bytes);
  if (!greeting) return refuse(FrameRefusal::kBody);
  // A sender without the right pass gets no answer and changes nothing.
  if (!are_equal(greeting->pass, identity_.pass)) return refuse(FrameRefusal::kUnknownPeer);
  if (state_ == ConnectionState::kFailed) {
    if (is_hello && refusal_) owe_refusal(lane, origin.route);
    return;
  }
  if (!check_incarnations(lane, origin, frame)) return;
  Channel& to = channel(lane);
  const bool is_second = is_hello && to.is_greeted && to.route != origin.route;
  if (is_second && origin.order <= to.order) return refuse(FrameRefusal::kUnknownPeer);
  if (auto differs = difference(identity_, peer_, *greeting)) {
    // A connection that has exchanged greetings does not fail because of another socket connection.
    if (is_hello && has_greeted()) return refuse(FrameRefusal::kUnknownPeer);
    ConnectionRefusal refusal = {peer_.process, clipped(greeting->name),  differs->field,
                                 differs->ours, clipped(differs->theirs), false};
    set_refusal(*std::move(differs));
    owe_refusal(lane, origin.route);
    return refuse_peer(std::move(refusal));
  }
  to.is_greeted = true;
  to.num_bad_checks = 0;
  to.route = origin.route;
  to.order = origin.order;
  has_left_ = false;
  if (is_hello) {
    to.hello_at_ns = greeting->sent_at_ns;
    to.owes_welcome = true;
  } else if (greeting->echoed_at_ns != 0 && greeting->echoed_at_ns <= now.to_nanoseconds()) {
    round_trip_ = now - Time::from_nanoseconds(greeting->echoed_at_ns);
    clock_offset_ = Duration::nanoseconds(greeting->sent_at_ns - now.to_nanoseconds() +
                                          round_trip_.to_nanoseconds() / 2);
  }
  if (!to.lane.rewind(greeting->received))
    return fail_frame(FrameRefusal::kGap, "it claims to have what was never sent");
  to.last_progress = now;
  to.has_gap = false;
  settle_receipts();
  // A hello is answered by a welcome, which has the nonce. After a welcome, kReads reports it.
  if (memory_.open(*greeting) && !is_hello) owes_reads_ = true;
  if (auto pool = memory_.pool_of(greeting->reads)) outbox_.use_pool(std::move(pool));
  note_alive(lane, now);
}

void PeerConnection::note_alive(Lane lane, Time now) {
  channel(lane).last_heard = now;
  if (has_left_ || state_ == ConnectionState::kUp) return;
  const bool are_both = std::all_of(channels_.begin(), channels_.end(), [&](const Channel& each) {
    return each.is_greeted && now - each.last_heard < limits_.silent_after;
  });
  if (are_both) go_up();
}

void PeerConnection::go_up() {
  if (state_ == ConnectionState::kUp) return;
  state_ = ConnectionState::kUp;
  receiver_.on_connection_up(peer_.process, peer_.incarnation);
}

void PeerConnection::receive_refusal(const InFrame& frame) {
  auto refused = read_body<RefusedGreeting>(frame.head.bytes);
  if (!refused) return refuse(FrameRefusal::kBody);
  refuse_peer({peer_.process, clipped(std::move(refused->name)), clipped(std::move(refused->field)),
               clipped(std::move(refused->theirs)), clipped(std::move(refused->ours)), true});
}

void PeerConnection::refuse_peer(ConnectionRefusal refusal) {
  const std::string words = refusal.text();
  receiver_.on_refused(refusal);
  fail(error(Code::kInvalid, "{}", words));
}

void PeerConnection::set_refusal(RefusedGreeting refusal) {
  for (std::string* word : {&refusal.name, &refusal.field, &refusal.ours, &refusal.theirs})
    *word = clipped(std::move(*word));
  refusal_ = std::move(refusal);
}

/// A refusal is sent on the frames lane, where the route of the other lane is unknown. So a hello
/// on the bulk lane is answered with the next refusal on the frames lane.
void PeerConnection::owe_refusal(Lane lane, std::string_view route) {
  if (lane != Lane::kFrames && !connects()) return;
  refusal_route_ = route;
  owes_refusal_ = true;
}

void PeerConnection::refuse_version(uint8_t theirs) {
  refuse(FrameRefusal::kVersion);
  // One such frame may be damaged, and a greeted peer does not change its version.
  if (is_over() || has_greeted() || ++num_other_versions_ < kOtherVersionsMax) return;
  // The peer cannot read this refusal either, but it sees the version.
  set_refusal(
      {identity_.name, "version", std::to_string(kPeerProtocolVersion), std::to_string(theirs)});
  owe_refusal(Lane::kFrames, channel(Lane::kFrames).route);
  refuse_peer({peer_.process, peer_.name, "version", std::to_string(kPeerProtocolVersion),
               std::to_string(theirs), false});
}

void PeerConnection::acknowledge(Lane lane, uint64_t sequence, Time now) {
  Channel& to = channel(lane);
  if (sequence == to.lane.acknowledged()) return;
  // An old acknowledgement that a newer one overtook.
  if (sequence < to.lane.acknowledged()) return;
  if (!to.lane.acknowledge(sequence))
    return fail_frame(FrameRefusal::kGap, "it acknowledges what was never sent");
  to.last_progress = now;
  settle_receipts();
}

void PeerConnection::receive_numbered(Lane lane, const InFrame& frame, Time now) {
  (void)now;
  if (is_over()) return;
  Channel& to = channel(lane);
  const FrameRefusal refusal = to.lane.classify(frame.header.sequence);
  if (refusal != FrameRefusal::kNone) {
    refuse(refusal);
    // The sender has resent too much, or a frame is missing: report it in both cases.
    if (refusal == FrameRefusal::kDuplicate)
      to.owes_ack = true;
    else if (!std::exchange(to.has_gap, true))
      to.owes_position = true;
    return;
  }
  to.lane.accept();
  to.has_gap = false;
  to.owes_ack = true;
  // Reports the connection as up before any delivery, because the other lane's welcome may still be
  // in transit.
  go_up();
  if (lane == Lane::kFrames)
    receive_batches(frame);
  else if (frame.header.kind == PeerFrameKind::kReference)
    receive_reference(frame);
  else if (frame.header.kind == PeerFrameKind::kStream)
    receive_stream(frame);
  else
    receive_chunk(frame);
}

void PeerConnection::receive_batches(const InFrame& frame) {
  const ReceivedPart& part = frame.data.bytes.empty() ? frame.head : frame.data;
  if (part.bytes.size() != frame.header.payload_bytes)
    return fail_frame(FrameRefusal::kFramesDiffer, "batches in two parts");
  auto left = part.bytes;
  while (!left.empty() && !is_over()) {
    BatchShape shape;
    const FrameRefusal refusal = decode_batch_shape(left, shape);
    if (refusal != FrameRefusal::kNone) return fail_frame(refusal, "a batch does not fit");
    if (shape.num_bulk > 0 && shape.first_bulk != next_bulk_)
      return fail_frame(FrameRefusal::kFramesDiffer, "a batch names bulk that is not its own");
    next_bulk_ += shape.num_bulk;
    ReceivedPart bytes = {part.owner, part.owner_bytes, left.first(shape.num_bytes)};
    left = left.subspan(shape.num_bytes);
    const auto pair = waiting_.find({shape.from, shape.to});
    const bool is_here = shape.first_bulk + shape.num_bulk <= bulk_.num_complete();
    if (pair == waiting_.end() && (shape.num_bulk == 0 || is_here)) {
      deliver(shape, bytes, true);
      continue;
    }
    if (bytes.owner == nullptr) {
      auto copy =
          std::make_shared<const std::vector<std::byte>>(bytes.bytes.begin(), bytes.bytes.end());
      bytes = {copy, copy->size(), *copy};
    }
    // Delivers grants now. They are running totals, so early delivery is harmless, and late
    // delivery would block the peer.
    deliver_grants(shape, bytes);
    if (shape.num_messages == 0) {
      add(received_, {1, 0, shape.num_bytes});
      continue;
    }
    // At most the number of bytes that the peer may have unacknowledged.
    if (shape.num_bytes > limits_.unacknowledged_bytes_max - waiting_bytes_)
      return fail_frame(FrameRefusal::kTooLong, "too much waits for bulk");
    waiting_bytes_ += shape.num_bytes;
    waiting_[{shape.from, shape.to}].push_back({shape, std::move(bytes)});
  }
}

void PeerConnection::deliver_grants(const BatchShape& shape, const ReceivedPart& bytes) {
  if (shape.num_grants == 0) return;
  MessageBatch batch;
  batch.from = shape.from;
  batch.to = shape.to;
  batch.incarnation = shape.incarnation;
  batch.grants = decode_grants(shape, bytes.bytes);
  receiver_.deliver(peer_.process, std::move(batch));
}

void PeerConnection::deliver(const BatchShape& shape, const ReceivedPart& bytes, bool with_grants) {
  pieces_.clear();
  for (uint32_t i = 0; i < shape.num_bulk; ++i) pieces_.push_back(bulk_.take(shape.first_bulk + i));
  uint64_t num_bytes = shape.num_bytes;
  for (const Blob& piece : pieces_) num_bytes += piece.size();
  const BatchRules rules = {identity_.types.get(), peer_.tenants, limits_.blob_bytes_max};
  auto decoded = decode_batch(shape, bytes.bytes, bytes.owner, bytes.owner_bytes, pieces_, rules);
  if (decoded.refusal != FrameRefusal::kNone) {
    const std::string words = decoded.error ? decoded.error->message() : "a batch does not decode";
    return fail_frame(decoded.refusal, words);
  }
  if (!with_grants) decoded.batch.grants.clear();
  add(received_, {1, shape.num_messages, num_bytes});
  receiver_.deliver(peer_.process, std::move(decoded.batch));
}

void PeerConnection::receive_chunk(const InFrame& frame) {
  if (frame.head.bytes.size() < kChunkHeaderBytes)
    return fail_frame(FrameRefusal::kSize, "a piece without its header");
  const ChunkHeader header = decode_chunk_header(frame.head.bytes.first<kChunkHeaderBytes>());
  ReceivedPart piece = frame.data;
  const auto rest = frame.head.bytes.subspan(kChunkHeaderBytes);
  if (piece.bytes.empty()) piece = {frame.head.owner, frame.head.owner_bytes, rest};
  if (!frame.data.bytes.empty() && !rest.empty())
    return fail_frame(FrameRefusal::kFramesDiffer, "a piece in three parts");
  const uint64_t num_complete = bulk_.num_complete();
  const FrameRefusal refusal = bulk_.add(header, piece);
  if (refusal != FrameRefusal::kNone)
    return fail_frame(refusal, "a piece of a blob does not fit what came before");
  if (bulk_.num_complete() > num_complete) deliver_waiting();
}

void PeerConnection::receive_stream(const InFrame& frame) {
  if (frame.head.bytes.size() < kStreamNumberBytes)
    return fail_frame(FrameRefusal::kSize, "a frame of a stream without its number");
  // Views without an owner: a receiver that keeps the bytes must copy them.
  const auto view = [](std::span<const std::byte> bytes) {
    return Blob(std::shared_ptr<const void>(), bytes);
  };
  StreamFrame stream;
  stream.stream = take_number<uint32_t>(frame.head.bytes.data());
  stream.head = view(frame.head.bytes.subspan(kStreamNumberBytes));
  stream.body = view(frame.data.bytes);
  num_stream_bytes_received_ += stream.num_bytes();
  receiver_.receive_stream(peer_.process, peer_.incarnation, stream);
}

void PeerConnection::receive_reads(const InFrame& frame) {
  if (frame.head.bytes.size() != kReadsBytes) return refuse(FrameRefusal::kFramesDiffer);
  const auto nonce = take_number<uint64_t>(frame.head.bytes.data());
  if (auto pool = memory_.pool_of(nonce)) outbox_.use_pool(std::move(pool));
}

void PeerConnection::receive_reference(const InFrame& frame) {
  if (frame.head.bytes.size() != kReferenceBytes)
    return fail_frame(FrameRefusal::kFramesDiffer, "a reference in two parts");
  const auto reference = decode_reference(frame.head.bytes.first<kReferenceBytes>());
  auto blob = memory_.take(reference);
  if (!blob.ok()) return fail_frame(FrameRefusal::kChunk, blob.error().message());
  const FrameRefusal refusal = bulk_.add(reference.object, std::move(blob).value());
  if (refusal != FrameRefusal::kNone)
    return fail_frame(refusal, "a blob of the pool does not fit what came before");
  deliver_waiting();
}

void PeerConnection::deliver_waiting() {
  for (auto pair = waiting_.begin(); pair != waiting_.end() && !is_over();) {
    auto& batches = pair->second;
    while (!batches.empty() && !is_over()) {
      const BatchShape& shape = batches.front().shape;
      if (shape.num_bulk > 0 && shape.first_bulk + shape.num_bulk > bulk_.num_complete()) break;
      const Waiting first = std::move(batches.front());
      batches.pop_front();
      waiting_bytes_ -= first.shape.num_bytes;
      deliver(first.shape, first.bytes, false);
      if (is_over()) return;  // waiting_ was cleared
    }
    pair = batches.empty() ? waiting_.erase(pair) : std::next(pair);
  }
}

void PeerConnection::fail_frame(FrameRefusal refusal, std::string_view what) {
  refuse(refusal);
  set_refusal({identity_.name, "protocol", fmt::format("{}: {}", to_string(refusal), what), "-"});
  owe_refusal(Lane::kFrames, channel(Lane::kFrames).route);
  fail(error(Code::kCorrupt, "'{}' (process {}) breaks the protocol ({}): {}", peer_.name,
             peer_.process, to_string(refusal), what));
}

}  // namespace primerl
