// Blobs that are sent through shared memory: when they are, when not, and when they are freed.
#include "runtime/transport/connection_memory.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "runtime/transport/zmq_transport.h"
#include "tests/conformance/transport_stage.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kLarge = 64 << 10;  // ConnectionLimits::bulk_bytes_min

/// Number of pools that this process has open, its own and others'.
size_t num_pools() {
  size_t count = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(each, gone).string().starts_with("/memfd:primerl-blobs"))
      ++count;
  }
  return count;
}

/// Two processes over ipc inside this one; both ends know that the other is on this machine.
class ConnectionMemoryTest : public ::testing::Test {
 protected:
  static ConnectionLimits patient(uint64_t pool_bytes_max) {
    ConnectionLimits limits;
    limits.silent_after = limits.greet_timeout = kPatience;
    limits.probe_after = Duration::milliseconds(20);  // after a break
    limits.pool_bytes_max = pool_bytes_max;
    return limits;
  }
  PeerSpec peer_of(size_t side) const {
    PeerSpec peer;
    peer.process = ProcessId(static_cast<uint32_t>(1 - side));
    peer.name = fmt::format("side{}", 1 - side);
    peer.incarnation = incarnations_[1 - side];
    peer.shares_memory = shares_[side];
    if (side == 1) peer.address = transports_[0]->address();
    return peer;
  }
  void open_one(size_t side, uint64_t pool_bytes_max) {
    ZmqOptions options;
    if (side == 0) options.listen = {"ipc://" + folder_.path().string() + "/sockets"};
    auto made = make_zmq_transport(identity_of(side, incarnations_[side]), patient(pool_bytes_max),
                                   options, got_[side]);
    ASSERT_TRUE(made.ok()) << made.error().text();
    transports_[side] = std::move(made).value();
  }
  void open(uint64_t pool_bytes_max = uint64_t{64} << 20) {
    for (size_t side = 0; side < 2; ++side) open_one(side, pool_bytes_max);
    for (size_t side = 0; side < 2; ++side)
      ASSERT_TRUE(transports_[side]->add_peer(peer_of(side)).ok());
    // One batch in each direction: afterwards every greeting and the frames after it have been
    // read.
    for (size_t side = 0; side < 2; ++side) send(side, 0);
    for (size_t side = 0; side < 2; ++side) {
      wait([&] { return got_[side].num_messages() == 1; });
      got_[side].clear();
    }
    next_ = {1, 1};
  }
  void send(size_t side, size_t blob_bytes) {
    const auto taken = transports_[side]->send(ProcessId(static_cast<uint32_t>(1 - side)),
                                               note_batch(0, 1, next_[side]++, blob_bytes));
    ASSERT_TRUE(taken.ok()) << taken.error().text();
  }
  void wait(const std::function<bool()>& done) {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience.to_nanoseconds());
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      got_[0].wait_for_change();
    }
  }
  ConnectionStatus status(size_t side) const { return transports_[side]->status().at(0); }
  /// Waits until `side` may send through shared memory; the notification arrives without further
  /// messages.
  void wait_until_shared(size_t side) {
    wait([&] {
      send(side, kLarge);
      return status(side).num_blobs_shared > 0;
    });
    wait([&] { return status(side).unacknowledged.num_batches == 0; });
  }

  const ScratchFolder folder_;
  bool shares_[2] = {true, true};
  uint32_t incarnations_[2] = {1, 1};
  std::array<uint64_t, 2> next_ = {1, 1};
  CollectingReceiver got_[2];
  std::unique_ptr<Transport> transports_[2];
};

TEST_F(ConnectionMemoryTest, TakesLargeBlobsBothWaysAndNothingSmaller) {
  open();
  for (size_t side = 0; side < 2; ++side) {
    wait_until_shared(side);
    const uint64_t before = status(side).num_blobs_shared;
    const uint64_t sent = next_[side];
    for (const size_t size : {kLarge - 1, kLarge, size_t{3'000'001}, size_t{0}}) send(side, size);
    wait([&] { return status(side).unacknowledged.num_batches == 0; });
    EXPECT_EQ(status(side).num_blobs_shared, before + 2);
    const auto numbers = got_[1 - side].numbers_from(GroupId(0));
    EXPECT_EQ(numbers.size(), sent + 3);
    EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
    EXPECT_TRUE(got_[1 - side].is_whole());
  }
}

TEST_F(ConnectionMemoryTest, GoesByTheLinkWhenThePoolIsFullAndByThePoolAgainWhenItIsNot) {
  open(4 * kLarge);
  wait_until_shared(0);
  got_[1].clear();  // releases them
  const uint64_t before = status(0).num_blobs_shared;
  for (int i = 0; i < 8; ++i) send(0, kLarge);  // the receiver holds all of them
  wait([&] { return got_[1].num_messages() == 8; });
  EXPECT_EQ(status(0).num_blobs_shared, before + 4);
  EXPECT_TRUE(got_[1].is_whole());
  got_[1].clear();
  send(0, kLarge);
  wait([&] { return got_[1].num_messages() == 1; });
  EXPECT_EQ(status(0).num_blobs_shared, before + 5);
  EXPECT_TRUE(got_[1].is_whole());
}

TEST_F(ConnectionMemoryTest, SharesNothingUnlessBothEndsAgree) {
  shares_[1] = false;
  open();
  for (size_t side = 0; side < 2; ++side)
    for (int i = 0; i < 3; ++i) send(side, kLarge);
  for (size_t side = 0; side < 2; ++side) {
    wait([&] { return got_[side].num_messages() == 3; });
    EXPECT_EQ(status(side).num_blobs_shared, 0u);
    EXPECT_TRUE(got_[side].is_whole());
  }
}

TEST_F(ConnectionMemoryTest, IsFreeWhenThePeerHasDiedAndBeginsAnewWithTheNext) {
  const size_t before = num_pools();
  open();
  wait_until_shared(0);
  EXPECT_EQ(num_pools(), before + 2);
  transports_[1].reset();
  transports_[0]->end_peer(ProcessId(1), 1);
  EXPECT_EQ(num_pools(), before);
  EXPECT_TRUE(got_[1].is_whole()) << "what was taken lives on";
  incarnations_[1] = 2;
  got_[1].clear();
  open_one(1, uint64_t{64} << 20);
  ASSERT_TRUE(transports_[0]->add_peer(peer_of(0)).ok());
  ASSERT_TRUE(transports_[1]->add_peer(peer_of(1)).ok());
  wait_until_shared(0);
  EXPECT_TRUE(got_[1].is_whole());
  transports_[0].reset();
  transports_[1].reset();
  EXPECT_EQ(num_pools(), before);
}

TEST_F(ConnectionMemoryTest, OutlivesABreakOfTheConnection) {
  open();
  wait_until_shared(1);
  const uint64_t before = status(1).num_blobs_shared;
  for (int i = 0; i < 40; ++i) {
    send(1, kLarge);
    if (i % 10 == 5) break_connections(*transports_[1]);
  }
  wait([&] { return status(1).unacknowledged.num_batches == 0; });
  EXPECT_EQ(status(1).num_blobs_shared, before + 40);
  EXPECT_EQ(got_[0].num_messages(), next_[1] - 1);
  EXPECT_TRUE(got_[0].is_whole());
}

}  // namespace
}  // namespace primerl
