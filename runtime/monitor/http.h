/// The part of HTTP/1.1 that is needed to watch a run: GET of small texts on this machine's
/// loopback. Not a web framework: no TLS, no uploads, no routes with parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "graph/base/clock.h"
#include "graph/base/result.h"

namespace primerl {

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

/// Limits of a server. Requests beyond them are answered with the status in brackets, or closed.
struct HttpLimits {
  uint32_t connections_max = 16;                // open at the same time; one more closes the
                                                // slowest
  uint32_t header_bytes_max = 8192;             // request line and headers (431)
  Duration request_max = Duration::seconds(5);  // to send a request, or to read its answer (closed)
};

/// Answers GET and HEAD on 127.0.0.1, and on [::1] if available, until it is destroyed. A request
/// with a body is refused (413), so is another method (405) and anything that is not HTTP (400).
///
/// Slow clients do not block others: beyond connections_max, the connection that has waited longest
/// for its client is closed. Only local names are answered: a Host header other than localhost,
/// 127.0.0.1 or [::1] is refused (421), because it may be a web page whose name was pointed to this
/// machine (DNS rebinding). The port in it is not checked, because it differs for a tunnel.
///
/// It calls the handler on its own thread, so the handler must be thread-safe and quick. An
/// exception that leaves the handler becomes a 500.
class HttpServer {
 public:
  /// `path` is the target up to '?'. Null if there is no such page (404).
  using Handler = std::function<std::unique_ptr<HttpReply>(std::string_view path)>;

  /// `port` 0: any free port. kExists: another program listens there.
  static Result<std::unique_ptr<HttpServer>> listen(uint16_t port, Handler handler,
                                                    HttpLimits limits = {});
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  uint16_t port() const;

 private:
  class Body;
  explicit HttpServer(std::unique_ptr<Body> body);
  const std::unique_ptr<Body> body_;
};

struct HttpGetLimits {
  Duration deadline = Duration::seconds(5);  // for the whole call
  uint64_t body_bytes_max = uint64_t{64} << 20;
};

/// Sends a GET to a server on this machine's loopback; any status is a reply. kUnavailable: no
/// listener, or the connection broke; kDeadline; kCorrupt: the answer is not HTTP; kExhausted: too
/// long.
Result<HttpReply> http_get(uint16_t port, std::string_view path, const HttpGetLimits& limits = {});

}  // namespace primerl
