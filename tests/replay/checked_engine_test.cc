// An engine that generates recorded answers again: what must be equal, and within which tolerance.
#include "runtime/replay/checked_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <map>

#include "runtime/replay/traced_engine.h"

namespace primerl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

/// Ends and prefills the sequences that the test chooses.
class ToldEngine final : public Engine {
 public:
  Status submit(SequenceRequest) override { return submitted; }
  Status take_over(SequenceId) override { return ok(); }
  void abort(SequenceId id) override { aborted.push_back(id); }
  void drop(WeightsKey key) override { dropped.push_back(key); }
  void expire(SequenceId) override {}
  void set_share(TenantSlot tenant, double share) override { shares[tenant] = share; }
  std::vector<PrefillEvent> take_prefilled() override { return std::exchange(prefilled, {}); }
  std::vector<FinishEvent> take_finished() override { return std::exchange(finished, {}); }
  Result<uint64_t> apply(const WeightSnapshot&) override {
    ++num_applied;
    return uint64_t{3};
  }
  bool prepare(const std::shared_ptr<const WeightSnapshot>&) override { return is_prepared; }
  EngineState state() const override { return {}; }
  int32_t max_sequence_tokens() const override { return 64; }

  Status submitted;
  std::vector<PrefillEvent> prefilled;
  std::vector<FinishEvent> finished;
  std::vector<SequenceId> aborted;
  std::vector<WeightsKey> dropped;
  std::map<TenantSlot, double> shares;
  bool is_prepared = true;
  int num_applied = 0;
};

FinishEvent an_end(uint64_t id, std::vector<int32_t> tokens, std::vector<float> logprobs) {
  FinishEvent end;
  end.id = SequenceId(id);
  end.tokens = std::move(tokens);
  end.logprobs = std::move(logprobs);
  return end;
}

constexpr double kMost = 0.125;  // a power of two, so that bounds are exact

class ACheckedEngine : public ::testing::Test {
 protected:
  /// Records the answers of `told` to `calls`.
  template <class Calls>
  void record(std::unique_ptr<ToldEngine> told, const Calls& calls) {
    ObservedEngine recording(std::move(told));
    recording.add(engine_recorder(
        [this](std::vector<std::byte> answer) { tape_.push_back(std::move(answer)); }));
    calls(recording);
  }
  void record_ends(std::vector<FinishEvent> ends) {
    auto told = std::make_unique<ToldEngine>();
    told->finished = std::move(ends);
    record(std::move(told), [](Engine& engine) { (void)engine.take_finished(); });
  }
  std::shared_ptr<Engine> checked(std::unique_ptr<ToldEngine> told) {
    CheckedEngineSetup setup;
    setup.engine = std::move(told);
    setup.next = [this]() -> const std::vector<std::byte>* {
      if (tape_.empty()) return nullptr;
      answer_ = std::move(tape_.front());
      tape_.pop_front();
      return &answer_;
    };
    setup.tolerance = {.logprob = kMost, .report_absolute = 0, .report_relative = 0};
    setup.near = near_;
    setup.on_divergence = [this](std::string what) { parted_.push_back(std::move(what)); };
    return make_checked_engine(std::move(setup));
  }
  /// The ends that the actor gets when the record has `then` and the engine generates `now`.
  std::vector<FinishEvent> answered(std::vector<FinishEvent> then, std::vector<FinishEvent> now) {
    record_ends(std::move(then));
    auto told = std::make_unique<ToldEngine>();
    told->finished = std::move(now);
    return checked(std::move(told))->take_finished();
  }

  std::deque<std::vector<std::byte>> tape_;
  std::vector<std::byte> answer_;
  std::vector<std::string> parted_;
  const std::shared_ptr<ToleranceCounts> near_ = std::make_shared<ToleranceCounts>();
};

TEST_F(ACheckedEngine, AnswersAsRecordedWithinTheTolerance) {
  const auto ends =
      answered({an_end(1, {7, 8}, {-1.0F, -2.0F})}, {an_end(1, {7, 8}, {-1.125F, -2.0F})});
  EXPECT_THAT(parted_, IsEmpty()) << "at the bound";
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_THAT(ends[0].logprobs, ElementsAre(-1.0F, -2.0F)) << "the recorded ones";
  const std::string said =
      near_->text({.logprob = kMost, .report_absolute = 0, .report_relative = 0});
  EXPECT_THAT(said, HasSubstr("of 2 log-probabilities none is further than 0.125"));
  EXPECT_THAT(said, HasSubstr("log-probabilities within 0.125"));
}

/// Otherwise it would admit sequences in another order than the recorded engine.
TEST_F(ACheckedEngine, GetsSharesThatAreSet) {
  auto told = std::make_unique<ToldEngine>();
  const ToldEngine& engine = *told;
  const auto replayed = checked(std::move(told));
  replayed->set_share(TenantSlot(1), 0.75);
  EXPECT_THAT(engine.shares, ElementsAre(testing::Pair(TenantSlot(1), 0.75)));
}

TEST_F(ACheckedEngine, PartsOnePastIt) {
  const float past = std::nextafter(-1.125F, -2.0F);
  answered({an_end(1, {7, 8}, {-1.0F, -2.0F})}, {an_end(1, {7, 8}, {past, -2.0F})});
  ASSERT_THAT(parted_, SizeIs(1));
  EXPECT_THAT(parted_[0], HasSubstr("sequence 1 has log-probabilities further than 0.125 from the "
                                    "recorded ones: number 0: recorded -1, now -1.125"));
}

TEST_F(ACheckedEngine, PartsAtANumberThatIsNone) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  answered({an_end(1, {7}, {-1.0F})}, {an_end(1, {7}, {none})});
  EXPECT_THAT(parted_, SizeIs(1));
}

TEST_F(ACheckedEngine, PartsAtTheFirstOtherToken) {
  answered({an_end(1, {7, 8, 9}, {-1, -2, -3})}, {an_end(1, {7, 5, 6}, {-1, -2.5F, -3})});
  ASSERT_THAT(parted_, SizeIs(1));
  EXPECT_THAT(parted_[0], HasSubstr("sequence 1 token 1 is 5 (log-probability -2.5), recorded 8 "
                                    "(-2); on a device"));
  EXPECT_THAT(parted_[0], HasSubstr("CUBLAS_WORKSPACE_CONFIG=:4096:8"));
}

TEST_F(ACheckedEngine, PartsWhereOtherSequencesEndAndSaysSoOnce) {
  const auto ends = answered({an_end(1, {7}, {-1}), an_end(2, {7}, {-1})}, {an_end(3, {7}, {-1})});
  EXPECT_THAT(ends, SizeIs(2)) << "those of the record";
  EXPECT_THAT(parted_, ElementsAre("1 sequences ended in this step, recorded 2"));
}

TEST_F(ACheckedEngine, PartsWhereAPromptIsDoneInAnotherStep) {
  record(std::make_unique<ToldEngine>(), [](Engine& engine) { (void)engine.take_prefilled(); });
  auto told = std::make_unique<ToldEngine>();
  told->prefilled = {{SequenceId(4), 0}};
  EXPECT_THAT(checked(std::move(told))->take_prefilled(), IsEmpty());
  EXPECT_THAT(parted_, ElementsAre(HasSubstr("completed 1 prompts in this step, recorded 0")));
}

TEST_F(ACheckedEngine, PartsWhereOnlyOneOfBothRefuses) {
  record(std::make_unique<ToldEngine>(), [](Engine& engine) { (void)engine.submit({}); });
  auto told = std::make_unique<ToldEngine>();
  told->submitted = error(Code::kExhausted, "no room");
  EXPECT_TRUE(checked(std::move(told))->submit({}).ok()) << "as recorded";
  EXPECT_THAT(parted_, ElementsAre(HasSubstr("no room, recorded: accepted")));
}

TEST_F(ACheckedEngine, AppliesWeightsInTheRecordedStepHoweverLongTheyTookToPrepare) {
  const auto snapshot = std::make_shared<const WeightSnapshot>();
  auto slow = std::make_unique<ToldEngine>();
  ToldEngine& recorded = *slow;
  record(std::move(slow), [&](Engine& engine) {
    recorded.is_prepared = false;
    EXPECT_FALSE(engine.apply_prepared(snapshot).value().has_value());
    recorded.is_prepared = true;
    EXPECT_TRUE(engine.apply_prepared(snapshot).value().has_value());
  });
  auto told = std::make_unique<ToldEngine>();
  ToldEngine& again = *told;
  const auto engine = checked(std::move(told));
  EXPECT_FALSE(engine->apply_prepared(snapshot).value().has_value());
  EXPECT_EQ(again.num_applied, 0);
  EXPECT_EQ(engine->apply_prepared(snapshot).value(), uint64_t{3});
  EXPECT_EQ(again.num_applied, 1);
}

TEST_F(ACheckedEngine, IsToldWhatIsNotInTheRecord) {
  auto told = std::make_unique<ToldEngine>();
  ToldEngine& engine = *told;
  const auto of = checked(std::move(told));
  of->abort(SequenceId(9));
  EXPECT_THAT(engine.aborted, ElementsAre(SequenceId(9)));
}

TEST_F(ACheckedEngine, DropsTheKeysThatTheRecordedRunDropped) {
  auto told = std::make_unique<ToldEngine>();
  ToldEngine* const real = told.get();
  const auto engine = checked(std::move(told));
  const WeightsKey key{TenantSlot(1), AdapterId(2)};
  engine->drop(key);
  EXPECT_THAT(real->dropped, ElementsAre(key));
}

}  // namespace
}  // namespace primerl
