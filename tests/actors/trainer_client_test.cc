// A trainer whose tenant is trained by a client, by halves of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "actors/trainer/trainer.h"
#include "graph/base/files.h"
#include "graph/testing/node_runner.h"
#include "kernels/scripted/scripted_learner.h"
#include "tests/actors/fakes.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr TenantSlot kClient(0);
constexpr int32_t kSeqLen = 16;

Tenant a_client() {
  Tenant tenant = testing::a_tenant(1, 1, 0);
  tenant.name = "alice";
  tenant.is_client = true;
  tenant.max_steps = kClientStepsMax;
  tenant.seq_len = kSeqLen;
  tenant.adapter.rank = 4;
  tenant.share = 1;
  return tenant;
}

LossBatch a_batch(int32_t num_data = 2, int32_t num_tokens = 8) {
  LossBatch made;
  made.tenant = kClient;
  made.loss = tinker_loss("cross_entropy", {}).value();
  for (int32_t d = 0; d < num_data; ++d) {
    LossDatum& datum = made.data.emplace_back();
    for (int32_t i = 0; i < num_tokens; ++i) {
      datum.tokens.push_back((d * 7 + i) % 90);
      datum.targets.push_back((d * 7 + i + 1) % 90);
    }
  }
  return made;
}

/// Micro-batches of 8 tokens.
std::unique_ptr<Learner> a_learner(Duration save_time = {}) {
  ScriptedLearnerOptions options;
  options.micro_batch_tokens = 8;
  options.save_time = save_time;
  return make_scripted_learner(options).value();
}

struct ClientStory : ::testing::Test {
  explicit ClientStory(Tenant tenant = a_client(), Duration save_time = {})
      : learner(a_learner(save_time)),
        alone(a_learner()),
        weights(make_memory_channel()),
        folder(new_scratch_folder()) {
    trainer.set_tenants({std::move(tenant)});
    trainer.use("learner", *learner);
    trainer.use("weights", *weights);
    trainer.set_checkpoint_folder(folder);
  }
  void work() {
    const auto turns = trainer.run_work_until_done(100);
    ASSERT_TRUE(turns.ok()) << turns.error().text();
  }
  PassDone pass(LossBatch batch, bool forward_only = false) {
    batch.forward_only = forward_only;
    PassRequest request;
    request.request = ++number;
    request.batch = std::move(batch);
    EXPECT_TRUE(trainer.give("pass", request).ok());
    work();
    return only(trainer.take<PassDone>("passed"));
  }
  UpdateDone update(const AdamNumbers& adam = {}) {
    UpdateRequest request;
    request.request = ++number;
    request.adam = adam;
    EXPECT_TRUE(trainer.give("update", request).ok());
    work();
    return only(trainer.take<UpdateDone>("updated"));
  }
  Status ask(WeightsAction action, const std::string& name = "", bool flag = false,
             AdapterId adapter = {}) {
    WeightsRequest request;
    request.request = ++number;
    request.action = action;
    request.name = name;
    request.with_optimizer = request.overwrites = flag;
    request.adapter = adapter;
    return trainer.give("weights", request);
  }
  WeightsDone change(WeightsAction action, const std::string& name = "", bool flag = false,
                     AdapterId adapter = {}) {
    EXPECT_TRUE(ask(action, name, flag, adapter).ok());
    work();
    return only(trainer.take<WeightsDone>("weights_done"));
  }
  template <class Done>
  Done only(const std::vector<Done>& answers) {
    EXPECT_EQ(answers.size(), 1U);
    if (answers.empty()) return {};
    EXPECT_EQ(answers.front().request, number);
    return answers.front();
  }
  std::vector<int64_t> checkpoints() {
    std::vector<int64_t> steps;
    for (const auto& one : trainer.checkpoints()) steps.push_back(one.step);
    return steps;
  }
  static Blob bytes_of(Learner& of) {
    return of.snapshot(kClient, PolicyVersion(0)).value()->tensors.front().bytes;
  }
  std::filesystem::path client_folder(const std::string& path) {
    return folder / "clients" / path;
  }

  std::unique_ptr<Learner> learner, alone;
  std::shared_ptr<WeightChannel> weights;
  std::filesystem::path folder;
  NodeRunner<Trainer> trainer;
  uint64_t number = 0;
};

TEST_F(ClientStory, PassesAndAnUpdateAreTheCallsOfTheLearner) {
  for (const int32_t num_data : {2, 3}) {
    const PassDone done = pass(a_batch(num_data));
    EXPECT_FALSE(done.fault.is_set()) << done.fault.message;
    EXPECT_EQ(done.result, alone->accumulate(a_batch(num_data), nullptr).value());
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
  pass(a_batch());
  const UpdateDone done = update();
  EXPECT_THAT(trainer.metrics(), IsEmpty()) << "its time is not known yet";
  pass(a_batch());
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
  const PassDone forward = pass(a_batch(), true);
  EXPECT_FALSE(forward.fault.is_set());
  EXPECT_EQ(forward.result.logprobs, alone->accumulate(a_batch(), nullptr)->logprobs);
  EXPECT_THAT(update().fault.message, HasSubstr("an update without open gradients"));
  EXPECT_EQ(trainer.counter("client_requests_refused"), 1);
}

TEST_F(ClientStory, RefusedDataChangesNothing) {
  pass(a_batch());
  LossBatch bad = a_batch();
  bad.data[1].targets[3] = 97;
  const PassDone refused = pass(bad);
  EXPECT_EQ(refused.fault.code, static_cast<uint8_t>(Code::kInvalid));
  EXPECT_THAT(refused.fault.message, HasSubstr("datum 1: targets[3] is 97"));
  EXPECT_THAT(update({.beta1 = 1}).fault.message, HasSubstr("beta1"));
  update();
  (void)alone->accumulate(a_batch(), nullptr);
  (void)alone->apply(kClient, {});
  EXPECT_TRUE(bytes_of(*learner) == bytes_of(*alone));
  EXPECT_FALSE(trainer.stops_on_error()) << "a fault of data ends nothing";
}

TEST_F(ClientStory, ADatumIsAsLongAsMemoryWasPlannedForAndNoLonger) {
  EXPECT_FALSE(pass(a_batch(1, kSeqLen)).fault.is_set());
  EXPECT_THAT(pass(a_batch(1, kSeqLen + 1)).fault.message,
              HasSubstr("datum 0 has 17 tokens, 'seq_len' of tenant 'alice' is 16"));
}

TEST_F(ClientStory, AnAnswerFitsIntoAMessage) {
  // 16 targets of a datum are 64 bytes and a few more; 1 MiB has some 15,000 of them.
  EXPECT_THAT(pass(a_batch(16'000, kSeqLen)).fault.message,
              HasSubstr("send the data in several passes"));
  EXPECT_FALSE(pass(a_batch(1'000, kSeqLen)).fault.is_set());
}

TEST_F(ClientStory, ASecondRequestIsRefusedWhileOneIsOpen) {
  work();
  ASSERT_TRUE(trainer.give("pass", PassRequest{1, a_batch()}).ok());
  ASSERT_TRUE(trainer.give("update", UpdateRequest{2, {}}).ok());
  const auto refused = trainer.take<UpdateDone>("updated");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].fault.message, HasSubstr("another one of the tenant, a pass, is open"));
  work();
  EXPECT_THAT(trainer.take<PassDone>("passed"), SizeIs(1)) << "the first one is done";
}

TEST_F(ClientStory, AStopDiscardsTheGradientsAndSaysSo) {
  pass(a_batch());
  trainer.set_stop_requested(true);
  const PassDone stopped = pass(a_batch(3));
  EXPECT_EQ(stopped.fault.code, static_cast<uint8_t>(Code::kCancelled));
  EXPECT_THAT(stopped.fault.message, HasSubstr("1 earlier passes are discarded"));
  trainer.set_stop_requested(false);
  EXPECT_FALSE(learner->has_open_gradients(kClient));
  EXPECT_THAT(update().fault.message, HasSubstr("without open gradients"));
}

TEST_F(ClientStory, SavedWeightsAreLoadedWithAndWithoutTheirOptimizer) {
  pass(a_batch());
  update();
  const Blob then = bytes_of(*learner);
  EXPECT_FALSE(change(WeightsAction::kSave, "one").fault.is_set());
  EXPECT_TRUE(std::filesystem::is_regular_file(client_folder("weights/one/learner/state.json")));
  const auto next = [&] {
    pass(a_batch(3));
    update();
    return bytes_of(*learner);
  };
  const Blob after = next();
  EXPECT_FALSE(change(WeightsAction::kLoad, "one", true).fault.is_set());
  EXPECT_TRUE(bytes_of(*learner) == then);
  EXPECT_THAT(learner->describe(), HasSubstr("1 steps taken"));
  EXPECT_TRUE(next() == after);
  EXPECT_FALSE(change(WeightsAction::kLoad, "one", false).fault.is_set());
  EXPECT_TRUE(bytes_of(*learner) == then);
  EXPECT_THAT(learner->describe(), HasSubstr("0 steps taken")) << "the optimizer begins anew";
}

TEST_F(ClientStory, AResetIsTheStateOfTheBeginning) {
  work();
  const Blob first = bytes_of(*learner);
  pass(a_batch());
  update();
  pass(a_batch());
  EXPECT_FALSE(change(WeightsAction::kReset).fault.is_set());
  EXPECT_TRUE(bytes_of(*learner) == first);
  EXPECT_FALSE(learner->has_open_gradients(kClient));
  EXPECT_THAT(learner->describe(), HasSubstr("0 steps taken"));
  pass(a_batch());
  EXPECT_EQ(update().version, PolicyVersion(2)) << "updates are counted on";
}

TEST_F(ClientStory, WeightsAreNotSavedWhileGradientsAreOpen) {
  pass(a_batch());
  for (const WeightsAction action :
       {WeightsAction::kSave, WeightsAction::kSnapshot, WeightsAction::kPublish})
    EXPECT_THAT(change(action, "a").fault.message, HasSubstr("while gradients of 1 passes"));
  update();
  EXPECT_FALSE(change(WeightsAction::kSave, "a").fault.is_set());
}

TEST_F(ClientStory, ASaveReplacesOnlyWhenAskedTo) {
  work();
  change(WeightsAction::kSave, "a");
  EXPECT_THAT(change(WeightsAction::kSave, "a").fault.message, HasSubstr("'a' already"));
  pass(a_batch());
  update();
  const Blob newer = bytes_of(*learner);
  EXPECT_FALSE(change(WeightsAction::kSave, "a", true).fault.is_set());
  change(WeightsAction::kReset);
  change(WeightsAction::kLoad, "a", true);
  EXPECT_TRUE(bytes_of(*learner) == newer);
  EXPECT_THAT(change(WeightsAction::kLoad, "b").fault.message, HasSubstr("saved: a"));
  EXPECT_EQ(change(WeightsAction::kLoad, "../a").fault.code, static_cast<uint8_t>(Code::kInvalid));
}

TEST_F(ClientStory, NamesOfSavedWeightsHaveALimit) {
  work();
  for (size_t i = 0; i < kSavedWeightsMax; ++i)
    ASSERT_FALSE(change(WeightsAction::kSave, fmt::format("n{}", i)).fault.is_set()) << i;
  const WeightsDone refused = change(WeightsAction::kSave, "more");
  EXPECT_EQ(refused.fault.code, static_cast<uint8_t>(Code::kExhausted));
  EXPECT_FALSE(change(WeightsAction::kSave, "n0", true).fault.is_set()) << "it adds no name";
  EXPECT_FALSE(change(WeightsAction::kDropSaved, "n1").fault.is_set());
  EXPECT_FALSE(change(WeightsAction::kSave, "more").fault.is_set());
}

TEST_F(ClientStory, ASnapshotHasAKeyOfItsOwnAndAFolder) {
  work();
  trainer.forget_sent();
  const WeightsDone first = change(WeightsAction::kSnapshot, "a");
  EXPECT_FALSE(first.fault.is_set()) << first.fault.message;
  const WeightsKey key = snapshot_key({kClient, AdapterId(0)}, 1);
  EXPECT_EQ(first.adapter, key.adapter);
  EXPECT_EQ(weights->newest(key), first.version);
  EXPECT_TRUE(std::filesystem::exists(client_folder("sampler_weights/a/model.safetensors")));
  auto ready = trainer.take<WeightsReady>("weights");
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_EQ(ready[0].adapter, key.adapter);
  EXPECT_EQ(ready[0].version, first.version);

  EXPECT_THAT(change(WeightsAction::kSnapshot, "a").fault.message, HasSubstr("already"));
  EXPECT_EQ(change(WeightsAction::kSnapshot).adapter,
            snapshot_key({kClient, AdapterId(0)}, 2).adapter);
  trainer.forget_sent();
  EXPECT_FALSE(change(WeightsAction::kDropSnapshot, "", false, key.adapter).fault.is_set());
  EXPECT_TRUE(weights->newest(key).is_none());
  EXPECT_FALSE(std::filesystem::exists(client_folder("sampler_weights/a")));
  ready = trainer.take<WeightsReady>("weights");
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_TRUE(ready[0].is_dropped);
  EXPECT_EQ(ready[0].adapter, key.adapter);
  EXPECT_EQ(change(WeightsAction::kDropSnapshot, "", false, key.adapter).fault.code,
            static_cast<uint8_t>(Code::kNotFound));
}

TEST_F(ClientStory, SnapshotsInUseHaveALimit) {
  work();
  AdapterId last;
  for (size_t i = 0; i < kSnapshotsMax; ++i) {
    const WeightsDone made = change(WeightsAction::kSnapshot);
    ASSERT_FALSE(made.fault.is_set()) << i;
    last = made.adapter;
  }
  EXPECT_EQ(change(WeightsAction::kSnapshot).fault.code, static_cast<uint8_t>(Code::kExhausted));
  change(WeightsAction::kDropSnapshot, "", false, last);
  EXPECT_FALSE(change(WeightsAction::kSnapshot).fault.is_set());
}

TEST_F(ClientStory, PublishedVersionsOfTheMovingKeyRise) {
  work();
  const WeightsKey moving{kClient, AdapterId(0)};
  EXPECT_EQ(weights->newest(moving), PolicyVersion(0)) << "what was loaded";
  pass(a_batch());
  update();
  EXPECT_EQ(weights->newest(moving), PolicyVersion(0)) << "the client says when";
  const WeightsDone done = change(WeightsAction::kPublish);
  EXPECT_EQ(done.version, PolicyVersion(1));
  EXPECT_EQ(done.adapter, moving.adapter);
  EXPECT_EQ(weights->newest(moving), PolicyVersion(1));
  EXPECT_EQ(change(WeightsAction::kPublish).version, PolicyVersion(2)) << "the same weights again";
  EXPECT_FALSE(trainer.sent<WeightsReady>("weights").back().is_last);
}

TEST_F(ClientStory, ATenantOfALoopHasNoClient) {
  NodeRunner<Trainer> loop;
  loop.set_tenants({testing::a_tenant()});
  loop.use("learner", *learner);
  loop.use("weights", *weights);
  ASSERT_TRUE(loop.give("pass", PassRequest{1, a_batch()}).ok());
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

struct EverySecond : ClientStory {
  static Tenant tenant() {
    Tenant made = a_client();
    made.checkpoint_every = 2;
    return made;
  }
  EverySecond() : ClientStory(tenant()) {}
};

TEST_F(EverySecond, CheckpointsFollowUpdatesAndHaveNoOpenGradients) {
  for (int i = 0; i < 5; ++i) {
    pass(a_batch());
    update();
  }
  EXPECT_THAT(checkpoints(), ElementsAre(2, 4));
  ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{5}).ok());
  work();
  EXPECT_THAT(checkpoints(), ElementsAre(2, 4, 5)) << "asked for, and nothing is open";
  pass(a_batch());
  update();
  pass(a_batch());
  ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{6}).ok());
  work();
  EXPECT_THAT(checkpoints(), ElementsAre(2, 4, 5, 6)) << "taken before the pass began";
}

TEST_F(ClientStory, ACheckpointThatIsAskedForWaitsForTheUpdate) {
  pass(a_batch());
  update();
  pass(a_batch());
  ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{1}).ok());
  work();
  EXPECT_THAT(checkpoints(), IsEmpty()) << "gradients are open";
  update();
  EXPECT_THAT(checkpoints(), ElementsAre(2));
}

TEST_F(ClientStory, NoCheckpointOfAnUpdateHasWeightsThatWereLoadedAfterIt) {
  pass(a_batch());
  update();
  change(WeightsAction::kReset);
  ASSERT_TRUE(trainer.give("checkpoint", CheckpointRequest{1}).ok());
  work();
  EXPECT_THAT(checkpoints(), IsEmpty());
  pass(a_batch());
  update();
  EXPECT_THAT(checkpoints(), ElementsAre(2));
}

TEST_F(EverySecond, AFolderThatWasReplacedStaysUntilACheckpoint) {
  work();
  change(WeightsAction::kSave, "a");
  change(WeightsAction::kSave, "a", true);
  EXPECT_TRUE(std::filesystem::exists(client_folder("weights/a")));
  EXPECT_TRUE(std::filesystem::exists(client_folder("weights/a~2")));
  for (int i = 0; i < 2; ++i) {
    pass(a_batch());
    update();
  }
  EXPECT_THAT(checkpoints(), ElementsAre(2));
  EXPECT_FALSE(std::filesystem::exists(client_folder("weights/a")));
  EXPECT_TRUE(std::filesystem::exists(client_folder("weights/a~2")));
}

TEST_F(ClientStory, ReplacedFoldersHaveALimit) {
  work();
  change(WeightsAction::kSave, "a");
  for (size_t i = 0; i < kRetiredFoldersMax; ++i)
    ASSERT_FALSE(change(WeightsAction::kSave, "a", true).fault.is_set()) << i;
  EXPECT_EQ(change(WeightsAction::kSave, "a", true).fault.code,
            static_cast<uint8_t>(Code::kExhausted));
}

TEST_F(ClientStory, ADrainDiscardsOpenGradientsAndWritesACheckpoint) {
  pass(a_batch());
  update();
  pass(a_batch());
  ASSERT_TRUE(trainer.drain().ok());
  work();
  EXPECT_THAT(checkpoints(), ElementsAre(1));
  EXPECT_TRUE(trainer.idle());
  EXPECT_THAT(pass(a_batch()).fault.message, HasSubstr("the run ends"));
}

TEST_F(ClientStory, ADrainAnswersTheOpenRequest) {
  work();
  ASSERT_TRUE(trainer.give("pass", PassRequest{7, a_batch()}).ok());
  EXPECT_FALSE(trainer.idle());
  ASSERT_TRUE(trainer.drain().ok());
  const auto answers = trainer.take<PassDone>("passed");
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].request, 7U);
  EXPECT_EQ(answers[0].fault.code, static_cast<uint8_t>(Code::kCancelled));
}

TEST_F(ClientStory, AStartFromACheckpointKnowsNamesAndNumbers) {
  pass(a_batch());
  update();
  change(WeightsAction::kSave, "a");
  change(WeightsAction::kSnapshot);
  ASSERT_TRUE(trainer.drain().ok());
  const Json manifest = trainer.checkpoints().front().manifest;
  ASSERT_NE(manifest.find("client"), nullptr);

  NodeRunner<Trainer> resumed;
  const auto later = a_learner();
  const auto channel = make_memory_channel();
  resumed.set_tenants({a_client()});
  resumed.use("learner", *later);
  resumed.use("weights", *channel);
  resumed.set_checkpoint_folder(folder);
  ResumePoint point;
  point.folder = folder / "step_1";
  point.step = 1;
  point.version = PolicyVersion(1);
  point.manifest = manifest;
  resumed.set_resume_point(kClient, point);
  ASSERT_TRUE(resumed.run_work_until_done(50).ok());
  EXPECT_TRUE(bytes_of(*later) == bytes_of(*learner));
  WeightsRequest load;
  load.request = 1;
  load.action = WeightsAction::kLoad;
  load.name = "a";
  ASSERT_TRUE(resumed.give("weights", load).ok());
  ASSERT_TRUE(resumed.run_work_until_done(50).ok());
  EXPECT_FALSE(resumed.take<WeightsDone>("weights_done").at(0).fault.is_set());
  WeightsRequest snapshot;
  snapshot.request = 2;
  snapshot.action = WeightsAction::kSnapshot;
  ASSERT_TRUE(resumed.give("weights", snapshot).ok());
  ASSERT_TRUE(resumed.run_work_until_done(50).ok());
  EXPECT_EQ(resumed.take<WeightsDone>("weights_done").at(0).adapter,
            snapshot_key({kClient, AdapterId(0)}, 2).adapter)
      << "no key is used twice";
}

struct SlowDisk : ClientStory {
  SlowDisk() : ClientStory(a_client(), Duration::seconds(5)) {
    work();
    EXPECT_TRUE(trainer.advance(Duration::seconds(5)).ok());
    work();
  }
};

TEST_F(SlowDisk, ASaveIsAnsweredWhenItIsComplete) {
  ASSERT_TRUE(ask(WeightsAction::kSave, "a").ok());
  work();
  EXPECT_THAT(trainer.take<WeightsDone>("weights_done"), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(client_folder("weights/a")));
  ASSERT_TRUE(trainer.advance(Duration::seconds(5)).ok());
  work();
  const auto answers = trainer.take<WeightsDone>("weights_done");
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_FALSE(answers[0].fault.is_set());
  EXPECT_TRUE(std::filesystem::exists(client_folder("weights/a")));
}

TEST_F(SlowDisk, ADrainWaitsForTheSaveAndThenWritesTheCheckpoint) {
  pass(a_batch());
  update();
  ASSERT_TRUE(ask(WeightsAction::kSave, "a").ok());
  work();
  ASSERT_TRUE(trainer.drain().ok());
  EXPECT_FALSE(trainer.idle());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(trainer.advance(Duration::seconds(5)).ok());
    work();
  }
  EXPECT_THAT(trainer.take<WeightsDone>("weights_done"), SizeIs(1));
  EXPECT_THAT(checkpoints(), ElementsAre(1));
  EXPECT_TRUE(trainer.idle());
}

TEST_F(SlowDisk, ASaveThatFailsIsAFaultOfTheRequestAlone) {
  trainer.set_checkpoint_folder("");
  EXPECT_THAT(change(WeightsAction::kSave, "a").fault.message, HasSubstr("no folder for clients"));
  EXPECT_FALSE(trainer.stops_on_error());
  trainer.set_checkpoint_folder(folder);
  EXPECT_THAT(change(WeightsAction::kLoad, "a").fault.message, HasSubstr("none were saved"));
}

}  // namespace
}  // namespace primerl
