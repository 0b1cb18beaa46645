#include <fmt/format.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <thread>

#include "runtime/http/http.h"

namespace primerl {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using Fault = boost::system::error_code;

// Read and thrown away after a refusal, so that its words are not lost with the connection.
constexpr size_t kDiscardedMax = size_t{64} << 10;
constexpr std::chrono::seconds kDiscardFor{1};

/// What connections share with their server; touched by its thread alone.
struct Shared {
  HttpServer::Handler handler;
  HttpLimits limits;
  uint32_t num_open = 0;
};

using Response = http::response<http::string_body>;

Response response_of(int status, std::string type, std::string body) {
  Response response(static_cast<http::status>(status), 11);
  response.set(http::field::content_type, type);
  response.set(http::field::cache_control, "no-store");
  response.body() = std::move(body);
  return response;
}

Response refusal(http::status status, std::string_view words) {
  return response_of(static_cast<int>(status), HttpReply().type, fmt::format("{}\n", words));
}

/// One connection, kept alive by the operation that is under way.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Tcp::socket socket, Shared& shared)
      : stream_(std::move(socket)),
        shared_(shared),
        is_one_too_many_(shared.num_open >= shared.limits.connections_max),
        buffer_(shared.limits.header_bytes_max) {
    if (!is_one_too_many_) ++shared_.num_open;
  }
  ~Connection() {
    if (!is_one_too_many_) --shared_.num_open;
  }

  void begin() {
    if (!is_one_too_many_) return read();
    // Nothing of it is read: those inside come first.
    stream_.expires_after(kDiscardFor);
    close_after_ = true;
    write(refusal(http::status::service_unavailable, "too many connections"));
  }

 private:
  std::chrono::nanoseconds request_max() const {
    return std::chrono::nanoseconds(shared_.limits.request_max.to_nanoseconds());
  }

  void read() {
    parser_.emplace();
    parser_->header_limit(shared_.limits.header_bytes_max);
    parser_->body_limit(0);
    stream_.expires_after(request_max());
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](Fault fault, size_t size) { self->take(fault, size); });
  }

  void take(Fault fault, size_t size) {
    // The parser's own count lets a little more pass.
    if (!fault && size > shared_.limits.header_bytes_max) fault = http::error::header_limit;
    if (!fault) return answer();
    close_after_ = true;
    if (fault == http::error::header_limit || fault == http::error::buffer_overflow)
      return write(refusal(
          http::status::request_header_fields_too_large,
          fmt::format("a request may have {} bytes of headers", shared_.limits.header_bytes_max)));
    if (fault == http::error::body_limit)
      return write(refusal(http::status::payload_too_large, "a request may have no body"));
    // Nothing more comes, too late, or broken: there is nobody to tell.
    if (fault == http::error::end_of_stream || fault == http::error::partial_message ||
        fault.category() != http::make_error_code(http::error::bad_method).category())
      return;
    write(refusal(http::status::bad_request, fault.message()));
  }

  void answer() {
    const auto& request = parser_->get();
    close_after_ = !request.keep_alive();
    const auto method = request.method();
    if (method != http::verb::get && method != http::verb::head) {
      auto refused = refusal(http::status::method_not_allowed, "GET and HEAD are what there is");
      refused.set(http::field::allow, "GET, HEAD");
      return write(std::move(refused));
    }
    const std::string_view target(request.target().data(), request.target().size());
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
      response_.body().clear();  // what its length would have been is said
    if (!is_one_too_many_) stream_.expires_after(request_max());
    http::async_write(stream_, response_, [self = shared_from_this()](Fault fault, size_t) {
      if (fault) return;
      self->close_after_ ? self->discard() : self->read();
    });
  }

  /// Closing with words unread would reset the connection, and the answer might be lost with it.
  void discard() {
    Fault ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
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
  const bool is_one_too_many_;
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
  Body(Handler handler, HttpLimits limits) : shared_{std::move(handler), limits} {}

  Status open(uint16_t port) {
    const Tcp::endpoint endpoint(asio::ip::address_v4::loopback(), port);
    Fault fault;
    (void)acceptor_.open(endpoint.protocol(), fault);
    // A port that a run just left can be taken again at once.
    if (!fault) (void)acceptor_.set_option(Tcp::acceptor::reuse_address(true), fault);
    if (!fault) (void)acceptor_.bind(endpoint, fault);
    if (!fault) (void)acceptor_.listen(asio::socket_base::max_listen_connections, fault);
    if (fault) {
      const Code code =
          fault == boost::system::errc::address_in_use ? Code::kExists : Code::kUnavailable;
      return error(code, "cannot listen on 127.0.0.1:{}: {}", port, fault.message());
    }
    port_ = acceptor_.local_endpoint().port();
    accept();
    thread_ = std::thread([this] { serve(); });
    return ok();
  }

  ~Body() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  uint16_t port() const { return port_; }

 private:
  /// A connection that throws (for want of memory, say) is lost alone: the run goes on.
  void serve() {
    while (!context_.stopped()) {
      try {
        context_.run();
      } catch (const std::exception&) {
        ++num_lost_;
      }
    }
  }
  void accept() {
    acceptor_.async_accept([this](Fault fault, Tcp::socket socket) {
      if (!fault) {
        std::make_shared<Connection>(std::move(socket), shared_)->begin();
        return accept();
      }
      // Out of descriptors, most likely: a moment later there may be some.
      retry_.expires_after(std::chrono::milliseconds(100));
      retry_.async_wait([this](Fault stopped) {
        if (!stopped) accept();
      });
    });
  }

  Shared shared_;
  uint64_t num_lost_ = 0;
  uint16_t port_ = 0;
  asio::io_context context_{1};
  Tcp::acceptor acceptor_{context_};
  asio::steady_timer retry_{context_};
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
