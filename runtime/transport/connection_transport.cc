#include "runtime/transport/connection_transport.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace primerl {

ConnectionTransport::ConnectionTransport(TransportIdentity identity, ConnectionLimits limits,
                                         TransportReceiver& receiver)
    : identity_(std::move(identity)),
      limits_(limits),
      encoder_limits_{limits.bulk_bytes_min, limits.batch_bytes_max, limits.blob_bytes_max},
      receiver_(receiver) {
  CHECK(identity_.types != nullptr, "a transport without message types");
  CHECK(limits_.bulk_bytes_min > 0 && limits_.chunk_bytes > 0, "bulk in pieces of no bytes");
}

Status ConnectionTransport::add_peer(PeerSpec peer) {
  if (peer.process == identity_.process)
    return error(Code::kInvalid, "process {} cannot be a peer of itself", peer.process);
  RETURN_IF_ERROR(check_peer(peer));
  const auto outbox = std::make_shared<ConnectionOutbox>(limits_);
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = connections_[peer.process];
    if (entry.connection != nullptr) {
      if (entry.connection->peer().incarnation >= peer.incarnation)
        return error(Code::kExists, "'{}' (process {}) was added with incarnation {} already",
                     peer.name, peer.process, entry.connection->peer().incarnation)
            .note("each incarnation has a greater incarnation");
      entry.connection->end("a newer incarnation was added");
    }
    const ProcessId process = peer.process;
    entry.connection = std::make_unique<PeerConnection>(identity_, std::move(peer), limits_,
                                                        *outbox, receiver_, now());
    entry.outbox = outbox;
    const std::unique_lock outboxes_lock(outboxes_mutex_);
    outboxes_[process] = outbox;
  }
  wake();
  return ok();
}

void ConnectionTransport::end_peer(ProcessId peer, uint32_t incarnation) {
  {
    const std::lock_guard lock(mutex_);
    PeerConnection* connection = find(peer);
    if (connection == nullptr || connection->peer().incarnation > incarnation) return;
    connection->end("the process was declared dead");
  }
  wake();
}

std::shared_ptr<ConnectionOutbox> ConnectionTransport::outbox_of(ProcessId process) const {
  const std::shared_lock lock(outboxes_mutex_);
  const auto found = outboxes_.find(process);
  return found == outboxes_.end() ? nullptr : found->second;
}

Status ConnectionTransport::send(ProcessId to, MessageBatch&& batch) {
  const auto outbox = outbox_of(to);
  if (outbox == nullptr)
    return error(Code::kNotFound, "process {} was not added to the transport", to);
  // Encoded here, on the group's thread, because there is only one I/O thread for all groups.
  thread_local BatchEncoder encoder;
  RETURN_IF_ERROR(encoder.encode(batch, *identity_.types, encoder_limits_));
  bool is_first = false;
  RETURN_IF_ERROR(outbox->put(encoder, batch.messages.size(), is_first));
  if (is_first) wake();
  return ok();
}

std::vector<ConnectionStatus> ConnectionTransport::status() const {
  std::vector<ConnectionStatus> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [process, entry] : connections_) {
    ConnectionStatus& status = all.emplace_back();
    entry.connection->add_to(status);
    entry.outbox->add_to(status);
  }
  return all;
}

std::array<uint64_t, kNumFrameRefusals> ConnectionTransport::refused_unknown_peers() const {
  const std::lock_guard lock(mutex_);
  return refused_unknown_peers_;
}

PeerConnection* ConnectionTransport::find(ProcessId process) {
  const auto found = connections_.find(process);
  return found == connections_.end() ? nullptr : found->second.connection.get();
}

void ConnectionTransport::each_connection(const std::function<void(PeerConnection&)>& visit) {
  for (auto& [process, entry] : connections_) visit(*entry.connection);
}

void ConnectionTransport::arrive(Lane lane, ProcessId from, const FrameOrigin& origin,
                                 const ReceivedPart& first, const ReceivedPart& second) {
  InFrame frame;
  // The largest payload of any frame kind. The transport's own limit bounds the data in transit.
  const uint64_t payload_max =
      std::max(limits_.batch_bytes_max, limits_.chunk_bytes + kChunkHeaderBytes);
  const FrameRefusal refusal =
      decode_peer_frame_header(first.bytes, lane, payload_max, frame.header);
  PeerConnection* connection = find(from);
  // The process may not be added yet: its hello is repeated until it is added.
  if (connection == nullptr)
    return refuse_unknown_peer(refusal == FrameRefusal::kNone ? FrameRefusal::kUnknownPeer
                                                              : refusal);
  if (refusal == FrameRefusal::kNone) {
    frame.head = {first.owner, first.owner_bytes, first.bytes.subspan(kPeerFrameHeaderBytes)};
    frame.data = second;
    return connection->receive(lane, origin, std::move(frame), now());
  }
  // Reports different versions only to a peer that has proved its identity.
  const bool is_peer = origin.is_proven || connection->is_bound(lane, origin);
  if (refusal == FrameRefusal::kVersion && is_peer)
    connection->refuse_version(version_of_peer_frame(first.bytes));
  else
    connection->refuse(refusal);
}

Time ConnectionTransport::begin_turn() {
  const Time time = now();
  Time next = time + limits_.probe_after;
  for (auto& [process, entry] : connections_) {
    entry.connection->take_outbox();
    if (entry.connection->next_timer() <= time) entry.connection->wake(time);
    next = std::min(next, entry.connection->next_timer());
  }
  return next;
}

bool ConnectionTransport::is_settled() const {
  return std::all_of(connections_.begin(), connections_.end(), [](const auto& each) {
    const Entry& entry = each.second;
    return entry.connection->is_over() || entry.connection->has_left() ||
           entry.outbox->is_settled();
  });
}

Status ConnectionTransport::settled_or_deadline(Duration deadline) const {
  std::vector<std::string> names;
  for (const auto& [process, entry] : connections_)
    if (!entry.connection->is_over() && !entry.outbox->is_settled())
      names.push_back(fmt::format("'{}'", entry.connection->peer().name));
  if (names.empty()) return ok();
  return error(Code::kDeadline, "not everything was acknowledged within {} by {}",
               to_string(deadline), fmt::join(names, ", "));
}

void ConnectionTransport::leave_peers() {
  for (auto& [process, entry] : connections_) entry.connection->leave();
}

void ConnectionTransport::end_connections() {
  for (auto& [process, entry] : connections_) entry.connection->end("the transport was closed");
}

std::vector<std::byte> first_part(const OutFrame& frame) {
  std::vector<std::byte> bytes(kPeerFrameHeaderBytes + frame.head.size());
  encode_peer_frame_header(frame.header, std::span(bytes).first<kPeerFrameHeaderBytes>());
  std::copy(frame.head.bytes().begin(), frame.head.bytes().end(),
            bytes.begin() + kPeerFrameHeaderBytes);
  return bytes;
}

}  // namespace primerl
