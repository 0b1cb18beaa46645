#include "runtime/outside/http_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <utility>

#include "graph/http_calls.h"

namespace primerl {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Fault = boost::system::error_code;

// Bytes of the parser's own lines inside a chunked body: sizes, extensions and trailers.
constexpr size_t kChunkLineBytesMax = 4096;
constexpr size_t kLastChunkBytes = 5;

std::string text_of(beast::string_view text) { return {text.data(), text.size()}; }

bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
}

/// The media type alone: "Application/JSON; charset=utf-8" is "application/json".
std::string media_type_of(std::string_view text) {
  text = text.substr(0, text.find(';'));
  while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  std::string type(text);
  for (char& c : type)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return type;
}

}  // namespace

class HttpReader::Parser {
 public:
  http::request_parser<http::string_body> request;
};

HttpReader::HttpReader(const HttpReaderLimits& limits)
    : limits_(limits), parser_(std::make_unique<Parser>()) {
  parser_->request.header_limit(limits_.header_bytes_max);
  parser_->request.body_limit(limits_.body_bytes_max);
  parser_->request.eager(false);
}

HttpReader::~HttpReader() = default;

void HttpReader::fail(int32_t status, std::string message) {
  state_ = State::kFailed;
  refusal_ = {status, std::move(message)};
}

size_t HttpReader::read(std::string_view bytes) {
  auto& request = parser_->request;
  size_t num_used = 0;
  while (state_ == State::kHead || state_ == State::kBody) {
    const std::string_view rest = bytes.substr(num_used);
    if (rest.empty()) break;
    // Beast 1.74 asserts that a last chunk has 5 bytes, "0 CR LF CR LF", also while they arrive.
    if (head_.is_chunked && rest.size() < kLastChunkBytes) break;
    Fault fault;
    const size_t num_put = request.put(asio::const_buffer(rest.data(), rest.size()), fault);
    num_used += num_put;
    if (state_ == State::kHead) num_head_bytes_ += num_put;
    // The parser's own limit allows slightly more.
    if (num_head_bytes_ > limits_.header_bytes_max) fault = http::error::header_limit;
    if (fault == http::error::need_more) {
      const bool is_too_long =
          state_ == State::kBody && bytes.size() - num_used > kChunkLineBytesMax;
      if (is_too_long) fail(400, "a line of the chunked body is too long");
      break;
    }
    if (fault == http::error::header_limit) {
      fail(431, fmt::format("a request may have {} bytes of headers", limits_.header_bytes_max));
    } else if (fault == http::error::body_limit) {
      fail(413, fmt::format("a body may have {} bytes", limits_.body_bytes_max));
    } else if (fault) {
      fail(400, "this is not HTTP/1.1: " + fault.message());
    } else if (state_ == State::kHead && request.is_header_done()) {
      finish_head();
    } else if (request.is_done()) {
      state_ = State::kDone;
    }
  }
  return num_used;
}

void HttpReader::finish_head() {
  auto& request = parser_->request;
  const auto& fields = request.get();
  head_.method = text_of(fields.method_string());
  const std::string target = text_of(fields.target());
  head_.path = target.substr(0, target.find('?'));
  if (head_.path.size() < target.size()) head_.query = target.substr(head_.path.size() + 1);
  head_.keeps_alive = request.keep_alive();
  head_.is_chunked = request.chunked();
  head_.reads_chunks = fields.version() > 10;
  if (const auto length = request.content_length()) head_.content_length = *length;
  // HTTP/1.0 has no Host header.
  const auto hosts = fields.equal_range(http::field::host);
  const auto num_hosts = std::distance(hosts.first, hosts.second);
  if (num_hosts > 1 || (num_hosts == 0 && fields.version() > 10))
    return fail(400, "a request names one Host");
  if (num_hosts == 1) head_.host = text_of(hosts.first->value());
  std::string rank, api_key;
  for (const auto& [name, target_field] :
       {std::pair("X-Session-ID", &head_.session), std::pair("X-Request-ID", &head_.request_id),
        std::pair("X-data-parallel-rank", &rank), std::pair("Authorization", &head_.authorization),
        std::pair("X-API-Key", &api_key), std::pair("Content-Type", &head_.content_type)}) {
    const auto found = fields.equal_range(name);
    const auto count = std::distance(found.first, found.second);
    if (count > 1) return fail(400, fmt::format("the header {} comes {} times", name, count));
    if (count == 1) *target_field = text_of(found.first->value());
  }
  for (const auto& [name, value] :
       {std::pair("X-Session-ID", &head_.session), std::pair("X-Request-ID", &head_.request_id)})
    if (value->size() > kClientNameBytesMax || !is_printable(*value))
      return fail(400, fmt::format("the header {} has up to {} printable ASCII characters", name,
                                   kClientNameBytesMax));
  // Clients of Tinker's SDK send their key in a header of its own.
  if (head_.authorization.empty() && !api_key.empty()) head_.authorization = "Bearer " + api_key;
  head_.content_type = media_type_of(head_.content_type);
  if (head_.content_type.size() > kContentTypeBytesMax || !is_printable(head_.content_type))
    return fail(400, fmt::format("the header Content-Type has up to {} printable ASCII characters",
                                 kContentTypeBytesMax));
  // Most bodies are JSON; the record does not say it of each.
  if (head_.content_type == kJsonContentType) head_.content_type.clear();
  if (!rank.empty()) {
    const auto [end, fault] = std::from_chars(rank.data(), rank.data() + rank.size(), head_.engine);
    if (fault != std::errc() || end != rank.data() + rank.size() || head_.engine < 0 ||
        head_.engine > kEngineIndexMax)
      return fail(400, fmt::format("the header X-data-parallel-rank is a number from 0 to {}",
                                   kEngineIndexMax));
  }
  if (!head_.path.starts_with('/') || !is_printable(head_.path))
    return fail(400, "a path begins with '/' and is printable ASCII");
  if (!is_printable(head_.query)) return fail(400, "a query is printable ASCII");
  head_.expects_continue = beast::iequals(fields[http::field::expect], "100-continue");
  if (!head_.expects_continue && fields.count(http::field::expect) > 0)
    return fail(417, "the only value of Expect is 100-continue");
  // Beast checks the body's length only when it begins to read it.
  if (head_.content_length && *head_.content_length > limits_.body_bytes_max)
    return fail(413, fmt::format("a body may have {} bytes", limits_.body_bytes_max));
  state_ = State::kHeadDone;
}

void HttpReader::read_body() {
  parser_->request.eager(true);
  state_ = parser_->request.is_done() ? State::kDone : State::kBody;
}

size_t HttpReader::num_body_bytes() const { return parser_->request.get().body().size(); }

std::string HttpReader::move_body() { return std::move(parser_->request.get().body()); }

std::string http_reason(int32_t status) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return text_of(reason);
}

std::string http_reply_head(const ClientReply& reply, bool keeps_alive, bool as_chunks) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nCache-Control: no-store\r\n", reply.status,
                  http_reason(reply.status),
                  reply.content_type.empty() ? kJsonContentType : reply.content_type);
  if (!reply.has_more)
    head += fmt::format("Content-Length: {}\r\n", reply.body.size());
  else if (as_chunks)
    head += "Transfer-Encoding: chunked\r\n";
  if (!reply.request_id.empty()) head += fmt::format("X-Request-ID: {}\r\n", reply.request_id);
  if (reply.status == 429 || reply.status == 503)
    head += fmt::format("Retry-After: {}\r\n", reply.retry_after);
  if (reply.status == 401) head += "WWW-Authenticate: Bearer\r\n";
  head += keeps_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

std::string http_chunk(std::string_view body) {
  return fmt::format("{:x}\r\n{}\r\n", body.size(), body);
}

}  // namespace primerl
