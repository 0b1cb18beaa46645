// The order of observers, what each call reports to them, and pauses.
#include "kernels/engine/observed_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using ::testing::ElementsAre;

/// Answers every call, and refuses sequence 9 and version 9.
class PlainEngine final : public Engine {
 public:
  Status submit(SequenceRequest request) override {
    return request.id == SequenceId(9) ? Status(error(Code::kInvalid, "refused")) : ok();
  }
  Status take_over(SequenceId) override { return ok(); }
  void abort(SequenceId) override {}
  void expire(SequenceId) override {}
  std::vector<PrefillEvent> take_prefilled() override { return {{SequenceId(1), 2}}; }
  std::vector<FinishEvent> take_finished() override { return std::vector<FinishEvent>(1); }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    if (snapshot.version == PolicyVersion(9)) return error(Code::kInvalid, "refused");
    return uint64_t{5};
  }
  void drop(WeightsKey key) override { last_dropped = key; }
  EngineState state() const override {
    EngineState state;
    state.num_waiting = 4;
    return state;
  }
  int32_t max_sequence_tokens() const override { return 64; }
  Status step() override {
    ++num_steps;
    return ok();
  }
  bool has_work() const override { return true; }
  std::string describe() const override { return "plain"; }

  int num_steps = 0;
  WeightsKey last_dropped;
};

/// An engine that pauses itself, as those that repeat a record do.
class ForwardingEngine final : public EngineWrapper {
 public:
  using EngineWrapper::EngineWrapper;
  void set_paused(bool is_paused) override { paused = is_paused; }
  bool paused = false;
};

class Listener final : public EngineObserver {
 public:
  Listener(std::string name, std::vector<std::string>& heard)
      : name_(std::move(name)), heard_(heard) {}

  void submitted(const SequenceRequest& request, const Status& status) override {
    hear(fmt::format("submit {} {}", request.id, status.ok()));
  }
  void taken_over(SequenceId id, const Status&) override { hear(fmt::format("take {}", id)); }
  void aborted(SequenceId id) override { hear(fmt::format("abort {}", id)); }
  void expired(SequenceId id) override { hear(fmt::format("expire {}", id)); }
  void prefilled(const std::vector<PrefillEvent>& events) override {
    hear(fmt::format("prefilled {}", events.size()));
  }
  void finished(const std::vector<FinishEvent>& events) override {
    hear(fmt::format("finished {}", events.size()));
  }
  void applying() override { hear("applying"); }
  void applied(const WeightSnapshot&, const Result<std::optional<uint64_t>>& count) override {
    hear(fmt::format("applied {}", count.ok() ? static_cast<int64_t>(count->value_or(0)) : -1));
  }
  void dropped(WeightsKey key) override { hear(fmt::format("dropped {}", key)); }
  void paused(bool is_paused) override { hear(fmt::format("paused {}", is_paused)); }
  void holders_shown(const std::vector<EngineHolder>& holders) override {
    hear(fmt::format("holders {}", holders.size()));
  }
  void stepped(Engine& engine, const Status&) override { hear("step of " + engine.describe()); }
  void state_read(EngineState& read) override { hear(fmt::format("{}", ++read.num_waiting)); }
  void length_read(int32_t length) override { hear(fmt::format("length {}", length)); }
  Blob save_state() const override { return state; }
  Status restore_state(const Blob& restored) override {
    state = restored;
    return ok();
  }

  Blob state;

 private:
  void hear(const std::string& what) { heard_.push_back(name_ + ": " + what); }
  const std::string name_;
  std::vector<std::string>& heard_;
};

class AnObservedEngine : public ::testing::Test {
 protected:
  AnObservedEngine() : plain_(std::make_shared<PlainEngine>()), engine_(plain_) {
    for (const char* name : {"a", "b"}) {
      auto listener = std::make_unique<Listener>(name, heard_);
      listeners_.push_back(listener.get());
      engine_.add(std::move(listener));
    }
  }
  std::vector<std::string> take_heard() { return std::exchange(heard_, {}); }

  std::vector<std::string> heard_;
  std::vector<Listener*> listeners_;
  std::shared_ptr<PlainEngine> plain_;
  ObservedEngine engine_;
};

TEST_F(AnObservedEngine, ReportsEachCallToAllObserversInTheirOrder) {
  SequenceRequest request;
  request.id = SequenceId(9);
  EXPECT_FALSE(engine_.submit(request).ok());
  EXPECT_THAT(take_heard(), ElementsAre("a: submit 9 false", "b: submit 9 false"));
  request.id = SequenceId(1);
  EXPECT_TRUE(engine_.submit(request).ok());
  EXPECT_TRUE(engine_.take_over(SequenceId(1)).ok());
  engine_.abort(SequenceId(2));
  engine_.expire(SequenceId(3));
  EXPECT_THAT(take_heard(),
              ElementsAre("a: submit 1 true", "b: submit 1 true", "a: take 1", "b: take 1",
                          "a: abort 2", "b: abort 2", "a: expire 3", "b: expire 3"));
  EXPECT_EQ(engine_.take_prefilled().size(), 1U);
  EXPECT_EQ(engine_.take_finished().size(), 1U);
  EXPECT_EQ(engine_.max_sequence_tokens(), 64);
  engine_.show_holders({{"me", Duration::seconds(1)}});
  EXPECT_THAT(take_heard(),
              ElementsAre("a: prefilled 1", "b: prefilled 1", "a: finished 1", "b: finished 1",
                          "a: length 64", "b: length 64", "a: holders 1", "b: holders 1"));
}

TEST_F(AnObservedEngine, AnObserverMayChangeTheStateThatTheNextOneSees) {
  EXPECT_EQ(engine_.state().num_waiting, 6);
  EXPECT_THAT(take_heard(), ElementsAre("a: 5", "b: 6"));
}

TEST_F(AnObservedEngine, ReportsWeightsThatAreAppliedAndThoseThatAreRefused) {
  EXPECT_EQ(engine_.apply({{}, PolicyVersion(1), {}}).value(), 5U);
  EXPECT_THAT(take_heard(),
              ElementsAre("a: applying", "b: applying", "a: applied 5", "b: applied 5"));
  EXPECT_FALSE(engine_.apply({{}, PolicyVersion(9), {}}).ok());
  EXPECT_THAT(take_heard(),
              ElementsAre("a: applying", "b: applying", "a: applied -1", "b: applied -1"));
}

TEST_F(AnObservedEngine, DropsAKeyAndReportsIt) {
  const WeightsKey key{TenantSlot(2), AdapterId(1)};
  engine_.drop(key);
  EXPECT_EQ(plain_->last_dropped, key);
  EXPECT_THAT(take_heard(),
              ElementsAre("a: dropped adapter 1 of tenant 2", "b: dropped adapter 1 of tenant 2"));
}

TEST_F(AnObservedEngine, MakesNoStepWhileItIsPaused) {
  engine_.set_paused(true);
  EXPECT_FALSE(engine_.has_work());
  EXPECT_EQ(engine_.describe(), "paused, plain");
  EXPECT_TRUE(engine_.step().ok());
  EXPECT_EQ(plain_->num_steps, 0);
  EXPECT_THAT(take_heard(), ElementsAre("a: paused true", "b: paused true", "a: step of plain",
                                        "b: step of plain"));
  engine_.set_paused(false);
  EXPECT_TRUE(engine_.step().ok());
  EXPECT_EQ(plain_->num_steps, 1);
}

TEST_F(AnObservedEngine, SavesTheStateOfTheObserverThatHasOne) {
  EXPECT_TRUE(engine_.save_state().empty());
  listeners_[1]->state = Blob(std::vector<std::byte>(3));
  EXPECT_EQ(engine_.save_state().size(), 3U);
  // The engine itself has no state to continue with.
  EXPECT_FALSE(engine_.restore_state(Blob(std::vector<std::byte>(2))).ok());
  EXPECT_EQ(listeners_[0]->state.size(), 2U);
}

TEST(ObservedEngines, AreMadeOfEnginesAndOfNothingElse) {
  std::shared_ptr<Resource> other = std::make_shared<Resource>();
  EXPECT_EQ(observed_engine(other), nullptr);
  std::shared_ptr<Resource> made =
      std::make_shared<ObservedEngine>(std::make_shared<PlainEngine>());
  EXPECT_EQ(observed_engine(made), made.get()) << "it stays as it is";
  auto forwarding = std::make_shared<ForwardingEngine>(std::make_shared<PlainEngine>());
  made = forwarding;
  ObservedEngine* engine = observed_engine(made);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(made.get(), engine);
  engine->set_paused(true);
  EXPECT_TRUE(forwarding->paused) << "it pauses itself";
  EXPECT_TRUE(engine->has_work());
}

}  // namespace
}  // namespace primerl
