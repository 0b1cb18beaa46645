#include <fmt/format.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "graph/base/local_host.h"
#include "runtime/monitor/http.h"

namespace primerl {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using Fault = boost::system::error_code;

// Bytes that are read and discarded after a refusal, so that the answer is not lost with the
// connection.
constexpr size_t kDiscardedMax = size_t{64} << 10;
constexpr std::chrono::seconds kDiscardFor{1};

class Connection;

/// Data that the connections share with their server; used by its thread only.
struct Shared {
  HttpServer::Handler handler;
  HttpLimits limits;
  /// All open connections; the first has waited longest for its client. A connection that is not
  /// waiting is being served, which ends before another one is served.
  std::list<Connection*> waiting;
};

using Response = http::response<http::string_body>;

Response response_of(int status, std::string type, std::string body) {
  Response response(static_cast<http::status>(status), 11);
  response.set(http::field::content_type, type);
  response.set(http::field::cache_control, "no-store");
  response.body() = std::move(body);
  return response;
}

std::string_view view_of(beast::string_view text) { return {text.data(), text.size()}; }

Response refusal(http::status status, std::string_view words) {
  return response_of(static_cast<int>(status), HttpReply().type, fmt::format("{}\n", words));
}

/// One connection, kept alive by its current operation.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Tcp::socket socket, Shared& shared)
      : stream_(std::move(socket)), shared_(shared), buffer_(shared.limits.header_bytes_max) {
    place_ = shared_.waiting.insert(shared_.waiting.end(), this);
  }
  ~Connection() { leave(); }

  void begin() { read(); }
  /// Ends its operations without an answer; then the connection is destroyed.
  void cut() {
    leave();
    stream_.close();
  }

 private:
  void leave() {
    if (std::exchange(is_counted_, false)) shared_.waiting.erase(place_);
  }
  /// From now on the connection waits for its client.
  void waits() {
    if (is_counted_) shared_.waiting.splice(shared_.waiting.end(), shared_.waiting, place_);
  }
  std::chrono::nanoseconds request_max() const {
    return std::chrono::nanoseconds(shared_.limits.request_max.to_nanoseconds());
  }

  void read() {
    parser_.emplace();
    parser_->header_limit(shared_.limits.header_bytes_max);
    parser_->body_limit(0);
    waits();
    stream_.expires_after(request_max());
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](Fault fault, size_t size) { self->take(fault, size); });
  }

  void take(Fault fault, size_t size) {
    // The parser's own limit lets slightly more pass.
    if (!fault && size > shared_.limits.header_bytes_max) fault = http::error::header_limit;
    if (!fault) return answer();
    close_after_ = true;
    if (fault == http::error::header_limit || fault == http::error::buffer_overflow)
      return write(refusal(
          http::status::request_header_fields_too_large,
          fmt::format("a request may have {} bytes of headers", shared_.limits.header_bytes_max)));
    if (fault == http::error::body_limit)
      return write(refusal(http::status::payload_too_large, "a request may have no body"));
    // The client has closed, timed out or broken the connection, so an answer could not be read.
    if (fault == http::error::end_of_stream || fault == http::error::partial_message ||
        fault.category() != http::make_error_code(http::error::bad_method).category())
      return;
    write(refusal(http::status::bad_request, fault.message()));
  }

  void answer() {
    const auto& request = parser_->get();
    close_after_ = !request.keep_alive();
    const auto hosts = request.equal_range(http::field::host);
    const auto num_hosts = std::distance(hosts.first, hosts.second);
    // HTTP/1.0 has no Host header; a browser always sends one.
    if (num_hosts > 1 || (num_hosts == 0 && request.version() > 10))
      return write(refusal(http::status::bad_request, "a request names one Host"));
    if (num_hosts == 1 && !names_this_machine(view_of(hosts.first->value())))
      return write(refusal(http::status::misdirected_request,
                           "this is localhost, 127.0.0.1 or [::1], under no other name"));
    const auto method = request.method();
    if (method != http::verb::get && method != http::verb::head) {
      auto refused = refusal(http::status::method_not_allowed, "GET and HEAD are what there is");
      refused.set(http::field::allow, "GET, HEAD");
      return write(std::move(refused));
    }
    const std::string_view target = view_of(request.target());
    if (target.empty() || target.front() != '/')
      return write(refusal(http::status::bad_request, "a path begins with '/'"));
    std::unique_ptr<HttpReply> reply;
    try {
      reply = shared_.handler(target.substr(0, target.find('?')));
    } catch (const std::exception& exception) {
      return write(refusal(http::status::internal_server_error, exception.what()));
    }
    if (reply == nullptr) return write(refusal(http::status::not_found, "there is no such page"));
    write(response_of(reply->status, std::move(reply->type), std::move(reply->body)));
  }

  void write(Response response) {
    response_ = std::move(response);
    response_.keep_alive(!close_after_);
    response_.prepare_payload();
    if (parser_ && parser_->is_header_done() && parser_->get().method() == http::verb::head)
      response_.body().clear();  // its Content-Length is kept
    waits();
    stream_.expires_after(request_max());
    http::async_write(stream_, response_, [self = shared_from_this()](Fault fault, size_t) {
      if (fault) return;
      self->close_after_ ? self->discard() : self->read();
    });
  }

  /// Closing with unread bytes would reset the connection, and the answer might be lost.
  void discard() {
    Fault ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    waits();
    stream_.expires_after(kDiscardFor);
    discard_more();
  }
  void discard_more() {
    stream_.async_read_some(asio::buffer(discarded_),
                            [self = shared_from_this()](Fault fault, size_t size) {
                              self->num_discarded_ += size;
                              if (!fault && self->num_discarded_ < kDiscardedMax)
                                self->discard_more();
                            });
  }

  beast::tcp_stream stream_;
  Shared& shared_;
  std::list<Connection*>::iterator place_;
  bool is_counted_ = true;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  Response response_;
  bool close_after_ = false;
  size_t num_discarded_ = 0;
  std::array<char, 512> discarded_{};
};

}  // namespace

class HttpServer::Body {
 public:
  Body(Handler handler, HttpLimits limits) : shared_{std::move(handler), limits, {}} {}

  Status open(uint16_t port) {
    if (const Fault fault = listen(acceptor_, {asio::ip::address_v4::loopback(), port})) {
      const Code code =
          fault == boost::system::errc::address_in_use ? Code::kExists : Code::kUnavailable;
      return error(code, "cannot listen on 127.0.0.1:{}: {}", port, fault.message());
    }
    port_ = acceptor_.local_endpoint().port();
    accept(acceptor_);
    // Also listens on IPv6, for a client that resolves `localhost` to [::1]. A machine may have no
    // IPv6, or another program may use the port there: then such a client tries 127.0.0.1.
    if (!listen(ipv6_acceptor_, {asio::ip::address_v6::loopback(), port_})) accept(ipv6_acceptor_);
    thread_ = std::thread([this] { serve(); });
    return ok();
  }

  ~Body() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  uint16_t port() const { return port_; }

 private:
  /// If a connection throws (out of memory, for example), only that connection is lost and the run
  /// continues.
  void serve() {
    while (!context_.stopped()) {
      try {
        context_.run();
      } catch (const std::exception&) {
        ++num_lost_;
      }
    }
  }
  static Fault listen(Tcp::acceptor& acceptor, const Tcp::endpoint& endpoint) {
    Fault fault;
    (void)acceptor.open(endpoint.protocol(), fault);
    // A port that was just released can be used again at once.
    if (!fault) (void)acceptor.set_option(Tcp::acceptor::reuse_address(true), fault);
    if (!fault) (void)acceptor.bind(endpoint, fault);
    if (!fault) (void)acceptor.listen(asio::socket_base::max_listen_connections, fault);
    return fault;
  }
  void accept(Tcp::acceptor& acceptor) {
    acceptor.async_accept([this, &acceptor](Fault fault, Tcp::socket socket) {
      if (!fault) {
        while (shared_.waiting.size() >= shared_.limits.connections_max)
          shared_.waiting.front()->cut();
        std::make_shared<Connection>(std::move(socket), shared_)->begin();
        return accept(acceptor);
      }
      // Most likely out of descriptors: try again a moment later.
      auto retry = std::make_shared<asio::steady_timer>(context_, std::chrono::milliseconds(100));
      retry->async_wait([this, &acceptor, retry](Fault stopped) {
        if (!stopped) accept(acceptor);
      });
    });
  }

  Shared shared_;
  uint64_t num_lost_ = 0;
  uint16_t port_ = 0;
  asio::io_context context_{1};
  Tcp::acceptor acceptor_{context_}, ipv6_acceptor_{context_};
  std::thread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Body> body) : body_(std::move(body)) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return body_->port(); }

Result<std::unique_ptr<HttpServer>> HttpServer::listen(uint16_t port, Handler handler,
                                                       HttpLimits limits) {
  auto body = std::make_unique<Body>(std::move(handler), limits);
  RETURN_IF_ERROR(body->open(port));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(body)));
}

}  // namespace primerl
