#include "runtime/transport/tunnel.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "runtime/wire/control_messages.h"

namespace primerl {
namespace {

using Bytes = std::vector<uint8_t>;

/// A tunnel and the other end of its socket.
struct Stage {
  explicit Stage(uint64_t window = kTunnelWindowBytes) {
    int sockets[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    tunnel = std::make_unique<Tunnel>(sockets[0], window);
    other = sockets[1];
  }
  ~Stage() { hang_up(); }
  void hang_up() {
    if (other >= 0) ::close(std::exchange(other, -1));
  }
  void write(const Bytes& bytes) const {
    EXPECT_EQ(::write(other, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  Bytes read() const {
    Bytes bytes(size_t{4} << 10);
    const auto count = ::recv(other, bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return bytes;
  }

  std::unique_ptr<Tunnel> tunnel;
  int other = -1;
};

Bytes counted(size_t size) {
  Bytes bytes(size);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  return bytes;
}

TEST(Tunnel, ReadsNoMoreThanWasGranted) {
  const Stage stage(100);
  stage.write(counted(150));
  EXPECT_EQ(stage.tunnel->take_bytes(), counted(100));
  EXPECT_FALSE(stage.tunnel->wants_read());
  EXPECT_EQ(stage.tunnel->poll_events(true), 0);
  EXPECT_TRUE(stage.tunnel->take_bytes().empty());
  ASSERT_TRUE(stage.tunnel->granted(101).ok());
  EXPECT_EQ(stage.tunnel->take_bytes(), Bytes{100});
  ASSERT_TRUE(stage.tunnel->granted(201).ok());
  EXPECT_EQ(stage.tunnel->take_bytes().size(), 49u);
  EXPECT_TRUE(stage.tunnel->wants_read());
  EXPECT_TRUE(stage.tunnel->take_bytes().empty());
  EXPECT_FALSE(stage.tunnel->has_ended());
}

TEST(Tunnel, IsNotPolledForWhatCouldNotBeSentOn) {
  const Stage stage;
  EXPECT_EQ(stage.tunnel->poll_events(true), POLLIN);
  EXPECT_EQ(stage.tunnel->poll_events(false), 0);
}

TEST(Tunnel, CutsWhatItReadsIntoPieces) {
  const Stage stage;
  const Bytes sent = counted(kTunnelPieceBytes + 1);
  stage.write(sent);
  EXPECT_EQ(stage.tunnel->take_bytes().size(), kTunnelPieceBytes);
  EXPECT_EQ(stage.tunnel->take_bytes().size(), 1u);
}

TEST(Tunnel, TakesAWholeWindowAndNotAByteMore) {
  const Stage stage(100);
  ASSERT_TRUE(stage.tunnel->arrived(counted(99)).ok());
  ASSERT_TRUE(stage.tunnel->arrived(counted(1)).ok());
  EXPECT_EQ(stage.read().size(), 100u);
  const Status beyond = stage.tunnel->arrived(counted(1));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().message(), "1 bytes of a channel where 0 were granted");
}

TEST(Tunnel, GrantsAtHalfAWindow) {
  const Stage stage(100);
  ASSERT_TRUE(stage.tunnel->arrived(counted(49)).ok());
  EXPECT_EQ(stage.tunnel->take_grant(), std::nullopt);
  ASSERT_TRUE(stage.tunnel->arrived(counted(1)).ok());
  EXPECT_EQ(stage.tunnel->take_grant(), 150u);
  EXPECT_EQ(stage.tunnel->take_grant(), std::nullopt);
  ASSERT_TRUE(stage.tunnel->arrived(counted(100)).ok());
}

TEST(Tunnel, GrantsNothingForWhatTheSocketDoesNotTake) {
  const Stage stage(uint64_t{1} << 22);
  const Bytes piece = counted(kTunnelPieceBytes);
  uint64_t given = 0;
  while (given < (uint64_t{1} << 22)) {  // much more than a socket's buffer
    ASSERT_TRUE(stage.tunnel->arrived(piece).ok());
    given += piece.size();
  }
  EXPECT_TRUE(stage.tunnel->wants_write());
  EXPECT_EQ(stage.tunnel->take_grant(), std::nullopt);
  EXPECT_FALSE(stage.tunnel->arrived(counted(1)).ok());
  uint64_t received = 0;
  uint8_t next = 0;
  while (received < given) {
    for (const uint8_t each : stage.read()) {
      ASSERT_EQ(each, next) << "at " << received;
      ++received;
      next = received % piece.size() == 0 ? 0 : static_cast<uint8_t>(next + 1);
    }
    if (stage.tunnel->wants_write()) stage.tunnel->write_some();
  }
  EXPECT_FALSE(stage.tunnel->wants_write());
  EXPECT_EQ(stage.tunnel->take_grant(), given + (uint64_t{1} << 22));
}

TEST(Tunnel, RefusesGrantsThatSinkOrGoBeyondTheWindow) {
  const Stage stage(100);
  stage.write(counted(10));
  EXPECT_EQ(stage.tunnel->take_bytes().size(), 10u);
  EXPECT_FALSE(stage.tunnel->granted(99).ok());
  EXPECT_FALSE(stage.tunnel->granted(111).ok());
  EXPECT_TRUE(stage.tunnel->granted(110).ok());
}

TEST(Tunnel, PassesTheEndOnBehindTheLastByte) {
  const Stage stage;
  ASSERT_TRUE(stage.tunnel->arrived(counted(3)).ok());
  ASSERT_TRUE(stage.tunnel->peer_ended().ok());
  EXPECT_EQ(stage.read(), counted(3));
  uint8_t byte = 0;
  EXPECT_EQ(::read(stage.other, &byte, 1), 0);  // the end
  EXPECT_FALSE(stage.tunnel->is_over());        // this side has not ended
  EXPECT_FALSE(stage.tunnel->arrived(counted(1)).ok());
  EXPECT_FALSE(stage.tunnel->peer_ended().ok());
}

TEST(Tunnel, SaysThatTheSocketHasEnded) {
  Stage stage;
  stage.write(counted(2));
  stage.hang_up();
  EXPECT_EQ(stage.tunnel->take_bytes(), counted(2));
  EXPECT_FALSE(stage.tunnel->has_ended());
  EXPECT_TRUE(stage.tunnel->take_bytes().empty());
  EXPECT_TRUE(stage.tunnel->has_ended());
  // Bytes that still arrive are discarded, and the tunnel does not wait for them.
  ASSERT_TRUE(stage.tunnel->arrived(counted(5)).ok());
  EXPECT_FALSE(stage.tunnel->wants_write());
  ASSERT_TRUE(stage.tunnel->peer_ended().ok());
  EXPECT_TRUE(stage.tunnel->is_over());
}

TEST(Tunnel, RefusesAPieceOfNothing) {
  const Stage stage;
  EXPECT_FALSE(stage.tunnel->arrived({}).ok());
}

TEST(Tunnel, CarriesBetweenTwoSocketsWhateverTheWindow) {
  for (const uint64_t window : {uint64_t{1}, uint64_t{2}, uint64_t{777}, kTunnelWindowBytes}) {
    SCOPED_TRACE(fmt::format("window {}", window));
    Stage left(window), right(window);
    const Bytes sent = counted(5000);
    left.write(sent);
    left.hang_up();
    Bytes received;
    const auto pass = [](Tunnel& from, Tunnel& to) {
      from.carry(
          1, 8, [] { return true; },
          [&to](const Payload& message) {
            Status taken;
            if (const auto* bytes = as_if<TunnelBytes>(message)) taken = to.arrived(bytes->bytes);
            if (const auto* credit = as_if<TunnelCredit>(message))
              taken = to.granted(credit->granted);
            if (as_if<TunnelEnded>(message) != nullptr) taken = to.peer_ended();
            ASSERT_TRUE(taken.ok()) << taken.error().text();
          });
    };
    for (int turn = 0; turn < 100'000 && received.size() < sent.size(); ++turn) {
      pass(*left.tunnel, *right.tunnel);
      pass(*right.tunnel, *left.tunnel);
      const Bytes some = right.read();
      received.insert(received.end(), some.begin(), some.end());
    }
    EXPECT_EQ(received, sent);
    right.hang_up();
    for (int turn = 0; turn < 10; ++turn) {
      pass(*left.tunnel, *right.tunnel);
      pass(*right.tunnel, *left.tunnel);
    }
    EXPECT_TRUE(left.tunnel->is_over());
    EXPECT_TRUE(right.tunnel->is_over());
  }
}

}  // namespace
}  // namespace primerl
