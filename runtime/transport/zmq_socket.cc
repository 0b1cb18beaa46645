#include "runtime/transport/zmq_socket.h"

#include <cerrno>
#include <memory>
#include <optional>
#include <vector>

namespace primerl {
namespace {

/// Calls `call`, again while a signal interrupts it. Empty: ZeroMQ reported `errno`.
template <class Call>
auto uninterrupted(const Call& call) -> std::optional<decltype(call())> {
  while (true) {
    try {
      return call();
    } catch (const zmq::error_t& fault) {
      errno = fault.num();
      if (fault.num() != EINTR) return std::nullopt;
    }
  }
}

void apply(zmq::socket_t& socket, ZmqKind kind, const ZmqSocketSettings& settings) {
  namespace option = zmq::sockopt;
  socket.set(option::linger, 0);
  if (kind == ZmqKind::kAuthenticator || kind == ZmqKind::kMonitor) return;
  if (kind == ZmqKind::kRouter) {
    socket.set(option::router_mandatory, true);
    socket.set(option::router_handover, false);
  } else {
    socket.set(option::routing_id, settings.routing_id);
    socket.set(option::immediate, true);
    socket.set(option::reconnect_ivl, 20);
    socket.set(option::reconnect_ivl_max, 1000);
  }
  socket.set(option::sndhwm, settings.high_water_mark);
  socket.set(option::rcvhwm, settings.high_water_mark);
  socket.set(option::maxmsgsize, settings.message_bytes_max);
  socket.set(option::handshake_ivl, kHandshakeMilliseconds);
  // ZMQ_HEARTBEAT_IVL is not set: in 4.3.4 a ping on a broken connection whose reader is full ends
  // the process (assertion !_io_error, libzmq#4364, #4767). The probes of PeerConnection detect
  // silence instead.
  socket.set(option::tcp_keepalive, 1);
  if (settings.secret_key.empty()) return;
  socket.set(option::curve_server, settings.is_server);
  socket.set(option::curve_secretkey, settings.secret_key);
  if (!settings.is_server) {
    socket.set(option::curve_publickey, settings.public_key);
    socket.set(option::curve_serverkey, settings.server_key);
  } else {
    // Without a domain ZeroMQ asks no authenticator and accepts every key.
    socket.set(option::zap_domain, std::string("primerl"));
  }
}

/// IPv4 numbers and wildcards need no IPv6, which a machine may lack. A name may be either.
void choose_family(zmq::socket_t& socket, const std::string& address) {
  const std::string_view host = std::string_view(address).substr(0, address.rfind(':'));
  const bool is_ipv4 =
      host.find_first_not_of("0123456789.*", host.rfind('/') + 1) == std::string_view::npos;
  socket.set(zmq::sockopt::ipv6, address.starts_with("tcp://") && !is_ipv4);
}

}  // namespace

std::span<std::byte> bytes_of(zmq::message_t& message) {
  return {message.data<std::byte>(), message.size()};
}
std::span<const std::byte> bytes_of(const zmq::message_t& message) {
  return {message.data<std::byte>(), message.size()};
}

zmq::message_t message_of(std::span<const std::byte> bytes) { return {bytes.data(), bytes.size()}; }

zmq::message_t message_of(const Blob& blob) {
  auto kept = std::make_unique<Blob>(blob);
  auto* data = const_cast<std::byte*>(kept->bytes().data());  // never written to
  const size_t size = kept->size();
  const auto release = [](void*, void* hint) {
    const std::unique_ptr<Blob> owned(static_cast<Blob*>(hint));
  };
  return {data, size, release, kept.release()};
}

std::string_view user_id_of(const zmq::message_t& message) {
  // gets() throws without a key, and this is asked for every message of a connection without keys.
  const char* id = zmq_msg_gets(message.handle(), "User-Id");
  return id == nullptr ? std::string_view() : std::string_view(id);
}

Result<zmq::socket_t> open_socket(zmq::context_t& context, ZmqKind kind,
                                  const ZmqSocketSettings& settings) {
  static constexpr zmq::socket_type kTypes[] = {zmq::socket_type::router, zmq::socket_type::dealer,
                                                zmq::socket_type::router, zmq::socket_type::pair};
  try {
    zmq::socket_t socket(context, kTypes[static_cast<size_t>(kind)]);
    apply(socket, kind, settings);
    return socket;
  } catch (const zmq::error_t& fault) {
    return error(Code::kIo, "opening a socket: {}", fault.what());
  }
}

Result<std::string> bind_socket(zmq::socket_t& socket, const std::string& address) {
  try {
    choose_family(socket, address);
    socket.bind(address);
    return socket.get(zmq::sockopt::last_endpoint);
  } catch (const zmq::error_t& fault) {
    return error(Code::kIo, "listening on '{}': {}", address, fault.what());
  }
}

Status connect_socket(zmq::socket_t& socket, const std::string& address) {
  try {
    choose_family(socket, address);
    socket.connect(address);
    return ok();
  } catch (const zmq::error_t& fault) {
    return error(Code::kIo, "connecting to '{}': {}", address, fault.what());
  }
}

void set_linger(zmq::socket_t& socket, Duration limit) {
  if (socket.handle() != nullptr)
    socket.set(zmq::sockopt::linger, static_cast<int>(limit.to_milliseconds()));
}

bool send_parts(zmq::socket_t& socket, std::span<zmq::message_t> parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto flags = zmq::send_flags::dontwait |
                       (i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    const auto sent = uninterrupted([&] { return socket.send(parts[i], flags); });
    // If ZeroMQ accepted the first part, it accepts all of them. If a peer disconnects meanwhile,
    // the message is lost.
    if (!sent || !*sent) return false;
  }
  return true;
}

bool receive_part(zmq::socket_t& socket, zmq::message_t& part) {
  const auto received = uninterrupted([&] { return socket.recv(part, zmq::recv_flags::dontwait); });
  return received && *received;
}

bool is_any_readable(std::span<zmq::socket_t* const> sockets) {
  for (zmq::socket_t* socket : sockets) {
    const auto events = uninterrupted([&] { return socket->get(zmq::sockopt::events); });
    if (events && (*events & ZMQ_POLLIN) != 0) return true;
  }
  return false;
}

void wait_readable(std::span<zmq::socket_t* const> sockets, std::span<pollfd> descriptors,
                   Duration timeout) {
  std::vector<zmq::pollitem_t> items;
  items.reserve(sockets.size() + descriptors.size());
  for (zmq::socket_t* socket : sockets) items.push_back({socket->handle(), 0, ZMQ_POLLIN, 0});
  for (const pollfd& each : descriptors) {
    const int events = ((each.events & POLLIN) != 0 ? ZMQ_POLLIN : 0) |
                       ((each.events & POLLOUT) != 0 ? ZMQ_POLLOUT : 0);
    items.push_back({nullptr, each.fd, static_cast<short>(events), 0});
  }
  // Rounded up: waking before the timer would only cost another check.
  const std::chrono::milliseconds most((timeout.to_nanoseconds() + 999'999) / 1'000'000);
  try {
    zmq::poll(items, most);
  } catch (const zmq::error_t&) {
    return;  // a signal: the caller looks again
  }
  for (size_t i = 0; i < descriptors.size(); ++i) {
    const short ready = items[sockets.size() + i].revents;
    descriptors[i].revents =
        static_cast<short>(((ready & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0 ? POLLIN : 0) |
                           ((ready & ZMQ_POLLOUT) != 0 ? POLLOUT : 0));
  }
}

}  // namespace primerl
