/// The Outside that listens for HTTP requests: an actor accepts them and replies
/// (graph/http_calls.h, docs/design/gateway.md).
///
/// It has one I/O thread. On a loopback address it answers to local Host names only; on another
/// address every request needs a key. Threads: those of Outside.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "graph/http_calls.h"
#include "graph/outside.h"

namespace primerl {

/// `[resource.x] kind = "outside", backend = "http"`.
struct HttpListenerOptions {
  std::string listen = "127.0.0.1:8000";  // address:port; port 0: any free one
  std::string keys_file;                  // needed beyond loopback
  std::string key_prefix;                 // with which each key begins
  std::string tls_cert, tls_key;          // PEM files; both empty: without TLS
  bool tenant_tokens = false;             // in a served run tokens of tenants are the keys
  std::string url;                        // by which servers of environments reach it; empty: from
                                          // `listen`
  int64_t connections_max = 8192;
  int64_t requests_max = 1024;  // at once; more get 429
  int64_t header_bytes_max = 16384;
  int64_t body_bytes_max = int64_t{64} << 20;
  int64_t bytes_max = int64_t{256} << 20;            // of bodies and replies together; more get 429
  Duration idle_timeout = Duration::seconds(75);     // between two requests
  Duration receive_timeout = Duration::seconds(30);  // for a whole request
  Duration send_timeout = Duration::seconds(60);     // for a whole reply
  // Of TLS. Not an option of a graph: a client that is slower than this sends no request either.
  Duration handshake_timeout = Duration::seconds(10);
};

/// How a listener of the program itself differs from that of an actor: its keys are not in a file,
/// it passes queries on, and its errors have another form. The functions are called on its I/O
/// thread.
struct HttpDoor {
  /// For whom a key is: the `tenant` of its requests. No value: the request gets 401.
  std::function<std::optional<std::string>(std::string_view key)> holder_of;
  /// The JSON body of an error of the listener.
  std::function<std::string(int32_t status, std::string_view message)> error_body;
  /// Receives lines for a person; may be null.
  std::function<void(std::string_view line)> log;
  std::string body_of_error(int32_t status, std::string_view message) const {
    return error_body ? error_body(status, message) : http_error_body(status, message);
  }
  bool passes_query() const { return holder_of != nullptr; }
};

/// Whether `listen` is an address and a port, keys are there beyond loopback, and TLS has both its
/// files.
Status validate(const HttpListenerOptions& options);

class HttpListener : public Outside {
 public:
  virtual uint16_t port() const = 0;
  /// "http://127.0.0.1:8000", with TLS "https://..."; where it listens on all addresses, that of
  /// the loopback.
  virtual const std::string& url() const = 0;
};

/// Listens at once. kExists: another program uses the port. Errors of the TLS files are those of
/// TlsFiles::open(). `log` receives lines for a person;
/// it may be null. Keys may be for these tenants.
Result<std::shared_ptr<HttpListener>> make_http_listener(
    const HttpListenerOptions& options, const std::function<void(std::string_view)>& log,
    std::span<const std::string> tenants);
/// The same with a door: every request needs a key that it knows, on any address. `keys_file` and
/// `key_prefix` are not used.
Result<std::shared_ptr<HttpListener>> make_http_listener(const HttpListenerOptions& options,
                                                         const HttpDoor& door);

}  // namespace primerl
