// The engine of an interrupted run that is resumed. The record answers until the run resumes, then
// a real engine continues the unfinished sequences. No event is delivered twice.
#include "runtime/replay/resuming_engine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>

#include "runtime/replay/traced_engine.h"
#include "tests/replay/fake_engine.h"

namespace primerl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ResumingEngine : public ::testing::Test {
 protected:
  ResumingEngine() {
    auto original = std::make_unique<FakeEngine>();
    original_ = original.get();
    auto recording = std::make_shared<ObservedEngine>(std::move(original));
    recording->add(engine_recorder(
        [this](std::vector<std::byte> answer) { tape_.push_back(std::move(answer)); }));
    recording_ = std::move(recording);
    auto real = std::make_unique<FakeEngine>();
    real_ = real.get();
    engine_ = make_resuming_engine(
        {.engine = std::move(real),
         .next = [this]() -> const std::vector<std::byte>* {
           if (tape_.empty()) return nullptr;
           answer_ = std::move(tape_.front());
           tape_.pop_front();
           return &answer_;
         },
         .is_live = [this] { return is_live_; },
         .weights_from =
             [this](const KeyedVersion& asked) -> Result<std::shared_ptr<const WeightSnapshot>> {
           asked_versions_.push_back(asked.version.value);
           if (!weights_) return error(Code::kNotFound, "{} was retired", asked);
           return weights_;
         },
         .on_resume = [this](EngineResume resume) { resumes_.push_back(std::move(resume)); }});
  }

  /// Makes the same calls in the recorded run, where `world` is the engine, and in the run that
  /// follows it.
  template <class Calls>
  void in_both(const Calls& calls) {
    calls(*recording_, original_);
    calls(*engine_, nullptr);
    EXPECT_TRUE(tape_.empty()) << "the record was not used up";
  }

  static SequenceRequest request(uint64_t id) { return sequence_request(id); }

  /// Sequence 1 is decoding, 2 has a complete prompt, 3 and 4 wait; submitted out of order.
  void put_four_in_flight() {
    in_both([](Engine& engine, FakeEngine* world) {
      for (const uint64_t id : {2, 1, 4, 3}) EXPECT_TRUE(engine.submit(request(id)).ok());
      if (world != nullptr) {
        world->complete(1);
        world->complete(2);
      }
      EXPECT_THAT(ids(engine.take_prefilled()), ElementsAre(1, 2));
      EXPECT_TRUE(engine.take_over(SequenceId(1)).ok());
    });
  }

  void resume() {
    is_live_ = true;
    EXPECT_TRUE(engine_->has_work()) << "otherwise step() would not be called";
  }

  FakeEngine* original_ = nullptr;
  FakeEngine* real_ = nullptr;
  std::deque<std::vector<std::byte>> tape_;
  std::vector<std::byte> answer_;
  std::shared_ptr<Engine> recording_, engine_;
  bool is_live_ = false;
  std::shared_ptr<const WeightSnapshot> weights_;
  std::vector<int64_t> asked_versions_;
  std::vector<EngineResume> resumes_;
};

TEST_F(ResumingEngine, GivesBackKeptSetsOfAnySizeFromTheRecord) {
  const auto kept_of = [](uint64_t id) {
    const size_t sizes[] = {0, 1, size_t{512} << 10, (size_t{512} << 10) + 1, size_t{3} << 20};
    std::vector<std::byte> bytes(sizes[id]);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + id);
    return Blob(std::move(bytes));
  };
  in_both([&](Engine& engine, FakeEngine* world) {
    for (uint64_t id = 0; id < 5; ++id) EXPECT_TRUE(engine.submit(request(id)).ok());
    for (uint64_t id = 0; id < 5 && world != nullptr; ++id) {
      world->finish(id);
      world->finished.back().kept = kept_of(id);
    }
    const auto events = engine.take_finished();
    ASSERT_EQ(events.size(), 5U);
    for (uint64_t id = 0; id < 5; ++id) EXPECT_EQ(events[id].kept, kept_of(id)) << id;
  });
}

TEST_F(ResumingEngine, AnswersFromTheRecordAndLeavesTheRealOneAlone) {
  original_->refused = {9};
  original_->longest = 512;
  in_both([](Engine& engine, FakeEngine* world) {
    EXPECT_TRUE(engine.submit(request(5)).ok());
    const Status refused = engine.submit(request(9));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().text(), "sequence 9 is too long");
    EXPECT_EQ(engine.state().num_waiting, 1);
    EXPECT_EQ(engine.max_sequence_tokens(), 512);
    if (world != nullptr) world->complete(5);
    EXPECT_THAT(ids(engine.take_prefilled()), ElementsAre(5));
    EXPECT_TRUE(engine.take_over(SequenceId(5)).ok());
    if (world != nullptr) world->finish(5);
    EXPECT_THAT(ends(engine.take_finished()), ElementsAre("5 stop"));
    EXPECT_TRUE(engine.step().ok());
  });
  EXPECT_THAT(real_->calls, IsEmpty());
}

TEST_F(ResumingEngine, WithoutAnythingInFlightIsTheRealOne) {
  in_both([](Engine& engine, FakeEngine* world) {
    EXPECT_TRUE(engine.submit(request(5)).ok());
    if (world != nullptr) world->finish(5);
    EXPECT_THAT(ends(engine.take_finished()), ElementsAre("5 stop"));
  });
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_FALSE(engine_->has_work());
  EXPECT_TRUE(engine_->submit(request(6)).ok());
  EXPECT_TRUE(engine_->take_over(SequenceId(6)).ok());
  engine_->abort(SequenceId(6));
  EXPECT_EQ(engine_->max_sequence_tokens(), 64);
  EXPECT_THAT(real_->calls, ElementsAre("step", "submit 6", "take_over 6", "abort 6"));
}

TEST_F(ResumingEngine, SubmitsUnfinishedSequencesAgainAndReportsNoEventTwice) {
  put_four_in_flight();
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->calls, ElementsAre("submit 1", "submit 2", "submit 3", "submit 4", "step"));
  real_->calls.clear();
  for (const uint64_t id : {1, 2, 3}) real_->complete(id);
  // Events of 1 and 2 were delivered in the recorded run. 1 was taken over then, and is taken over
  // again without a call.
  EXPECT_THAT(ids(engine_->take_prefilled()), ElementsAre(3));
  EXPECT_THAT(real_->calls, ElementsAre("take_over 1"));
  EXPECT_TRUE(engine_->take_over(SequenceId(2)).ok());
  EXPECT_TRUE(engine_->take_over(SequenceId(3)).ok());
  EXPECT_THAT(real_->calls, ElementsAre("take_over 1", "take_over 2", "take_over 3"));
  real_->finish(1);
  EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("1 stop"));
}

TEST_F(ResumingEngine, TakesOverWhatIsBeingComputedAgainWhenItIsReady) {
  put_four_in_flight();
  resume();
  EXPECT_TRUE(engine_->take_over(SequenceId(2)).ok());  // Decode had it in its inbox
  EXPECT_THAT(real_->calls, testing::Not(testing::Contains("take_over 2"))) << "not ready yet";
  real_->complete(2);
  EXPECT_THAT(ids(engine_->take_prefilled()), IsEmpty());
  EXPECT_THAT(real_->calls, testing::Contains("take_over 2"));
}

TEST_F(ResumingEngine, KeepsWhatTheQueueOfTheRealOneHasNoRoomFor) {
  put_four_in_flight();
  real_->room = 3;
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->calls, ElementsAre("submit 1", "submit 2", "submit 3", "step"));
  EXPECT_EQ(engine_->state().num_waiting, 4) << "one of them here";
  real_->waiting.clear();
  EXPECT_TRUE(engine_->has_work()) << "the last one still waits";
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->calls,
              ElementsAre("submit 1", "submit 2", "submit 3", "step", "submit 4", "step"));
  EXPECT_EQ(engine_->state().num_waiting, 1);
}

TEST_F(ResumingEngine, PausedInTheRecordStandsStillWhenItGoesLive) {
  put_four_in_flight();
  real_->room = 3;
  in_both([](Engine& engine, FakeEngine*) { engine.set_paused(true); });
  EXPECT_FALSE(recording_->has_work()) << "a paused engine runs no step";
  EXPECT_FALSE(real_->is_paused) << "it has nothing to do with the record";
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_TRUE(real_->is_paused);
  EXPECT_FALSE(engine_->has_work()) << "what waits here would wait in a busy loop";
  engine_->set_paused(false);
  EXPECT_FALSE(real_->is_paused);
  EXPECT_TRUE(engine_->has_work());
}

TEST_F(ResumingEngine, WithJustEnoughRoomKeepsNothing) {
  put_four_in_flight();
  real_->room = 4;
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->waiting, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(engine_->state().num_waiting, 4);
}

TEST_F(ResumingEngine, EndsWhatWasAbortedBeforeItWentLive) {
  put_four_in_flight();
  in_both([](Engine& engine, FakeEngine*) {
    engine.abort(SequenceId(1));
    engine.abort(SequenceId(3));
  });
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->waiting, ElementsAre(2, 4));
  EXPECT_TRUE(engine_->has_work()) << "Decode has yet to hear of two ends";
  EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("1 cancelled", "3 cancelled"));
  EXPECT_THAT(ends(engine_->take_finished()), IsEmpty()) << "each once";
}

TEST_F(ResumingEngine, AbortsWhatWaitsHereAndPassesOnWhatDoesNot) {
  put_four_in_flight();
  real_->room = 3;
  resume();
  engine_->abort(SequenceId(4));  // it waits in the backlog
  engine_->abort(SequenceId(1));  // the real engine has it
  EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("4 cancelled"));
  EXPECT_THAT(real_->calls, ElementsAre("submit 1", "submit 2", "submit 3", "abort 1"));
  real_->room = 100;
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->waiting, ElementsAre(1, 2, 3)) << "4 is over";
}

TEST_F(ResumingEngine, TellsOfWhatTheRealOneRefusesWhereTheSequenceStood) {
  put_four_in_flight();
  real_->refused = {1, 2, 3};
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->waiting, ElementsAre(4));
  real_->waiting.clear();
  EXPECT_TRUE(engine_->has_work());
  // 1 was decoding, so its end is reported. The prompt of 3 must be reported first, so that Decode
  // can get its end.
  EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("1 refused: sequence 1 is too long"));
  EXPECT_THAT(ids(engine_->take_prefilled()), ElementsAre(3));
  EXPECT_THAT(ids(engine_->take_prefilled()), IsEmpty()) << "once";
  EXPECT_TRUE(engine_->take_over(SequenceId(2)).ok());
  EXPECT_TRUE(engine_->take_over(SequenceId(3)).ok());
  EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("2 refused: sequence 2 is too long",
                                                          "3 refused: sequence 3 is too long"));
  EXPECT_FALSE(engine_->has_work());
  EXPECT_THAT(real_->calls, ElementsAre("submit 4", "step"));
}

TEST_F(ResumingEngine, SaysOfAnEndWhetherPrefillHadHeardOfThePrompt) {
  put_four_in_flight();
  resume();
  EXPECT_TRUE(engine_->step().ok());
  real_->finish(2);  // it was aborted while it was computed again
  real_->finish(3);
  const auto events = engine_->take_finished();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[0].was_prefilled);
  EXPECT_FALSE(events[1].was_prefilled);
}

TEST_F(ResumingEngine, AnEngineThatDoesNotTakeASequenceOverAgainFailsTheRun) {
  put_four_in_flight();
  resume();
  EXPECT_TRUE(engine_->step().ok());
  real_->complete(1);
  real_->take_over_fault = error(Code::kNotFound, "no sequence 1");
  EXPECT_THAT(ids(engine_->take_prefilled()), IsEmpty());
  EXPECT_TRUE(engine_->has_work());
  const Status failed = engine_->step();
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().text(), HasSubstr("no sequence 1"));
}

TEST_F(ResumingEngine, ALeaseThatEndedBeforeItWentLiveIsNotForgotten) {
  put_four_in_flight();
  in_both([](Engine& engine, FakeEngine*) {
    engine.expire(SequenceId(1));  // taken over
    engine.expire(SequenceId(2));
    engine.expire(SequenceId(3));  // the end of its prompt was not reported yet
  });
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->waiting, ElementsAre(1, 3, 4));
  const auto events = engine_->take_finished();
  EXPECT_THAT(ends(events), ElementsAre(fmt::format("2 refused: {}", kLeaseEnded)));
  EXPECT_TRUE(events.at(0).was_prefilled);
}

TEST_F(ResumingEngine, ALeaseEndsNothingThatIsBeingComputedAgain) {
  put_four_in_flight();
  resume();
  engine_->expire(SequenceId(2));
  EXPECT_THAT(real_->calls, testing::Not(testing::Contains("expire 2")));
  real_->complete(2);
  EXPECT_THAT(ids(engine_->take_prefilled()), IsEmpty());
  engine_->expire(SequenceId(2));
  EXPECT_THAT(real_->calls, testing::Contains("expire 2"));
}

TEST_F(ResumingEngine, CancelsWhatWasRefusedAndThenAborted) {
  put_four_in_flight();
  real_->refused = {2};
  resume();
  engine_->abort(SequenceId(2));
  EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("2 cancelled"));
}

TEST_F(ResumingEngine, HasTheNewestWeightsBeforeAnythingIsSubmitted) {
  put_four_in_flight();
  in_both([](Engine& engine, FakeEngine*) {
    for (const int64_t version : {1, 2})
      EXPECT_EQ(engine.apply(snapshot_of(version, 5)).value(), 5U);
  });
  EXPECT_THAT(real_->calls, IsEmpty());
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_EQ(real_->calls.front(), "apply 2");
  EXPECT_EQ(std::count(real_->calls.begin(), real_->calls.end(), "apply 1"), 0);
  EXPECT_EQ(real_->calls[1], "submit 1");
  EXPECT_THAT(asked_versions_, IsEmpty());
  EXPECT_TRUE(engine_->apply(snapshot_of(3, 5)).ok());
  EXPECT_EQ(real_->calls.back(), "apply 3");
}

TEST_F(ResumingEngine, AsksForWeightsWhoseTensorsAreUnknown) {
  in_both([](Engine& engine, FakeEngine*) { EXPECT_TRUE(engine.apply(snapshot_of(7, 0)).ok()); });
  weights_ = std::make_shared<WeightSnapshot>(snapshot_of(8, 5));
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(asked_versions_, ElementsAre(7));
  EXPECT_THAT(real_->calls, ElementsAre("apply 8", "step"));
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(asked_versions_, ElementsAre(7)) << "once";
}

/// Whatever the first call is, the real engine answers it, and the record gets the note.
TEST_F(ResumingEngine, AnswersTheFirstCallAfterTheResume) {
  put_four_in_flight();
  in_both([](Engine& engine, FakeEngine*) { EXPECT_TRUE(engine.apply(snapshot_of(7, 0)).ok()); });
  weights_ = std::make_shared<WeightSnapshot>(snapshot_of(8, 5));
  EXPECT_THAT(resumes_, IsEmpty());
  resume();
  EXPECT_EQ(engine_->state().num_waiting, 4);
  EXPECT_EQ(engine_->max_sequence_tokens(), 64);
  EXPECT_TRUE(engine_->step().ok());
  ASSERT_THAT(resumes_, testing::SizeIs(1));
  EXPECT_EQ(resumes_[0].num_sequences, 4U);
  EXPECT_EQ(resumes_[0].versions.of({TenantSlot(0)}), PolicyVersion(8))
      << "version 7 could not be made again";
}

TEST_F(ResumingEngine, AnswersHowLongASequenceMayBeInTheFirstCall) {
  put_four_in_flight();
  resume();
  EXPECT_EQ(engine_->max_sequence_tokens(), 64);
  EXPECT_THAT(resumes_, testing::SizeIs(1));
}

TEST_F(ResumingEngine, HasTheNewestWeightsOfEveryTenant) {
  in_both([](Engine& engine, FakeEngine*) {
    for (const int64_t version : {1, 2})
      for (const uint32_t tenant : {0U, 1U})
        EXPECT_TRUE(engine.apply(*with_key(snapshot_of(version, 5), {TenantSlot(tenant)})).ok());
  });
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->calls, ElementsAre("apply 2", "apply 2 of tenant 1", "step"));
}

TEST_F(ResumingEngine, TellsTheRecordedVersionsOfEveryTenant) {
  for (const uint32_t tenant : {0U, 1U})
    ASSERT_TRUE(original_->versions.set({TenantSlot(tenant)}, PolicyVersion(4)));
  original_->waiting = {1, 2};
  (void)recording_->state();
  const EngineState state = engine_->state();
  EXPECT_EQ(state.versions, original_->versions);
  EXPECT_EQ(state.num_waiting, 2);
}

TEST_F(ResumingEngine, WithoutItsWeightsFailsAtEveryCallAndGeneratesNothing) {
  put_four_in_flight();
  in_both([](Engine& engine, FakeEngine*) { EXPECT_TRUE(engine.apply(snapshot_of(7, 0)).ok()); });
  resume();
  engine_->abort(SequenceId(3));  // which cannot return the fault
  EXPECT_TRUE(engine_->has_work()) << "otherwise the fault would never be reported";
  for (int i = 0; i < 2; ++i) {
    const Status stepped = engine_->step();
    ASSERT_FALSE(stepped.ok());
    EXPECT_THAT(stepped.error().text(), HasSubstr("version 7 of tenant 0 was retired"));
  }
  EXPECT_FALSE(engine_->submit(request(10)).ok());
  EXPECT_THAT(real_->calls, IsEmpty());
}

TEST_F(ResumingEngine, FailsAtEveryCallWhenItsWeightsDoNotFit) {
  in_both([](Engine& engine, FakeEngine*) { EXPECT_TRUE(engine.apply(snapshot_of(7, 5)).ok()); });
  real_->apply_fault = error(Code::kInvalid, "no tensor 'x'");
  resume();
  EXPECT_FALSE(engine_->step().ok());
  EXPECT_FALSE(engine_->step().ok());
  EXPECT_THAT(real_->calls, ElementsAre("apply 7"));
}

// The tenant left in the record: its sequences end, and its weights are not applied.
TEST_F(ResumingEngine, GoesOnWithoutASnapshotWhoseWeightsAreInNoFile) {
  in_both([](Engine& engine, FakeEngine*) {
    EXPECT_TRUE(engine.apply(snapshot_of(1, 2)).ok());
    EXPECT_TRUE(engine.apply(*with_key(snapshot_of(2, 0), snapshot_key({}, 1))).ok());
  });
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(asked_versions_, ElementsAre(2));
  EXPECT_THAT(real_->calls, ElementsAre("apply 1", "step"));
}

TEST_F(ResumingEngine, DoesNotContinueADroppedKey) {
  put_four_in_flight();
  const WeightsKey gone;
  in_both([&](Engine& engine, FakeEngine*) {
    ASSERT_TRUE(engine.apply(snapshot_of(3, 2)).ok());
    engine.drop(gone);
    SequenceRequest other = request(5);
    other.tenant = TenantSlot(1);
    EXPECT_TRUE(engine.submit(other).ok());
  });
  EXPECT_EQ(original_->calls.back(), "submit 5");
  EXPECT_EQ(original_->calls[original_->calls.size() - 2], "drop tenant 0");
  resume();
  EXPECT_TRUE(engine_->step().ok());
  EXPECT_THAT(real_->calls, ElementsAre("submit 5", "step"));
  EXPECT_THAT(ends(engine_->take_finished()),
              ElementsAre("1 cancelled", "2 cancelled", "3 cancelled", "4 cancelled"));
  engine_->drop({TenantSlot(1)});
  EXPECT_THAT(real_->calls, ElementsAre("submit 5", "step", "abort 5", "drop tenant 1"));
}

TEST_F(ResumingEngine, AKeyThatIsDroppedWhileItIsComputedAgainEnds) {
  put_four_in_flight();
  real_->room = 3;
  resume();
  EXPECT_TRUE(engine_->step().ok());
  real_->calls.clear();
  engine_->drop({});
  EXPECT_THAT(ends(engine_->take_finished()), ElementsAre("4 cancelled")) << "it waited here";
  EXPECT_THAT(real_->calls, ElementsAre("abort 1", "abort 2", "abort 3", "drop tenant 0"));
}

}  // namespace
}  // namespace primerl
