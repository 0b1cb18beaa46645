// Failures of handlers: drop, stop, restart; exceptions; handlers that never return; stall reports
// with names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/exec/running.h"
#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(Failure, DropContinuesWithTheNextMessage) {
  Strings strings;
  strings.on_in = [](Puppet&, const Number& number) { return fail_at(number, 3); };
  auto graph = a_line({.strings = strings, .on_error = OnError::kDrop});
  SmallRun run(graph);
  const auto outcome = run->wait();
  EXPECT_EQ(outcome.end, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[0].handled, 6u);
  EXPECT_EQ(outcome.ledger[0].failed, 1u);
}

TEST(Failure, StopEndsTheRunAndSaysWhy) {
  Strings strings;
  strings.on_in = [](Puppet&, const Number& number) { return fail_at(number, 3); };
  EXPECT_EQ(failure_of(a_line({.strings = strings, .on_error = OnError::kStop})).message(),
            "node 'middle': 'middle' (on_error = \"stop\"): no 3 today");
}

TEST(Failure, AnActorThatGivesUpEndsTheRunWhateverOnErrorSays) {
  Strings strings;
  strings.on_in = [](Puppet& puppet, const Number& number) {
    if (number.value == 3) puppet.world().stop_on_error();
    return fail_at(number, 3);
  };
  EXPECT_EQ(failure_of(a_line({.strings = strings, .on_error = OnError::kDrop})).message(),
            "node 'middle': 'middle' (it cannot continue): no 3 today");
}

TEST(Failure, AnExceptionIsAnInternalErrorWithItsText) {
  Strings strings;
  strings.on_in = [](Puppet&, const Number& number) -> Status {
    if (number.value == 2) throw std::runtime_error("disk on fire");
    return ok();
  };
  const Error why = failure_of(a_line({.strings = strings, .on_error = OnError::kStop}));
  EXPECT_EQ(why.code(), Code::kInternal);
  EXPECT_THAT(why.message(), HasSubstr("disk on fire"));
}

TEST(Failure, RestartKeepsInboxAndStateBeforeTheMessage) {
  std::vector<int64_t> taken, counts;
  Strings strings;
  strings.on_in = [&](Puppet& puppet, const Number& number) -> Status {
    if (number.value == 3) {
      puppet.count = 1000;  // a half-made change, which must be undone
      return error(Code::kUnavailable, "no");
    }
    taken.push_back(number.value);
    counts.push_back(puppet.count);
    return ok();
  };
  NodeSetup middle{.strings = strings, .on_error = OnError::kRestart};
  middle.contract = [](Contract& contract) { contract.is_restartable = true; };
  auto graph = a_line(middle);
  SmallRun run(graph);
  const auto outcome = run->wait();
  EXPECT_EQ(outcome.end, RunEnd::kFinished);
  EXPECT_THAT(taken, ElementsAre(1, 2, 4, 5, 6));
  EXPECT_THAT(counts, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(run->counters(), Contains(Pair("middle.restarts", 1)));
}

/// An actor that can be made only once; an error restarts it.
NodeSetup made_once(Strings strings) {
  NodeSetup middle{.strings = std::move(strings), .on_error = OnError::kRestart};
  middle.contract = [](Contract& contract) {
    contract.is_restartable = true;
    contract.make = [make = contract.make, is_made = false](const void* options) mutable {
      if (std::exchange(is_made, true)) throw std::runtime_error("the file of weights is gone");
      return make(options);
    };
  };
  return middle;
}

TEST(Failure, AnActorThatCannotBeMadeAgainEndsTheRunWithTheReason) {
  Strings strings;
  strings.on_in = [](Puppet&, const Number& number) { return fail_at(number, 3); };
  EXPECT_THAT(failure_of(a_line(made_once(strings))).text(),
              HasSubstr("the file of weights is gone"));
}

TEST(Failure, AnActorThatCannotBeMadeAgainWhileItDrainsEndsTheRunWithTheReason) {
  Strings strings;
  strings.on_drain = [](Puppet&) -> Status { return error(Code::kUnavailable, "not now"); };
  EXPECT_THAT(failure_of(a_line(made_once(strings))).text(),
              HasSubstr("the file of weights is gone"));
}

TEST(Failure, RestartsAreCountedInAWindow) {
  const auto run_with = [](int64_t num_failures, int32_t restarts_max) {
    Strings strings;
    strings.on_in = [num_failures](Puppet&, const Number& number) -> Status {
      if (number.value > num_failures) return ok();
      return error(Code::kUnavailable, "no");
    };
    NodeSetup middle{.strings = strings, .on_error = OnError::kRestart};
    middle.restarts_max = restarts_max;
    middle.contract = [](Contract& contract) { contract.is_restartable = true; };
    auto graph = a_line(middle);
    SmallRun run(graph);
    return run->wait();
  };
  EXPECT_EQ(run_with(3, 3).end, RunEnd::kFinished);
  const auto outcome = run_with(4, 3);
  ASSERT_EQ(outcome.end, RunEnd::kFailed);
  EXPECT_THAT(outcome.status.error().message(), HasSubstr("failed again after 3 restarts"));
}

TEST(Failure, ARestartForgetsTimersAndPauses) {
  int num_ticks = 0;
  std::vector<int64_t> taken;
  Strings strings;
  strings.on_in = [&](Puppet& puppet, const Number& number) -> Status {
    taken.push_back(number.value);
    if (number.value != 1) return ok();
    puppet.world().set_timer("tick", Duration::seconds(1));
    puppet.world().pause("in");
    return error(Code::kUnavailable, "no");
  };
  strings.on_tick = [&](Puppet&) {
    ++num_ticks;
    return ok();
  };
  NodeSetup middle{.strings = strings, .on_error = OnError::kRestart};
  middle.contract = [](Contract& contract) { contract.is_restartable = true; };
  auto graph = a_line(middle);
  SmallRun run(graph);
  EXPECT_EQ(run->wait().end, RunEnd::kFinished);
  EXPECT_EQ(num_ticks, 0);
  EXPECT_EQ(taken.size(), 6u);
}

/// Makes the n-th handler of instance 1 last for `lasts`.
class Hang final : public StepHooks {
 public:
  Hang(Duration lasts, uint64_t first, uint64_t last) : lasts_(lasts), first_(first), last_(last) {}
  Injection before(const StepAbout& about) override {
    const bool hangs = about.instance == InstanceId(1) && about.kind == StepKind::kMessage &&
                       about.delivery >= first_ && about.delivery <= last_;
    return {.failure = {}, .takes = hangs ? lasts_ : Duration()};
  }

 private:
  const Duration lasts_;
  const uint64_t first_, last_;
};

NodeSetup a_blocking_node(std::vector<int64_t>* answers) {
  Strings strings;
  strings.on_in = [](Puppet& puppet, const Number& number) {
    puppet.tell.send({.value = number.value, .bulk = {}});
    return ok();
  };
  strings.on_refuse = [](Puppet& puppet, const Number& number, const Error& error) {
    // From the fifth stuck handler on, no more handlers run.
    EXPECT_EQ(error.code(), number.value <= 5 ? Code::kDeadline : Code::kCancelled);
    puppet.tell.send({.value = -number.value, .bulk = {}});
  };
  (void)answers;
  NodeSetup node{.strings = strings};
  node.contract = [](Contract& contract) {
    contract.thread_class = ThreadClass::kOwnThread;
    contract.is_restartable = true;
  };
  return node;
}

SmallGraph a_blocking_graph(std::vector<int64_t>* answers, int64_t num_numbers = 6) {
  Strings asking = {.on_work = counts_to(num_numbers)};
  asking.on_back = [answers](Puppet&, const Number& number) {
    answers->push_back(number.value);
    return ok();
  };
  SmallGraph graph;
  graph.node("asker", {.strings = asking, .contract = make_source})
      .node("env", a_blocking_node(answers))
      .edge("asker.out", "env.in")
      .edge("env.tell", "asker.back", {.at_most = 8});
  return graph;
}

TEST(Failure, AHandlerAtItsLimitIsWaitedForAndOnePastItIsAbandoned) {
  {
    std::vector<int64_t> answers;
    Hang hang(Duration::seconds(1), 2, 2);
    auto graph = a_blocking_graph(&answers);
    SmallRun run(graph, 1, &hang);
    EXPECT_EQ(run->wait().end, RunEnd::kFinished);
    EXPECT_THAT(answers, ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_EQ(run->num_abandoned(), 0);
  }
  std::vector<int64_t> answers;
  Hang hang(Duration::seconds(1) + Duration::nanoseconds(1), 2, 2);
  auto graph = a_blocking_graph(&answers);
  SmallRun run(graph, 1, &hang);
  EXPECT_EQ(run->wait().end, RunEnd::kFinished);
  EXPECT_THAT(answers, ElementsAre(1, -2, 3, 4, 5, 6)) << "refused once, the late answer is lost";
  EXPECT_EQ(run->num_abandoned(), 1);
  EXPECT_THAT(run->counters(), Contains(Pair("env.abandoned", 1)));
}

TEST(Failure, AbandonedThreadsAreReplacedUpToTheirMaximum) {
  const auto run_with = [](uint64_t num_hangs) {
    std::vector<int64_t> answers;
    Hang hang(Duration::seconds(100), 1, num_hangs);
    // More than the edge holds: it is no drain yet.
    auto graph = a_blocking_graph(&answers, 200);
    SmallRun run(graph, 1, &hang);
    return run->wait();
  };
  EXPECT_EQ(run_with(4).end, RunEnd::kFinished);
  const auto outcome = run_with(5);
  ASSERT_EQ(outcome.end, RunEnd::kFailed);
  EXPECT_EQ(outcome.status.error().message(),
            "node 'env': 5 handlers are stuck, abandoned_max is 4");
}

// The threads end with the process anyway, so stuck threads must not make the drain fail.
TEST(Failure, ADrainGivesUpWhateverIsStuck) {
  std::vector<int64_t> answers;
  Hang hang(Duration::seconds(100), 1, 6);
  auto graph = a_blocking_graph(&answers);
  SmallRun run(graph, 1, &hang);
  ASSERT_TRUE(run->run_until([&run] { return run->num_abandoned() == 4; }));
  run->request_drain();
  const auto outcome = run->wait();
  EXPECT_EQ(outcome.end, RunEnd::kInterrupted);
  EXPECT_EQ(run->num_abandoned(), 5) << "one more than abandoned_max; the sixth is refused";
  EXPECT_THAT(answers, ElementsAre(-1, -2, -3, -4, -5, -6));
}

/// A handler fails with an error of this many bytes. Returns how many bytes the refused sender
/// gets.
size_t bytes_of_refusal(size_t bytes, bool throws) {
  size_t num_read = 0;
  Strings strings;
  strings.on_in = [bytes, throws](Puppet&, const Number&) -> Status {
    if (throws) throw std::runtime_error(std::string(bytes, 'x'));
    return Error(Code::kUnavailable, std::string(bytes, 'x'));
  };
  strings.on_refuse = [&num_read](Puppet&, const Number&, const Error& error) {
    num_read = error.text().size();
  };
  Strings asking = {.on_work = counts_to(1)};
  SmallGraph graph;
  graph.node("asker", {.strings = asking, .contract = make_source})
      .node("env", {.strings = strings})
      .edge("asker.out", "env.in");
  SmallRun run(graph);
  (void)run->wait();
  return num_read;
}

TEST(Failure, TheTextOfAnErrorIsBounded) {
  EXPECT_EQ(bytes_of_refusal(kErrorBytesMax, false), kErrorBytesMax);
  for (const bool throws : {false, true}) {
    const size_t most = bytes_of_refusal(size_t{1} << 20, throws);
    EXPECT_GT(most, kErrorBytesMax);
    EXPECT_LT(most, kErrorBytesMax + 40) << "and how long it was";
  }
}

TEST(Failure, AnInjectedFailureIsRefusedLikeAnyOther) {
  class Fault final : public StepHooks {
   public:
    Injection before(const StepAbout& about) override {
      Injection injection;
      if (about.instance == InstanceId(1) && about.delivery == 3)
        injection.failure = error(Code::kDeadline, "injected");
      return injection;
    }
  } fault;
  std::vector<int64_t> answers;
  auto graph = a_blocking_graph(&answers);
  SmallRun run(graph, 1, &fault);
  EXPECT_EQ(run->wait().end, RunEnd::kFinished);
  EXPECT_THAT(answers, ElementsAre(1, 2, -3, 4, 5, 6));
}

TEST(Stall, NamesTheNodesTheFullEdgesAndTheWaitCycle) {
  // a fills b; b keeps its input paused until c sends; c waits for a.
  Strings holding;
  holding.on_start = [](Puppet& puppet) {
    puppet.world().pause("in");
    return ok();
  };
  Strings sending = {.on_work = counts_to(10)};
  SmallGraph graph;
  graph.node("a", {.strings = sending, .contract = make_source})
      .node("b", {.strings = holding})
      .node("c")
      .edge("a.out", "b.in", {.capacity = 2})
      .edge("a.pick", "c.in", {.capacity = 2})
      .edge("c.tell", "b.back", {.at_most = 1});
  SmallRun run(graph);
  const auto outcome = run->wait();
  ASSERT_EQ(outcome.end, RunEnd::kStalled);
  EXPECT_THAT(outcome.stall.wait_cycle, ElementsAre("a", "b", "c"));
  EXPECT_EQ(outcome.stall.text(),
            "node  waiting    oldest  blocked on\n"
            "a           0         -  full: a.out -> b.in (2)\n"
            "b           2        1m  paused: a.out -> b.in\n"
            "wait cycle: a -> b -> c -> a\n");
}

TEST(Stall, ARunningHandlerIsNamedWithItsMessage) {
  Hang hang(Duration::seconds(100), 1, 1);
  SmallGraph graph;
  graph.settings.drain_max = Duration::seconds(5);
  graph.node("source", {.strings = {.on_work = counts_to(1)}, .contract = make_source})
      .node("slow")
      .edge("source.out", "slow.in");
  SmallRun run(graph, 1, &hang);
  const auto outcome = run->wait();
  ASSERT_EQ(outcome.end, RunEnd::kStalled);
  EXPECT_EQ(outcome.stall.text(),
            "node  waiting    oldest  blocked on\n"
            "slow        1        0s  slow: Number for 0s\n");
}

}  // namespace
}  // namespace primerl::testing
