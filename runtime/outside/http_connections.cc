#include "runtime/outside/http_connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "graph/base/local_host.h"
#include "graph/base/real_clock.h"
#include "runtime/outside/http_connection.h"
#include "runtime/outside/listen_address.h"

namespace primerl {
namespace {

constexpr size_t kScratchBytes = size_t{64} << 10;
constexpr int kEventsMax = 256;  // of one wait()
constexpr int kAcceptsMax = 64;  // of one event
constexpr Duration kDiscardFor = Duration::seconds(1);
constexpr Duration kAcceptAgainAfter = Duration::milliseconds(100);
// Numbers of descriptors that are no connection.
constexpr uint64_t kWake = UINT64_MAX;
constexpr uint64_t kFirstListener = UINT64_MAX - 16;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace

HttpConnections::HttpConnections(const HttpListenerOptions& options, HttpKeys keys, HttpDoor door)
    : options_(options),
      keys_(std::move(keys)),
      door_(std::move(door)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      scratch_(kScratchBytes) {
  CHECK(epoll_.get() >= 0, "no epoll");
}

HttpConnections::~HttpConnections() = default;

bool HttpConnections::register_descriptor(int descriptor, uint32_t events, Number number) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

Status HttpConnections::listen(int wake) {
  CHECK(register_descriptor(wake, EPOLLIN, kWake), "no epoll for an eventfd");
  ASSIGN_OR_RETURN(const ListenAddress address, parse_listen_address(options_.listen));
  is_loopback_ = address.is_loopback;
  RETURN_IF_ERROR(listen_on(address.host, address.port));
  // Also by IPv6, for a client that resolves `localhost` to [::1]. A machine may have no IPv6.
  if (address.host == "127.0.0.1") (void)listen_on("::1", port_);
  return ok();
}

Status HttpConnections::listen_on(const std::string& host, uint16_t port) {
  ASSIGN_OR_RETURN(Descriptor socket, listening_socket(host, port));
  const auto bound = port_of(socket.get());
  if (!bound || !register_descriptor(socket.get(), EPOLLIN, kFirstListener + listeners_.size()))
    return error(Code::kUnavailable, "cannot listen on {}:{}: no epoll for it", host, port);
  port_ = *bound;
  listeners_.push_back(std::move(socket));
  return ok();
}

void HttpConnections::wait(int timeout_ms) {
  std::array<epoll_event, kEventsMax> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), kEventsMax, timeout_until_deadline(timeout_ms));
  for (int i = 0; i < count; ++i) {
    const auto& event = events[static_cast<size_t>(i)];
    if (event.data.u64 == kWake) continue;
    if (event.data.u64 >= kFirstListener)
      accept_all(static_cast<int>(event.data.u64 - kFirstListener));
    else
      on_event(event.data.u64, event.events);
  }
  expire();
}

int HttpConnections::timeout_until_deadline(int most_ms) const {
  std::optional<Time> next = accepts_again_at_;
  if (!deadlines_.empty())
    next = next ? std::min(*next, deadlines_.begin()->first) : deadlines_.begin()->first;
  if (!next) return most_ms;
  const int64_t left = (*next - steady_now()).to_nanoseconds() / 1'000'000 + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, most_ms));
}

void HttpConnections::expire() {
  const Time now = steady_now();
  if (accepts_again_at_ && *accepts_again_at_ <= now) {
    accepts_again_at_.reset();
    for (size_t i = 0; i < listeners_.size(); ++i)
      (void)register_descriptor(listeners_[i].get(), EPOLLIN, kFirstListener + i);
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Connection& connection = *connections_.at(deadlines_.begin()->second);
    if (connection.phase == Phase::kReceiving)
      refuse(connection, {408, fmt::format("the request did not arrive within {}",
                                           to_string(options_.receive_timeout))});
    else
      close(connection);
  }
}

Duration HttpConnections::time_limit(Phase phase) const {
  switch (phase) {
    case Phase::kHandshake:
      return options_.handshake_timeout;
    case Phase::kIdle:
      return options_.idle_timeout;
    case Phase::kReceiving:
      return options_.receive_timeout;
    case Phase::kSending:
      return options_.send_timeout;
    case Phase::kDiscarding:
      return kDiscardFor;
    case Phase::kWaiting:
    case Phase::kStreaming:
      break;
  }
  return Duration::forever();  // the actor replies in time
}

void HttpConnections::enter(Connection& connection, Phase phase) {
  // A part of a request, or of a reply, does not extend the time for the whole.
  if (connection.phase == phase && connection.deadline) return;
  if (connection.deadline) deadlines_.erase({*connection.deadline, connection.number});
  connection.deadline.reset();
  if (connection.waits) waits_for_client_.erase(*connection.waits);
  connection.waits.reset();
  connection.phase = phase;
  // Most replies are sent at once: send() asks for EPOLLOUT where it must wait.
  const bool is_actors = phase == Phase::kWaiting || phase == Phase::kStreaming;
  if (phase != Phase::kSending) wait_for(connection, is_actors ? EPOLLRDHUP : EPOLLIN);
  if (is_actors) return;
  connection.deadline = steady_now() + time_limit(phase);
  deadlines_.emplace(*connection.deadline, connection.number);
  connection.waits = waits_for_client_.insert(waits_for_client_.end(), connection.number);
}

void HttpConnections::wait_for(Connection& connection, uint32_t events) const {
  if (std::exchange(connection.events, events) == events) return;
  epoll_event event{};
  event.data.u64 = connection.number;
  event.events = events;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.descriptor(), &event);
}

void HttpConnections::accept_all(int listener) {
  for (int i = 0; i < kAcceptsMax && !is_stopped_; ++i) {
    const int found = ::accept4(listeners_[static_cast<size_t>(listener)].get(), nullptr, nullptr,
                                SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (found >= 0) {
      add(Descriptor(found));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // Until another connection ends, each call of epoll would return at once.
      for (const Descriptor& each : listeners_)
        (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, each.get(), nullptr);
      accepts_again_at_ = steady_now() + kAcceptAgainAfter;
    }
    return;
  }
}

void HttpConnections::add(Descriptor socket) {
  if (std::cmp_greater_equal(connections_.size(), options_.connections_max)) {
    // All connections may wait for the actor: then the new one is closed.
    if (waits_for_client_.empty()) return;
    close(*connections_.at(waits_for_client_.front()));
  }
  const int yes = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  const Number number = next_++;
  if (!register_descriptor(socket.get(), EPOLLIN, number)) return;
  auto connection = std::make_unique<Connection>();
  connection->number = number;
  connection->socket = HttpSocket(std::move(socket));
  Connection& added = *connections_.emplace(number, std::move(connection)).first->second;
  if (tls_ != nullptr) added.socket.encrypt(tls_);
  enter(added, tls_ != nullptr ? Phase::kHandshake : Phase::kIdle);
}

void HttpConnections::release(Connection& connection) {
  num_bytes_ -= connection.num_charged;
  connection.num_charged = 0;
  if (std::exchange(connection.is_admitted, false)) --num_requests_;
}

void HttpConnections::close(Connection& connection) {
  const Number number = connection.number;
  if (connection.request) {
    if (connection.phase == Phase::kSending && !connection.is_streaming) {
      replied_.emplace_back(*connection.request, false);
    } else {
      accepted_.erase(*connection.request);
      closed_.push_back(*connection.request);
    }
  } else if (connection.phase == Phase::kWaiting) {
    std::erase(ready_, number);
  }
  if (connection.phase == Phase::kSending) --num_unsent_;
  release(connection);
  if (connection.deadline) deadlines_.erase({*connection.deadline, number});
  if (connection.waits) waits_for_client_.erase(*connection.waits);
  connections_.erase(number);
}

void HttpConnections::on_event(Number number, uint32_t events) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;  // closed by an earlier event of this wait()
  Connection& connection = *found->second;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) return close(connection);
  switch (connection.phase) {
    case Phase::kWaiting:
    case Phase::kStreaming:
      return close(connection);  // EPOLLRDHUP
    case Phase::kSending:
      return send(connection);
    case Phase::kDiscarding:
      return discard(connection);
    case Phase::kHandshake:
      return handshake(connection);
    case Phase::kIdle:
    case Phase::kReceiving:
      return receive(connection);
  }
}

void HttpConnections::handshake(Connection& connection) {
  if (!std::exchange(connection.has_begun, true) && connection.socket.is_plain_client())
    return refuse(connection, {400, "this port speaks TLS: use https://"});
  const Transfer made = connection.socket.handshake();
  if (made.end == Transfer::End::kSome) return enter(connection, Phase::kIdle);
  wait_or_close(connection, made.end);
}

/// After a transfer without bytes.
void HttpConnections::wait_or_close(Connection& connection, Transfer::End end) {
  if (end == Transfer::End::kClosed) return close(connection);
  wait_for(connection, end == Transfer::End::kWantsWrite ? EPOLLOUT : EPOLLIN);
}

void HttpConnections::receive(Connection& connection) {
  const Transfer got = connection.socket.read(scratch_);
  if (got.end != Transfer::End::kSome) return wait_or_close(connection, got.end);
  wait_for(connection, EPOLLIN);
  const std::string_view bytes(scratch_.data(), got.num_bytes);
  if (connection.received.empty()) return use(connection, bytes);
  connection.received += bytes;
  const std::string all = std::exchange(connection.received, {});
  use(connection, all);
}

/// Reads `bytes`, and keeps those that belong to what comes later.
void HttpConnections::use(Connection& connection, std::string_view bytes) {
  enter(connection, Phase::kReceiving);
  const Number number = connection.number;
  const size_t num_used = read_request(connection, bytes);
  if (!connections_.contains(number)) return;
  if (connection.phase == Phase::kReceiving || connection.phase == Phase::kWaiting)
    connection.received.assign(bytes.substr(num_used));
}

size_t HttpConnections::read_request(Connection& connection, std::string_view bytes) {
  if (connection.reader == nullptr) {
    HttpReaderLimits limits;
    limits.header_bytes_max = static_cast<uint32_t>(options_.header_bytes_max);
    limits.body_bytes_max = static_cast<uint64_t>(options_.body_bytes_max);
    connection.reader = std::make_unique<HttpReader>(limits);
  }
  HttpReader& reader = *connection.reader;
  size_t num_used = reader.read(bytes);
  if (reader.state() == HttpReader::State::kHeadDone) {
    if (!admit(connection)) return bytes.size();
    reader.read_body();
    num_used += reader.read(bytes.substr(num_used));
  }
  if (reader.state() == HttpReader::State::kFailed) {
    refuse(connection, HttpRefusal(reader.refusal()));
    return bytes.size();
  }
  if (reader.head().is_chunked && !charge_chunks(connection)) return bytes.size();
  if (reader.state() != HttpReader::State::kDone) return num_used;
  const HttpHead& head = reader.head();
  connection.arrived = {head.method,
                        head.path,
                        head.session,
                        head.request_id,
                        connection.tenant,
                        head.engine,
                        static_cast<int64_t>(wall_seconds()),
                        reader.move_body(),
                        head.content_type,
                        door_.passes_query() ? head.query : std::string()};
  connection.is_head = head.method == "HEAD";
  connection.reader.reset();
  ready_.push_back(connection.number);
  enter(connection, Phase::kWaiting);
  return num_used;
}

std::optional<HttpRefusal> HttpConnections::overload(uint64_t num_bytes) const {
  if (num_bytes_ + num_bytes <= static_cast<uint64_t>(options_.bytes_max)) return std::nullopt;
  return HttpRefusal{429, fmt::format("bodies and replies have {} bytes, at most {} are allowed",
                                      num_bytes_, options_.bytes_max)};
}

std::optional<HttpRefusal> HttpConnections::refusal_of(Connection& connection) const {
  const HttpHead& head = connection.reader->head();
  if (is_loopback_ && head.host && !names_this_machine(*head.host))
    return HttpRefusal{421, "this is localhost, 127.0.0.1 or [::1], under no other name"};
  const auto tenant = keys_.tenant_of(head.authorization);
  if (!tenant)
    return HttpRefusal{401, "no known key: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"};
  connection.tenant = *tenant;
  if (is_stopped_) return HttpRefusal{503, "the run ends"};
  if (std::cmp_greater_equal(num_requests_, options_.requests_max))
    return HttpRefusal{429, fmt::format("{} requests wait for replies already", num_requests_)};
  return overload(head.content_length.value_or(0));
}

/// Whether the request of these headers may send its body.
bool HttpConnections::admit(Connection& connection) {
  const HttpHead& head = connection.reader->head();
  connection.keeps_alive = head.keeps_alive;
  connection.reads_chunks = head.reads_chunks;
  if (const auto refusal = refusal_of(connection)) {
    refuse(connection, *refusal);
    return false;
  }
  connection.is_admitted = true;
  ++num_requests_;
  connection.num_charged = head.content_length.value_or(0);
  num_bytes_ += connection.num_charged;
  // A new connection has space for these bytes.
  if (head.expects_continue) (void)connection.socket.write(kContinue);
  return true;
}

/// The length of a chunked body is known only when it has arrived.
bool HttpConnections::charge_chunks(Connection& connection) {
  if (!connection.is_admitted) return true;
  const uint64_t added = connection.reader->num_body_bytes() - connection.num_charged;
  if (const auto refusal = overload(added)) {
    refuse(connection, *refusal);
    return false;
  }
  connection.num_charged += added;
  num_bytes_ += added;
  return true;
}

/// The rest of the request is not read as one, so the connection ends.
void HttpConnections::refuse(Connection& connection, const HttpRefusal& refusal) {
  release(connection);
  ClientReply reply;
  reply.status = refusal.status;
  if (connection.reader != nullptr) reply.request_id = connection.reader->head().request_id;
  reply.body = door_.body_of_error(refusal.status, refusal.message);
  connection.reader.reset();
  connection.keeps_alive = false;
  begin_reply(connection, reply);
}

std::optional<ClientRequest> HttpConnections::accept(uint64_t request) {
  if (ready_.empty()) return std::nullopt;
  Connection& connection = *connections_.at(ready_.front());
  ready_.pop_front();
  connection.request = request;
  accepted_[request] = connection.number;
  return std::exchange(connection.arrived, {});
}

std::vector<uint64_t> HttpConnections::remove_closed(size_t most) {
  std::vector<uint64_t> removed;
  for (; !closed_.empty() && removed.size() < most; closed_.pop_front())
    removed.push_back(closed_.front());
  return removed;
}

void HttpConnections::stop() {
  if (std::exchange(is_stopped_, true)) return;
  listeners_.clear();
  accepts_again_at_.reset();
  std::vector<Number> open;
  for (const auto& [number, connection] : connections_) open.push_back(number);
  for (const Number number : open) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    if (connection.phase == Phase::kIdle || connection.phase == Phase::kHandshake) {
      close(connection);
    } else if (connection.is_streaming) {
      ClientReply last;
      last.request = *connection.request;
      (void)reply(last);
    } else if (connection.phase == Phase::kWaiting) {
      if (connection.request) accepted_.erase(*connection.request);
      connection.request.reset();
      std::erase(ready_, number);
      refuse(connection, {503, "the run ends"});
    }
  }
}

}  // namespace primerl
