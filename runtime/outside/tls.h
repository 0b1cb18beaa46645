/// TLS for the server side of a socket, by OpenSSL: certificate files, and the bytes of one
/// connection.
///
/// TLS 1.2 and 1.3, without renegotiation, compression and tickets. No call waits: each says what
/// the socket must become before it is made again. A stream has the buffers of one record each way
/// (16 KiB), only while a record is incomplete. Not thread-safe: lives on the I/O thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "graph/base/clock.h"
#include "graph/base/result.h"
#include "runtime/outside/file_facts.h"

struct ssl_ctx_st;
struct ssl_st;

namespace primerl {

/// The result of one read or write of a socket.
struct Transfer {
  enum class End : uint8_t {
    kSome,        // num_bytes, at least one; for a handshake: it is complete
    kWantsRead,   // nothing until the socket is readable
    kWantsWrite,  // nothing until the socket is writable
    kClosed       // by the client, or a fault: the connection must end
  };
  End end = End::kClosed;
  size_t num_bytes = 0;
};

/// A certificate and its key, as connections use it. Null: none.
using TlsContext = std::shared_ptr<ssl_ctx_st>;

/// The certificate files of a listener. They are read again when one has changed, so a renewed
/// certificate needs no restart. Connections that are open keep the one that they began with.
class TlsFiles {
 public:
  static constexpr int64_t kFileBytesMax = int64_t{1} << 20;

  /// Reads both files, in PEM form: the certificate with its chain, and its key without a
  /// passphrase. Both empty: no TLS. Errors: kNotFound, a file cannot be read; kInvalid, it is
  /// not of that form, the key does not match, or the certificate is not valid now.
  static Result<TlsFiles> open(std::string cert, std::string key);

  const TlsContext& context() const { return context_; }
  /// When look() has something to do; none: never.
  std::optional<Time> next_look() const;
  /// Looks at the files if it is time to. A line for people if they were read, could not be, or if
  /// the certificate has expired since. Each change is tried once; the earlier context stays if
  /// the new files are not valid. `wall` is in seconds since 1970.
  std::optional<std::string> look(Time now, double wall);

 private:
  std::string cert_, key_;
  FileFacts cert_read_, key_read_;  // of the files when they were last tried
  TlsContext context_;
  double expires_ = 0;  // seconds since 1970
  bool has_expired_ = false;
  Time next_look_;
};

/// One connection. The socket must not wait, and must be open while the stream exists.
class TlsStream {
 public:
  TlsStream(const TlsContext& context, int socket);

  /// Call it until it is kSome; then read and write.
  Transfer handshake();
  /// Fills `into` with the bytes that have arrived; `into` has space for a record, 16 KiB.
  Transfer read(std::span<char> into);
  /// A write that wants something must be repeated with the same bytes first.
  Transfer write(std::string_view bytes);
  /// Says that no more bytes follow, if the socket has space for that.
  void end_writing();

 private:
  struct Freed {
    void operator()(ssl_st* ssl) const;
  };
  Transfer transfer(int result) const;

  std::unique_ptr<ssl_st, Freed> ssl_;
};

}  // namespace primerl
