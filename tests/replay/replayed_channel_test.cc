// Steps of a replay that must wait for weights which are computed again.
#include "runtime/replay/replayed_channel.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/replay/replay_run.h"

namespace primerl::sim {
namespace {

std::vector<std::byte> answer(int64_t version, uint64_t tenant = 0, size_t num_bytes = 16) {
  std::vector<std::byte> bytes(num_bytes);
  const uint64_t key = tenant << 32;
  std::memcpy(bytes.data(), &key, sizeof key);
  std::memcpy(bytes.data() + sizeof key, &version, sizeof version);
  return bytes;
}

class WeightsOfAReplay : public ::testing::Test {
 protected:
  bool has(std::vector<std::vector<std::byte>> answers, std::string_view node = "decode") const {
    return versions_.has(host_of(*plan_, node), answers);
  }
  int32_t channel() const {
    for (size_t i = 0; i < plan_->resources.size(); ++i)
      if (plan_->resources[i].kind == "weight_channel") return static_cast<int32_t>(i);
    return -1;
  }
  const std::shared_ptr<const Plan> plan_ = demo_plan({});
  PublishedVersions versions_{*plan_};
};

// In the recorded run an engine fetched version 3 in a step that had begun before the version was
// published.
TEST_F(WeightsOfAReplay, AreWaitedForByTheStepThatTookThem) {
  EXPECT_FALSE(has({answer(0)}));
  versions_.add(channel(), {{}, PolicyVersion(2)});
  EXPECT_TRUE(has({answer(2)}));
  EXPECT_FALSE(has({answer(2), answer(3)}));
  versions_.add(channel(), {{}, PolicyVersion(3)});
  EXPECT_TRUE(has({answer(2), answer(3)}));
  versions_.add(channel(), {{}, PolicyVersion(1)});  // the newest counts
  EXPECT_TRUE(has({answer(3)}));
}

TEST_F(WeightsOfAReplay, OfOneTenantAreNotThoseOfAnother) {
  versions_.add(channel(), {{TenantSlot(0)}, PolicyVersion(3)});
  EXPECT_FALSE(has({answer(3, 1)}));
  versions_.add(channel(), {{TenantSlot(1)}, PolicyVersion(3)});
  EXPECT_TRUE(has({answer(3, 1), answer(3, 0)}));
}

TEST_F(WeightsOfAReplay, AreNotWaitedForByOtherSteps) {
  EXPECT_TRUE(has({}));
  EXPECT_TRUE(has({answer(-1)})) << "the channel was empty";
  EXPECT_TRUE(has({answer(7, 0, 17)})) << "it was refused, or it is an answer of the engine";
}

}  // namespace
}  // namespace primerl::sim
