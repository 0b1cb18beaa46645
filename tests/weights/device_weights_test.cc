// Weights on a device, with a fake one: buffers and their bound, bytes on demand, and how shared
// memory uses their places.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/weights/memory_channel.h"
#include "kernels/weights/shm_directory.h"
#include "tests/weights/device_fixture.h"

namespace primerl {
namespace {

using testing::HasSubstr;

TEST(DeviceBuffers, AreLentUpToTheirBoundAndUsedAgain) {
  const auto device = std::make_shared<FakeDevice>("pool");
  DeviceBufferPool pool(device, kBytes, 2);
  EXPECT_EQ(device->facts().num_buffers, 0);  // none before it is needed
  auto one = pool.take(), two = pool.take();
  ASSERT_TRUE(one != nullptr && two != nullptr);
  EXPECT_NE(one->data(), two->data());
  EXPECT_EQ(pool.take(), nullptr);
  const void* const first = one->data();
  one.reset();
  EXPECT_EQ(pool.num_held(), 1U);
  const auto again = pool.take();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->data(), first);
  EXPECT_EQ(device->facts().num_buffers, 2);
}

TEST(DeviceBuffers, CanBeMadeBeforeTheyAreNeeded) {
  const auto device = std::make_shared<FakeDevice>("early");
  DeviceBufferPool pool(device, kBytes, 3);
  auto held = pool.take();
  EXPECT_TRUE(pool.free().empty());
  EXPECT_TRUE(pool.make());
  device->facts().bytes_free = kBytes - 1;
  EXPECT_FALSE(pool.make());
  device->facts().bytes_free = kBytes;
  EXPECT_TRUE(pool.make());
  EXPECT_FALSE(pool.make());
  EXPECT_EQ(device->facts().num_buffers, 3);
  const auto free = pool.free();
  ASSERT_EQ(free.size(), 2U);
  const auto next = pool.take();
  EXPECT_EQ(free.back().lock(), next->memory());
  pool.release_free();
  EXPECT_TRUE(free.front().expired());
  EXPECT_EQ(device->facts().num_buffers, 2);
}

TEST(DeviceBuffers, AreNotLentIfTheDeviceIsFull) {
  const auto device = std::make_shared<FakeDevice>("full");
  device->facts().bytes_free = kBytes - 1;
  DeviceBufferPool pool(device, kBytes, 2);
  EXPECT_EQ(pool.take(), nullptr);
  device->facts().bytes_free = kBytes;
  EXPECT_NE(pool.take(), nullptr);
}

TEST(DeviceBuffers, StayWithTheirOwnersWhenThePoolIsGone) {
  const auto device = std::make_shared<FakeDevice>("gone");
  auto pool = std::make_unique<DeviceBufferPool>(device, kBytes, 2);
  auto held = pool->take();
  pool->take();  // and returned
  EXPECT_EQ(device->facts().num_buffers, 2);
  pool->release_free();
  EXPECT_EQ(pool->num_made(), 1U);
  pool.reset();
  EXPECT_EQ(device->facts().num_buffers, 1);
  held.reset();
  EXPECT_EQ(device->facts().num_buffers, 0);
}

TEST_F(DeviceWeightsTest, AreCopiedToTheHostOnDemandAndOnceForAllOwners) {
  const Snapshot there = on_cuda(3);
  EXPECT_EQ(device_->facts().num_reads, 0);
  auto one = on_host(there).value();
  const auto two = on_host(with_key(*there, {TenantSlot(5)})).value();
  EXPECT_EQ(device_->facts().num_reads, 1);
  EXPECT_TRUE(is_whole(*one, 3));
  EXPECT_EQ(two->key, (WeightsKey{TenantSlot(5)}));
  EXPECT_EQ(on_host(one).value(), one);  // it has the bytes
  EXPECT_EQ(one->device, nullptr);
  one.reset();
  const auto three = on_host(there).value();  // `two` keeps them
  EXPECT_EQ(device_->facts().num_reads, 1);
  EXPECT_EQ(on_host(nullptr).value(), nullptr);
}

TEST_F(DeviceWeightsTest, BytesOnTheHostDoNotHoldTheDevice) {
  Snapshot there = on_cuda(3);
  const auto bytes = on_host(there).value();
  there.reset();
  EXPECT_EQ(pool_.num_held(), 0U);
  EXPECT_TRUE(is_whole(*bytes, 3));
}

TEST_F(DeviceWeightsTest, ADeviceThatDoesNotAnswerIsNamed) {
  const Snapshot there = on_cuda(3);
  device_->facts().cannot_read = true;
  const auto bytes = on_host(there);
  ASSERT_FALSE(bytes.ok());
  EXPECT_THAT(bytes.error().text(), HasSubstr("the device does not answer"));
  EXPECT_THAT(bytes.error().text(), HasSubstr("version 3"));
  device_->facts().cannot_read = false;
  EXPECT_TRUE(is_whole_on_host(there, 3));
}

TEST_F(DeviceWeightsTest, PlacesBeyondTheirBufferAreRefused) {
  const auto placed = [&](uint64_t first) {
    auto made = std::make_shared<WeightSnapshot>();
    made->version = PolicyVersion(0);
    made->tensors = {{"a", DataType::kF32, {10}, {}}};
    made->device = std::make_shared<const DeviceWeights>(pool_.take(), std::vector{first});
    return made;
  };
  EXPECT_TRUE(manifest_of(*placed(kBytes - 40)).ok());
  const auto beyond = manifest_of(*placed(kBytes - 39));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code(), Code::kInvalid);
  EXPECT_THAT(beyond.error().text(), HasSubstr("buffer of 100000 bytes from byte 99961 on"));
  auto unplaced = placed(0);
  unplaced->tensors.push_back({"b", DataType::kF32, {1}, {}});
  EXPECT_THAT(manifest_of(*unplaced).error().text(), HasSubstr("2 tensors and 1 offsets"));
}

TEST_F(DeviceWeightsTest, StayOnTheDeviceInSharedMemoryAndGiveBuffersBack) {
  const auto publisher = open(), receiver = open();
  for (int64_t version = 0; version < 20; ++version) {
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
    const auto fetched = fetch_opened(*receiver, {}, version);
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
    ASSERT_NE((*fetched)->device, nullptr);
    EXPECT_EQ(device_->facts().num_reads, version);
    EXPECT_TRUE(is_whole_on_host(*fetched, version));
    EXPECT_EQ(pool_.num_held(), version == 0 ? 1U : 2U);  // the channel's
  }
  // Each buffer is opened once, and stays open while it is unused.
  EXPECT_EQ(device_->facts().num_opens, device_->facts().num_buffers);
  EXPECT_EQ(device_->facts().num_opened, device_->facts().num_buffers);
  EXPECT_TRUE(said().empty());
}

TEST_F(DeviceWeightsTest, AFetchDoesNotWaitForMemoryToBeOpened) {
  const auto publisher = open(), receiver = open();
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  std::unique_lock opening(device_->facts().opening);  // blocks opening
  for (int i = 0; i < 2; ++i) {
    const auto early = receiver->fetch({}, PolicyVersion(0));
    ASSERT_FALSE(early.ok());
    EXPECT_EQ(early.error().code(), Code::kUnavailable);
    EXPECT_THAT(early.error().text(), HasSubstr("is in device memory that is being opened"));
  }
  // Its buffer is retained although the version is retired, and is used for the next version.
  for (int64_t version = 1; version <= 2; ++version)
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
  EXPECT_EQ(pool_.num_held(), 3U);
  opening.unlock();
  while (pool_.num_held() > 2) std::this_thread::yield();
  ASSERT_TRUE(publisher->publish(on_cuda(3)).ok());
  const auto fetched = receiver->fetch({}, PolicyVersion(3));
  ASSERT_TRUE(fetched.ok()) << fetched.error().text();
  EXPECT_TRUE(is_whole_on_host(*fetched, 3));
  EXPECT_EQ(device_->facts().num_opens, 1);
  EXPECT_TRUE(said().empty());
}

TEST_F(DeviceWeightsTest, AreClosedBeforeTheirMemoryIsFreed) {
  const auto publisher = open(), receiver = open();
  for (int64_t version = 0; version < 6; ++version) {
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
    ASSERT_TRUE(fetch_opened(*receiver, {}, version).ok());
  }
  const FakeDeviceFacts& facts = device_->facts();
  ASSERT_EQ(facts.num_opened, 3);
  pool_.release_free();
  EXPECT_EQ(pool_.num_made(), 2U);  // the channel's
  while (facts.num_buffers > 2) std::this_thread::yield();
  EXPECT_EQ(facts.num_opened, 2);
  for (int64_t version = 6; version < 12; ++version) {  // another buffer gets the number
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
    EXPECT_TRUE(is_whole_on_host(fetch_opened(*receiver, {}, version).value(), version));
  }
  EXPECT_EQ(facts.num_opens, 4);
  EXPECT_EQ(facts.num_torn, 0);
}

TEST_F(DeviceWeightsTest, ARetainedBufferIsClosedOnceItIsReleased) {
  const auto publisher = open(), receiver = open();
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  Snapshot held = fetch_opened(*receiver, {}, 0).value();
  for (int64_t version = 1; version <= 2; ++version)
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
  ASSERT_EQ(pool_.num_held(), 3U);
  ASSERT_TRUE(fetch_opened(*receiver, {}, 2).ok());
  for (int64_t version = 3; version <= 4; ++version)
    ASSERT_TRUE(publisher->publish(channel_weights(version)).ok());
  while (pool_.num_held() > 1) std::this_thread::yield();
  pool_.release_free();
  while (device_->facts().num_buffers > 1) std::this_thread::yield();
  EXPECT_EQ(device_->facts().num_opened, 1);
  EXPECT_TRUE(is_whole_on_host(held, 0));
  held.reset();
  while (pool_.num_held() > 0) std::this_thread::yield();
  pool_.release_free();
  while (device_->facts().num_buffers > 0) std::this_thread::yield();
  EXPECT_EQ(device_->facts().num_opened, 0);
  EXPECT_EQ(device_->facts().num_torn, 0);
}

TEST_F(DeviceWeightsTest, NoneIsOpenAnyMoreWhenItsPublisherHasDied) {
  Child first = child("publish", 0, "1");
  ASSERT_EQ(first.line(), "published 0");
  const auto receiver = open();
  ASSERT_NE(fetch_opened(*receiver, {}, 0).value()->device, nullptr);
  EXPECT_EQ(device_->facts().num_opened, 1);
  first.kill();
  first.wait();
  while (device_->facts().num_opened > 0) std::this_thread::yield();
}

TEST_F(DeviceWeightsTest, OneThatADeadReceiverHadOpenIsFreed) {
  const auto publisher = open();
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  Child holder = child("hold", 0);
  ASSERT_EQ(holder.line(), "holding 0");
  for (int64_t version = 1; version <= 2; ++version)
    ASSERT_TRUE(publisher->publish(channel_weights(version)).ok());
  EXPECT_EQ(pool_.num_held(), 1U);
  holder.kill();
  holder.wait();
  while (pool_.num_held() > 0) std::this_thread::yield();
  pool_.release_free();
  while (device_->facts().num_buffers > 0) std::this_thread::yield();
}

TEST_F(DeviceWeightsTest, BuffersWithoutAFreePlaceAreSentAsBytes) {
  const auto publisher = open(), receiver = open();
  DeviceBufferPool pool(device_, kBytes, kShmPlacesMax + 1);
  const auto made = [&](int64_t version) { return on_device(*channel_weights(version), pool); };
  std::vector<Snapshot> kept;
  for (int64_t version = 0; version <= kShmPlacesMax; ++version) {
    kept.push_back(made(version));
    ASSERT_TRUE(publisher->publish(kept.back()).ok());
    const Snapshot fetched = fetch_opened(*receiver, {}, version).value();
    EXPECT_EQ(fetched->device != nullptr, version < kShmPlacesMax) << version;
    EXPECT_TRUE(is_whole_on_host(fetched, version));
  }
  EXPECT_TRUE(said().empty());
  kept.clear();
  pool.release_free();
  while (device_->facts().num_buffers > 1) std::this_thread::yield();  // the channel's
  ASSERT_TRUE(publisher->publish(made(100)).ok());
  EXPECT_NE(fetch_opened(*receiver, {}, 100).value()->device, nullptr);
  EXPECT_EQ(device_->facts().num_torn, 0);
}

/// A receiver that has read the directory reaches the slot after the version was retired.
TEST_F(DeviceWeightsTest, ALateReceiverDoesNotGetABufferThatMayBeWrittenAgain) {
  const auto publisher = open();
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  ChannelSetup late = setup();
  int64_t version = 0;
  late.probe = [&](std::string_view step) {
    while (step == "hold a slot" && version < 2)
      ASSERT_TRUE(publisher->publish(on_cuda(++version)).ok());
  };
  const auto receiver = make_shm_channel(late).value();
  const auto retired = fetch_opened(*receiver, {}, 0);
  EXPECT_EQ(version, 2);
  EXPECT_EQ(pool_.num_held(), 2U);  // its buffer was returned
  ASSERT_FALSE(retired.ok());
  EXPECT_EQ(retired.error().code(), Code::kNotFound);
  EXPECT_TRUE(is_whole_on_host(fetch_opened(*receiver, {}, 2).value(), 2));
}

TEST_F(DeviceWeightsTest, ARetainedBufferIsNotOverwritten) {
  const auto publisher = open(), receiver = open();
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  Snapshot held = fetch_opened(*receiver, {}, 0).value();
  for (int64_t version = 1; version <= 2; ++version)
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
  EXPECT_EQ(pool_.num_held(), 3U);
  int num_by_bytes = 0;
  for (int64_t version = 3; version <= 9; ++version) {
    auto made = on_device(*channel_weights(version), pool_);
    num_by_bytes += made == nullptr ? 1 : 0;
    ASSERT_TRUE(publisher->publish(made == nullptr ? channel_weights(version) : made).ok());
    made.reset();
    EXPECT_TRUE(is_whole_on_host(fetch_opened(*receiver, {}, version).value(), version));
    EXPECT_TRUE(is_whole_on_host(held, 0)) << version;
  }
  EXPECT_EQ(num_by_bytes, 3);  // 3, 6 and 9: the previous two versions used the other two buffers
  held.reset();
  while (pool_.num_held() > 1) std::this_thread::yield();  // without another publish
  for (int64_t version = 10; version <= 13; ++version)
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
  EXPECT_EQ(pool_.num_held(), 2U);
}

TEST_F(DeviceWeightsTest, ADeadReceiverRetainsNothing) {
  const auto publisher = open_channel("device", channel_setup(folder_.path().string()));
  const WeightsShape large = {4000, "b.buffer"};  // the child's shape
  const auto publish = [&](int64_t version) {
    ASSERT_TRUE(publisher->publish(channel_weights(version, large)).ok());
  };
  publish(0);
  Child holder = child("hold", 0);
  ASSERT_EQ(holder.line(), "holding 0");
  const auto& fake = dynamic_cast<ChannelOfDevice&>(*publisher);
  publish(1);
  publish(2);
  EXPECT_EQ(fake.num_held(), 3U);
  holder.kill();
  holder.wait();
  while (fake.num_held() > 2) std::this_thread::yield();
  publish(3);
  EXPECT_EQ(fake.num_held(), 2U);
}

TEST_F(DeviceWeightsTest, AReceiverThatCannotOpenThemGetsTheirBytes) {
  const auto publisher = open();
  ChannelSetup forbidden = setup();
  const auto other = std::make_shared<FakeDevice>(device_name() + "2");
  other->facts().cannot_open = true;
  forbidden.devices = other;
  const auto receiver = make_shm_channel(forbidden).value();
  for (int64_t version = 0; version <= 1; ++version)
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
  const auto refused = receiver->fetch({}, PolicyVersion(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  for (int64_t version = 1; version >= 0; --version) {
    const Snapshot fetched = fetch_at_last(*receiver, version);
    ASSERT_NE(fetched, nullptr);
    EXPECT_EQ(fetched->device, nullptr);
    EXPECT_TRUE(is_whole(*fetched, version));
  }
  ASSERT_TRUE(publisher->publish(on_cuda(2)).ok());  // from now on on the device
  EXPECT_EQ(fetch_opened(*receiver, {}, 2).value()->device, nullptr);
  while (pool_.num_held() > 0)
    std::this_thread::yield();  // a slot with a buffer to open is
                                // released
  ASSERT_EQ(said().size(), 1U);
  EXPECT_THAT(said().at(0), HasSubstr("weights of channel 'weights' go through the host's shared "
                                      "memory, not from device to device: "));
  EXPECT_THAT(said().at(0), HasSubstr("the system forbids it"));
}

TEST_F(DeviceWeightsTest, SoDoesOneWithoutADevice) {
  const auto publisher = open();
  ChannelSetup plain = setup();
  plain.devices = nullptr;
  const auto receiver = make_shm_channel(plain).value();
  ASSERT_TRUE(publisher->publish(on_cuda(0)).ok());
  const Snapshot fetched = fetch_at_last(*receiver, 0);
  ASSERT_NE(fetched, nullptr);
  EXPECT_TRUE(is_whole(*fetched, 0));
  EXPECT_THAT(said().at(0), HasSubstr("a receiver has no device"));
}

TEST_F(DeviceWeightsTest, MemoryThatCannotBeNamedIsSentAsBytesAtOnce) {
  const auto publisher = open(), receiver = open();
  device_->facts().cannot_name = true;
  for (int64_t version = 0; version <= 2; ++version) {
    ASSERT_TRUE(publisher->publish(on_cuda(version)).ok());
    EXPECT_TRUE(is_whole(*fetch_opened(*receiver, {}, version).value(), version));
    EXPECT_EQ(pool_.num_held(), 0U);
  }
  ASSERT_EQ(said().size(), 1U);
  EXPECT_THAT(said().at(0), HasSubstr("its memory has no name"));
}

TEST_F(DeviceWeightsTest, TheNextPublisherSendsWhatWasOnADeadPublishersDevice) {
  const WeightsShape large = {4000, "b.buffer"};  // the child's shape
  Child first = child("publish", 0, "2");
  for (int64_t version = 0; version <= 1; ++version)
    ASSERT_EQ(first.line(), fmt::format("published {}", version));
  const auto receiver = open();
  const Snapshot held = fetch_opened(*receiver, {}, 1).value();
  ASSERT_NE(held->device, nullptr);
  first.kill();
  first.wait();
  EXPECT_TRUE(is_whole(*on_host(held).value(), 1, large));  // it has the memory
  const auto lost = fetch_opened(*receiver, {}, 0);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().code(), Code::kUnavailable);
  EXPECT_THAT(lost.error().text(), HasSubstr("of a process that has ended"));
  Child second = child("publish", 1, "1");
  ASSERT_EQ(second.line(), "published 1");
  const auto again = fetch_opened(*receiver, {}, 1);
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_NE((*again)->device, nullptr);
  EXPECT_TRUE(is_whole(*on_host(*again).value(), 1, large));
  EXPECT_EQ(second.finish(), 0);
}

TEST_F(DeviceWeightsTest, ANewPublisherDoesNotMistakeLostWeightsForRefusedOnes) {
  {
    Child first = child("publish", 0, "1");
    ASSERT_EQ(first.line(), "published 0");
    first.kill();
    first.wait();
  }
  const auto publisher = open(), receiver = open();
  const WeightsKey other{TenantSlot(3)};
  ASSERT_TRUE(publisher->publish(with_key(*on_cuda(0), other)).ok());
  const auto lost = fetch_opened(*receiver, {}, 0);  // of a key that it has not published
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().code(), Code::kUnavailable);
  EXPECT_NE(fetch_opened(*receiver, other, 0).value()->device, nullptr);
  ASSERT_TRUE(publisher->publish(on_cuda(1)).ok());
  EXPECT_NE(fetch_opened(*receiver, {}, 1).value()->device, nullptr);
}

TEST_F(DeviceWeightsTest, Bf16IsAcceptedForF32) {
  const auto channel = make_memory_channel();
  WeightManifest wanted{{{"a", DataType::kF32, {4}}}};
  ASSERT_TRUE(channel->expect(wanted).ok());
  auto narrow = std::make_shared<WeightSnapshot>();
  narrow->version = PolicyVersion(0);
  narrow->tensors = {{"a", DataType::kBF16, {4}, Blob(std::vector<std::byte>(8))}};
  ASSERT_TRUE(channel->publish(narrow).ok());
  EXPECT_TRUE(channel->fetch({}, PolicyVersion(0)).ok());
  const auto wide = WeightManifest{{{"a", DataType::kBF16, {4}}}};
  EXPECT_FALSE(check_taken(wide, wanted).ok());
  EXPECT_FALSE(check_taken(wanted, {{{"a", DataType::kBF16, {5}}}}).ok());
  EXPECT_FALSE(check_taken(wanted, {{{"a", DataType::kI32, {4}}}}).ok());
}

}  // namespace
}  // namespace primerl
