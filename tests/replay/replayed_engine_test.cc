// The engine of a replay at full depth: made anew where the recorded run was resumed, with the same
// weights and the same unfinished sequences, as often as it was resumed.
#include "runtime/replay/replayed_engine.h"

#include <gmock/gmock.h>

#include <optional>

#include "tests/replay/fake_engine.h"

namespace primerl {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class AReplayedEngine : public ::testing::Test {
 protected:
  AReplayedEngine() {
    ReplayedEngineSetup setup;
    setup.make = [this]() -> Result<std::shared_ptr<Engine>> {
      if (!make_fault_.ok()) return make_fault_.error();
      made_.push_back(std::make_shared<FakeEngine>());
      made_.back()->refused = refused_;
      return std::shared_ptr<Engine>(made_.back());
    };
    setup.next_resume = [this] { return std::exchange(note_, std::nullopt); };
    setup.weights =
        [](const KeyedVersion& version) -> Result<std::shared_ptr<const WeightSnapshot>> {
      if (version.version == PolicyVersion(9)) return error(Code::kNotFound, "{} is gone", version);
      auto weights = std::make_shared<WeightSnapshot>(snapshot_of(version.version.value, 5));
      weights->key = version.key;
      return std::shared_ptr<const WeightSnapshot>(weights);
    };
    setup.on_divergence = [this](std::string what) { divergences_.push_back(std::move(what)); };
    engine_ = make_replayed_engine(std::move(setup)).value();
  }

  /// Sequence 1 is decoding, 2 has a complete prompt, 3 waits, 4 has ended.
  void begin_four() {
    for (const uint64_t id : {2, 1, 3, 4}) EXPECT_TRUE(engine_->submit(sequence_request(id)).ok());
    for (const uint64_t id : {1, 2, 4}) now().complete(id);
    EXPECT_THAT(ids(engine_->take_prefilled()), ElementsAre(1, 2, 4));
    EXPECT_TRUE(engine_->take_over(SequenceId(1)).ok());
    EXPECT_TRUE(engine_->take_over(SequenceId(4)).ok());
    now().finish(4);
    EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("4 stop"));
  }

  void resumed_with(uint64_t num_sequences, std::vector<int64_t> versions = {}) {
    note_.emplace();
    note_->num_sequences = num_sequences;
    for (uint32_t tenant = 0; tenant < versions.size(); ++tenant)
      EXPECT_TRUE(note_->versions.set({TenantSlot(tenant)}, PolicyVersion(versions[tenant])));
  }

  FakeEngine& now() { return *made_.back(); }

  std::vector<std::shared_ptr<FakeEngine>> made_;
  std::optional<EngineResume> note_;
  std::vector<std::string> divergences_;
  Status make_fault_;
  std::set<uint64_t> refused_;
  std::shared_ptr<Engine> engine_;
};

TEST_F(AReplayedEngine, IsTheRealOneUntilItsRunWasResumed) {
  begin_four();
  EXPECT_TRUE(engine_->apply(snapshot_of(1, 5)).ok());
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_EQ(made_.size(), 1U);
  EXPECT_EQ(now().calls.back(), "step");
}

TEST_F(AReplayedEngine, IsMadeAnewWithTheWeightsAndTheUnfinishedSequences) {
  begin_four();
  engine_->set_paused(true);
  resumed_with(3, {4, 6});
  EXPECT_EQ(engine_->state().num_waiting, 3) << "the first call may be any";
  ASSERT_EQ(made_.size(), 2U);
  EXPECT_TRUE(now().is_paused);
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(now().calls, ElementsAre("apply 4", "apply 6 of tenant 1", "submit 1", "submit 2",
                                       "submit 3", "step"));
  for (const uint64_t id : {1, 2, 3}) now().complete(id);
  EXPECT_THAT(ids(engine_->take_prefilled()), ElementsAre(3)) << "1 and 2 were reported before";
  EXPECT_EQ(now().calls.back(), "take_over 1");
  EXPECT_THAT(divergences_, IsEmpty());
}

TEST_F(AReplayedEngine, DoesNotContinueADroppedKeyWhenItIsMadeAnew) {
  begin_four();
  SequenceRequest other = sequence_request(5);
  other.tenant = TenantSlot(1);
  EXPECT_TRUE(engine_->submit(other).ok());
  engine_->drop({});
  EXPECT_EQ(now().calls.back(), "drop tenant 0");
  resumed_with(4);
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(now().calls, ElementsAre("submit 5", "step"));
  EXPECT_THAT(ends(engine_->take_finished()),
              ElementsAre("1 cancelled", "2 cancelled", "3 cancelled"));
  EXPECT_THAT(divergences_, IsEmpty());
}

TEST_F(AReplayedEngine, IsMadeAnewAsOftenAsItsRunWasResumed) {
  begin_four();
  resumed_with(3);
  now().complete(3);  // of the engine that is gone
  EXPECT_THAT(ids(engine_->take_prefilled()), IsEmpty());
  for (const uint64_t id : {1, 2, 3}) now().complete(id);
  EXPECT_THAT(ids(engine_->take_prefilled()), ElementsAre(3));
  EXPECT_TRUE(engine_->take_over(SequenceId(3)).ok());
  engine_->abort(SequenceId(2));
  now().finish(1);
  EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("1 stop"));
  resumed_with(2);
  EXPECT_TRUE(engine_->step().ok());
  ASSERT_EQ(made_.size(), 3U);
  EXPECT_THAT(now().calls, ElementsAre("submit 3", "step"));
  EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("2 cancelled"));
  now().complete(3);
  EXPECT_THAT(ids(engine_->take_prefilled()), IsEmpty());
  EXPECT_EQ(now().calls.back(), "take_over 3");
  EXPECT_THAT(divergences_, IsEmpty());
}

TEST_F(AReplayedEngine, SaysThatTheRecordHadOtherUnfinishedSequences) {
  begin_four();
  resumed_with(2);
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(divergences_, ElementsAre(HasSubstr("with 2 unfinished sequences of an engine, and "
                                                  "the replay has 3")));
}

TEST_F(AReplayedEngine, WithoutItsWeightsFailsAtEveryCall) {
  begin_four();
  resumed_with(3, {9});
  engine_->abort(SequenceId(3));  // which cannot return the fault
  for (int i = 0; i < 2; ++i) {
    const Status stepped = engine_->step();
    ASSERT_FALSE(stepped.ok());
    EXPECT_THAT(stepped.error().text(), HasSubstr("version 9 of tenant 0 is gone"));
  }
  EXPECT_THAT(divergences_, ElementsAre(HasSubstr("version 9 of tenant 0 is gone"))) << "once";
  EXPECT_THAT(now().calls, testing::Not(Contains("submit 1")));
}

TEST_F(AReplayedEngine, ThatCannotBeMadeAnewFailsAtEveryCall) {
  begin_four();
  resumed_with(3);
  make_fault_ = error(Code::kExhausted, "no memory is left");
  EXPECT_FALSE(engine_->submit(sequence_request(5)).ok());
  EXPECT_EQ(engine_->max_sequence_tokens(), 0);
  EXPECT_FALSE(engine_->has_work());
  EXPECT_FALSE(engine_->step().ok());
}

}  // namespace
}  // namespace primerl
