/// HttpSocket: the bytes of one client's connection, plain or by TLS. No call waits.
/// Not thread-safe: lives on the I/O thread.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "graph/base/descriptor.h"
#include "runtime/outside/tls.h"

namespace primerl {

class HttpSocket {
 public:
  HttpSocket() = default;
  explicit HttpSocket(Descriptor socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  /// From now on TLS, which begins with handshake().
  void encrypt(const TlsContext& context) {
    tls_ = std::make_unique<TlsStream>(context, socket_.get());
  }
  /// Whether the first byte of the client, which has arrived, is not that of a handshake. Then the
  /// socket is plain again, so that the client can read why it is refused.
  bool is_plain_client();
  /// kSome: complete.
  Transfer handshake() { return tls_->handshake(); }

  /// `into` has space for 16 KiB.
  Transfer read(std::span<char> into);
  Transfer write(std::string_view bytes);
  /// No more bytes follow.
  void end_writing();
  /// Reads bytes that are not used, encrypted or not.
  Transfer discard(std::span<char> into) const;

 private:
  Descriptor socket_;
  std::unique_ptr<TlsStream> tls_;  // null: plain. Destroyed before its socket
};

}  // namespace primerl
