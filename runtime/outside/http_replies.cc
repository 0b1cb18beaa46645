// The replies of HttpConnections: whole ones, and those that come in parts.
#include <sys/epoll.h>

#include <utility>

#include "runtime/outside/http_connection.h"

namespace primerl {
namespace {

constexpr size_t kDiscardedMax = size_t{64} << 10;
constexpr uint64_t kReplyHeadBytes = 512;

}  // namespace

bool HttpConnections::reply(const ClientReply& reply) {
  const auto found = accepted_.find(reply.request);
  if (found == accepted_.end()) return false;
  Connection& connection = *connections_.at(found->second);
  if (!reply.has_more) accepted_.erase(found);
  if (reply.has_more || connection.is_streaming)
    send_part(connection, reply);
  else
    begin_reply(connection, reply);
  return true;
}

void HttpConnections::begin_reply(Connection& connection, const ClientReply& reply) {
  if (is_stopped_) connection.keeps_alive = false;
  // The request has given its body to the actor.
  num_bytes_ -= connection.num_charged;
  connection.num_charged = reply.body.size() + kReplyHeadBytes;
  num_bytes_ += connection.num_charged;
  connection.to_send = http_reply_head(reply, connection.keeps_alive);
  if (!connection.is_head) connection.to_send += reply.body;
  connection.num_sent = 0;
  ++num_unsent_;
  enter(connection, Phase::kSending);
  send(connection);
}

/// A stream is charged for all bytes that may wait.
void HttpConnections::send_part(Connection& connection, const ClientReply& reply) {
  if (!connection.is_streaming) {
    num_bytes_ -= connection.num_charged;
    connection.num_charged = kStreamBytesMax + kReplyHeadBytes;
    num_bytes_ += connection.num_charged;
    // Without chunks only the end of the connection ends the reply.
    if (!connection.reads_chunks) connection.keeps_alive = false;
    connection.to_send = http_reply_head(reply, connection.keeps_alive, connection.reads_chunks);
  }
  connection.is_streaming = reply.has_more;
  connection.to_send.erase(0, std::exchange(connection.num_sent, 0));
  if (!connection.is_head) add_part(connection, reply);
  // Before close(), which must know that a last part was not sent.
  if (connection.phase != Phase::kSending) {
    ++num_unsent_;
    enter(connection, Phase::kSending);
  }
  if (connection.to_send.size() > kStreamBytesMax) return close(connection);
  send(connection);
}

void HttpConnections::add_part(Connection& connection, const ClientReply& reply) {
  if (!connection.reads_chunks) {
    connection.to_send += reply.body;
    return;
  }
  if (!reply.body.empty()) connection.to_send += http_chunk(reply.body);
  if (!reply.has_more) connection.to_send += http_chunk("");  // the last one is empty
}

void HttpConnections::send(Connection& connection) {
  while (connection.num_sent < connection.to_send.size()) {
    const Transfer sent =
        connection.socket.write(std::string_view(connection.to_send).substr(connection.num_sent));
    if (sent.end != Transfer::End::kSome) return wait_or_close(connection, sent.end);
    connection.num_sent += sent.num_bytes;
  }
  end_reply(connection);
}

void HttpConnections::end_reply(Connection& connection) {
  if (connection.is_streaming) {
    --num_unsent_;
    connection.to_send.clear();
    connection.num_sent = 0;
    return enter(connection, Phase::kStreaming);
  }
  if (const auto request = std::exchange(connection.request, std::nullopt))
    replied_.emplace_back(*request, true);
  --num_unsent_;
  release(connection);
  connection.to_send = {};
  connection.is_head = false;
  if (!connection.keeps_alive) {
    // Closing with unread bytes would reset the connection, and the reply might be lost.
    connection.socket.end_writing();
    connection.received = {};
    return enter(connection, Phase::kDiscarding);
  }
  enter(connection, Phase::kIdle);
  if (connection.received.empty()) return;
  // The next request came with the last one.
  const std::string next = std::exchange(connection.received, {});
  use(connection, next);
}

void HttpConnections::discard(Connection& connection) {
  const Transfer got = connection.socket.discard(scratch_);
  if (got.end == Transfer::End::kWantsRead) return;
  connection.num_discarded += got.num_bytes;
  if (got.end == Transfer::End::kClosed || connection.num_discarded >= kDiscardedMax)
    close(connection);
}

}  // namespace primerl
