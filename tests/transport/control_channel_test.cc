#include "runtime/transport/control_channel.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/base/patience.h"

namespace primerl {
namespace {

using testing::HasSubstr;

class ControlChannelTest : public testing::Test {
 protected:
  void connect(ControlOptions options = {}, size_t events_max = 4096) {
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets_), 0);
    inbox_ = std::make_shared<ControlInbox>(events_max);
    left_ = ControlChannel::open(sockets_[0], ProcessId(7), inbox_, options).value();
  }
  void open_right() {
    right_inbox_ = std::make_shared<ControlInbox>();
    right_ = ControlChannel::open(sockets_[1], ProcessId(8), right_inbox_).value();
  }
  ControlEvent next(ControlInbox& inbox) {
    auto event = inbox.take(kPatience);
    EXPECT_TRUE(event.has_value());
    return event.value_or(ControlEvent{});
  }
  void write_raw(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(sockets_[1], bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  std::vector<std::byte> bytes_of(const Payload& payload, FrameHeader header = {}) {
    header.sequence = 1;
    const auto wire = encode_wire(payload, header, WireTypes(control_message_catalog())).value();
    std::vector<std::byte> bytes(kFrameHeaderBytes);
    encode_frame_header(wire.header, std::span(bytes).first<kFrameHeaderBytes>());
    bytes.insert(bytes.end(), wire.body.begin(), wire.body.end());
    return bytes;
  }

  int sockets_[2] = {-1, -1};
  std::shared_ptr<ControlInbox> inbox_, right_inbox_;
  std::unique_ptr<ControlChannel> left_, right_;
};

TEST(ControlInbox, IsWokenWithoutAnEvent) {
  ControlInbox inbox;
  inbox.wake();
  inbox.wake();
  EXPECT_FALSE(inbox.take(Duration::seconds(86400)));
  EXPECT_FALSE(inbox.take(Duration())) << "two calls before a wait end one wait";
}

TEST(ControlInbox, AnotherDescriptorEndsTheWait) {
  ControlInbox inbox;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Descriptor reads(ends[0]), writes(ends[1]);
  ASSERT_EQ(::write(writes.get(), "x", 1), 1);
  EXPECT_FALSE(inbox.take(Duration::seconds(86400), reads.get()));
  inbox.wake();
  EXPECT_FALSE(inbox.take(Duration::seconds(86400))) << "without it, wake() does";
}

TEST_F(ControlChannelTest, AMessageComesBeforeAWake) {
  connect();
  open_right();
  ASSERT_TRUE(right_->send(Heartbeat()).ok());
  ASSERT_FALSE(next(*inbox_).is_closed());
  ASSERT_TRUE(right_->send(Heartbeat()).ok());
  inbox_->wake();
  std::optional<ControlEvent> event;
  for (int i = 0; i < 2 && !event; ++i) event = inbox_->take(kPatience);
  EXPECT_TRUE(event);
}

TEST_F(ControlChannelTest, CarriesMessagesBothWaysInOrder) {
  connect();
  open_right();
  for (uint64_t i = 0; i < 500; ++i) {
    Heartbeat heartbeat;
    heartbeat.num_steps = i;
    ASSERT_TRUE(right_->send(heartbeat).ok());
    ASSERT_TRUE(left_->send(StartRun{static_cast<uint32_t>(i)}).ok());
  }
  for (uint64_t i = 0; i < 500; ++i) {
    const auto up = next(*inbox_);
    EXPECT_EQ(up.peer, ProcessId(7));
    ASSERT_NE(as_if<Heartbeat>(up.message), nullptr);
    EXPECT_EQ(as_if<Heartbeat>(up.message)->num_steps, i);
    EXPECT_EQ(as_if<LogLine>(up.message), nullptr);
    const auto down = next(*right_inbox_);
    ASSERT_NE(as_if<StartRun>(down.message), nullptr);
    EXPECT_EQ(as_if<StartRun>(down.message)->incarnation, i);
  }
}

TEST_F(ControlChannelTest, WritesWhatIsWaitingBeforeItCloses) {
  connect();
  open_right();
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(right_->send(DrainRun{std::string(1000, 'x')}).ok());
  right_->close();
  for (int i = 0; i < 300; ++i) ASSERT_FALSE(next(*inbox_).is_closed());
  const auto end = next(*inbox_);
  EXPECT_TRUE(end.is_closed());
  EXPECT_TRUE(end.closed.ok());
  EXPECT_EQ(right_->send(StartRun{}).error().code(), Code::kUnavailable);
}

TEST_F(ControlChannelTest, FillsItsOutboxToTheBoundAndNoFurther) {
  ControlOptions options;
  options.close_timeout = Duration();
  const auto size = bytes_of(Payload::of(LogLine{0, "", std::string(1000, 'x')})).size();
  options.outbox_bytes_max = 10 * size;
  connect(options);
  // The other end is not read, so socket and outbox fill up. Then reports are dropped and commands
  // refused.
  while (left_->num_dropped_reports() == 0) left_->report(LogLine{0, "", std::string(1000, 'x')});
  const auto dropped = left_->num_dropped_reports();
  EXPECT_EQ(dropped, 1u);
  Status status;
  // The channel may still have moved some into the socket meanwhile.
  while (status.ok()) status = left_->send(DrainRun{std::string(1000, 'x')});
  EXPECT_EQ(status.error().code(), Code::kExhausted);
  EXPECT_EQ(left_->num_dropped_reports(), dropped);
}

TEST_F(ControlChannelTest, StopsReadingWhileTheInboxIsFull) {
  connect({}, 4);
  open_right();
  for (uint32_t i = 0; i < 2000; ++i) ASSERT_TRUE(right_->send(StartRun{i}).ok());
  for (uint32_t i = 0; i < 2000; ++i) {
    const auto event = next(*inbox_);
    ASSERT_NE(as_if<StartRun>(event.message), nullptr);
    ASSERT_EQ(as_if<StartRun>(event.message)->incarnation, i);
  }
}

TEST_F(ControlChannelTest, RefusesAMessageThatIsTooLarge) {
  connect();
  const auto status = left_->send(DrainRun{std::string(kMessageBytesMax, 'x')});
  EXPECT_EQ(status.error().code(), Code::kExhausted);
  left_->report(LogLine{0, "", std::string(kMessageBytesMax, 'x')});
  EXPECT_EQ(left_->num_dropped_reports(), 1u);
}

TEST_F(ControlChannelTest, ReadsAMessageThatArrivesByteByByte) {
  connect();
  for (const std::byte byte : bytes_of(Payload::of(StartRun{5}))) write_raw({&byte, 1});
  EXPECT_EQ(as_if<StartRun>(next(*inbox_).message)->incarnation, 5u);
}

TEST_F(ControlChannelTest, EndsOnNoise) {
  connect();
  write_raw(std::vector<std::byte>(200, std::byte{'x'}));
  const auto end = next(*inbox_);
  ASSERT_TRUE(end.is_closed());
  EXPECT_THAT(end.closed.error().message(), HasSubstr("refused (magic)"));
  EXPECT_EQ(left_->num_refused(FrameRefusal::kMagic), 1u);
  EXPECT_FALSE(left_->send(StartRun{}).ok());
  ::close(sockets_[1]);
}

TEST_F(ControlChannelTest, EndsOnAChangedMessage) {
  connect();
  auto bytes = bytes_of(Payload::of(DrainRun{"please"}));
  bytes.back() ^= std::byte{1};
  write_raw(bytes);
  EXPECT_THAT(next(*inbox_).closed.error().message(), HasSubstr("refused (check)"));
  ::close(sockets_[1]);
}

TEST_F(ControlChannelTest, EndsOnARepeatedMessage) {
  connect();
  write_raw(bytes_of(Payload::of(StartRun{1})));
  write_raw(bytes_of(Payload::of(StartRun{1})));
  EXPECT_FALSE(next(*inbox_).is_closed());
  EXPECT_THAT(next(*inbox_).closed.error().message(), HasSubstr("control message 1 follows 1"));
  ::close(sockets_[1]);
}

TEST_F(ControlChannelTest, SaysWhenThePeerDiedInTheMiddleOfAMessage) {
  connect();
  const auto bytes = bytes_of(Payload::of(StartRun{1}));
  write_raw(std::span(bytes).first(kFrameHeaderBytes + 1));
  ::close(sockets_[1]);
  EXPECT_THAT(next(*inbox_).closed.error().message(), HasSubstr("middle of a message"));
}

TEST_F(ControlChannelTest, SharesAnInboxWithOthers) {
  connect();
  open_right();
  int more[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, more), 0);
  auto second = ControlChannel::open(more[0], ProcessId(9), inbox_).value();
  auto far_inbox = std::make_shared<ControlInbox>();
  auto far = ControlChannel::open(more[1], ProcessId(0), far_inbox).value();
  ASSERT_TRUE(far->send(StartRun{1}).ok());
  EXPECT_EQ(next(*inbox_).peer, ProcessId(9));
  ASSERT_TRUE(right_->send(StartRun{1}).ok());
  EXPECT_EQ(next(*inbox_).peer, ProcessId(7));
}

TEST(ControlInbox, GivesNothingWhenNothingCame) {
  ControlInbox inbox;
  EXPECT_FALSE(inbox.take(Duration()).has_value());
}

}  // namespace
}  // namespace primerl
