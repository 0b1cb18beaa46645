/// Sockets and messages of ZeroMQ (cppzmq) with errors as values, for the other zmq_ files. A
/// socket belongs to one thread at a time; all threads may use a context.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <zmq.hpp>

#include "graph/base/blob.h"
#include "graph/base/clock.h"
#include "graph/base/result.h"

namespace primerl {

std::span<std::byte> bytes_of(zmq::message_t& message);
std::span<const std::byte> bytes_of(const zmq::message_t& message);
/// Copies the bytes.
zmq::message_t message_of(std::span<const std::byte> bytes);
/// Shares the Blob's bytes until ZeroMQ has written them.
zmq::message_t message_of(const Blob& blob);
/// The key that the peer proved on the connection of a received message; empty without a key. Valid
/// as long as the message.
std::string_view user_id_of(const zmq::message_t& message);

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

Result<zmq::socket_t> open_socket(zmq::context_t& context, ZmqKind kind,
                                  const ZmqSocketSettings& settings);
/// Returns the bound address, with its port.
Result<std::string> bind_socket(zmq::socket_t& socket, const std::string& address);
Status connect_socket(zmq::socket_t& socket, const std::string& address);
/// How long already sent messages may still be written after the socket was closed.
void set_linger(zmq::socket_t& socket, Duration limit);

/// Sends all parts or none, and never blocks. False: there is no peer, or not this one.
bool send_parts(zmq::socket_t& socket, std::span<zmq::message_t> parts);
/// False: no message.
bool receive_part(zmq::socket_t& socket, zmq::message_t& part);

/// Checks without a system call.
bool is_any_readable(std::span<zmq::socket_t* const> sockets);
/// Waits until a socket is readable, a descriptor is ready (revents), or `timeout` has passed
/// (zero: does not wait).
void wait_readable(std::span<zmq::socket_t* const> sockets, std::span<pollfd> descriptors,
                   Duration timeout);

}  // namespace primerl
