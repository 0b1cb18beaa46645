// The record of an engine's sampling options and log-probabilities.
#include "runtime/replay/traced_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <limits>

namespace primerl {
namespace {

using testing::IsEmpty;

/// Ends the sequences that the test chooses.
class EndingEngine final : public Engine {
 public:
  Status submit(SequenceRequest) override { return ok(); }
  Status take_over(SequenceId) override { return ok(); }
  void abort(SequenceId) override {}
  void expire(SequenceId) override {}
  std::vector<PrefillEvent> take_prefilled() override { return {}; }
  std::vector<FinishEvent> take_finished() override { return std::exchange(finished, {}); }
  bool prepare(const std::shared_ptr<const WeightSnapshot>&) override {
    return --preparations_left < 0;
  }
  Result<uint64_t> apply(const WeightSnapshot&) override { return uint64_t{3}; }
  EngineState state() const override { return {}; }
  int32_t max_sequence_tokens() const override { return 64; }
  Status step() override { return ok(); }
  bool has_work() const override { return false; }
  Status restore_state(const Blob&) override { return ok(); }

  std::vector<FinishEvent> finished;
  int preparations_left = 0;
};

FinishEvent an_end(uint64_t id) {
  FinishEvent end;
  end.id = SequenceId(id);
  end.tokens = {7};
  end.kept = Blob(std::vector<std::byte>(5, std::byte{1}));
  return end;
}

TEST(TracedEngine, GivesBackListsOfAnySizeFromTheRecord) {
  const float none = -std::numeric_limits<float>::infinity();
  std::vector<FinishEvent> ends = {an_end(1), an_end(2), an_end(3), an_end(4), an_end(5)};
  ends[4].tokens.assign(200'000, 9);
  ends[4].logprobs.assign(200'000, -0.75F);
  ends[1].top_logprobs = {{3, -0.5F}, {-1, none}};
  ends[2].top_logprobs.assign(200'000, {70'000, -1.25F});  // more than fits into a message
  ends[1].ranks = {1, 300};
  ends[1].routed = {.bytes = Blob(std::vector<std::byte>(600'000, std::byte{3})),
                    .start = 1,
                    .num_layers = 2,
                    .per_token = 3,
                    .is_wide = true};
  ends[2].prompt_logprobs.assign(100'000, -2.5F);
  ends[3].prompt_logprobs = {-0.25F, none};
  ends[3].prompt_top_logprobs.assign(150'000, {80'000, -3.5F});
  auto engine = std::make_unique<EndingEngine>();
  engine->finished = ends;
  std::deque<std::vector<std::byte>> tape;
  ObservedEngine recording(std::move(engine));
  recording.add(
      engine_recorder([&](std::vector<std::byte> answer) { tape.push_back(std::move(answer)); }));
  EXPECT_EQ(recording.take_finished().size(), ends.size());
  std::vector<std::byte> answer;
  TracedEngine repeating([&]() -> const std::vector<std::byte>* {
    if (tape.empty()) return nullptr;
    answer = std::move(tape.front());
    tape.pop_front();
    return &answer;
  });
  const auto repeated = repeating.take_finished();
  EXPECT_THAT(tape, IsEmpty()) << "the record was not used up";
  ASSERT_EQ(repeated.size(), ends.size());
  for (size_t i = 0; i < ends.size(); ++i) {
    EXPECT_EQ(repeated[i].id, ends[i].id);
    EXPECT_EQ(repeated[i].kept, ends[i].kept) << i;
    EXPECT_EQ(repeated[i].tokens, ends[i].tokens) << i;
    EXPECT_EQ(repeated[i].logprobs, ends[i].logprobs) << i;
    EXPECT_EQ(repeated[i].top_logprobs, ends[i].top_logprobs) << i;
    EXPECT_EQ(repeated[i].ranks, ends[i].ranks) << i;
    EXPECT_EQ(repeated[i].routed.bytes, ends[i].routed.bytes) << i;
    EXPECT_EQ(repeated[i].routed.num_rows(), ends[i].routed.num_rows()) << i;
    EXPECT_EQ(repeated[i].routed.start, ends[i].routed.start) << i;
    EXPECT_EQ(repeated[i].prompt_logprobs, ends[i].prompt_logprobs) << i;
    EXPECT_EQ(repeated[i].prompt_top_logprobs, ends[i].prompt_top_logprobs) << i;
  }
}

TEST(TracedEngine, RepeatsHowOftenAnUpdateWasNotPreparedYet) {
  auto engine = std::make_unique<EndingEngine>();
  engine->preparations_left = 2;
  std::deque<std::vector<std::byte>> tape;
  ObservedEngine recording(std::move(engine));
  recording.add(
      engine_recorder([&](std::vector<std::byte> answer) { tape.push_back(std::move(answer)); }));
  const auto snapshot = std::make_shared<const WeightSnapshot>();
  const auto is_applied = [&](Engine& of) { return of.apply_prepared(snapshot).value(); };
  for (const std::optional<uint64_t> expected : {std::optional<uint64_t>(), {}, {3}})
    EXPECT_EQ(is_applied(recording), expected);
  std::vector<std::byte> answer;
  TracedEngine repeating([&]() -> const std::vector<std::byte>* {
    answer = std::move(tape.front());
    tape.pop_front();
    return &answer;
  });
  for (const std::optional<uint64_t> expected : {std::optional<uint64_t>(), {}, {3}})
    EXPECT_EQ(is_applied(repeating), expected);
  EXPECT_THAT(tape, IsEmpty());
}

// A resumed run has another engine, whose totals begin at 0. Its replay has one engine throughout.
TEST(TracedEngine, TotalsOfEndsContinueFromItsSavedState) {
  auto ending = std::make_unique<EndingEngine>();
  EndingEngine& engine = *ending;
  ObservedEngine before(std::move(ending));
  before.add(engine_recorder([](std::vector<std::byte>) {}));
  engine.finished = {an_end(1), an_end(2), an_end(3)};
  engine.finished[1].reason = FinishReason::kFailed;
  engine.finished[2].reason = FinishReason::kCancelled;
  EXPECT_EQ(before.state().num_completed, 0U) << "their ends were not read yet";
  before.take_finished();
  EXPECT_EQ(before.state().num_completed, 1U);
  EXPECT_EQ(before.state().num_failed, 1U);

  auto resumed = std::make_unique<EndingEngine>();
  resumed->finished = {an_end(4)};
  ObservedEngine after(std::move(resumed));
  after.add(engine_recorder([](std::vector<std::byte>) {}));
  ASSERT_TRUE(after.restore_state(before.save_state()).ok());
  after.take_finished();
  EXPECT_EQ(after.state().num_completed, 2U);
  EXPECT_EQ(after.state().num_failed, 1U);
}

TEST(TracedEngine, ItsSavedStateHasTheOptionsOfWhatIsInFlight) {
  SequenceRequest one;
  one.id = SequenceId(1);
  one.prompt_tokens = {1, 2, 3};
  one.sampling = {.stop_ids = {4},
                  .stop = {"x"},
                  .min_tokens = 3,
                  .logit_bias = {{2, -1.5}, {9, 100}},
                  .repetition_penalty = 1.1,
                  .frequency_penalty = 0.3,
                  .presence_penalty = -0.7,
                  .num_top_logprobs = 6,
                  .prompt_logprobs = true};
  ObservedEngine recording(std::make_unique<EndingEngine>());
  recording.add(engine_recorder([](std::vector<std::byte>) {}));
  ASSERT_TRUE(recording.submit(one).ok());
  const auto flights = read_state<UnfinishedSequences>(recording.save_state());
  ASSERT_TRUE(flights.ok());
  EXPECT_EQ(flights->of.at(one.id).request.sampling, one.sampling);
}

}  // namespace
}  // namespace primerl
