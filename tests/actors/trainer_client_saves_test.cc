// Saved weights and snapshots of a client, and the folders of its trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/actors/trainer_client_story.h"

namespace primerl {
namespace {

using testing::a_client;
using testing::a_client_batch;
using testing::a_client_learner;
using testing::ClientStory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kClient;
using ::testing::SizeIs;

TEST_F(ClientStory, SavedWeightsAreLoadedWithAndWithoutTheirOptimizer) {
  pass(a_client_batch());
  update();
  const Blob then = bytes_of(*learner);
  EXPECT_FALSE(change(WeightsAction::kSave, "one").fault.is_set());
  EXPECT_TRUE(std::filesystem::is_regular_file(client_folder("weights/one/learner/state.json")));
  const auto next = [&] {
    pass(a_client_batch(3));
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
  pass(a_client_batch());
  update();
  pass(a_client_batch());
  EXPECT_FALSE(change(WeightsAction::kReset).fault.is_set());
  EXPECT_TRUE(bytes_of(*learner) == first);
  EXPECT_FALSE(learner->has_open_gradients(kClient));
  EXPECT_THAT(learner->describe(), HasSubstr("0 steps taken"));
  pass(a_client_batch());
  EXPECT_EQ(update().version, PolicyVersion(2)) << "updates are counted on";
}

TEST_F(ClientStory, WeightsAreNotSavedWhileGradientsAreOpen) {
  pass(a_client_batch());
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
  pass(a_client_batch());
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

/// The channel has a limited number of keys, and the slot is used again.
TEST_F(ClientStory, SnapshotsLeaveTheChannelWithTheirTenant) {
  work();
  const WeightsKey moving{kClient, AdapterId(0)};
  ASSERT_FALSE(change(WeightsAction::kSnapshot).fault.is_set());
  ASSERT_FALSE(weights->newest(snapshot_key(moving, 1)).is_none());
  ASSERT_TRUE(trainer.node().on_tenant(kClient, TenantChange::Kind::kLeave).ok());
  EXPECT_TRUE(weights->newest(snapshot_key(moving, 1)).is_none());
  EXPECT_TRUE(weights->newest(moving).is_none());
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
  pass(a_client_batch());
  update();
  EXPECT_EQ(weights->newest(moving), PolicyVersion(0)) << "the client says when";
  const WeightsDone done = change(WeightsAction::kPublish);
  EXPECT_EQ(done.version, PolicyVersion(1));
  EXPECT_EQ(done.adapter, moving.adapter);
  EXPECT_EQ(weights->newest(moving), PolicyVersion(1));
  EXPECT_EQ(change(WeightsAction::kPublish).version, PolicyVersion(2)) << "the same weights again";
  EXPECT_FALSE(trainer.sent<WeightsReady>("weights").back().is_last);
}

struct FoldersAndCheckpoints : ClientStory {
  static Tenant tenant() {
    Tenant made = a_client();
    made.checkpoint_every = 2;
    return made;
  }
  FoldersAndCheckpoints() : ClientStory(tenant()) {}
};

TEST_F(FoldersAndCheckpoints, AFolderThatWasReplacedStaysUntilACheckpoint) {
  work();
  change(WeightsAction::kSave, "a");
  change(WeightsAction::kSave, "a", true);
  EXPECT_TRUE(std::filesystem::exists(client_folder("weights/a")));
  EXPECT_TRUE(std::filesystem::exists(client_folder("weights/a~2")));
  for (int i = 0; i < 2; ++i) {
    pass(a_client_batch());
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

/// A folder that could not be removed would keep its name for ever.
TEST_F(FoldersAndCheckpoints, SavedWeightsCanAlwaysBeRemoved) {
  work();
  size_t num_folders = 0;
  for (size_t i = 0; i < kSavedWeightsMax; ++i, ++num_folders)
    ASSERT_FALSE(change(WeightsAction::kSave, fmt::format("n{}", i)).fault.is_set()) << i;
  for (size_t i = 0; i < kRetiredFoldersMax; ++i, ++num_folders)
    ASSERT_FALSE(change(WeightsAction::kSave, "n0", true).fault.is_set()) << i;
  for (size_t i = 0; i < kSavedWeightsMax; ++i)
    ASSERT_FALSE(change(WeightsAction::kDropSaved, fmt::format("n{}", i)).fault.is_set()) << i;
  const WeightsDone refused = change(WeightsAction::kSave, "more");
  EXPECT_EQ(refused.fault.code, static_cast<uint8_t>(Code::kExhausted));
  EXPECT_THAT(refused.fault.message, HasSubstr("128 folders"));
  EXPECT_TRUE(std::filesystem::exists(client_folder("weights/n1")));
  for (int i = 0; i < 2; ++i) {
    pass(a_client_batch());
    update();
  }
  EXPECT_FALSE(std::filesystem::exists(client_folder("weights/n1")));
  EXPECT_FALSE(change(WeightsAction::kSave, "more").fault.is_set());
}

TEST_F(ClientStory, AStartFromACheckpointKnowsNamesAndNumbers) {
  pass(a_client_batch());
  update();
  change(WeightsAction::kSave, "a");
  change(WeightsAction::kSnapshot);
  ASSERT_TRUE(trainer.drain().ok());
  const Json manifest = trainer.checkpoints().front().manifest;
  ASSERT_NE(manifest.find("client"), nullptr);

  NodeRunner<Trainer> resumed;
  const auto later = a_client_learner();
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
  ASSERT_TRUE(resumed.give("weights_request", load).ok());
  ASSERT_TRUE(resumed.run_work_until_done(50).ok());
  EXPECT_FALSE(resumed.take<WeightsDone>("weights_done").at(0).fault.is_set());
  WeightsRequest snapshot;
  snapshot.request = 2;
  snapshot.action = WeightsAction::kSnapshot;
  ASSERT_TRUE(resumed.give("weights_request", snapshot).ok());
  ASSERT_TRUE(resumed.run_work_until_done(50).ok());
  const WeightsDone again = resumed.take<WeightsDone>("weights_done").at(0);
  EXPECT_EQ(again.adapter, snapshot_key({kClient, AdapterId(0)}, 2).adapter);
}

/// The client has versions that no checkpoint knows. They must not name other weights.
TEST_F(FoldersAndCheckpoints, NoVersionIsPublishedTwiceByAStartFromAnOlderOne) {
  work();
  for (int i = 0; i < 2; ++i) {
    pass(a_client_batch());
    update();
  }
  EXPECT_THAT(checkpoints(), ElementsAre(2));
  std::set<int64_t> versions;
  for (int i = 0; i < 3; ++i) versions.insert(change(WeightsAction::kPublish).version.value);
  versions.insert(change(WeightsAction::kSnapshot).version.value);
  EXPECT_THAT(versions, SizeIs(4));

  NodeRunner<Trainer> resumed;
  const auto later = a_client_learner();
  const auto channel = make_memory_channel();
  resumed.set_tenants({a_client()});
  resumed.use("learner", *later);
  resumed.use("weights", *channel);
  resumed.set_checkpoint_folder(folder);
  ResumePoint point;
  point.folder = folder / "step_2";
  point.step = 2;
  point.version = PolicyVersion(2);
  point.manifest = trainer.checkpoints().front().manifest;
  resumed.set_resume_point(kClient, point);
  ASSERT_TRUE(resumed.run_work_until_done(50).ok());
  const auto ready = resumed.take<WeightsReady>("weights");
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_TRUE(versions.insert(ready[0].version.value).second) << ready[0].version.value;
  for (const WeightsAction action : {WeightsAction::kPublish, WeightsAction::kSnapshot}) {
    WeightsRequest request;
    request.request = 9;
    request.action = action;
    ASSERT_TRUE(resumed.give("weights_request", request).ok());
    ASSERT_TRUE(resumed.run_work_until_done(50).ok());
    const int64_t version = resumed.take<WeightsDone>("weights_done").at(0).version.value;
    EXPECT_TRUE(versions.insert(version).second) << version;
  }
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
  pass(a_client_batch());
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
