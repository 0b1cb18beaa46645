#include "actors/env/environments/find_in_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

TEST(FindInPages, RefusesOptionsThatMakeNoTask) {
  const auto fault = [](const FindInPagesOptions& options) {
    const auto made = make_find_in_pages(options);
    return made.ok() ? "no fault" : made.error().text();
  };
  EXPECT_THAT(fault({.pages = 0}), HasSubstr("'pages' 0"));
  EXPECT_EQ(fault({.pages = kPagesMax}), "no fault");
  EXPECT_THAT(fault({.pages = kPagesMax + 1}), HasSubstr("'pages'"));
  EXPECT_EQ(fault({.page_bytes = kPageBytesMin}), "no fault");
  EXPECT_THAT(fault({.page_bytes = kPageBytesMin - 1}), HasSubstr("'page_bytes' 31"));
  EXPECT_EQ(fault({.page_bytes = kPageBytesMax}), "no fault");
  EXPECT_THAT(fault({.page_bytes = kPageBytesMax + 1}), HasSubstr("'page_bytes'"));
}

// The smallest page has space for the longest answer, also at its very end.
TEST(FindInPages, ExactlyOnePageHasTheNumber) {
  for (const int32_t page_bytes : {kPageBytesMin, 200}) {
    auto environment = *make_find_in_pages({.pages = 5, .page_bytes = page_bytes});
    for (uint64_t ordinal = 0; ordinal < 300; ++ordinal) {
      const auto task = *environment->task(ordinal, RandomStream(ordinal));
      const std::string said = " " + task.prompt.substr(2, 4) + "=" + task.answer.substr(2) + " ";
      std::vector<std::string> actions;
      int num_pages_with_it = 0;
      for (int page = 0; page < 5; ++page) {
        actions.push_back("n");
        const auto step = environment->step(task, actions);
        ASSERT_TRUE(step.ok());
        EXPECT_FALSE(step->done);
        EXPECT_EQ(step->text.size(), static_cast<size_t>(page_bytes));
        EXPECT_THAT(step->text, EndsWith(">"));
        num_pages_with_it += step->text.find(said) != std::string::npos;
        if (step->text.find(said) == std::string::npos) {
          EXPECT_THAT(step->text, Not(HasSubstr("=")));
        }
        EXPECT_EQ(environment->step(task, actions)->text, step->text) << "the same page again";
      }
      EXPECT_EQ(num_pages_with_it, 1) << task.prompt;
      actions.push_back("n");
      const auto end = environment->step(task, actions);
      EXPECT_TRUE(end->done) << "there is no sixth page";
      EXPECT_EQ(end->reward, 0);
    }
  }
}

TEST(FindInPages, TheDemonstrationReadsUntilItKnowsAndIsRight) {
  auto environment = *make_find_in_pages({.pages = 7, .page_bytes = 64});
  for (uint64_t ordinal = 0; ordinal < 100; ++ordinal) {
    const auto task = *environment->task(ordinal, RandomStream(ordinal));
    const auto whole = environment->demonstration(task);
    std::vector<std::string> actions;
    std::string read;
    for (const auto& action : whole) {
      actions.push_back(action);
      const auto step = *environment->step(task, actions);
      read += step.text;
      EXPECT_EQ(step.done, actions.size() == whole.size());
      EXPECT_EQ(step.reward, step.done ? 1 : 0);
    }
    EXPECT_THAT(read, HasSubstr("=" + task.answer.substr(2) + " "));
  }
}

TEST(FindInPages, AWrongAnswerEndsWithLittle) {
  auto environment = *make_find_in_pages({});
  const auto task = *environment->task(1, RandomStream(1));
  for (const std::string& answer : {std::string("a:"), task.answer + "0", task.answer + " "}) {
    const auto step = environment->step(task, {answer});
    ASSERT_TRUE(step.ok());
    EXPECT_TRUE(step->done);
    EXPECT_GT(step->reward, 0) << answer;
    EXPECT_LT(step->reward, kNearReward) << answer;
  }
  EXPECT_FALSE(environment->step(task, {}).ok());
  EXPECT_FALSE(environment->step({"x", "a:1"}, {"n"}).ok());
}

}  // namespace
}  // namespace primerl
