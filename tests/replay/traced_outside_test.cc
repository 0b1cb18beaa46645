#include "runtime/replay/traced_outside.h"

#include <gmock/gmock.h>

#include <deque>

#include "runtime/outside/scripted_outside.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Gives the answers that the test puts there.
class HandOutside final : public Outside {
 public:
  Status ask(OutsideCall call) override {
    calls.push_back(std::move(call));
    return ok();
  }
  void forget(uint32_t, uint64_t session) override { forgotten.push_back(session); }
  std::vector<OutsideAnswer> receive_answers() override { return std::exchange(answers, {}); }
  void stop() override {}
  void set_wake(std::function<void()>) override {}
  bool has_work() const override { return !answers.empty(); }
  void begin_tenant(OutsideSpec spec) override { begun.push_back(std::move(spec)); }
  void end_tenant() override { ++num_ended; }

  std::vector<OutsideCall> calls;
  std::vector<OutsideAnswer> answers;
  std::vector<uint64_t> forgotten;
  std::vector<OutsideSpec> begun;  // tenants
  int num_ended = 0;
};

OutsideCall call(uint64_t id, std::string body = "{}") {
  OutsideCall made;
  made.id = id;
  made.body = std::move(body);
  return made;
}

OutsideSpec spec_of(const std::string& name) {
  OutsideSpec spec;
  spec.pools.emplace_back().name = name;
  return spec;
}

/// Steps with their notes, as a record keeps them.
struct TracedOutsideStory : ::testing::Test {
  TracedOutsideStory() {
    auto made = std::make_unique<HandOutside>();
    hand = made.get();
    recording = make_recording_outside(std::move(made), [this](std::vector<std::byte> note) {
      steps.back().push_back(std::move(note));
    });
  }
  /// One step of the recorded run, in which these answers are received.
  void record(std::vector<OutsideAnswer> answers) {
    steps.emplace_back();
    hand->answers = std::move(answers);
    (void)recording->receive_answers();
  }
  NextAnswer next_note() {
    return [this]() -> const std::vector<std::byte>* {
      return used < steps[step].size() ? &steps[step][used++] : nullptr;
    };
  }
  std::vector<OutsideAnswer> replayed(Outside& outside, size_t number) {
    step = number;
    used = 0;
    auto answers = outside.receive_answers();
    EXPECT_EQ(used, steps[number].size()) << "notes were left";
    return answers;
  }

  HandOutside* hand = nullptr;
  std::shared_ptr<Outside> recording;
  std::vector<std::vector<std::vector<std::byte>>> steps;
  size_t step = 0, used = 0;
};

TEST_F(TracedOutsideStory, AReplayGivesTheAnswersOfEachStep) {
  record({});
  record({{1, OutsideEnd::kDone, "{\"reward\":1}"}, {2, OutsideEnd::kFailed, "ill"}});
  record({{3, OutsideEnd::kNeedsHistory, ""}});
  EXPECT_THAT(steps[0], IsEmpty()) << "a step that received nothing has no note";
  const auto outside = make_replayed_outside(next_note());
  EXPECT_TRUE(outside->ask(call(1)).ok());
  EXPECT_FALSE(outside->has_work());
  EXPECT_THAT(replayed(*outside, 0), IsEmpty());
  const auto two = replayed(*outside, 1);
  ASSERT_THAT(two, SizeIs(2));
  EXPECT_EQ(two[0].body, "{\"reward\":1}");
  EXPECT_EQ(two[1].end, OutsideEnd::kFailed);
  EXPECT_EQ(replayed(*outside, 2).at(0).end, OutsideEnd::kNeedsHistory);
}

TEST_F(TracedOutsideStory, AnswersLargerThanAMessageAreKeptInPieces) {
  const std::string large(size_t{5} << 20, 'x'), medium(size_t{5} << 10, 'y');
  std::vector<OutsideAnswer> many = {{1, OutsideEnd::kDone, "a"},
                                     {2, OutsideEnd::kDone, large},
                                     {3, OutsideEnd::kDone, "b"},
                                     {4, OutsideEnd::kDone, medium}};
  for (uint64_t id = 5; id < 400; ++id)
    many.push_back({id, OutsideEnd::kDone, std::string(4096, 'z')});
  record(many);
  const auto outside = make_replayed_outside(next_note());
  const auto again = replayed(*outside, 0);
  ASSERT_EQ(again.size(), many.size());
  for (size_t i = 0; i < many.size(); ++i) {
    EXPECT_EQ(again[i].id, many[i].id);
    EXPECT_EQ(again[i].body, many[i].body);
  }
}

TEST_F(TracedOutsideStory, AResumedRunAsksForWhatTheRecordDoesNotAnswer) {
  record({{1, OutsideEnd::kDone, "{}"}});
  bool is_live = false;
  int num_made = 0;
  HandOutside* live = nullptr;
  ResumingOutsideSetup setup;
  setup.make = [&]() -> Result<std::shared_ptr<Outside>> {
    ++num_made;
    auto made = std::make_unique<HandOutside>();
    live = made.get();
    return std::shared_ptr<Outside>(std::move(made));
  };
  setup.next = next_note();
  setup.is_live = [&] { return is_live; };
  const auto outside = make_resuming_outside(std::move(setup));
  ASSERT_TRUE(outside->ask(call(1)).ok());
  OutsideCall second = call(2, R"({"call":"reward"})");
  second.attempt = 4;
  ASSERT_TRUE(outside->ask(std::move(second)).ok());
  EXPECT_FALSE(outside->has_work());
  EXPECT_THAT(replayed(*outside, 0), SizeIs(1));
  EXPECT_EQ(num_made, 0) << "nothing is started while the record is followed";
  is_live = true;
  EXPECT_TRUE(outside->has_work());
  ASSERT_TRUE(outside->step().ok());
  EXPECT_EQ(num_made, 1);
  ASSERT_THAT(live->calls, SizeIs(1));
  EXPECT_EQ(live->calls[0].id, 2U);
  EXPECT_EQ(live->calls[0].attempt, 5U);
  EXPECT_EQ(live->calls[0].body, R"({"call":"reward"})");
  ASSERT_TRUE(outside->ask(call(3)).ok());
  EXPECT_THAT(live->calls, SizeIs(2));
  live->answers = {{2, OutsideEnd::kDone, "{}"}};
  EXPECT_THAT(outside->receive_answers(), SizeIs(1));
}

TEST_F(TracedOutsideStory, ACutHasTheCallsWithoutAnAnswer) {
  ASSERT_TRUE(recording->ask(call(1)).ok());
  ASSERT_TRUE(recording->ask(call(2)).ok());
  record({{1, OutsideEnd::kDone, "{}"}});
  const Blob state = recording->save_state();
  bool is_live = false;
  HandOutside* live = nullptr;
  ResumingOutsideSetup setup;
  setup.make = [&]() -> Result<std::shared_ptr<Outside>> {
    auto made = std::make_unique<HandOutside>();
    live = made.get();
    return std::shared_ptr<Outside>(std::move(made));
  };
  setup.next = [] { return nullptr; };
  setup.is_live = [&] { return is_live; };
  const auto outside = make_resuming_outside(std::move(setup));
  ASSERT_TRUE(outside->restore_state(state).ok());
  is_live = true;
  ASSERT_TRUE(outside->step().ok());
  ASSERT_THAT(live->calls, SizeIs(1));
  EXPECT_EQ(live->calls[0].id, 2U);
}

TEST_F(TracedOutsideStory, AResumedRunStartsOnlyTheTenantThatIsThere) {
  bool is_live = false;
  HandOutside* live = nullptr;
  ResumingOutsideSetup setup;
  setup.make = [&]() -> Result<std::shared_ptr<Outside>> {
    auto made = std::make_unique<HandOutside>();
    live = made.get();
    return std::shared_ptr<Outside>(std::move(made));
  };
  setup.next = [] { return nullptr; };
  setup.is_live = [&] { return is_live; };
  const auto outside = make_resuming_outside(std::move(setup));
  outside->begin_tenant(spec_of("alice"));
  ASSERT_TRUE(outside->ask(call(1)).ok());
  outside->end_tenant();
  outside->begin_tenant(spec_of("bob"));
  ASSERT_TRUE(outside->ask(call(2)).ok());
  EXPECT_EQ(live, nullptr) << "nothing is started while the record is followed";
  is_live = true;
  ASSERT_TRUE(outside->step().ok());
  ASSERT_THAT(live->begun, SizeIs(1));
  EXPECT_EQ(live->begun[0].pools[0].name, "bob");
  ASSERT_THAT(live->calls, SizeIs(1)) << "calls of a tenant that left are not asked again";
  EXPECT_EQ(live->calls[0].id, 2U);
  outside->end_tenant();
  EXPECT_EQ(live->num_ended, 1);
}

TEST_F(TracedOutsideStory, ACutHasNoCallOfATenantThatLeft) {
  ASSERT_TRUE(recording->ask(call(1)).ok());
  recording->end_tenant();
  recording->begin_tenant({});
  ASSERT_TRUE(recording->ask(call(2)).ok());
  EXPECT_THAT(hand->begun, SizeIs(1));
  const size_t with_one_call = recording->save_state().size();
  ASSERT_TRUE(recording->ask(call(3)).ok());
  EXPECT_GT(recording->save_state().size(), with_one_call);
  recording->end_tenant();
  EXPECT_LT(recording->save_state().size(), with_one_call) << "it has no call";
}

TEST(ScriptedOutside, AnswersEveryCallOnceAndLaterOnesMayComeFirst) {
  const auto outside = make_scripted_outside({.delay_max = 3});
  for (uint64_t id = 1; id <= 20; ++id)
    ASSERT_TRUE(outside->ask(call(id, fmt::format(R"({{"call":"task","ordinal":{}}})", id))).ok());
  std::vector<uint64_t> order;
  while (outside->has_work())
    for (const auto& answer : outside->receive_answers()) order.push_back(answer.id);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order.size(), 20U);
  EXPECT_EQ(std::unique(order.begin(), order.end()), order.end());
}

}  // namespace
}  // namespace primerl
