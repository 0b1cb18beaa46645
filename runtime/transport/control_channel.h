/// ControlChannel: one end of the socketpair between primerl-graph and one primerl-worker.
///
/// Carries control messages (control_messages.h) as wire frames, both ways, once and in order. Each
/// channel has one thread, and only that thread uses the socket. send() never blocks, so a group
/// thread may call it. Beyond outbox_bytes_max a command is an error, and a report (log line) is
/// dropped and counted. Received messages go to a ControlInbox, which several channels may share.
/// While the inbox is full the channel stops reading, so the peer's outbox fills up. A malformed
/// message closes the channel with an error.
///
/// Order: open -> send / inbox->take -> close (or destroy). All methods may be called from any
/// thread; close() and the destructor from one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/descriptor.h"
#include "graph/base/ids.h"
#include "runtime/wire/control_messages.h"
#include "runtime/wire/wire_message.h"

namespace primerl {

/// A message and the channel on which it arrived. `message` is empty exactly once per channel, in
/// its last event. Then `closed` is ok when the peer closed in order, and an error otherwise.
struct ControlEvent {
  ProcessId peer;
  Payload message;
  Status closed;
  bool is_closed() const { return message.type == nullptr; }
};

/// A bounded queue of events. One consumer, any number of channels.
class ControlInbox {
 public:
  explicit ControlInbox(size_t events_max = 4096);
  /// The next event, or nothing after `timeout` (zero: do not wait). A wait also ends without an
  /// event by wake(), and when the descriptor `also` is readable, which the caller then reads.
  std::optional<ControlEvent> take(Duration timeout, int also = -1);
  /// Ends the wait of take(), or the next one. Any thread.
  void wake();

 private:
  friend class ControlChannel;
  bool has_room() const;
  void put(ControlEvent event);
  /// Registers an eventfd that is written when a full inbox gets free space.
  void watch(int wake_fd);
  void unwatch(int wake_fd);

  const size_t events_max_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  bool is_woken_ = false;
  std::deque<ControlEvent> events_;
  std::vector<int> wake_fds_;
  // Readable while there is an event or is_woken_; constant after construction.
  const Descriptor arrived_;
};

struct ControlOptions {
  size_t outbox_bytes_max = size_t{4} << 20;      // size of messages that wait to be written
  Duration close_timeout = Duration::seconds(2);  // for writing the waiting messages when closing
};

class ControlChannel {
 public:
  /// Takes ownership of `fd`, a connected stream socket; `peer` marks this channel's events.
  static Result<std::unique_ptr<ControlChannel>> open(int fd, ProcessId peer,
                                                      std::shared_ptr<ControlInbox> inbox,
                                                      ControlOptions options = {});
  ~ControlChannel();

  /// Queues a message that must not be lost (hello, start, drain, stop, heartbeat, end). kExhausted
  /// when the outbox is full, kUnavailable when the channel has closed.
  template <Message T>
  Status send(T message) {
    return queue(Payload::of(std::move(message)), false);
  }
  Status send(Payload message) { return queue(std::move(message), false); }
  /// Queues a log line. It is dropped and counted when the outbox is full.
  template <Message T>
  void report(T message) {
    (void)queue(Payload::of(std::move(message)), true);
  }
  uint64_t num_dropped_reports() const { return num_dropped_reports_; }
  /// Refused messages by reason. At most one counter is not zero, because the first refusal ends
  /// the channel.
  uint64_t num_refused(FrameRefusal refusal) const {
    return num_refused_[static_cast<size_t>(refusal)];
  }

  /// Writes the waiting messages (for at most close_timeout), then ends both directions and joins
  /// the thread. Idempotent.
  void close();

 private:
  ControlChannel(int fd, int wake_fd, ProcessId peer, std::shared_ptr<ControlInbox> inbox,
                 ControlOptions options);
  Status queue(Payload message, bool is_report);
  void run();                    // the channel's thread
  Status turn(bool is_closing);  // one poll and its events
  Status write_some();
  Status read_some();
  Status parse();
  Status accept(const FrameHeader& header, std::span<const std::byte> body);
  Status refuse(FrameRefusal refusal, std::string_view words);
  void end(Status why);

  // Constant after construction.
  const int fd_;
  const int wake_fd_;
  const ProcessId peer_;
  const std::shared_ptr<ControlInbox> inbox_;
  const ControlOptions options_;
  const WireTypes types_;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::vector<std::byte> outbox_;
  uint64_t sequence_sent_ = 0;
  bool is_closing_ = false;
  bool has_ended_ = false;

  // Used only by the channel's thread.
  std::vector<std::byte> writing_;
  size_t num_written_ = 0;
  std::vector<std::byte> arrived_;
  uint64_t sequence_received_ = 0;
  bool peer_has_ended_ = false;

  std::atomic<uint64_t> num_dropped_reports_{0};
  std::array<std::atomic<uint64_t>, kNumFrameRefusals> num_refused_{};
  std::thread thread_;
};

/// Worker side: opens the control channel on the descriptor given by `--control`. kInvalid when
/// `fd` is not a socket.
Result<std::unique_ptr<ControlChannel>> open_inherited_control(int fd,
                                                               std::shared_ptr<ControlInbox> inbox,
                                                               ControlOptions options = {});

}  // namespace primerl
