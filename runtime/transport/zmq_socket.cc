#include "runtime/transport/zmq_socket.h"

#include <zmq.h>

#include <cerrno>
#include <cstring>

namespace primerl {
namespace {

static_assert(sizeof(zmq_msg_t) == 64, "ZmqMessage has room for ZeroMQ's messages");

zmq_msg_t* of(std::array<std::byte, 64>& message) {
  return reinterpret_cast<zmq_msg_t*>(message.data());
}
zmq_msg_t* of(const std::array<std::byte, 64>& message) {
  // ZeroMQ's read functions do not take const.
  return reinterpret_cast<zmq_msg_t*>(const_cast<std::byte*>(message.data()));
}

void release_blob(void*, void* hint) { const std::unique_ptr<Blob> blob(static_cast<Blob*>(hint)); }

Error zmq_error(std::string_view what) {
  return error(Code::kIo, "{}: {}", what, zmq_strerror(errno));
}

class Settings {
 public:
  explicit Settings(void* socket) : socket_(socket) {}
  void set(int option, int value) { set_bytes(option, &value, sizeof value); }
  void set(int option, int64_t value) { set_bytes(option, &value, sizeof value); }
  void set(int option, const std::string& value) { set_bytes(option, value.data(), value.size()); }
  Status status() const { return status_; }

 private:
  void set_bytes(int option, const void* value, size_t size) {
    if (zmq_setsockopt(socket_, option, value, size) != 0 && status_.ok())
      status_ = zmq_error(fmt::format("setting option {} of a socket", option));
  }
  void* socket_;
  Status status_;
};

Status apply(void* socket, ZmqKind kind, const ZmqSocketSettings& settings) {
  Settings to(socket);
  to.set(ZMQ_LINGER, 0);
  if (kind == ZmqKind::kAuthenticator || kind == ZmqKind::kMonitor) return to.status();
  if (kind == ZmqKind::kRouter) {
    to.set(ZMQ_ROUTER_MANDATORY, 1);
    to.set(ZMQ_ROUTER_HANDOVER, 0);
  } else {
    to.set(ZMQ_ROUTING_ID, settings.routing_id);
    to.set(ZMQ_IMMEDIATE, 1);
    to.set(ZMQ_RECONNECT_IVL, 20);
    to.set(ZMQ_RECONNECT_IVL_MAX, 1000);
  }
  to.set(ZMQ_SNDHWM, settings.high_water_mark);
  to.set(ZMQ_RCVHWM, settings.high_water_mark);
  to.set(ZMQ_MAXMSGSIZE, settings.message_bytes_max);
  to.set(ZMQ_HANDSHAKE_IVL, kHandshakeMilliseconds);
  // ZMQ_HEARTBEAT_IVL is not set: in 4.3.4 a ping on a broken connection whose reader is full ends
  // the process (assertion !_io_error, libzmq#4364, #4767). The probes of PeerConnection detect
  // silence instead.
  to.set(ZMQ_TCP_KEEPALIVE, 1);
  if (!settings.secret_key.empty()) {
    to.set(ZMQ_CURVE_SERVER, settings.is_server ? 1 : 0);
    to.set(ZMQ_CURVE_SECRETKEY, settings.secret_key);
    if (!settings.is_server) {
      to.set(ZMQ_CURVE_PUBLICKEY, settings.public_key);
      to.set(ZMQ_CURVE_SERVERKEY, settings.server_key);
    } else {
      // Without a domain ZeroMQ asks no authenticator and accepts every key.
      to.set(ZMQ_ZAP_DOMAIN, std::string("primerl"));
    }
  }
  return to.status();
}

}  // namespace

ZmqMessage::ZmqMessage() { zmq_msg_init(of(message_)); }
ZmqMessage::ZmqMessage(size_t num_bytes) {
  CHECK(zmq_msg_init_size(of(message_), num_bytes) == 0, "no memory for a message");
}
ZmqMessage::ZmqMessage(const Blob& blob) {
  auto kept = std::make_unique<Blob>(blob);
  auto* data = const_cast<std::byte*>(kept->bytes().data());  // never written to
  const size_t size = kept->size();
  CHECK(zmq_msg_init_data(of(message_), data, size, release_blob, kept.release()) == 0,
        "no memory for a message");
}
ZmqMessage::~ZmqMessage() { zmq_msg_close(of(message_)); }
ZmqMessage::ZmqMessage(ZmqMessage&& other) noexcept {
  zmq_msg_init(of(message_));
  zmq_msg_move(of(message_), of(other.message_));
}
ZmqMessage& ZmqMessage::operator=(ZmqMessage&& other) noexcept {
  zmq_msg_move(of(message_), of(other.message_));
  return *this;
}

std::span<std::byte> ZmqMessage::bytes() {
  return {static_cast<std::byte*>(zmq_msg_data(of(message_))), zmq_msg_size(of(message_))};
}
std::span<const std::byte> ZmqMessage::bytes() const {
  return {static_cast<const std::byte*>(zmq_msg_data(of(message_))), zmq_msg_size(of(message_))};
}
bool ZmqMessage::has_more() const { return zmq_msg_more(of(message_)) != 0; }
std::string_view ZmqMessage::user_id() const {
  const char* id = zmq_msg_gets(of(message_), "User-Id");
  return id == nullptr ? std::string_view() : std::string_view(id);
}

ZmqContext::ZmqContext() : context_(zmq_ctx_new()) {
  CHECK(context_ != nullptr, "no ZeroMQ context");
}
ZmqContext::~ZmqContext() {
  while (zmq_ctx_term(context_) != 0 && errno == EINTR) {
  }
}

Result<ZmqSocket> ZmqSocket::open(ZmqContext& context, ZmqKind kind,
                                  const ZmqSocketSettings& settings) {
  static constexpr int kTypes[] = {ZMQ_ROUTER, ZMQ_DEALER, ZMQ_ROUTER, ZMQ_PAIR};
  ZmqSocket socket(zmq_socket(context.handle(), kTypes[static_cast<int>(kind)]));
  if (socket.handle() == nullptr) return zmq_error("opening a socket");
  RETURN_IF_ERROR(apply(socket.handle(), kind, settings));
  return socket;
}

ZmqSocket::~ZmqSocket() {
  if (socket_ != nullptr) zmq_close(socket_);
}
ZmqSocket& ZmqSocket::operator=(ZmqSocket&& other) noexcept {
  std::swap(socket_, other.socket_);
  return *this;
}

/// IPv4 numbers and wildcards need no IPv6, which a machine may lack. A name may be either.
Status ZmqSocket::choose_family(const std::string& address) {
  const std::string_view host = std::string_view(address).substr(0, address.rfind(':'));
  const bool is_ipv4 =
      host.find_first_not_of("0123456789.*", host.rfind('/') + 1) == std::string_view::npos;
  const int ipv6 = address.starts_with("tcp://") && !is_ipv4 ? 1 : 0;
  if (zmq_setsockopt(socket_, ZMQ_IPV6, &ipv6, sizeof ipv6) == 0) return ok();
  return zmq_error(fmt::format("preparing a socket for '{}'", address));
}

Result<std::string> ZmqSocket::bind(const std::string& address) {
  RETURN_IF_ERROR(choose_family(address));
  if (zmq_bind(socket_, address.c_str()) != 0)
    return zmq_error(fmt::format("listening on '{}'", address));
  std::array<char, 512> bound{};
  size_t size = bound.size();
  if (zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, bound.data(), &size) != 0)
    return zmq_error(fmt::format("asking where '{}' listens", address));
  return std::string(bound.data());
}

Status ZmqSocket::connect(const std::string& address) {
  RETURN_IF_ERROR(choose_family(address));
  if (zmq_connect(socket_, address.c_str()) != 0)
    return zmq_error(fmt::format("connecting to '{}'", address));
  return ok();
}

void ZmqSocket::linger(Duration limit) {
  const auto milliseconds = static_cast<int>(limit.to_milliseconds());
  if (socket_ != nullptr) zmq_setsockopt(socket_, ZMQ_LINGER, &milliseconds, sizeof milliseconds);
}

ZmqSent ZmqSocket::send(std::span<ZmqMessage> parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
    while (zmq_msg_send(of(parts[i].message_), socket_, flags) < 0) {
      if (errno == EINTR) continue;
      // ZeroMQ accepted the first part, so it accepts all of them. If a peer disconnects meanwhile,
      // the message is lost.
      return ZmqSent::kNobody;
    }
  }
  return ZmqSent::kSent;
}

bool ZmqSocket::receive(ZmqMessage& part) {
  while (zmq_msg_recv(of(part.message_), socket_, ZMQ_DONTWAIT) < 0)
    if (errno != EINTR) return false;
  return true;
}

bool zmq_any_readable(std::span<ZmqSocket* const> sockets) {
  for (const ZmqSocket* socket : sockets) {
    int events = 0;
    size_t size = sizeof events;
    if (zmq_getsockopt(socket->handle(), ZMQ_EVENTS, &events, &size) == 0 &&
        (events & ZMQ_POLLIN) != 0)
      return true;
  }
  return false;
}

void zmq_wait(std::span<ZmqSocket* const> sockets, int fd, Duration timeout) {
  std::vector<zmq_pollitem_t> items;
  items.reserve(sockets.size() + 1);
  items.push_back({nullptr, fd, ZMQ_POLLIN, 0});
  for (const ZmqSocket* socket : sockets) items.push_back({socket->handle(), 0, ZMQ_POLLIN, 0});
  // Rounded up: waking before the timer would only cost another check.
  const int64_t milliseconds = (timeout.to_nanoseconds() + 999'999) / 1'000'000;
  zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(milliseconds));
}

}  // namespace primerl
