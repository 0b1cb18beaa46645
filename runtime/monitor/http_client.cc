#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

#include "runtime/monitor/http.h"

namespace primerl {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Fault = boost::system::error_code;

/// One request: connect, send, read. Each operation starts the next.
class Question {
 public:
  Question(std::string_view path, const HttpGetLimits& limits)
      : request_(http::verb::get, std::string(path), 11), body_bytes_max_(limits.body_bytes_max) {
    request_.set(http::field::host, "127.0.0.1");
    request_.set(http::field::connection, "close");
    parser_.body_limit(limits.body_bytes_max);
    stream_.expires_after(std::chrono::nanoseconds(limits.deadline.to_nanoseconds()));
  }

  Fault ask(uint16_t port) {
    stream_.async_connect(asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), port),
                          [this](Fault fault) { fault ? end(fault) : write(); });
    context_.run();
    return fault_;
  }
  http::response<http::string_body> take() { return parser_.release(); }

 private:
  void end(Fault fault) { fault_ = fault; }
  void write() {
    http::async_write(stream_, request_,
                      [this](Fault fault, size_t) { fault ? end(fault) : read(); });
  }
  void read() {
    http::async_read_header(stream_, buffer_, parser_,
                            [this](Fault fault, size_t) { fault ? end(fault) : read_body(); });
  }
  void read_body() {
    // Beast 1.74 does not check a Content-Length over the limit when the body arrived together with
    // the header.
    if (const auto length = parser_.content_length(); length && *length > body_bytes_max_)
      return end(http::error::body_limit);
    http::async_read(stream_, buffer_, parser_, [this](Fault fault, size_t) { end(fault); });
  }

  asio::io_context context_{1};
  beast::tcp_stream stream_{context_};
  http::request<http::empty_body> request_;
  const uint64_t body_bytes_max_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  Fault fault_;
};

}  // namespace

Result<HttpReply> http_get(uint16_t port, std::string_view path, const HttpGetLimits& limits) {
  Question question(path, limits);
  if (const Fault fault = question.ask(port)) {
    if (fault == beast::error::timeout)
      return error(Code::kDeadline, "127.0.0.1:{} has not answered within {}", port,
                   to_string(limits.deadline));
    if (fault == http::error::body_limit)
      return error(Code::kExhausted, "the answer of 127.0.0.1:{} is longer than {} bytes", port,
                   limits.body_bytes_max);
    const bool is_http =
        fault.category() == http::make_error_code(http::error::bad_method).category() &&
        fault != http::error::end_of_stream && fault != http::error::partial_message;
    return error(is_http ? Code::kCorrupt : Code::kUnavailable, "127.0.0.1:{}: {}", port,
                 fault.message());
  }
  auto response = question.take();
  HttpReply reply;
  reply.status = static_cast<int>(response.result_int());
  const auto type = response[http::field::content_type];
  reply.type.assign(type.data(), type.size());
  reply.body = std::move(response.body());
  return reply;
}

}  // namespace primerl
