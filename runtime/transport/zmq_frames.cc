#include "runtime/transport/zmq_frames.h"

#include <zmq.h>

#include <cstring>
#include <set>

#include "runtime/transport/zmq_addresses.h"
#include "runtime/transport/zmq_authenticator.h"
#include "runtime/transport/zmq_socket.h"

namespace primerl {
namespace {

/// Frames that ZeroMQ queues in each direction; the senders limit the flow.
constexpr int kHighWaterMark = 64;
constexpr const char* kMonitor = "inproc://monitor";
constexpr Duration kLinger = Duration::milliseconds(500);

/// One per dialer, never reused. It cannot be guessed, so no other process can continue in its
/// place.
std::string fresh_routing_id() { return "F" + draw_word(); }

ZmqSocketSettings settings_of(const FrameKeys& keys, size_t frame_bytes_max) {
  ZmqSocketSettings settings;
  settings.high_water_mark = kHighWaterMark;
  settings.message_bytes_max = static_cast<int64_t>(frame_bytes_max);
  if (keys.own) {
    settings.public_key = keys.own->public_key;
    settings.secret_key = keys.own->secret_key.reveal();
    settings.server_key = keys.listener_key;
  }
  return settings;
}

ZmqMessage message_of(std::span<const std::byte> bytes) {
  ZmqMessage message(bytes.size());
  if (!bytes.empty()) std::memcpy(message.bytes().data(), bytes.data(), bytes.size());
  return message;
}

std::vector<std::byte> bytes_of(const ZmqMessage& message) {
  const auto bytes = message.bytes();
  return {bytes.begin(), bytes.end()};
}

void wait_for(std::span<ZmqSocket* const> sockets, std::span<pollfd> descriptors,
              Duration timeout) {
  std::vector<zmq_pollitem_t> items;
  items.reserve(sockets.size() + descriptors.size());
  for (const ZmqSocket* socket : sockets) items.push_back({socket->handle(), 0, ZMQ_POLLIN, 0});
  for (const pollfd& each : descriptors) {
    const int events = ((each.events & POLLIN) != 0 ? ZMQ_POLLIN : 0) |
                       ((each.events & POLLOUT) != 0 ? ZMQ_POLLOUT : 0);
    items.push_back({nullptr, each.fd, static_cast<short>(events), 0});
  }
  const int64_t milliseconds = (timeout.to_nanoseconds() + 999'999) / 1'000'000;
  zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(milliseconds));
  for (size_t i = 0; i < descriptors.size(); ++i) {
    const short ready = items[sockets.size() + i].revents;
    descriptors[i].revents =
        static_cast<short>(((ready & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0 ? POLLIN : 0) |
                           ((ready & ZMQ_POLLOUT) != 0 ? POLLOUT : 0));
  }
}

class ZmqFrameListener final : public FrameListener {
 public:
  Status open_at(const std::string& address, const FrameKeys& keys, size_t frame_bytes_max) {
    RETURN_IF_ERROR(check_reach(address, keys.own.has_value(), !keys.allowed.empty()));
    if (keys.own) {
      ASSIGN_OR_RETURN(authenticator_, ZmqAuthenticator::open(context_));
      for (const AllowedKey& entry : keys.allowed) allowed_.insert(entry.public_key);
    }
    ZmqSocketSettings settings = settings_of(keys, frame_bytes_max);
    settings.is_server = true;
    ASSIGN_OR_RETURN(socket_, ZmqSocket::open(context_, ZmqKind::kRouter, settings));
    const bool is_any = address.ends_with(":0");
    ASSIGN_OR_RETURN(address_,
                     socket_.bind(is_any ? address.substr(0, address.size() - 1) + "*" : address));
    socket_.linger(kLinger);
    return ok();
  }
  const std::string& address() const override { return address_; }
  uint64_t num_refused() const override { return num_refused_; }

  bool receive(std::string& from, std::vector<std::byte>& frame) override {
    if (authenticator_)
      num_refused_ += authenticator_->serve(
          [this](const std::string& key) {
            return allowed_.contains(key) ? KeyVerdict::kLetIn : KeyVerdict::kNever;
          },
          Time());
    while (true) {
      ZmqMessage id, first, rest;
      if (!socket_.receive(id)) return false;
      if (!id.has_more() || !socket_.receive(first)) return false;
      bool has_more = first.has_more();
      const bool is_too_many = has_more;
      while (has_more) has_more = socket_.receive(rest) && rest.has_more();
      if (is_too_many) {
        ++num_refused_;
        continue;
      }
      const auto bytes = id.bytes();
      from.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      frame = bytes_of(first);
      return true;
    }
  }
  bool send(const std::string& to, std::span<const std::byte> frame) override {
    std::array<ZmqMessage, 2> parts = {message_of(std::as_bytes(std::span(to))), message_of(frame)};
    return socket_.send(parts) == ZmqSent::kSent;
  }
  void wait(std::span<pollfd> descriptors, Duration timeout) override {
    std::vector<ZmqSocket*> sockets = {&socket_};
    if (authenticator_) sockets.push_back(&authenticator_->socket());
    wait_for(sockets, descriptors, timeout);
  }

 private:
  ZmqContext context_;
  std::optional<ZmqAuthenticator> authenticator_;
  ZmqSocket socket_;
  std::set<std::string> allowed_;
  std::string address_;
  uint64_t num_refused_ = 0;
};

class ZmqFrameDialer final : public FrameDialer {
 public:
  Status open_to(const std::string& address, const FrameKeys& keys, size_t frame_bytes_max) {
    RETURN_IF_ERROR(check_reach(address, keys.own.has_value(), !keys.listener_key.empty()));
    ZmqSocketSettings settings = settings_of(keys, frame_bytes_max);
    settings.routing_id = fresh_routing_id();
    ASSIGN_OR_RETURN(socket_, ZmqSocket::open(context_, ZmqKind::kDealer, settings));
    ASSIGN_OR_RETURN(monitor_, ZmqSocket::open(context_, ZmqKind::kMonitor, {}));
    constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                            ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                            ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_DISCONNECTED;
    if (zmq_socket_monitor(socket_.handle(), kMonitor, kEvents) != 0)
      return error(Code::kIo, "watching a connection: {}", zmq_strerror(errno));
    RETURN_IF_ERROR(monitor_.connect(kMonitor));
    RETURN_IF_ERROR(socket_.connect(address));
    socket_.linger(kLinger);
    return ok();
  }
  ~ZmqFrameDialer() override {
    if (socket_.handle() != nullptr) zmq_socket_monitor(socket_.handle(), nullptr, 0);
  }

  bool receive(std::vector<std::byte>& frame) override {
    look();
    ZmqMessage first, rest;
    if (!socket_.receive(first)) return false;
    frame = bytes_of(first);
    bool has_more = first.has_more();
    // An agent frame never has several parts: the empty frame makes the decoder end the connection.
    if (has_more) frame.clear();
    while (has_more) has_more = socket_.receive(rest) && rest.has_more();
    return true;
  }
  bool send(std::span<const std::byte> frame) override {
    std::array<ZmqMessage, 1> parts = {message_of(frame)};
    return socket_.send(parts) == ZmqSent::kSent;
  }
  void wait(std::span<pollfd> descriptors, Duration timeout) override {
    const std::array<ZmqSocket*, 2> sockets = {&socket_, &monitor_};
    wait_for(sockets, descriptors, timeout);
  }
  Try newest_try() const override { return try_; }

 private:
  /// Reads the results of the attempts to connect since the last call.
  void look() {
    ZmqMessage event, rest;
    while (monitor_.receive(event)) {
      uint16_t what = 0;
      if (event.bytes().size() >= sizeof what)
        std::memcpy(&what, event.bytes().data(), sizeof what);
      bool has_more = event.has_more();
      while (has_more) has_more = monitor_.receive(rest) && rest.has_more();
      note(what);
    }
  }
  void note(uint16_t what) {
    switch (what) {
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        try_ = Try::kConnected;
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        try_ = Try::kNotAllowed;
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        // The peer closed during the handshake. A reason that was already reported is kept.
        if (try_ != Try::kNotAllowed) try_ = Try::kHandshake;
        break;
      case ZMQ_EVENT_DISCONNECTED:
        if (try_ == Try::kConnected) try_ = Try::kNobody;
        break;
      case ZMQ_EVENT_CONNECT_RETRIED:
        if (try_ == Try::kPending || try_ == Try::kConnected) try_ = Try::kNobody;
        break;
      default:
        break;
    }
  }

  ZmqContext context_;
  ZmqSocket socket_;
  ZmqSocket monitor_;
  Try try_ = Try::kPending;
};

}  // namespace

Result<std::unique_ptr<FrameListener>> FrameListener::open(const std::string& address,
                                                           const FrameKeys& keys,
                                                           size_t frame_bytes_max) {
  auto listener = std::make_unique<ZmqFrameListener>();
  RETURN_IF_ERROR(listener->open_at(address, keys, frame_bytes_max));
  return std::unique_ptr<FrameListener>(std::move(listener));
}

Result<std::unique_ptr<FrameDialer>> FrameDialer::open(const std::string& address,
                                                       const FrameKeys& keys,
                                                       size_t frame_bytes_max) {
  auto dialer = std::make_unique<ZmqFrameDialer>();
  RETURN_IF_ERROR(dialer->open_to(address, keys, frame_bytes_max));
  return std::unique_ptr<FrameDialer>(std::move(dialer));
}

}  // namespace primerl
