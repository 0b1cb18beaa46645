/// Fixture for tests of weights on a fake device: the device, a pool of three buffers on it, and a
/// shared-memory channel with a publisher and receivers.
#pragma once

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/channel_weights.h"
#include "tests/store/scratch_folder.h"
#include "tests/weights/channels.h"
#include "tests/weights/child.h"
#include "tests/weights/fake_device.h"

namespace primerl {

using Snapshot = std::shared_ptr<const WeightSnapshot>;

inline constexpr uint64_t kBytes = 100'000;  // more than a version of channel_weights()

class DeviceWeightsTest : public testing::Test {
 protected:
  ~DeviceWeightsTest() override {
    // Left by children that were killed.
    for (const auto& name : shm_names("primerl-fake-" + device_name())) shm_remove(name);
  }
  std::string device_name() const { return channel_setup(folder_.path().string()).shm_owner; }
  ChannelSetup setup() {
    ChannelSetup made = channel_setup(folder_.path().string());
    made.devices = device_;
    made.log = [this](std::string_view line) {
      const std::lock_guard lock(said_mutex_);
      said_.emplace_back(line);
    };
    return made;
  }
  std::vector<std::string> said() {
    const std::lock_guard lock(said_mutex_);
    return said_;
  }
  std::shared_ptr<WeightChannel> open() { return make_shm_channel(setup()).value(); }
  Snapshot on_cuda(int64_t version) {
    auto made = on_device(*channel_weights(version), pool_);
    EXPECT_NE(made, nullptr) << "no buffer is free for version " << version;
    return made;
  }
  static bool is_whole_on_host(const Snapshot& snapshot, int64_t version) {
    const auto bytes = on_host(snapshot);
    return bytes.ok() && is_whole(**bytes, version);
  }
  /// Fetches until the answer is no longer "not arrived yet"; its bytes do arrive.
  static Snapshot fetch_at_last(WeightChannel& channel, int64_t version) {
    for (;;) {
      auto fetched = channel.fetch({}, PolicyVersion(version));
      if (fetched.ok()) return *fetched;
      EXPECT_EQ(fetched.error().code(), Code::kUnavailable) << fetched.error().text();
      if (fetched.error().code() != Code::kUnavailable) return nullptr;
      std::this_thread::yield();
    }
  }
  Child child(const std::string& what, int64_t number, const std::string& more = "") const {
    return Child({what, "device", folder_.path().string(), std::to_string(number), more});
  }

  const ScratchFolder folder_;
  std::mutex said_mutex_;
  std::vector<std::string> said_;
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(device_name());
  DeviceBufferPool pool_{device_, kBytes, 3};
};

}  // namespace primerl
