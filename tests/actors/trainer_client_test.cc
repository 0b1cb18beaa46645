// A trainer whose tenant is trained by a client, by halves of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/trainer_client_story.h"

namespace primerl {
namespace {

using testing::a_client;
using testing::a_client_batch;
using testing::ClientStory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kClient;
using testing::kSeqLen;
using ::testing::SizeIs;

TEST_F(ClientStory, PassesAndAnUpdateAreTheCallsOfTheLearner) {
  for (const int32_t num_data : {2, 3}) {
    const PassDone done = pass(a_client_batch(num_data));
    EXPECT_FALSE(done.fault.is_set()) << done.fault.message;
    EXPECT_EQ(done.result, alone->accumulate(a_client_batch(num_data), nullptr).value());
    EXPECT_EQ(done.version, PolicyVersion(0));
  }
  const UpdateDone done = update({.lr = 0.5});
  const TrainReport report = alone->apply(kClient, {.lr = 0.5}).value();
  EXPECT_FALSE(done.fault.is_set()) << done.fault.message;
  EXPECT_EQ(done.version, PolicyVersion(1));
  EXPECT_EQ(done.grad_norm, report.grad_norm);
  EXPECT_EQ(done.learning_rate, 0.5);
  EXPECT_DOUBLE_EQ(done.loss, report.loss);
  EXPECT_EQ(done.num_loss_tokens, report.num_loss_tokens);
  EXPECT_TRUE(bytes_of(*learner) == bytes_of(*alone));
}

TEST_F(ClientStory, AnUpdateIsReportedAsAStep) {
  pass(a_client_batch());
  const UpdateDone done = update();
  ASSERT_THAT(trainer.metrics(), SizeIs(1));
  const PublishedMetrics& step = trainer.metrics().front();
  EXPECT_EQ(step.step, 1);
  EXPECT_DOUBLE_EQ(step.at("loss/sum"), done.loss);
  EXPECT_DOUBLE_EQ(step.at("loss/mean"), done.loss / 16);
  EXPECT_EQ(step.at("optim/grad_norm"), done.grad_norm);
  EXPECT_EQ(step.at("optim/lr"), AdamNumbers().lr);
  EXPECT_EQ(step.at("progress/tokens"), 16);
  EXPECT_EQ(step.at("progress/loss_tokens"), 16);
}

TEST_F(ClientStory, AForwardOnlyPassOpensNothing) {
  const PassDone forward = pass(a_client_batch(), true);
  EXPECT_FALSE(forward.fault.is_set());
  EXPECT_EQ(forward.result.logprobs, alone->accumulate(a_client_batch(), nullptr)->logprobs);
  EXPECT_THAT(update().fault.message, HasSubstr("an update without open gradients"));
  EXPECT_EQ(trainer.counter("client_requests_refused"), 1);
}

TEST_F(ClientStory, RefusedDataChangesNothing) {
  pass(a_client_batch());
  LossBatch bad = a_client_batch();
  bad.data[1].targets[3] = 97;
  const PassDone refused = pass(bad);
  EXPECT_EQ(refused.fault.code, static_cast<uint8_t>(Code::kInvalid));
  EXPECT_THAT(refused.fault.message, HasSubstr("datum 1: targets[3] is 97"));
  EXPECT_THAT(update({.beta1 = 1}).fault.message, HasSubstr("beta1"));
  update();
  (void)alone->accumulate(a_client_batch(), nullptr);
  (void)alone->apply(kClient, {});
  EXPECT_TRUE(bytes_of(*learner) == bytes_of(*alone));
  EXPECT_FALSE(trainer.stops_on_error()) << "a fault of data ends nothing";
}

TEST_F(ClientStory, ADatumIsAsLongAsMemoryWasPlannedForAndNoLonger) {
  EXPECT_FALSE(pass(a_client_batch(1, kSeqLen)).fault.is_set());
  EXPECT_THAT(pass(a_client_batch(1, kSeqLen + 1)).fault.message,
              HasSubstr("datum 0 has 17 tokens, 'seq_len' of tenant 'alice' is 16"));
}

TEST_F(ClientStory, AnAnswerFitsIntoAMessage) {
  // 16 targets of a datum are 64 bytes and a few more; 1 MiB has some 15,000 of them.
  EXPECT_THAT(pass(a_client_batch(16'000, kSeqLen)).fault.message,
              HasSubstr("send the data in several passes"));
  EXPECT_FALSE(pass(a_client_batch(1'000, kSeqLen)).fault.is_set());
}

TEST_F(ClientStory, ASecondRequestIsRefusedWhileOneIsOpen) {
  work();
  ASSERT_TRUE(trainer.give("pass", PassRequest{1, a_client_batch()}).ok());
  ASSERT_TRUE(trainer.give("update", UpdateRequest{2, {}, {}}).ok());
  const auto refused = trainer.take<UpdateDone>("updated");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].fault.message, HasSubstr("another one of the tenant, a pass, is open"));
  work();
  EXPECT_THAT(trainer.take<PassDone>("passed"), SizeIs(1)) << "the first one is done";
}

TEST_F(ClientStory, AStopDiscardsTheGradientsAndSaysSo) {
  pass(a_client_batch());
  trainer.set_stop_requested(true);
  const PassDone stopped = pass(a_client_batch(3));
  EXPECT_EQ(stopped.fault.code, static_cast<uint8_t>(Code::kCancelled));
  EXPECT_THAT(stopped.fault.message, HasSubstr("1 earlier passes are discarded"));
  trainer.set_stop_requested(false);
  EXPECT_FALSE(learner->has_open_gradients(kClient));
  EXPECT_THAT(update().fault.message, HasSubstr("without open gradients"));
}

TEST_F(ClientStory, ATenantOfALoopHasNoClient) {
  NodeRunner<Trainer> loop;
  loop.set_tenants({testing::a_tenant()});
  loop.use("learner", *learner);
  loop.use("weights", *weights);
  ASSERT_TRUE(loop.give("pass", PassRequest{1, a_client_batch()}).ok());
  const auto refused = loop.take<PassDone>("passed");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].fault.message, HasSubstr("is trained by a loop of the graph"));
}

TEST_F(ClientStory, WaitsForItsClientWithATimerSoThatTheRunIsNotStalled) {
  work();
  ASSERT_TRUE(trainer.timer("save").has_value());
  ASSERT_TRUE(trainer.advance(Duration::seconds(7200)).ok());
  work();
  EXPECT_TRUE(trainer.timer("save").has_value());
  EXPECT_TRUE(trainer.idle());
  EXPECT_FALSE(trainer.is_finished(kClient));
  ASSERT_TRUE(trainer.drain().ok());
  EXPECT_FALSE(trainer.timer("save").has_value());
}

struct EverySecondUpdate : ClientStory {
  static Tenant tenant() {
    Tenant made = a_client();
    made.checkpoint_every = 2;
    return made;
  }
  EverySecondUpdate() : ClientStory(tenant()) {}
};

TEST_F(EverySecondUpdate, CheckpointsFollowUpdatesAndHaveNoOpenGradients) {
  for (int i = 0; i < 5; ++i) {
    pass(a_client_batch());
    update();
  }
  EXPECT_THAT(checkpoints(), ElementsAre(2, 4));
  ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{5}).ok());
  work();
  EXPECT_THAT(checkpoints(), ElementsAre(2, 4, 5)) << "asked for, and nothing is open";
  pass(a_client_batch());
  update();
  pass(a_client_batch());
  ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{6}).ok());
  work();
  EXPECT_THAT(checkpoints(), ElementsAre(2, 4, 5, 6)) << "taken before the pass began";
}

TEST_F(ClientStory, ACheckpointThatIsAskedForWaitsForTheUpdate) {
  pass(a_client_batch());
  update();
  pass(a_client_batch());
  ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{1}).ok());
  work();
  EXPECT_THAT(checkpoints(), IsEmpty()) << "gradients are open";
  update();
  EXPECT_THAT(checkpoints(), ElementsAre(2));
}

TEST_F(ClientStory, NoCheckpointOfAnUpdateHasWeightsThatWereLoadedAfterIt) {
  pass(a_client_batch());
  update();
  change(WeightsAction::kReset);
  ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{1}).ok());
  work();
  EXPECT_THAT(checkpoints(), IsEmpty());
  pass(a_client_batch());
  update();
  EXPECT_THAT(checkpoints(), ElementsAre(2));
}

TEST_F(ClientStory, ADrainDiscardsOpenGradientsAndWritesACheckpoint) {
  pass(a_client_batch());
  update();
  pass(a_client_batch());
  ASSERT_TRUE(trainer.drain().ok());
  work();
  EXPECT_THAT(checkpoints(), ElementsAre(1));
  EXPECT_TRUE(trainer.idle());
  EXPECT_THAT(pass(a_client_batch()).fault.message, HasSubstr("the run ends"));
}

TEST_F(ClientStory, ADrainAnswersTheOpenRequest) {
  work();
  ASSERT_TRUE(trainer.give("pass", PassRequest{7, a_client_batch()}).ok());
  EXPECT_FALSE(trainer.idle());
  ASSERT_TRUE(trainer.drain().ok());
  const auto answers = trainer.take<PassDone>("passed");
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].request, 7U);
  EXPECT_EQ(answers[0].fault.code, static_cast<uint8_t>(Code::kCancelled));
}

}  // namespace
}  // namespace primerl
