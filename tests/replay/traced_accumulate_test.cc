// The halves of a step in a record: what is repeated from it, what is computed again and compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "kernels/scripted/scripted_learner.h"
#include "runtime/replay/resuming_learner.h"
#include "runtime/replay/traced_learner.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr TenantSlot kClientOfRecord(0);

std::shared_ptr<Learner> client_learner(uint64_t seed = 0) {
  ScriptedLearnerOptions options;
  options.seed = seed;
  return make_scripted_learner(options).value();
}

LossBatch recorded_batch(int32_t number) {
  LossBatch made;
  made.tenant = kClientOfRecord;
  made.loss = tinker_loss("importance_sampling", {}).value();
  LossDatum& datum = made.data.emplace_back();
  for (int32_t i = 0; i < 6; ++i) {
    datum.tokens.push_back(number + i);
    datum.targets.push_back(number + i + 1);
    datum.logprobs.push_back(-1);
    datum.advantages.push_back(0.5F);
  }
  return made;
}

/// Answers of a learner, by the call.
struct ClientAnswers {
  std::vector<LossResult> results;
  std::vector<TrainReport> updates;
};

/// Two calls and an update, `num_updates` times, then one call that stays open.
ClientAnswers run_client(Learner& learner, int num_updates) {
  ClientAnswers answers;
  const auto call = [&](int32_t number) {
    auto result = learner.accumulate(recorded_batch(number), nullptr);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().text());
    if (result.ok()) answers.results.push_back(*std::move(result));
  };
  for (int i = 0; i < num_updates; ++i) {
    call(2 * i);
    call(2 * i + 1);
    auto report = learner.apply(kClientOfRecord, {});
    EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().text());
    if (report.ok()) answers.updates.push_back(*std::move(report));
  }
  call(40);
  return answers;
}

class AClientInARecord : public ::testing::Test {
 protected:
  AClientInARecord() {
    TracedLearner recording(client_learner(),
                            [this](std::vector<std::byte> answer) { tape_.push_back(answer); });
    then_ = run_client(recording, 2);
  }

  NextAnswer next() {
    return [this]() -> const std::vector<std::byte>* {
      if (tape_.empty()) return nullptr;
      answer_ = std::move(tape_.front());
      tape_.pop_front();
      return &answer_;
    };
  }
  std::shared_ptr<Learner> follow(std::shared_ptr<Learner> learner, RecoveryPoint point = {}) {
    ResumingLearnerSetup setup;
    setup.learner = std::move(learner);
    setup.next = next();
    setup.is_live = [this] { return is_live_; };
    setup.points = {std::move(point)};
    setup.publish = [](TenantSlot, const WeightSnapshot&) { return ok(); };
    setup.on_divergence = [this](std::string what) { parted_.push_back(std::move(what)); };
    return make_resuming_learner(std::move(setup));
  }
  void expect_then(const ClientAnswers& now) const {
    EXPECT_EQ(now.results, then_.results);
    ASSERT_EQ(now.updates.size(), then_.updates.size());
    for (size_t i = 0; i < now.updates.size(); ++i)
      EXPECT_EQ(now.updates[i].grad_norm, then_.updates[i].grad_norm);
  }

  std::deque<std::vector<std::byte>> tape_;
  std::vector<std::byte> answer_;
  ClientAnswers then_;
  std::vector<std::string> parted_;
  bool is_live_ = false;
};

TEST_F(AClientInARecord, IsRepeatedWithoutALearner) {
  TracedLearner repeating(nullptr, next());
  expect_then(run_client(repeating, 2));
  EXPECT_THAT(tape_, IsEmpty());
}

TEST_F(AClientInARecord, IsComputedAgainWithItsOpenGradientsAndContinues) {
  const auto learner = follow(client_learner()), straight = client_learner();
  expect_then(run_client(*learner, 2));
  EXPECT_THAT(parted_, IsEmpty());
  EXPECT_TRUE(learner->has_open_gradients(kClientOfRecord));
  is_live_ = true;
  run_client(*straight, 2);
  EXPECT_EQ(learner->apply(kClientOfRecord, {})->grad_norm,
            straight->apply(kClientOfRecord, {})->grad_norm);
}

TEST_F(AClientInARecord, PartsWithTheCallNamed) {
  run_client(*follow(client_learner(7)), 2);
  ASSERT_FALSE(parted_.empty());
  EXPECT_THAT(parted_[0], HasSubstr("an accumulate after training step 0"));
  EXPECT_THAT(parted_[0], HasSubstr("log-probabilities of datum 0, number 0: recorded"));
  EXPECT_THAT(parted_[2], HasSubstr("training step 1 of this start"));
}

/// Calls before the checkpoint are answered from the record, later ones are computed.
TEST_F(AClientInARecord, ContinuesFromTheCheckpointOfAnUpdate) {
  const auto saved = new_scratch_folder();
  const auto first = client_learner();
  ASSERT_TRUE(first->accumulate(recorded_batch(0), nullptr).ok());
  ASSERT_TRUE(first->accumulate(recorded_batch(1), nullptr).ok());
  ASSERT_TRUE(first->apply(kClientOfRecord, {}).ok());
  ASSERT_TRUE(first->save(kClientOfRecord, saved).ok());
  const auto learner = follow(client_learner(), {saved, 1});
  expect_then(run_client(*learner, 2));
  EXPECT_THAT(parted_, IsEmpty());
  EXPECT_TRUE(learner->has_open_gradients(kClientOfRecord));
}

/// Its client had published once, before the checkpoint, and makes samplers of snapshots alone.
TEST_F(AClientInARecord, HasWeightsOfItsMovingKeyAgainWithTheCheckpoint) {
  const auto checkpoint = new_scratch_folder();
  tape_.clear();
  TracedLearner recording(client_learner(),
                          [this](std::vector<std::byte> answer) { tape_.push_back(answer); });
  ASSERT_TRUE(recording.snapshot(kClientOfRecord, PolicyVersion(0)).ok());
  ASSERT_TRUE(recording.accumulate(recorded_batch(0), nullptr).ok());
  ASSERT_TRUE(recording.apply(kClientOfRecord, {}).ok());
  const auto first = client_learner();
  ASSERT_TRUE(first->accumulate(recorded_batch(0), nullptr).ok());
  ASSERT_TRUE(first->apply(kClientOfRecord, {}).ok());
  ASSERT_TRUE(first->save(kClientOfRecord, checkpoint).ok());
  std::vector<PolicyVersion> published;
  ResumingLearnerSetup setup;
  setup.learner = client_learner();
  setup.next = next();
  setup.is_live = [] { return false; };
  setup.points = {{checkpoint, 1}};
  setup.publish = [&](TenantSlot, const WeightSnapshot& weights) {
    EXPECT_FALSE(weights.tensors.empty());
    published.push_back(weights.version);
    return ok();
  };
  const auto learner = make_resuming_learner(std::move(setup));
  ASSERT_TRUE(learner->snapshot(kClientOfRecord, PolicyVersion(0)).ok());
  ASSERT_TRUE(learner->accumulate(recorded_batch(0), nullptr).ok());
  EXPECT_THAT(published, IsEmpty());
  ASSERT_TRUE(learner->apply(kClientOfRecord, {}).ok());
  EXPECT_THAT(published, ElementsAre(PolicyVersion(0)));
}

TEST_F(AClientInARecord, DoesNotContinueFromAStateWithOpenGradientsThatNoCheckpointCovers) {
  const auto saved = new_scratch_folder();
  ASSERT_TRUE(client_learner()->save(kClientOfRecord, saved).ok());
  const auto restore = [&](int64_t num_steps, bool is_open) {
    LearnerProgress progress;
    TenantProgress& reached = progress.tenants[kClientOfRecord];
    reached.num_steps = num_steps;
    reached.is_open = is_open;
    auto learner = follow(client_learner(), {saved, 3});
    EXPECT_TRUE(learner->restore_state(written_state(progress)).ok());
    return learner->accumulate(recorded_batch(0), nullptr);
  };
  for (const auto& [num_steps, is_open] : {std::pair(3, false), std::pair(2, true)}) {
    const auto answered = restore(num_steps, is_open);
    if (!answered.ok()) {
      EXPECT_THAT(answered.error().text(), Not(HasSubstr("open gradients")));
    }
  }
  const auto refused = restore(3, true);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("made 3 steps, or has open gradients"));
}

TEST_F(AClientInARecord, SaysInASavedStateWhetherGradientsAreOpen) {
  TracedLearner recording(client_learner(), [](std::vector<std::byte>) {});
  const auto is_open = [&] {
    return read_state<LearnerProgress>(recording.save_state())->tenants[kClientOfRecord].is_open;
  };
  ASSERT_TRUE(recording.accumulate(recorded_batch(1), nullptr).ok());
  EXPECT_TRUE(is_open());
  ASSERT_TRUE(recording.apply(kClientOfRecord, {}).ok());
  EXPECT_FALSE(is_open());
  ASSERT_TRUE(recording.accumulate(recorded_batch(1), nullptr).ok());
  recording.discard(kClientOfRecord);
  EXPECT_FALSE(is_open());
}

TEST(AQueuedCallInARecord, HasItsResultInTheSameWorkCall) {
  std::deque<std::vector<std::byte>> tape;
  std::vector<std::byte> answer;
  const auto batch = std::make_shared<const LossBatch>(recorded_batch(3));
  TracedLearner recording(client_learner(),
                          [&](std::vector<std::byte> kept) { tape.push_back(std::move(kept)); });
  EXPECT_FALSE(recording.accumulate_queued(batch, 1, nullptr));
  const auto result = recording.accumulate_queued(batch, 2, nullptr);
  ASSERT_TRUE(result && result->ok());
  TracedLearner repeating(nullptr, [&]() -> const std::vector<std::byte>* {
    if (tape.empty()) return nullptr;
    answer = std::move(tape.front());
    tape.pop_front();
    return &answer;
  });
  EXPECT_FALSE(repeating.accumulate_queued(batch, 1, nullptr));
  const auto again = repeating.accumulate_queued(batch, 2, nullptr);
  ASSERT_TRUE(again && again->ok());
  EXPECT_EQ(**again, **result);
  EXPECT_THAT(tape, IsEmpty());
}

/// Three micro-batches.
std::shared_ptr<const LossBatch> long_call() {
  auto made = std::make_shared<LossBatch>(recorded_batch(0));
  for (int32_t i = 1; i < 3; ++i) made->data.push_back(recorded_batch(i).data[0]);
  return made;
}

/// A call, then one that leaves the queue after `num_asked` work calls, then a call and an update.
TrainReport leave_after(Learner& learner, int num_asked) {
  EXPECT_TRUE(learner.accumulate(recorded_batch(9), nullptr).ok());
  const auto call = long_call();
  for (int i = 1; i <= num_asked; ++i)
    EXPECT_FALSE(learner.accumulate_queued(call, static_cast<uint64_t>(i), nullptr));
  learner.leave_queue(kClientOfRecord);
  EXPECT_TRUE(learner.accumulate(recorded_batch(5), nullptr).ok());
  return learner.apply(kClientOfRecord, {}).value();
}

/// After one work call no pass of it has run, after two a pass has: then the open call is gone too.
TEST(AQueuedCallInARecord, ThatIsLeftDiscardsWhatItDiscardedThen) {
  ScriptedLearnerOptions options;
  options.micro_batch_tokens = 6;
  std::vector<TrainReport> reports;
  for (const int num_asked : {1, 2}) {
    std::deque<std::vector<std::byte>> tape;
    std::vector<std::byte> answer;
    std::vector<std::string> parted;
    TracedLearner recording(make_scripted_learner(options).value(),
                            [&](std::vector<std::byte> kept) { tape.push_back(std::move(kept)); });
    const TrainReport then = leave_after(recording, num_asked);
    ResumingLearnerSetup setup;
    setup.learner = make_scripted_learner(options).value();
    setup.next = [&]() -> const std::vector<std::byte>* {
      if (tape.empty()) return nullptr;
      answer = std::move(tape.front());
      tape.pop_front();
      return &answer;
    };
    setup.is_live = [] { return false; };
    setup.points.resize(1);
    setup.publish = [](TenantSlot, const WeightSnapshot&) { return ok(); };
    setup.on_divergence = [&](std::string what) { parted.push_back(std::move(what)); };
    const auto following = make_resuming_learner(std::move(setup));
    EXPECT_EQ(leave_after(*following, num_asked).grad_norm, then.grad_norm);
    EXPECT_THAT(parted, IsEmpty());
    EXPECT_THAT(tape, IsEmpty());
    reports.push_back(then);
  }
  EXPECT_EQ(reports[0].num_tokens, 12);
  EXPECT_EQ(reports[1].num_tokens, 6);
}

/// More log-probabilities than a message has bytes.
TEST(ALargeCallInARecord, IsKeptInPieces) {
  ScriptedLearnerOptions options;
  options.max_sequence_tokens = 1 << 20;
  options.micro_batch_tokens = 1 << 20;
  LossBatch large;
  large.tenant = kClientOfRecord;
  large.loss = tinker_loss("cross_entropy", {}).value();
  LossDatum& datum = large.data.emplace_back();
  datum.tokens.assign(300000, 5);
  datum.targets.assign(300000, 6);
  std::deque<std::vector<std::byte>> tape;
  std::vector<std::byte> answer;
  TracedLearner recording(make_scripted_learner(options).value(),
                          [&](std::vector<std::byte> kept) { tape.push_back(std::move(kept)); });
  const LossResult result = recording.accumulate(large, nullptr).value();
  EXPECT_GT(tape.size(), 2U);
  TracedLearner repeating(nullptr, [&]() -> const std::vector<std::byte>* {
    if (tape.empty()) return nullptr;
    answer = std::move(tape.front());
    tape.pop_front();
    return &answer;
  });
  EXPECT_EQ(repeating.accumulate(large, nullptr).value(), result);
}

TEST(AFailedCallInARecord, IsAFailedAnswer) {
  std::deque<std::vector<std::byte>> tape;
  TracedLearner recording(client_learner(),
                          [&](std::vector<std::byte> kept) { tape.push_back(std::move(kept)); });
  LossBatch bad = recorded_batch(0);
  bad.data[0].targets.pop_back();
  ASSERT_FALSE(recording.accumulate(bad, nullptr).ok());
  ASSERT_TRUE(recording.accumulate(recorded_batch(0), nullptr).ok());
  ASSERT_GE(tape.size(), 2U);
  EXPECT_TRUE(is_failed_learner_answer(tape[0]));
  EXPECT_FALSE(is_failed_learner_answer(tape[1]));
}

/// A client goes back to what it saved before, once from a folder that does not exist.
class ALoadInARecord : public AClientInARecord {
 protected:
  ALoadInARecord() {
    const auto first = client_learner();
    EXPECT_TRUE(first->save(kClientOfRecord, saved_).ok());
    tape_.clear();
    TracedLearner recording(client_learner(),
                            [this](std::vector<std::byte> answer) { tape_.push_back(answer); });
    then_ = load_between(recording);
  }
  ClientAnswers load_between(Learner& learner) const {
    ClientAnswers answers = run_client(learner, 1);
    EXPECT_TRUE(learner.load_weights(kClientOfRecord, saved_, saved_).ok());
    EXPECT_FALSE(learner.has_open_gradients(kClientOfRecord));
    EXPECT_FALSE(learner.load_weights(kClientOfRecord, saved_ / "none", saved_).ok());
    const ClientAnswers later = run_client(learner, 1);
    answers.results.insert(answers.results.end(), later.results.begin(), later.results.end());
    answers.updates.insert(answers.updates.end(), later.updates.begin(), later.updates.end());
    return answers;
  }
  const std::filesystem::path saved_ = new_scratch_folder();
};

TEST_F(ALoadInARecord, IsRepeatedWithItsEndAndWithoutALearner) {
  TracedLearner repeating(nullptr, next());
  expect_then(load_between(repeating));
  EXPECT_THAT(tape_, IsEmpty());
}

TEST_F(ALoadInARecord, IsLoadedAgainWhereTheRunIsComputedAgain) {
  const auto learner = follow(client_learner()), straight = client_learner();
  expect_then(load_between(*learner));
  EXPECT_THAT(parted_, IsEmpty());
  is_live_ = true;
  load_between(*straight);
  EXPECT_EQ(learner->apply(kClientOfRecord, {})->grad_norm,
            straight->apply(kClientOfRecord, {})->grad_norm);
}

TEST_F(ALoadInARecord, IsNotLoadedAgainBeforeTheCheckpoint) {
  const auto checkpoint = new_scratch_folder();
  const auto first = client_learner();
  load_between(*first);
  first->discard(kClientOfRecord);
  ASSERT_TRUE(first->save(kClientOfRecord, checkpoint).ok());
  std::filesystem::remove_all(saved_);
  const auto learner = follow(client_learner(), {checkpoint, 2});
  expect_then(load_between(*learner));
  EXPECT_THAT(parted_, IsEmpty());
}

}  // namespace
}  // namespace primerl
