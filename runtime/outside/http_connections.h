/// HttpConnections: the sockets of an HTTP listener, on one thread, by epoll.
///
/// A connection has one request at a time. Every limit is applied before memory is allocated: for a
/// connection, for headers, for a body. A client that is slow loses its connection at a deadline,
/// and a client that goes away before its reply is reported. Beyond connections_max, the connection
/// that has waited longest for its client is closed. A reply may come in parts: the client gets
/// them as chunks, and loses its connection if kStreamBytesMax of them wait for it. Not
/// thread-safe: lives on the I/O thread.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/descriptor.h"
#include "graph/http_calls.h"
#include "runtime/outside/http_keys.h"
#include "runtime/outside/http_listener.h"
#include "runtime/outside/http_reader.h"
#include "runtime/outside/http_socket.h"

namespace primerl {

class HttpConnections {
 public:
  static constexpr size_t kStreamBytesMax = size_t{64} << 10;

  HttpConnections(const HttpListenerOptions& options, HttpKeys keys, HttpDoor door = {});
  HttpConnections(const HttpConnections&) = delete;
  HttpConnections& operator=(const HttpConnections&) = delete;
  ~HttpConnections();

  /// kExists: another program listens there. Later wait() returns when `wake` is readable.
  Status listen(int wake);
  uint16_t port() const { return port_; }
  /// Waits for sockets, `wake` or a deadline, and handles what has come.
  void wait(int timeout_ms);

  /// For requests whose headers come from now on.
  void set_keys(HttpKeys keys) { keys_ = std::move(keys); }

  /// For connections that come from now on; null: without TLS.
  void set_tls(TlsContext tls) { tls_ = std::move(tls); }

  /// The oldest request that was not accepted yet; from now on it is `request`.
  std::optional<ClientRequest> accept(uint64_t request);
  /// False if the request is not open. It stays open after a reply with `has_more`.
  bool reply(const ClientReply& reply);
  /// Accepted requests whose clients have gone before the reply; each is listed once.
  std::vector<uint64_t> remove_closed(size_t most);
  /// Replies that have ended since the last call, and whether the client got them.
  std::vector<std::pair<uint64_t, bool>> remove_replied() { return std::exchange(replied_, {}); }

  /// Accepts nothing more and refuses every request without a reply. Replies are still sent.
  void stop();
  size_t num_connections() const { return connections_.size(); }
  size_t num_unsent() const { return num_unsent_; }

 private:
  enum class Phase : uint8_t {
    kHandshake,  // of TLS
    kIdle,       // no byte of a request yet
    kReceiving,  // a part of a request
    kWaiting,    // for the reply
    kSending,    // the reply, or a part of it
    kStreaming,  // for the next part of the reply
    kDiscarding  // what a refused client still sends, so that it reads the refusal
  };
  struct Connection;
  using Number = uint64_t;

  Status listen_on(const std::string& host, uint16_t port);
  bool register_descriptor(int descriptor, uint32_t events, Number number) const;
  void accept_all(int listener);
  void add(Descriptor socket);
  void close(Connection& connection);
  void on_event(Number number, uint32_t events);
  void handshake(Connection& connection);
  void receive(Connection& connection);
  void use(Connection& connection, std::string_view bytes);
  size_t read_request(Connection& connection, std::string_view bytes);
  bool admit(Connection& connection);
  std::optional<HttpRefusal> refusal_of(Connection& connection) const;
  std::optional<HttpRefusal> overload(uint64_t num_bytes) const;
  bool charge_chunks(Connection& connection);
  void refuse(Connection& connection, const HttpRefusal& refusal);
  void begin_reply(Connection& connection, const ClientReply& reply);
  void send_part(Connection& connection, const ClientReply& reply);
  static void add_part(Connection& connection, const ClientReply& reply);
  void send(Connection& connection);
  void end_reply(Connection& connection);
  void discard(Connection& connection);
  /// Gives back what the connection's request was charged.
  void release(Connection& connection);
  void enter(Connection& connection, Phase phase);
  void wait_for(Connection& connection, uint32_t events) const;
  void wait_or_close(Connection& connection, Transfer::End end);
  void expire();
  Duration time_limit(Phase phase) const;
  int timeout_until_deadline(int most_ms) const;

  const HttpListenerOptions options_;
  HttpKeys keys_;
  TlsContext tls_;
  const HttpDoor door_;
  const Descriptor epoll_;
  std::vector<Descriptor> listeners_;
  bool is_loopback_ = true;
  uint16_t port_ = 0;
  bool is_stopped_ = false;
  std::optional<Time> accepts_again_at_;  // there was no descriptor left
  Number next_ = 0;
  std::unordered_map<Number, std::unique_ptr<Connection>> connections_;
  std::deque<Number> ready_;                       // requests that were not accepted yet
  std::unordered_map<uint64_t, Number> accepted_;  // by request, without a reply
  std::deque<uint64_t> closed_;
  std::vector<std::pair<uint64_t, bool>> replied_;
  std::set<std::pair<Time, Number>> deadlines_;
  std::list<Number> waits_for_client_;  // the first has waited longest
  size_t num_requests_ = 0;             // admitted, and the reply is not sent
  size_t num_unsent_ = 0;               // replies
  uint64_t num_bytes_ = 0;              // of bodies and replies
  std::vector<char> scratch_;
};

}  // namespace primerl
