#include "kernels/scripted/scripted_learner.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

TrainBatch batch(int32_t first_token = 3) {
  TrainBatch made;
  made.tenant = TenantSlot(0);
  TrainSample sample;
  sample.tokens = {first_token, 4, 5, 6};
  sample.loss_mask = {0, 0, 1, 1};
  sample.logprobs = {0, 0, -1, -2};
  sample.advantages = {0, 0, 0.5F, 0.5F};
  made.samples = {sample, sample};
  return made;
}

Blob weights(Learner& learner) {
  return (*learner.snapshot(TenantSlot(0), PolicyVersion(1)))->tensors[0].bytes;
}

TEST(ScriptedLearner, RefusesOptionsThatMakeNoLearner) {
  ScriptedLearnerOptions options;
  options.micro_batch_tokens = 0;
  EXPECT_THAT(make_scripted_learner(options).error().text(),
              HasSubstr("'micro_batch_tokens' is 0"));
  options = {};
  options.schedule.kind = "step";
  EXPECT_THAT(make_scripted_learner(options).error().text(), HasSubstr("unknown schedule 'step'"));
  options = {};
  options.token_cost = Duration::nanoseconds(-1);
  EXPECT_FALSE(make_scripted_learner(options).ok());
}

TEST(ScriptedLearner, NamesTheSampleItRefuses) {
  auto learner = *make_scripted_learner({});
  auto data = batch();
  data.samples[1].tokens[0] = 97;
  EXPECT_EQ(learner->step(data, nullptr).error().message(),
            "sample 1: token 97 is outside the vocabulary of 97");
}

TEST(ScriptedLearner, WeightsFollowFromSeedAndData) {
  ScriptedLearnerOptions other_seed;
  other_seed.seed = 1;
  auto learner = *make_scripted_learner({}), same = *make_scripted_learner({});
  auto seeded = *make_scripted_learner(other_seed);
  EXPECT_EQ(weights(*learner), weights(*same));
  EXPECT_FALSE(weights(*learner) == weights(*seeded));
  ASSERT_TRUE(learner->step(batch(), nullptr).ok());
  ASSERT_TRUE(same->step(batch(9), nullptr).ok());
  EXPECT_FALSE(weights(*learner) == weights(*same)) << "other data, other weights";
}

TEST(ScriptedLearner, SaysWhatAStepWouldHaveCost) {
  ScriptedLearnerOptions options;
  options.step_cost = Duration::milliseconds(100);
  options.token_cost = Duration::milliseconds(1);
  options.snapshot_cost = Duration::milliseconds(7);
  auto learner = *make_scripted_learner(options);
  ASSERT_TRUE(learner->step(batch(), nullptr).ok());
  EXPECT_EQ(learner->take_cost(), Duration::milliseconds(108));
  weights(*learner);
  EXPECT_EQ(learner->take_cost(), Duration::milliseconds(7));
  EXPECT_EQ(learner->take_cost(), Duration());
}

/// Divided like for a learner of adapters: each forward pass has one micro-batch, and its own cost.
TEST(ScriptedLearner, DividesAStepIntoPassesAndTakesTheSameOne) {
  ScriptedLearnerOptions options;
  options.micro_batch_tokens = 4;  // one sample
  options.step_cost = Duration::milliseconds(100);
  options.token_cost = Duration::milliseconds(1);
  auto divided = *make_scripted_learner(options), whole = *make_scripted_learner(options);
  auto other = batch();
  other.tenant = TenantSlot(1);
  other.samples.resize(1);
  const std::vector both = {std::make_shared<const TrainBatch>(batch()),
                            std::make_shared<const TrainBatch>(other)};
  EXPECT_EQ(divided->next_tokens(*both[0]), 4);
  const auto first = divided->pass_together(both, nullptr);
  EXPECT_FALSE(first[0].has_value());
  ASSERT_TRUE(first[1].has_value());
  EXPECT_EQ(divided->take_cost(), Duration::milliseconds(108)) << "one pass for both";
  const auto second = divided->pass_together({&both[0], 1}, nullptr);
  ASSERT_TRUE(second[0].has_value());
  EXPECT_EQ(divided->take_cost(), Duration::milliseconds(104));
  const auto report = *whole->step(*both[0], nullptr);
  EXPECT_EQ(report.num_micro_batches, 2);
  EXPECT_EQ((*second[0])->loss, report.loss);
  EXPECT_EQ((*second[0])->num_micro_batches, 2);
  EXPECT_EQ(weights(*divided), weights(*whole));
}

TEST(ScriptedLearner, ForgetsAStepThatItsTenantLeft) {
  ScriptedLearnerOptions options;
  options.micro_batch_tokens = 4;
  auto learner = *make_scripted_learner(options), whole = *make_scripted_learner(options);
  const auto data = std::make_shared<const TrainBatch>(batch());
  EXPECT_FALSE(learner->pass_together({&data, 1}, nullptr)[0].has_value());
  learner->discard(TenantSlot(0));
  EXPECT_FALSE(learner->pass_together({&data, 1}, nullptr)[0].has_value()) << "it begins anew";
  ASSERT_TRUE(learner->pass_together({&data, 1}, nullptr)[0].has_value());
  ASSERT_TRUE(whole->step(*data, nullptr).ok());
  EXPECT_EQ(weights(*learner), weights(*whole));
}

TEST(ScriptedLearner, CompletesASaveBeforeTheNextOneOfTheTenant) {
  const ScratchFolder scratch;
  ScriptedLearnerOptions options;
  options.save_time = Duration::seconds(10);
  const auto learner = make_scripted_learner(options).value();
  std::vector<std::string> commits;
  for (const std::string name : {"a", "b"})
    ASSERT_TRUE(learner
                    ->begin_save({TenantSlot(0), scratch.path() / name, Time(),
                                  [&commits, name] {
                                    commits.push_back(name);
                                    return ok();
                                  }})
                    .ok());
  EXPECT_EQ(commits, std::vector<std::string>{"a"});
  EXPECT_TRUE(std::filesystem::exists(scratch.path() / "a" / "learner" / "state.json"));
  EXPECT_TRUE(learner->end_of_save(TenantSlot(0), Time() + options.save_time)->ok());
  EXPECT_EQ(commits, (std::vector<std::string>{"a", "b"}));
}

TEST(ScriptedLearner, RefusesAStateThatIsNotOfItsWeights) {
  const auto folder = new_scratch_folder();
  auto learner = *make_scripted_learner({});
  ASSERT_TRUE(learner->save(TenantSlot(0), folder).ok());
  ASSERT_TRUE(learner->load(TenantSlot(0), folder).ok());
  const auto state = folder / "learner" / "state.json";
  for (const char* text :
       {"{", "{}", R"({"history": "xyz", "num_steps": 0})", R"({"history": "00", "num_steps": -1})",
        R"({"history": "00", "num_steps": 1})"}) {
    std::ofstream(state) << text;
    EXPECT_FALSE(learner->load(TenantSlot(0), folder).ok()) << text;
  }
}

}  // namespace
}  // namespace primerl
