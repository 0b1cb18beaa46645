#include "runtime/transport/control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "graph/base/real_clock.h"

namespace primerl {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;

void write_event(int wake_fd) {
  const uint64_t one = 1;
  // A full counter means that the thread is already being woken.
  [[maybe_unused]] const auto written = ::write(wake_fd, &one, sizeof one);
}

}  // namespace

ControlInbox::ControlInbox(size_t events_max)
    : events_max_(events_max), arrived_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  CHECK(arrived_.get() >= 0, "no eventfd");
}

std::optional<ControlEvent> ControlInbox::take(Duration timeout, int also) {
  // Longer waits would overflow the clock's arithmetic; a day is long enough for any caller.
  const Time until = steady_now() + std::min(timeout, Duration::seconds(86400));
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (!events_.empty()) {
        const bool was_full = events_.size() >= events_max_;
        ControlEvent event = std::move(events_.front());
        events_.pop_front();
        if (was_full)
          for (const int wake_fd : wake_fds_) write_event(wake_fd);
        return event;
      }
      if (std::exchange(is_woken_, false)) return std::nullopt;
      // put() and wake() make it readable again.
      uint64_t count = 0;
      [[maybe_unused]] const auto num_read = ::read(arrived_.get(), &count, sizeof count);
    }
    const int64_t left_ns = (until - steady_now()).to_nanoseconds();
    if (left_ns <= 0) return std::nullopt;
    // Rounded up, so that a wait of less than 1 ms does not spin.
    const auto left_ms = static_cast<int>((left_ns + 999'999) / 1'000'000);
    pollfd polled[2] = {{arrived_.get(), POLLIN, 0}, {also, POLLIN, 0}};
    if (::poll(polled, 2, left_ms) < 0 && errno != EINTR) return std::nullopt;
    if (polled[1].revents != 0 && polled[0].revents == 0) return std::nullopt;
  }
}

void ControlInbox::wake() {
  {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  write_event(arrived_.get());
}

bool ControlInbox::has_room() const {
  const std::lock_guard lock(mutex_);
  return events_.size() < events_max_;
}

void ControlInbox::put(ControlEvent event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  write_event(arrived_.get());
}

void ControlInbox::watch(int wake_fd) {
  const std::lock_guard lock(mutex_);
  wake_fds_.push_back(wake_fd);
}

void ControlInbox::unwatch(int wake_fd) {
  const std::lock_guard lock(mutex_);
  std::erase(wake_fds_, wake_fd);
}

Result<std::unique_ptr<ControlChannel>> ControlChannel::open(int fd, ProcessId peer,
                                                             std::shared_ptr<ControlInbox> inbox,
                                                             ControlOptions options) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
    return error(Code::kIo, "the control channel on descriptor {} cannot be used: {}", fd,
                 std::strerror(errno));
  const int wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd < 0)
    return error(Code::kIo, "no event descriptor for a control channel: {}", std::strerror(errno));
  return std::unique_ptr<ControlChannel>(
      new ControlChannel(fd, wake_fd, peer, std::move(inbox), options));
}

ControlChannel::ControlChannel(int fd, int wake_fd, ProcessId peer,
                               std::shared_ptr<ControlInbox> inbox, ControlOptions options)
    : fd_(fd),
      wake_fd_(wake_fd),
      peer_(peer),
      inbox_(std::move(inbox)),
      options_(options),
      types_(control_message_catalog()) {
  inbox_->watch(wake_fd_);
  thread_ = std::thread([this] { run(); });
}

ControlChannel::~ControlChannel() {
  close();
  inbox_->unwatch(wake_fd_);
  ::close(wake_fd_);
  ::close(fd_);
}

Status ControlChannel::queue(Payload message, bool is_report) {
  FrameHeader header;
  header.flags = is_report ? kFrameControl | kFrameDroppable : kFrameControl;
  auto wire = encode_wire(message, header, types_);
  if (!wire.ok()) {
    if (is_report) ++num_dropped_reports_;
    return wire.error();
  }
  {
    const std::lock_guard lock(mutex_);
    const size_t num_bytes = kFrameHeaderBytes + wire->body.size();
    if (is_closing_ || has_ended_ || outbox_.size() + num_bytes > options_.outbox_bytes_max) {
      if (is_report) ++num_dropped_reports_;
      if (is_closing_ || has_ended_)
        return error(Code::kUnavailable, "the control channel has closed");
      return error(Code::kExhausted, "the control channel's outbox of {} bytes is full",
                   options_.outbox_bytes_max);
    }
    wire->header.sequence = ++sequence_sent_;
    const size_t start = outbox_.size();
    outbox_.resize(start + num_bytes);
    encode_frame_header(wire->header, std::span(outbox_).subspan(start).first<kFrameHeaderBytes>());
    std::copy(wire->body.begin(), wire->body.end(),
              outbox_.begin() + static_cast<ptrdiff_t>(start + kFrameHeaderBytes));
  }
  write_event(wake_fd_);
  return ok();
}

void ControlChannel::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  write_event(wake_fd_);
  if (thread_.joinable()) thread_.join();
}

void ControlChannel::run() {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> close_by;
  Status status;
  while (status.ok() && !peer_has_ended_) {
    bool is_closing = false;
    bool is_empty = false;
    {
      const std::lock_guard lock(mutex_);
      is_closing = is_closing_;
      is_empty = outbox_.empty() && num_written_ == writing_.size();
    }
    if (is_closing) {
      if (!close_by) {
        close_by = Clock::now() + std::chrono::nanoseconds(options_.close_timeout.to_nanoseconds());
      }
      if (is_empty || Clock::now() >= *close_by) break;
    }
    status = turn(is_closing);
  }
  end(std::move(status));
}

Status ControlChannel::turn(bool is_closing) {
  if (num_written_ == writing_.size()) {
    writing_.clear();
    num_written_ = 0;
    const std::lock_guard lock(mutex_);
    std::swap(writing_, outbox_);
  }
  const bool reads = inbox_->has_room();
  const bool writes = num_written_ < writing_.size();
  pollfd polled[2] = {{fd_, static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0},
                      {wake_fd_, POLLIN, 0}};
  // A closing channel must check its deadline regularly; everything else wakes the poll.
  if (::poll(polled, 2, is_closing ? 50 : -1) < 0 && errno != EINTR)
    return error(Code::kIo, "polling the control channel failed: {}", std::strerror(errno));
  if (polled[1].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const auto num_read = ::read(wake_fd_, &count, sizeof count);
  }
  if (writes && (polled[0].revents & POLLOUT) != 0) RETURN_IF_ERROR(write_some());
  if (reads && (polled[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) return read_some();
  // The peer closed while this end's inbox is full. Its messages are still in the socket: wait for
  // free space.
  if (!reads && (polled[0].revents & (POLLHUP | POLLERR)) != 0) {
    pollfd room{wake_fd_, POLLIN, 0};
    ::poll(&room, 1, 50);
  }
  return ok();
}

Status ControlChannel::write_some() {
  const auto* first = writing_.data() + num_written_;
  const auto sent = ::send(fd_, first, writing_.size() - num_written_, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) {
    num_written_ += static_cast<size_t>(sent);
    return ok();
  }
  if (errno == EAGAIN || errno == EINTR) return ok();
  if (errno == EPIPE || errno == ECONNRESET) {
    // The peer will not read it. But messages that the peer sent before it closed must still be
    // read.
    writing_.clear();
    num_written_ = 0;
    return ok();
  }
  return error(Code::kIo, "writing the control channel failed: {}", std::strerror(errno));
}

Status ControlChannel::read_some() {
  const size_t start = arrived_.size();
  arrived_.resize(start + kReadBytes);
  const auto num_read = ::recv(fd_, arrived_.data() + start, kReadBytes, MSG_DONTWAIT);
  arrived_.resize(start + static_cast<size_t>(std::max<ssize_t>(num_read, 0)));
  if (num_read > 0) return parse();
  if (num_read < 0 && (errno == EAGAIN || errno == EINTR)) return ok();
  if (num_read < 0 && errno != ECONNRESET)
    return error(Code::kIo, "reading the control channel failed: {}", std::strerror(errno));
  peer_has_ended_ = true;
  if (!arrived_.empty())
    return error(Code::kCorrupt, "the control channel ended in the middle of a message");
  return ok();
}

Status ControlChannel::parse() {
  size_t at = 0;
  while (arrived_.size() - at >= kFrameHeaderBytes) {
    const auto bytes = std::span<const std::byte>(arrived_).subspan(at);
    FrameHeader header;
    const auto refusal =
        decode_frame_header(bytes.first(kFrameHeaderBytes), kMessageBytesMax, header);
    if (refusal != FrameRefusal::kNone) return refuse(refusal, to_string(refusal));
    if (header.num_frames != kFrameCountMin)
      return refuse(FrameRefusal::kFrameCount, "control messages carry no blobs");
    if (bytes.size() < kFrameHeaderBytes + header.payload_bytes) break;
    RETURN_IF_ERROR(accept(header, bytes.subspan(kFrameHeaderBytes, header.payload_bytes)));
    at += kFrameHeaderBytes + header.payload_bytes;
  }
  arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<ptrdiff_t>(at));
  return ok();
}

Status ControlChannel::accept(const FrameHeader& header, std::span<const std::byte> body) {
  auto decoded = decode_wire(header, body, {}, types_);
  if (decoded.refusal != FrameRefusal::kNone)
    return refuse(decoded.refusal,
                  decoded.error ? decoded.error->message() : to_string(decoded.refusal));
  // A dropped report has no number, so there are no gaps.
  if (header.sequence != sequence_received_ + 1)
    return error(Code::kCorrupt, "control message {} follows {}", header.sequence,
                 sequence_received_);
  sequence_received_ = header.sequence;
  inbox_->put({peer_, std::move(decoded.payload), {}});
  return ok();
}

Status ControlChannel::refuse(FrameRefusal refusal, std::string_view words) {
  ++num_refused_[static_cast<size_t>(refusal)];
  return error(Code::kCorrupt, "a control message was refused ({}): {}", to_string(refusal), words);
}

void ControlChannel::end(Status why) {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  ::shutdown(fd_, SHUT_RDWR);
  inbox_->put({peer_, {}, std::move(why)});
}

Result<std::unique_ptr<ControlChannel>> open_inherited_control(int fd,
                                                               std::shared_ptr<ControlInbox> inbox,
                                                               ControlOptions options) {
  int kind = 0;
  socklen_t size = sizeof kind;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size) < 0 || kind != SOCK_STREAM)
    return error(Code::kInvalid, "'--control {}' is no control channel", fd)
        .note("primerl-worker is started by primerl-graph");
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return ControlChannel::open(fd, ProcessId(0), std::move(inbox), options);
}

}  // namespace primerl
