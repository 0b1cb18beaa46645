// on_lost is called for a lost device, and for no other error.
#include "runtime/worker/lost_device.h"

#include <gtest/gtest.h>

#include "kernels/scripted/scripted_engine.h"
#include "kernels/scripted/scripted_learner.h"
#include "runtime/backends/backends.h"
#include "runtime/program/exit_code.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

bool never() { return false; }

/// Group 0 owns an engine (resource 0), group 1 a learner (resource 1).
Plan small_plan() {
  Plan plan;
  for (uint32_t i = 0; i < 2; ++i) {
    PlanGroup group;
    group.resources = {static_cast<int32_t>(i)};
    plan.groups.push_back(std::move(group));
    plan.resources.emplace_back();
  }
  return plan;
}

SequenceRequest a_request() {
  SequenceRequest request;
  request.id = SequenceId(1);
  request.prompt_tokens = {5, 6, 7};
  request.sampling.max_tokens = 4;
  return request;
}

TrainBatch a_batch() {
  TrainBatch batch;
  batch.tenant = TenantSlot(0);
  batch.loss = LossKind::kCrossEntropy;
  TrainSample& sample = batch.samples.emplace_back();
  sample.tokens = {5, 6, 7};
  sample.loss_mask = {0, 1, 1};
  return batch;
}

class LostDevice : public ::testing::Test {
 protected:
  LostDevice() : file_((scratch_.path() / "lost").string()) {}

  ResourceFactory factory() {
    const ResourceFactory make = [this](const Plan&,
                                        int32_t index) -> Result<std::shared_ptr<Resource>> {
      if (index == 0) {
        ScriptedEngineOptions options;
        options.device_fault_file = file_;
        return std::shared_ptr<Resource>(make_scripted_engine(options).value());
      }
      ScriptedLearnerOptions options;
      options.device_fault_file = file_;
      return std::shared_ptr<Resource>(make_scripted_learner(options).value());
    };
    return device_watching_factory(make, [this](GroupId owner, const Error& why) {
      heard_.push_back(fmt::format("{}: {}", owner.value, why.message()));
    });
  }
  void lose() { write_text(file_, "lost"); }

  const ScratchFolder scratch_;
  const std::string file_;
  const Plan plan_ = small_plan();
  std::vector<std::string> heard_;
};

TEST_F(LostDevice, OfAnEngineIsReportedWithItsOwner) {
  auto made = factory()(plan_, 0).value();
  const auto engine = std::dynamic_pointer_cast<Engine>(made);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->submit(a_request()).ok());
  ASSERT_TRUE(engine->step().ok());
  EXPECT_TRUE(heard_.empty());
  ASSERT_TRUE(engine->take_over(SequenceId(1)).ok());
  lose();
  const Status stepped = engine->step();
  ASSERT_FALSE(stepped.ok());
  EXPECT_EQ(stepped.error().code(), Code::kDeviceLost);
  ASSERT_EQ(heard_.size(), 1U);
  EXPECT_EQ(heard_[0], "0: " + stepped.error().message());
  EXPECT_NE(heard_[0].find("scriptedDeviceLost"), std::string::npos);
}

TEST_F(LostDevice, OfALearnerIsReportedByEveryCall) {
  auto made = factory()(plan_, 1).value();
  const auto learner = std::dynamic_pointer_cast<Learner>(made);
  ASSERT_NE(learner, nullptr);
  lose();
  EXPECT_FALSE(learner->step(a_batch(), never).ok());
  EXPECT_EQ(heard_.size(), 1U);
  lose();
  // A queued step is asked for again in the next turn.
  const auto batch = std::make_shared<const TrainBatch>(a_batch());
  auto report = learner->step_queued(batch, 1, never);
  if (!report.has_value()) report = learner->step_queued(batch, 2, never);
  ASSERT_TRUE(report.has_value());
  EXPECT_FALSE(report->ok());
  EXPECT_EQ(heard_.size(), 2U);
  EXPECT_EQ(heard_[1].substr(0, 3), "1: ");
  lose();
  LossBatch calls;
  calls.tenant = TenantSlot(0);
  calls.loss = tinker_loss("cross_entropy", {}).value();
  calls.data = {{.tokens = {5, 6}, .targets = {6, 7}}};
  EXPECT_FALSE(learner->accumulate(calls, never).ok());
  EXPECT_EQ(heard_.size(), 3U);
  ASSERT_TRUE(learner->accumulate(calls, never).ok());
  EXPECT_TRUE(learner->apply(TenantSlot(0), {}).ok());
  EXPECT_EQ(heard_.size(), 3U);
}

TEST_F(LostDevice, EndsTheProcessWithItsLastWords) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Plan plan;
  plan.groups.emplace_back().name = "prefill+decode";
  const auto leave = [&] {
    auto log = Log::open(scratch_.path() / "main.jsonl").value();
    end_of_process(plan, *log)(GroupId(0), error(Code::kDeviceLost, "engine step 7: it is lost"));
  };
  EXPECT_EXIT(leave(), ::testing::ExitedWithCode(kExitDeviceLost),
              "error: prefill\\+decode: engine step 7: it is lost\n   this process ends");
}

TEST_F(LostDevice, IsNoOtherFault) {
  auto made = factory()(plan_, 1).value();
  const auto learner = std::dynamic_pointer_cast<Learner>(made);
  ASSERT_NE(learner, nullptr);
  TrainBatch broken = a_batch();
  broken.samples[0].tokens[0] = -1;
  EXPECT_FALSE(learner->step(broken, never).ok());
  EXPECT_FALSE(learner->load(TenantSlot(0), scratch_.path() / "nothing").ok());
  EXPECT_TRUE(learner->step(a_batch(), never).ok());
  EXPECT_TRUE(heard_.empty());
}

}  // namespace
}  // namespace primerl
