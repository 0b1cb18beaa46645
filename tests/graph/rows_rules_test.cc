// Rules about the rows of a data set: evaluations and epochs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string changed_demo(const std::string& from, const std::string& to) {
  return replaced(demo_text(), from, to);
}

/// The demo with an environment of 20 rows, 5 more of which are held out, and these lines.
std::string rows_with(const std::string& lines) {
  return replaced(changed_demo("{ name = \"reverse_text\" }", "{ name = \"copy\" }\n" + lines),
                  "max_steps = 200\n", "");
}

TEST(RowRules, AnEvaluationNeedsRowsThatExistAndFitInFlight) {
  const auto with = [](const std::string& eval) { return codes_of(rows_with("eval = " + eval)); };
  EXPECT_THAT(with("{ interval = 10 }"), IsEmpty());
  EXPECT_THAT(with("{ interval = 10, rows = 5 }"), IsEmpty());
  EXPECT_THAT(with("{ interval = 10, rows = 6 }"), ElementsAre("G075"));
  EXPECT_THAT(with("{ interval = 10, samples = 64 }"), IsEmpty());
  EXPECT_THAT(with("{ interval = 10, samples = 65 }"), ElementsAre("G075"));
  EXPECT_THAT(with("{ interval = 10, temperature = 0 }"), IsEmpty());
  EXPECT_THAT(with("{ interval = 10, temperature = 0.0001 }"), ElementsAre("G023"));
  EXPECT_THAT(with("{ interval = 10, top_p = 0 }"), ElementsAre("G023"));
  EXPECT_THAT(with("{ interval = -1 }"), ElementsAre("G023"));
  const auto graph = load_text(rows_with("eval = { interval = 10 }"));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(graph.plan->tenants[0].eval.rows, 5) << "the number is filled in";
  EXPECT_THAT(codes_of(changed_demo("max_steps = 200", "eval = { interval = 10 }")),
              ElementsAre("G075"))
      << "this environment makes any number of tasks";
  EXPECT_THAT(codes_of(changed_demo("max_steps = 200", "eval = { interval = 10, rows = 9 }")),
              IsEmpty());
}

TEST(RowRules, EpochsAreStepsOfWholeBatches) {
  // A batch is 8 groups: 64 rollouts of 8.
  const auto steps_of = [](const std::string& lines) {
    const auto graph = load_text(rows_with(lines));
    EXPECT_NE(graph.plan, nullptr) << findings(graph);
    return graph.plan == nullptr ? -1 : graph.plan->tenants[0].max_steps;
  };
  EXPECT_EQ(steps_of(""), 100);
  EXPECT_EQ(steps_of("epochs = 1"), 2) << "20 rows; the last 4 do not fill a batch";
  EXPECT_EQ(steps_of("epochs = 2"), 5);
  EXPECT_EQ(steps_of("epochs = 2\nmax_steps = 3"), 3);
  EXPECT_EQ(steps_of("epochs = 2\nmax_steps = 6"), 5);
  const auto graph = load_text(rows_with("epochs = 2"));
  EXPECT_EQ(graph.plan->tenants[0].tasks_max, 40);
  EXPECT_THAT(codes_of(replaced(rows_with("epochs = 1"), "batch_size = 64", "batch_size = 160")),
              IsEmpty());
  EXPECT_THAT(codes_of(replaced(rows_with("epochs = 1"), "batch_size = 64", "batch_size = 168")),
              ElementsAre("G075"))
      << "20 tasks, and a batch takes 21";
  EXPECT_THAT(codes_of(changed_demo("max_steps = 200", "epochs = 1")), ElementsAre("G075"));
  const auto most = load_text(rows_with("epochs = 2147483648"));
  ASSERT_NE(most.plan, nullptr) << findings(most);
  EXPECT_EQ(most.plan->tenants[0].tasks_max, 20 * int64_t{2147483648});
  EXPECT_THAT(codes_of(rows_with("epochs = 2147483649")), ElementsAre("G023"));
}

}  // namespace
}  // namespace primerl::testing
