/// The fixture for tests of Trainer: one tenant, a learner that accepts every valid batch, groups
/// given by hand.
#pragma once

#include <gtest/gtest.h>

#include "actors/trainer/trainer.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {

struct TrainerStory : ::testing::Test {
  explicit TrainerStory(TrainerOptions options = {}, Tenant tenant = testing::a_tenant())
      : weights(make_memory_channel()), trainer(std::move(options)) {
    trainer.set_tenants({std::move(tenant)});
    trainer.use("learner", learner);
    trainer.use("weights", *weights);
    trainer.set_checkpoint_folder(new_scratch_folder());
  }
  void start() { ASSERT_TRUE(*trainer.run_work()); }
  void give(TrajectoryGroup group) {
    ASSERT_TRUE(trainer.give("group", std::move(group), from).ok());
  }
  void work() {
    const auto turns = trainer.run_work_until_done(50);
    ASSERT_TRUE(turns.ok()) << turns.error().text();
  }
  /// Gives a whole batch of version `version`, with ordinals from `first`.
  void batch(uint64_t first, int64_t version) {
    give(a_group(first, version, {0, 1}));
    give(a_group(first + 1, version, {0, 1}));
    work();
  }
  std::vector<GroupEnded> ended() { return trainer.take<GroupEnded>("ended"); }

  Given from{.tenant = TenantSlot(0), .sender = InstanceId(3), .origin = InstanceId(3)};
  testing::FakeLearner learner;
  std::shared_ptr<WeightChannel> weights;
  NodeRunner<Trainer> trainer;
};

}  // namespace primerl::testing
