#include "runtime/outside/http_socket.h"

#include <sys/socket.h>

#include <cerrno>

namespace primerl {
namespace {

constexpr char kHandshakeRecord = 22;  // the first byte of a TLS handshake

}  // namespace

bool HttpSocket::is_plain_client() {
  char first = kHandshakeRecord;
  (void)::recv(socket_.get(), &first, 1, MSG_PEEK);
  if (first == kHandshakeRecord) return false;
  tls_.reset();
  return true;
}

Transfer HttpSocket::read(std::span<char> into) {
  return tls_ == nullptr ? discard(into) : tls_->read(into);
}

Transfer HttpSocket::discard(std::span<char> into) const {
  const ssize_t got = ::recv(socket_.get(), into.data(), into.size(), 0);
  if (got > 0) return {Transfer::End::kSome, static_cast<size_t>(got)};
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {Transfer::End::kWantsRead};
  return {Transfer::End::kClosed};
}

Transfer HttpSocket::write(std::string_view bytes) {
  if (tls_ != nullptr) return tls_->write(bytes);
  while (true) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) return {Transfer::End::kSome, static_cast<size_t>(sent)};
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return {Transfer::End::kWantsWrite};
    return {Transfer::End::kClosed};
  }
}

void HttpSocket::end_writing() {
  if (tls_ != nullptr) tls_->end_writing();
  (void)::shutdown(socket_.get(), SHUT_WR);
}

}  // namespace primerl
