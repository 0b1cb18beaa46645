#include "runtime/transport/zmq_transport.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <thread>

#include "graph/base/bytes.h"
#include "runtime/transport/connection_transport.h"
#include "runtime/transport/zmq_addresses.h"
#include "runtime/transport/zmq_authenticator.h"
#include "runtime/transport/zmq_socket.h"

namespace primerl {
namespace {

using Clock = std::chrono::steady_clock;
/// A peer that connects to the plain socket proves nothing; on the CURVE socket it proves its key.
enum Security { kPlain, kCurve };
constexpr Security kSecurities[] = {kPlain, kCurve};
/// Limit per socket and turn, so that other sockets get a turn. Small for bulk: each chunk takes
/// 0.1 ms.
constexpr int kFramesPerTurn[] = {256, 2};
/// Smaller Blobs are copied out of the received part, so the part can be released.
constexpr size_t kOwnedBytesMin = 1024;
/// A new connection is tried this often, for this long; afterwards with each hello.
constexpr Duration kConnectEvery = Duration::milliseconds(5);
constexpr Duration kConnectFor = Duration::seconds(2);
constexpr Duration kLingerMax = Duration::seconds(1);

Time to_time(Clock::time_point point) {
  return Time::from_nanoseconds(
      std::chrono::duration_cast<std::chrono::nanoseconds>(point.time_since_epoch()).count());
}

/// The routing id of a connection: 'P', process, incarnation and connection count show whose it is
/// and which is newer. 32 random characters make it unique, so no other process can use it. That
/// includes the time after the connection has ended, when ZeroMQ would give the name to another
/// one.
constexpr size_t kRouteBytes = 13 + 32;

std::string routing_id(const TransportIdentity& identity, uint32_t attempt) {
  std::string id(13, 'P');
  auto* at = reinterpret_cast<std::byte*>(id.data());
  put_number<uint32_t>(at + 1, identity.process.value);
  put_number<uint32_t>(at + 5, identity.incarnation);
  put_number<uint32_t>(at + 9, attempt);
  return id + draw_word();
}

ProcessId process_of(std::span<const std::byte> id) {
  if (id.size() != kRouteBytes || id[0] != std::byte{'P'}) return ProcessId::none();
  return ProcessId(take_number<uint32_t>(id.data() + 1));
}

/// For an id from which process_of() reads a process.
FrameOrigin origin_of(std::span<const std::byte> id) {
  const uint64_t incarnation = take_number<uint32_t>(id.data() + 5);
  return {{reinterpret_cast<const char*>(id.data()), id.size()},
          incarnation << 32 | take_number<uint32_t>(id.data() + 9)};
}

/// Keeps a received part alive for as long as a Blob views it.
ReceivedPart received(zmq::message_t& part) {
  if (part.size() < kOwnedBytesMin) return {nullptr, 0, bytes_of(part)};
  const auto owner = std::make_shared<zmq::message_t>(std::move(part));
  const auto bytes = bytes_of(std::as_const(*owner));
  return {owner, bytes.size(), bytes};
}

/// Receives the parts after the first one. False: more than one further part; all are dropped.
bool receive_rest(zmq::socket_t& socket, std::array<zmq::message_t, 2>& parts) {
  if (!parts[0].more()) return true;
  if (!receive_part(socket, parts[1])) return false;
  if (!parts[1].more()) return true;
  for (zmq::message_t rest; receive_part(socket, rest) && rest.more();) {
  }
  return false;
}

class ZmqTransport final : public ConnectionTransport {
 public:
  ZmqTransport(TransportIdentity identity, ConnectionLimits limits, ZmqOptions options,
               TransportReceiver& receiver)
      : ConnectionTransport(std::move(identity), limits, receiver),
        options_(std::move(options)),
        event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    CHECK(event_ >= 0, "no event descriptor");
  }
  ~ZmqTransport() override {
    (void)close(Duration());
    ::close(event_);
  }

  Status listen();
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void break_connections() {
    {
      const std::lock_guard lock(mutex());
      is_breaking_ = true;
    }
    wake();
  }

  const PeerAddress& address() const override {
    static const PeerAddress nowhere;
    return addresses_.empty() ? nowhere : addresses_.front();
  }
  std::vector<PeerAddress> addresses() const override { return addresses_; }
  Status close(Duration deadline) override;

 protected:
  void wake() override {
    is_woken_.store(true);
    if (!is_sleeping_.exchange(false)) return;
    const uint64_t one = 1;
    (void)!::write(event_, &one, sizeof one);
  }
  Status check_peer(const PeerSpec& peer) const override { return check_zmq_peer(peer, options_); }
  Time now() const override { return to_time(Clock::now()); }

 private:
  using Sockets = std::array<zmq::socket_t, kNumLanes>;
  struct Dealer {
    uint32_t incarnation = 0;
    Time opened;
    Sockets sockets;
  };

  void run();
  bool turn(Time& next);
  void wait(Time until);
  void open_dealers();
  Status open_dealer(const PeerConnection& connection);
  KeyVerdict judge(const std::string& key);
  bool receive(Lane lane, Security security);
  bool receive(Lane lane, zmq::socket_t& socket, ProcessId connected_to);
  std::optional<FrameOrigin> greet(Lane lane, Security security, std::span<const std::byte> id,
                                   const zmq::message_t& part);
  bool send_frames(PeerConnection& connection, Time& next);
  bool send_frame(zmq::socket_t& socket, const std::string* route, const OutFrame& frame);
  Security security_of(const std::string& address) const;
  ZmqSocketSettings settings(Lane lane, Security security) const;
  void close_sockets(Duration linger);

  // Constant after listen().
  const ZmqOptions options_;
  const int event_;
  std::vector<PeerAddress> addresses_;
  // Used by the I/O thread only, with mutex() held.
  zmq::context_t context_;
  std::optional<ZmqAuthenticator> authenticator_;
  std::array<Sockets, std::size(kSecurities)> routers_;  // only those that a listening address uses
  std::map<ProcessId, Dealer> dealers_;
  uint32_t num_attempts_ = 0;
  std::condition_variable turned_;
  bool is_stopping_ = false;
  bool is_breaking_ = false;
  Duration linger_;
  Status closed_;
  std::vector<zmq::socket_t*> polled_;  // also used without the lock
  // To wake the I/O thread: is_woken_ is accessed before is_sleeping_, on both sides.
  std::atomic<bool> is_woken_{false};
  std::atomic<bool> is_sleeping_{false};
  std::thread thread_;
};

/// tcp always checks keys; ipc, in a folder of this user only, does so when the run has a list.
Security ZmqTransport::security_of(const std::string& address) const {
  return address.starts_with("tcp://") || !options_.allowed.empty() ? kCurve : kPlain;
}

ZmqSocketSettings ZmqTransport::settings(Lane lane, Security security) const {
  const uint32_t window = lane == Lane::kFrames ? limits().window_frames : limits().window_chunks;
  ZmqSocketSettings settings;
  // The window limits frames in transit. Twice the window allows for resent frames, and 64 more for
  // unnumbered ones.
  settings.high_water_mark = static_cast<int>(2 * window + 64);
  settings.message_bytes_max = static_cast<int64_t>(
      std::max({limits().batch_bytes_max, limits().frame_bytes, limits().chunk_bytes}) + 4096);
  if (security == kCurve) {
    settings.public_key = options_.keys->public_key;
    settings.secret_key = options_.keys->secret_key.reveal();
  }
  return settings;
}

Status ZmqTransport::listen() {
  RETURN_IF_ERROR(check_identity(identity()));
  if (options_.keys) {
    ASSIGN_OR_RETURN(authenticator_, ZmqAuthenticator::open(context_));
  }
  for (const std::string& each : options_.listen) {
    ASSIGN_OR_RETURN(const PeerAddress wanted, listen_address(each, identity(), options_));
    const Security security = security_of(each);
    Sockets& routers = routers_[security];
    for (const Lane lane : kLanes) {
      zmq::socket_t& router = routers[static_cast<size_t>(lane)];
      if (router.handle() != nullptr) continue;
      ZmqSocketSettings made = settings(lane, security);
      made.is_server = true;
      ASSIGN_OR_RETURN(router, open_socket(context_, ZmqKind::kRouter, made));
    }
    PeerAddress& bound = addresses_.emplace_back();
    const auto frames = static_cast<size_t>(Lane::kFrames), bulk = static_cast<size_t>(Lane::kBulk);
    ASSIGN_OR_RETURN(bound.frames, bind_socket(routers[frames], wanted.frames));
    ASSIGN_OR_RETURN(bound.bulk, bind_socket(routers[bulk], wanted.bulk));
  }
  return ok();
}

void ZmqTransport::run() {
  while (true) {
    Time next;
    is_woken_.store(false);
    bool has_more = false;
    {
      const std::lock_guard lock(mutex());
      has_more = turn(next);
      turned_.notify_all();
      if (is_stopping_) return close_sockets(linger_);
    }
    if (!has_more) wait(next);
  }
}

bool ZmqTransport::turn(Time& next) {
  bool has_more = false;
  if (std::exchange(is_breaking_, false)) dealers_.clear();
  if (authenticator_) {
    const auto asked = [this](const std::string& key) { return judge(key); };
    for (uint64_t left = authenticator_->serve(asked, now()); left > 0; --left)
      refuse_unknown_peer(FrameRefusal::kUnknownPeer);
  }
  for (const Lane lane : kLanes) {
    for (const Security security : kSecurities) has_more |= receive(lane, security);
    for (auto& [process, dealer] : dealers_)
      has_more |= receive(lane, dealer.sockets[static_cast<size_t>(lane)], process);
  }
  next = begin_turn();
  open_dealers();
  each_connection([&](PeerConnection& connection) { has_more |= send_frames(connection, next); });
  polled_.clear();
  if (authenticator_) polled_.push_back(&authenticator_->socket());
  for (Sockets& routers : routers_)
    for (zmq::socket_t& router : routers)
      if (router.handle() != nullptr) polled_.push_back(&router);
  for (auto& [process, dealer] : dealers_)
    for (zmq::socket_t& socket : dealer.sockets) polled_.push_back(&socket);
  return has_more;
}

void ZmqTransport::wait(Time until) {
  const auto spin_until = Clock::now() + std::chrono::nanoseconds(options_.spin.to_nanoseconds());
  while (Clock::now() < spin_until) {
    if (is_woken_.load(std::memory_order_relaxed)) return;
    if (is_any_readable(polled_)) return;
  }
  is_sleeping_.store(true);
  if (!is_woken_.load()) {
    const Time time = now();
    pollfd woken{event_, POLLIN, 0};
    if (until > time) wait_readable(polled_, std::span(&woken, 1), until - time);
  }
  is_sleeping_.store(false);
  uint64_t count = 0;
  (void)!::read(event_, &count, sizeof count);
}

void ZmqTransport::open_dealers() {
  const Time time = now();
  std::erase_if(dealers_, [&](const auto& each) {
    const PeerConnection* connection = find(each.first);
    if (connection == nullptr || connection->is_over() ||
        connection->peer().incarnation != each.second.incarnation)
      return true;
    const Time heard = std::max(each.second.opened, connection->last_heard());
    return time - heard >= options_.reopen_after;
  });
  each_connection([&](PeerConnection& connection) {
    if (!connection.connects() || connection.is_over() ||
        dealers_.contains(connection.peer().process))
      return;
    const Status opened = open_dealer(connection);
    if (!opened.ok()) return connection.fail(opened.error());
    connection.connect_again(time);
  });
}

Status ZmqTransport::open_dealer(const PeerConnection& connection) {
  Dealer dealer;
  dealer.incarnation = connection.peer().incarnation;
  dealer.opened = now();
  const uint32_t attempt = ++num_attempts_;
  for (const Lane lane : kLanes) {
    auto& socket = dealer.sockets[static_cast<size_t>(lane)];
    const PeerAddress& to = connection.peer().address;
    const std::string& address = lane == Lane::kFrames ? to.frames : to.bulk;
    ZmqSocketSettings made = settings(lane, security_of(address));
    made.routing_id = routing_id(identity(), attempt);
    made.server_key = connection.peer().public_key;
    ASSIGN_OR_RETURN(socket, open_socket(context_, ZmqKind::kDealer, made));
    RETURN_IF_ERROR(connect_socket(socket, address));
  }
  dealers_.insert_or_assign(connection.peer().process, std::move(dealer));
  return ok();
}

/// Whether a key is on the list (if there is one) and belongs to a peer that is expected now.
KeyVerdict ZmqTransport::judge(const std::string& key) {
  const auto& list = options_.allowed;
  const bool is_listed = list.empty() || std::any_of(list.begin(), list.end(), [&](auto& entry) {
                           return entry.public_key == key;
                         });
  if (!is_listed) return KeyVerdict::kNever;
  KeyVerdict verdict = KeyVerdict::kNotYet;
  each_connection([&](const PeerConnection& connection) {
    if (connection.peer().public_key == key) verdict = KeyVerdict::kLetIn;
  });
  return verdict;
}

/// The FrameOrigin of a frame on a connection that a peer made; none for an unknown sender. The key
/// is checked until the greeting is accepted. After that no other process can use the routing id.
std::optional<FrameOrigin> ZmqTransport::greet(Lane lane, Security security,
                                               std::span<const std::byte> id,
                                               const zmq::message_t& part) {
  const PeerConnection* connection = find(process_of(id));
  if (connection == nullptr || connection->connects()) return std::nullopt;
  FrameOrigin origin = origin_of(id);
  if (connection->is_bound(lane, origin)) return origin;
  const std::string& key = connection->peer().public_key;
  origin.is_proven = security == kCurve && user_id_of(part) == key;
  if (security == kCurve ? !origin.is_proven : !key.empty()) return std::nullopt;
  return origin;
}

bool ZmqTransport::receive(Lane lane, Security security) {
  zmq::socket_t& socket = routers_[security][static_cast<size_t>(lane)];
  if (socket.handle() == nullptr) return false;
  for (int i = 0; i < kFramesPerTurn[static_cast<size_t>(lane)]; ++i) {
    zmq::message_t id;
    std::array<zmq::message_t, 2> parts;
    if (!receive_part(socket, id)) return false;
    const bool is_whole = receive_part(socket, parts[0]) && receive_rest(socket, parts);
    const auto origin = greet(lane, security, bytes_of(id), parts[0]);
    if (is_whole && origin)
      arrive(lane, process_of(bytes_of(id)), *origin, received(parts[0]), received(parts[1]));
    else
      refuse_unknown_peer(is_whole ? FrameRefusal::kUnknownPeer : FrameRefusal::kFramesDiffer);
  }
  return true;
}

bool ZmqTransport::receive(Lane lane, zmq::socket_t& socket, ProcessId connected_to) {
  FrameOrigin origin;
  origin.is_own = true;
  for (int i = 0; i < kFramesPerTurn[static_cast<size_t>(lane)]; ++i) {
    std::array<zmq::message_t, 2> parts;
    if (!receive_part(socket, parts[0])) return false;
    if (receive_rest(socket, parts))
      arrive(lane, connected_to, origin, received(parts[0]), received(parts[1]));
    else
      refuse_unknown_peer(FrameRefusal::kFramesDiffer);
  }
  return true;
}

bool ZmqTransport::send_frames(PeerConnection& connection, Time& next) {
  const ProcessId process = connection.peer().process;
  const auto dealer = dealers_.find(process);
  bool has_more = false;
  bool is_waiting = false;  // a connection is being made
  const Time time = now();
  for (const Lane lane : kLanes) {
    const auto index = static_cast<size_t>(lane);
    const Security security = connection.peer().public_key.empty() ? kPlain : kCurve;
    zmq::socket_t* socket = connection.connects() ? nullptr : &routers_[security][index];
    if (dealer != dealers_.end()) socket = &dealer->second.sockets[index];
    if (socket == nullptr || socket->handle() == nullptr) continue;
    OutFrame frame;
    int left = kFramesPerTurn[index];
    while (left > 0 && connection.next(lane, time, frame)) {
      --left;
      const std::string* route =
          connection.connects() ? nullptr : &connection.route_of(lane, frame);
      if (send_frame(*socket, route, frame)) continue;
      // No connection now. The next turn tries again, at the latest at the next timer.
      connection.retry(lane, frame);
      is_waiting |= dealer != dealers_.end() && time - dealer->second.opened < kConnectFor;
      break;
    }
    has_more |= left == 0;
  }
  if (is_waiting) next = std::min(next, time + kConnectEvery);
  return has_more;
}

bool ZmqTransport::send_frame(zmq::socket_t& socket, const std::string* route,
                              const OutFrame& frame) {
  std::array<zmq::message_t, 3> parts;
  size_t count = 0;
  if (route != nullptr) parts[count++] = zmq::message_t(*route);
  const auto head = frame.head.bytes();
  zmq::message_t& first = parts[count++] = zmq::message_t(kPeerFrameHeaderBytes + head.size());
  encode_peer_frame_header(frame.header, bytes_of(first).first<kPeerFrameHeaderBytes>());
  if (!head.empty())
    std::memcpy(bytes_of(first).data() + kPeerFrameHeaderBytes, head.data(), head.size());
  if (!frame.data.empty()) parts[count++] = message_of(frame.data);
  return send_parts(socket, std::span(parts).first(count));
}

void ZmqTransport::close_sockets(Duration linger) {
  for (auto& [process, dealer] : dealers_)
    for (zmq::socket_t& socket : dealer.sockets) set_linger(socket, linger);
  for (Sockets& routers : routers_)
    for (zmq::socket_t& socket : routers) set_linger(socket, linger);
  dealers_.clear();
  routers_ = {};
  polled_.clear();
  authenticator_.reset();
}

Status ZmqTransport::close(Duration deadline) {
  if (!thread_.joinable()) return closed_;
  {
    std::unique_lock lock(mutex());
    turned_.wait_for(lock, std::chrono::nanoseconds(std::min(deadline, kWaitMax).to_nanoseconds()),
                     [&] { return is_settled(); });
    closed_ = settled_or_deadline(deadline);
    leave_peers();
    linger_ = std::min(deadline, kLingerMax);
    is_stopping_ = true;
  }
  wake();
  thread_.join();
  // ZeroMQ does not remove its socket files.
  for (const PeerAddress& address : addresses_)
    for (const std::string& each : {address.frames, address.bulk})
      if (each.starts_with("ipc://")) ::unlink(each.c_str() + std::string_view("ipc://").size());
  const std::lock_guard lock(mutex());
  end_connections();
  return closed_;
}

}  // namespace

Result<std::unique_ptr<Transport>> make_zmq_transport(TransportIdentity identity,
                                                      ConnectionLimits limits, ZmqOptions options,
                                                      TransportReceiver& receiver) {
  auto transport =
      std::make_unique<ZmqTransport>(std::move(identity), limits, std::move(options), receiver);
  RETURN_IF_ERROR(transport->listen());
  transport->start();
  return std::unique_ptr<Transport>(std::move(transport));
}

void break_connections(Transport& transport) {
  auto* zmq = dynamic_cast<ZmqTransport*>(&transport);
  CHECK(zmq != nullptr, "only a ZeroMQ transport has connections to break");
  zmq->break_connections();
}

}  // namespace primerl
