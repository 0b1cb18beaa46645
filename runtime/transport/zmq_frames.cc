#include "runtime/transport/zmq_frames.h"

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

std::vector<std::byte> copied(const zmq::message_t& message) {
  const auto bytes = bytes_of(message);
  return {bytes.begin(), bytes.end()};
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
    ASSIGN_OR_RETURN(socket_, open_socket(context_, ZmqKind::kRouter, settings));
    const bool is_any = address.ends_with(":0");
    ASSIGN_OR_RETURN(
        address_,
        bind_socket(socket_, is_any ? address.substr(0, address.size() - 1) + "*" : address));
    set_linger(socket_, kLinger);
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
      zmq::message_t id, first, rest;
      if (!receive_part(socket_, id)) return false;
      if (!id.more() || !receive_part(socket_, first)) return false;
      bool has_more = first.more();
      const bool is_too_many = has_more;
      while (has_more) has_more = receive_part(socket_, rest) && rest.more();
      if (is_too_many) {
        ++num_refused_;
        continue;
      }
      from = id.to_string();
      frame = copied(first);
      return true;
    }
  }
  bool send(const std::string& to, std::span<const std::byte> frame) override {
    std::array<zmq::message_t, 2> parts = {zmq::message_t(to), message_of(frame)};
    return send_parts(socket_, parts);
  }
  void wait(std::span<pollfd> descriptors, Duration timeout) override {
    std::vector<zmq::socket_t*> sockets = {&socket_};
    if (authenticator_) sockets.push_back(&authenticator_->socket());
    wait_readable(sockets, descriptors, timeout);
  }

 private:
  zmq::context_t context_;
  std::optional<ZmqAuthenticator> authenticator_;
  zmq::socket_t socket_;
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
    ASSIGN_OR_RETURN(socket_, open_socket(context_, ZmqKind::kDealer, settings));
    ASSIGN_OR_RETURN(monitor_, open_socket(context_, ZmqKind::kMonitor, {}));
    constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                            ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                            ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_DISCONNECTED;
    // zmq::monitor_t has no socket to wait for.
    if (zmq_socket_monitor(socket_.handle(), kMonitor, kEvents) != 0)
      return error(Code::kIo, "watching a connection: {}", zmq_strerror(errno));
    RETURN_IF_ERROR(connect_socket(monitor_, kMonitor));
    RETURN_IF_ERROR(connect_socket(socket_, address));
    set_linger(socket_, kLinger);
    return ok();
  }
  ~ZmqFrameDialer() override {
    if (socket_.handle() != nullptr) zmq_socket_monitor(socket_.handle(), nullptr, 0);
  }

  bool receive(std::vector<std::byte>& frame) override {
    look();
    zmq::message_t first, rest;
    if (!receive_part(socket_, first)) return false;
    frame = copied(first);
    bool has_more = first.more();
    // An agent frame never has several parts: the empty frame makes the decoder end the connection.
    if (has_more) frame.clear();
    while (has_more) has_more = receive_part(socket_, rest) && rest.more();
    return true;
  }
  bool send(std::span<const std::byte> frame) override {
    std::array<zmq::message_t, 1> parts = {message_of(frame)};
    return send_parts(socket_, parts);
  }
  void wait(std::span<pollfd> descriptors, Duration timeout) override {
    const std::array<zmq::socket_t*, 2> sockets = {&socket_, &monitor_};
    wait_readable(sockets, descriptors, timeout);
  }
  Try newest_try() const override { return try_; }

 private:
  /// Reads the results of the attempts to connect since the last call.
  void look() {
    zmq::message_t event, rest;
    while (receive_part(monitor_, event)) {
      uint16_t what = 0;
      if (event.size() >= sizeof what) std::memcpy(&what, event.data(), sizeof what);
      bool has_more = event.more();
      while (has_more) has_more = receive_part(monitor_, rest) && rest.more();
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

  zmq::context_t context_;
  zmq::socket_t socket_;
  zmq::socket_t monitor_;
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
