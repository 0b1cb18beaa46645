#include "runtime/transport/tunnel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace primerl {

Tunnel::Tunnel(int fd, uint64_t window_bytes)
    : fd_(fd), window_bytes_(window_bytes), granted_(window_bytes), given_(window_bytes) {
  const int flags = ::fcntl(fd_, F_GETFL);
  CHECK(flags >= 0 && ::fcntl(fd_, F_SETFL, flags | O_NONBLOCK) == 0, "no descriptor");
}

Tunnel::~Tunnel() { ::close(fd_); }

std::vector<uint8_t> Tunnel::take_bytes() {
  if (!wants_read()) return {};
  std::vector<uint8_t> bytes(std::min<uint64_t>(kTunnelPieceBytes, granted_ - sent_));
  ssize_t num_read = 0;
  do num_read = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  while (num_read < 0 && errno == EINTR);
  if (num_read <= 0) {
    has_ended_ = num_read == 0 || errno != EAGAIN;
    return {};
  }
  bytes.resize(static_cast<size_t>(num_read));
  sent_ += bytes.size();
  return bytes;
}

Status Tunnel::arrived(std::span<const uint8_t> bytes) {
  if (peer_has_ended_) return error(Code::kCorrupt, "bytes of a channel after its end");
  if (bytes.empty()) return error(Code::kCorrupt, "no bytes of a channel");
  if (bytes.size() > given_ - received_)
    return error(Code::kCorrupt, "{} bytes of a channel where {} were granted", bytes.size(),
                 given_ - received_);
  received_ += bytes.size();
  if (num_written_ >= kTunnelPieceBytes) {
    arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<ptrdiff_t>(num_written_));
    num_written_ = 0;
  }
  arrived_.insert(arrived_.end(), bytes.begin(), bytes.end());
  write_some();
  return ok();
}

Status Tunnel::granted(uint64_t total) {
  if (total < granted_ || total > sent_ + window_bytes_)
    return error(Code::kCorrupt, "{} bytes granted, after {} and with {} sent", total, granted_,
                 sent_);
  granted_ = total;
  return ok();
}

Status Tunnel::peer_ended() {
  if (peer_has_ended_) return error(Code::kCorrupt, "a channel ended twice");
  peer_has_ended_ = true;
  if (!wants_write()) tell_end();
  return ok();
}

void Tunnel::write_some() {
  while (wants_write() && !discards_arrivals_) {
    const auto sent = ::send(fd_, arrived_.data() + num_written_, arrived_.size() - num_written_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) {
      discards_arrivals_ = true;
      break;
    }
    num_written_ += static_cast<size_t>(sent);
    settled_ += static_cast<uint64_t>(sent);
  }
  if (discards_arrivals_) settled_ = received_;
  arrived_.clear();
  num_written_ = 0;
  if (peer_has_ended_) tell_end();
}

short Tunnel::poll_events(bool has_room) const {
  return static_cast<short>((has_room && wants_read() ? POLLIN : 0) |
                            (wants_write() ? POLLOUT : 0));
}

void Tunnel::carry(uint32_t channel, int pieces_max, const std::function<bool()>& has_room,
                   const std::function<void(Payload)>& send) {
  if (wants_write()) write_some();
  if (const auto total = take_grant()) send(Payload::of(TunnelCredit{channel, *total}));
  for (int i = 0; i < pieces_max && wants_read() && has_room(); ++i) {
    auto bytes = take_bytes();
    if (has_ended_) return send(Payload::of(TunnelEnded{channel}));
    if (bytes.empty()) return;
    send(Payload::of(TunnelBytes{channel, std::move(bytes)}));
  }
}

void Tunnel::tell_end() { ::shutdown(fd_, SHUT_WR); }

std::optional<uint64_t> Tunnel::take_grant() {
  if (peer_has_ended_ || settled_ + window_bytes_ - given_ < (window_bytes_ + 1) / 2)
    return std::nullopt;
  given_ = settled_ + window_bytes_;
  return given_;
}

}  // namespace primerl
