/// ZeroMQ's context, sockets and messages as values, without ZeroMQ's header, for zmq_transport.cc.
/// A socket belongs to one thread at a time; all threads may use a context.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/blob.h"
#include "graph/base/clock.h"
#include "graph/base/result.h"

namespace primerl {

/// A received message or one to send. Moving it may move its bytes.
class ZmqMessage {
 public:
  ZmqMessage();
  /// An uninitialized message; fill it before sending.
  explicit ZmqMessage(size_t num_bytes);
  /// Shares the Blob's bytes until ZeroMQ has written them.
  explicit ZmqMessage(const Blob& blob);
  ~ZmqMessage();
  ZmqMessage(ZmqMessage&& other) noexcept;
  ZmqMessage& operator=(ZmqMessage&& other) noexcept;

  std::span<std::byte> bytes();
  std::span<const std::byte> bytes() const;
  bool has_more() const;
  /// The key that the peer proved on this connection; empty without a key. Valid as long as the
  /// message.
  std::string_view user_id() const;

 private:
  friend class ZmqSocket;
  alignas(8) std::array<std::byte, 64> message_;
};

class ZmqContext {
 public:
  ZmqContext();
  /// Waits until every socket's linger time is over.
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* handle() const { return context_; }

 private:
  void* context_;
};

/// A peer that connects and sends nothing is disconnected after this time.
inline constexpr int kHandshakeMilliseconds = 5000;

/// Options of a new socket; docs/design/transport.md explains the values.
struct ZmqSocketSettings {
  std::string routing_id;   // of a dealer
  int high_water_mark = 0;  // number of messages, in each direction
  int64_t message_bytes_max = -1;
  bool is_server = false;                          // the end that checks keys (CURVE server)
  std::string public_key, secret_key, server_key;  // Z85; empty: no keys
};

enum class ZmqKind { kRouter, kDealer, kAuthenticator, kMonitor };

enum class ZmqSent { kSent, kNobody };

class ZmqSocket {
 public:
  ZmqSocket() = default;
  static Result<ZmqSocket> open(ZmqContext& context, ZmqKind kind,
                                const ZmqSocketSettings& settings);
  ~ZmqSocket();
  ZmqSocket(ZmqSocket&& other) noexcept : socket_(std::exchange(other.socket_, nullptr)) {}
  ZmqSocket& operator=(ZmqSocket&& other) noexcept;

  /// Returns the bound address, with its port.
  Result<std::string> bind(const std::string& address);
  Status connect(const std::string& address);
  /// How long already sent messages may still be written after the socket was closed.
  void linger(Duration limit);

  /// Sends all parts or none, and never blocks. kNobody: there is no peer, or not this one.
  ZmqSent send(std::span<ZmqMessage> parts);
  /// False: no message.
  bool receive(ZmqMessage& part);

  void* handle() const { return socket_; }

 private:
  explicit ZmqSocket(void* socket) : socket_(socket) {}
  Status choose_family(const std::string& address);
  void* socket_ = nullptr;
};

/// Checks without a system call.
bool zmq_any_readable(std::span<ZmqSocket* const> sockets);
/// Waits until a socket or the file descriptor is readable, or `timeout` (zero: does not wait).
void zmq_wait(std::span<ZmqSocket* const> sockets, int fd, Duration timeout);

}  // namespace primerl
