// Buffers on a device that are opened before they contain versions: all with the first version,
// except those freed since.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/weights/shm_directory.h"
#include "tests/weights/device_fixture.h"

namespace primerl {
namespace {

using testing::HasSubstr;

class DevicePlaces : public DeviceWeightsTest {
 protected:
  void make_all() {
    while (pool_.make()) {
    }
  }
  const FakeDeviceFacts& facts() const { return device_->facts(); }
};

TEST_F(DevicePlaces, AreAllOpenBeforeTheFirstVersionComes) {
  const auto publisher = open(), receiver = open();
  make_all();
  std::unique_lock opening(device_->facts().opening);
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  const auto early = receiver->fetch({}, PolicyVersion(0));
  ASSERT_FALSE(early.ok());
  EXPECT_THAT(early.error().text(), HasSubstr("is being opened"));
  opening.unlock();
  ASSERT_TRUE(fetch_opened(*receiver, {}, 0).ok());
  EXPECT_EQ(facts().num_opened, 3);
  opening.lock();  // no further buffer is opened
  for (int64_t version = 1; version < 9; ++version) {
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
    const auto fetched = receiver->fetch({}, PolicyVersion(version));
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
    EXPECT_TRUE(is_whole_on_host(*fetched, version));
  }
  EXPECT_EQ(facts().num_opens, 3);
  EXPECT_TRUE(said().empty());
}

TEST_F(DevicePlaces, ABufferMadeLaterIsOpenedLater) {
  const auto publisher = open(), receiver = open();
  for (int64_t version = 0; version < 4; ++version) {
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
    EXPECT_TRUE(is_whole_on_host(fetch_opened(*receiver, {}, version).value(), version));
    EXPECT_EQ(facts().num_opens, std::min(version + 1, int64_t{3}));
  }
}

/// A receiver starts when the version still names a freed buffer. It opens neither that one, nor a
/// new buffer in the same memory.
TEST_F(DevicePlaces, AFreedBufferIsNotMistakenForAnother) {
  const auto publisher = open(), receiver = open();
  make_all();
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  pool_.release_free();
  while (facts().num_buffers > 1) std::this_thread::yield();
  make_all();
  ASSERT_TRUE(publisher->publish(on_cuda(1)).ok());
  const auto first = fetch_opened(*receiver, {}, 0);
  ASSERT_TRUE(first.ok()) << first.error().text();
  EXPECT_TRUE(is_whole_on_host(*first, 0));
  EXPECT_EQ(facts().num_opens, 1);
  const auto second = fetch_opened(*receiver, {}, 1);
  ASSERT_TRUE(second.ok()) << second.error().text();
  EXPECT_TRUE(is_whole_on_host(*second, 1));
  EXPECT_EQ(facts().num_opens, 3);
  EXPECT_TRUE(said().empty());
}

/// The numbers of freed buffers are reused when no version names them any more.
TEST_F(DevicePlaces, AreNamedAgainWhenNoVersionNamesThem) {
  const auto publisher = open(), receiver = open();
  for (int64_t version = 0; version < kShmPlacesMax; ++version) {
    make_all();
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
    const auto fetched = fetch_opened(*receiver, {}, version);
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
    ASSERT_NE((*fetched)->device, nullptr) << version;
    EXPECT_TRUE(is_whole_on_host(*fetched, version));
    pool_.release_free();
    while (facts().num_buffers > 2) std::this_thread::yield();  // the channel's
  }
  EXPECT_GE(facts().num_opens, kShmPlacesMax);
  EXPECT_EQ(facts().num_torn, 0);
  EXPECT_TRUE(said().empty());
}

/// The device may be full by then.
TEST_F(DevicePlaces, AreOpenedAsFarAsTheyWereMade) {
  const auto publisher = open(), receiver = open();
  EXPECT_TRUE(pool_.make());
  EXPECT_TRUE(pool_.make());
  device_->facts().bytes_free = 0;
  make_all();
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  EXPECT_TRUE(is_whole_on_host(fetch_opened(*receiver, {}, 0).value(), 0));
  EXPECT_EQ(facts().num_opened, 2);
}

TEST_F(DevicePlaces, AnEngineThatCannotOpenOneOfThemGetsBytes) {
  const auto publisher = open();
  ChannelSetup forbidden = setup();
  const auto other = std::make_shared<FakeDevice>(device_name() + "2");
  forbidden.devices = other;
  const auto receiver = make_shm_channel(forbidden).value();
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  ASSERT_NE(fetch_opened(*receiver, {}, 0).value()->device, nullptr);
  other->facts().cannot_open = true;
  EXPECT_TRUE(pool_.make());
  ASSERT_TRUE(publisher->publish(on_cuda(1)).ok());
  const Snapshot fetched = fetch_at_last(*receiver, 1);
  ASSERT_NE(fetched, nullptr);
  EXPECT_EQ(fetched->device, nullptr);
  EXPECT_TRUE(is_whole(*fetched, 1));
  ASSERT_EQ(said().size(), 1U);
}

}  // namespace
}  // namespace primerl
