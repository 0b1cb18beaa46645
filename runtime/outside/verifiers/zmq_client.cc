#include "runtime/outside/verifiers/zmq_client.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <zmq.hpp>

namespace primerl {
namespace {

constexpr int kHandshakeMs = 5000;
constexpr int kReconnectMs = 100;
constexpr int kReconnectMsMax = 2000;
// A server whose machine is gone is noticed in 16 s.
constexpr int kKeepaliveIdleSeconds = 10;
constexpr int kKeepaliveEverySeconds = 2;
constexpr int kKeepalivesMax = 3;

/// One socket and the monitor of its connection.
struct Connection {
  zmq::socket_t dealer;
  zmq::socket_t monitor;
  bool is_connected = false;
};

/// IPv4 numbers need no IPv6, which a machine may lack. A name may be either.
bool needs_ipv6(const std::string& address) {
  const std::string_view host = std::string_view(address).substr(0, address.rfind(':'));
  const size_t begin = std::min(host.size(), host.rfind('/') + 1);
  return address.starts_with("tcp://") &&
         host.find_first_not_of("0123456789.", begin) != std::string_view::npos;
}

void apply_options(zmq::socket_t& socket, const std::string& address, int64_t frame_bytes_max) {
  namespace option = zmq::sockopt;
  socket.set(option::linger, 0);
  socket.set(option::immediate, true);
  socket.set(option::ipv6, needs_ipv6(address));
  socket.set(option::sndhwm, 0);
  socket.set(option::rcvhwm, 0);
  socket.set(option::maxmsgsize, frame_bytes_max);
  socket.set(option::handshake_ivl, kHandshakeMs);
  socket.set(option::reconnect_ivl, kReconnectMs);
  socket.set(option::reconnect_ivl_max, kReconnectMsMax);
  socket.set(option::tcp_keepalive, 1);
  socket.set(option::tcp_keepalive_idle, kKeepaliveIdleSeconds);
  socket.set(option::tcp_keepalive_intvl, kKeepaliveEverySeconds);
  socket.set(option::tcp_keepalive_cnt, kKeepalivesMax);
}

bool receive_part(zmq::socket_t& socket, zmq::message_t& part) {
  while (true) {
    try {
      return socket.recv(part, zmq::recv_flags::dontwait).has_value();
    } catch (const zmq::error_t& fault) {
      if (fault.num() != EINTR) return false;
    }
  }
}

bool send_part(zmq::socket_t& socket, const std::string& part, bool has_more) {
  const auto flags =
      zmq::send_flags::dontwait | (has_more ? zmq::send_flags::sndmore : zmq::send_flags::none);
  while (true) {
    try {
      return socket.send(zmq::buffer(part), flags).has_value();
    } catch (const zmq::error_t& fault) {
      if (fault.num() != EINTR) return false;
    }
  }
}

/// A send looks for a new connection only now and then: here it does.
void look_for_connection(zmq::socket_t& socket) {
  int events = 0;
  size_t size = sizeof events;
  (void)zmq_getsockopt(socket.handle(), ZMQ_EVENTS, &events, &size);
}

/// The number of an event; 0: no event now.
uint16_t receive_event(zmq::socket_t& monitor) {
  zmq::message_t part;
  if (!receive_part(monitor, part)) return 0;
  uint16_t event = 0;
  if (part.size() >= sizeof event)
    std::copy_n(part.data<char>(), sizeof event, reinterpret_cast<char*>(&event));
  while (part.more() && receive_part(monitor, part)) {  // the address
  }
  return event;
}

class Client final : public ZmqClient {
 public:
  Result<uint64_t> open(const std::string& address, int64_t frame_bytes_max) override {
    const uint64_t number = ++num_opened_;
    try {
      Connection made{zmq::socket_t(context_, zmq::socket_type::dealer),
                      zmq::socket_t(context_, zmq::socket_type::pair)};
      apply_options(made.dealer, address, frame_bytes_max);
      made.monitor.set(zmq::sockopt::linger, 0);
      const std::string name = fmt::format("inproc://monitor-{}", number);
      constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED;
      // zmq::monitor_t has no socket to wait for.
      if (zmq_socket_monitor(made.dealer.handle(), name.c_str(), kEvents) != 0)
        return error(Code::kIo, "watching a connection: {}", zmq_strerror(errno));
      made.monitor.connect(name);
      made.dealer.connect(address);
      connections_.emplace(number, std::move(made));
      return number;
    } catch (const zmq::error_t& fault) {
      return error(Code::kIo, "connecting to '{}': {}", address, fault.what())
          .note("an address has the form 'tcp://host:port' or 'ipc:///file'");
    }
  }

  void close(uint64_t socket) override {
    const auto found = connections_.find(socket);
    if (found == connections_.end()) return;
    // Else a thread of ZeroMQ that reports a break to a closed monitor would wait for ever.
    (void)zmq_socket_monitor(found->second.dealer.handle(), nullptr, 0);
    connections_.erase(found);
  }

  bool send(uint64_t socket, const std::vector<std::string>& frames) override {
    zmq::socket_t& dealer = connections_.at(socket).dealer;
    look_for_connection(dealer);
    for (size_t i = 0; i < frames.size(); ++i)
      if (!send_part(dealer, frames[i], i + 1 < frames.size())) return false;
    return true;
  }

  std::optional<std::vector<std::string>> receive(uint64_t socket) override {
    zmq::socket_t& dealer = connections_.at(socket).dealer;
    zmq::message_t part;
    if (!receive_part(dealer, part)) return std::nullopt;
    std::vector<std::string> frames;
    // ZeroMQ delivers a message when all its parts have arrived.
    do frames.push_back(part.to_string());
    while (part.more() && receive_part(dealer, part));
    return frames;
  }

  std::optional<Event> next_event(uint64_t socket) override {
    Connection& connection = connections_.at(socket);
    while (const uint16_t event = receive_event(connection.monitor)) {
      const bool is_connected = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
      // A connection that broke before its handshake was never reported.
      if (is_connected == connection.is_connected) continue;
      connection.is_connected = is_connected;
      return is_connected ? Event::kConnected : Event::kDisconnected;
    }
    return std::nullopt;
  }

  void wait(std::span<pollfd> descriptors, Duration timeout) override {
    std::vector<zmq::pollitem_t> items;
    for (auto& [number, connection] : connections_) {
      items.push_back({connection.dealer.handle(), 0, ZMQ_POLLIN, 0});
      items.push_back({connection.monitor.handle(), 0, ZMQ_POLLIN, 0});
    }
    const size_t num_sockets = items.size();
    for (const pollfd& each : descriptors) {
      const int events = ((each.events & POLLIN) != 0 ? ZMQ_POLLIN : 0) |
                         ((each.events & POLLOUT) != 0 ? ZMQ_POLLOUT : 0);
      items.push_back({nullptr, each.fd, static_cast<short>(events), 0});
    }
    // Rounded up: waking before the deadline would only cost another check.
    const std::chrono::milliseconds most((timeout.to_nanoseconds() + 999'999) / 1'000'000);
    try {
      zmq::poll(items, most);
    } catch (const zmq::error_t&) {
      return;  // a signal: the caller looks again
    }
    for (size_t i = 0; i < descriptors.size(); ++i) {
      const short ready = items[num_sockets + i].revents;
      descriptors[i].revents =
          static_cast<short>(((ready & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0 ? POLLIN : 0) |
                             ((ready & ZMQ_POLLOUT) != 0 ? POLLOUT : 0));
    }
  }

 private:
  zmq::context_t context_;
  std::map<uint64_t, Connection> connections_;
  uint64_t num_opened_ = 0;
};

}  // namespace

std::unique_ptr<ZmqClient> make_zmq_client() { return std::make_unique<Client>(); }

}  // namespace primerl
