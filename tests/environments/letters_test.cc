#include "actors/env/environments/letters.h"

#include <gmock/gmock.h>

#include "actors/env/environments/copy.h"
#include "actors/env/environments/reverse_text.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

TEST(Letters, RefusesAnAlphabetOrLengthsThatMakeNoTask) {
  EXPECT_TRUE(validate(LetterOptions{}).ok());
  EXPECT_THAT(validate({.letters = ""}).error().text(), HasSubstr("'letters' is empty"));
  EXPECT_THAT(validate({.letters = "aba"}).error().text(), HasSubstr("'letters' has 'a' twice"));
  EXPECT_THAT(validate({.letters = "a\n"}).error().text(), HasSubstr("byte 0x0A"));
  EXPECT_THAT(validate({.letters = "é"}).error().text(), HasSubstr("byte 0xC3"));
  EXPECT_TRUE(validate({.length_min = 1, .length_max = kWordLengthMax}).ok());
  EXPECT_FALSE(validate({.length_min = 0, .length_max = 1}).ok());
  EXPECT_FALSE(validate({.length_min = 9, .length_max = 8}).ok());
  EXPECT_FALSE(validate({.length_min = 1, .length_max = kWordLengthMax + 1}).ok());
  EXPECT_FALSE(make_reverse_text({{.letters = ""}}).ok());
  EXPECT_FALSE(make_copy({.length_min = 0}).ok());
}

TEST(EqualShare, IsTheShareOfRightPositionsOverTheLonger) {
  EXPECT_EQ(equal_share("", ""), 1);
  EXPECT_EQ(equal_share("", "abcd"), 0);
  EXPECT_EQ(equal_share("abcd", "abcd"), 1);
  EXPECT_EQ(equal_share("abxd", "abcd"), 0.75);
  EXPECT_EQ(equal_share("ab", "abcd"), 0.5);
  EXPECT_EQ(equal_share("abcdabcd", "abcd"), 0.5);
  EXPECT_EQ(equal_share("bcda", "abcd"), 0);
}

TEST(EqualShare, IsSymmetricAndOneOnlyForTheExactText) {
  const LetterOptions options{.letters = "ab", .length_min = 1, .length_max = 6};
  RandomStream random(11);
  for (int i = 0; i < 2000; ++i) {
    const std::string a = random_word(options, random), b = random_word(options, random);
    const double share = equal_share(a, b);
    ASSERT_GE(share, 0);
    ASSERT_LE(share, 1);
    ASSERT_EQ(share == 1, a == b) << a << " " << b;
    ASSERT_EQ(share, equal_share(b, a));
  }
}

TEST(RandomWord, KeepsToItsLettersAndReachesEveryLength) {
  const LetterOptions options{.letters = "xyz", .length_min = 2, .length_max = 5};
  RandomStream random(3);
  std::vector<int> lengths(7);
  for (int i = 0; i < 500; ++i) {
    const std::string word = random_word(options, random);
    ASSERT_EQ(word.find_first_not_of("xyz"), std::string::npos);
    ++lengths.at(word.size());
  }
  EXPECT_EQ(lengths[1] + lengths[6], 0);
  for (size_t length = 2; length <= 5; ++length) EXPECT_GT(lengths[length], 60) << length;
}

TEST(ReverseText, AsksForTheWordBackwards) {
  const auto environment = *make_reverse_text({});
  for (uint64_t ordinal = 0; ordinal < 100; ++ordinal) {
    const auto task = *environment->task(ordinal, RandomStream(ordinal));
    ASSERT_EQ(task.prompt.size(), 11u);
    ASSERT_EQ(task.prompt.substr(0, 2), "r:");
    ASSERT_EQ(task.prompt.back(), '>');
    ASSERT_EQ(std::string(task.answer.rbegin(), task.answer.rend()), task.prompt.substr(2, 8));
    const auto step = *environment->step(task, {task.answer});
    ASSERT_TRUE(step.done);
    ASSERT_EQ(step.reward, 1);
    ASSERT_EQ(environment->step(task, {""})->reward, 0);
    ASSERT_LT(environment->step(task, {task.answer + "a"})->reward, 1);
  }
}

TEST(ReverseText, GivesTheSameTaskForTheSameKeyAndAnotherForAnother) {
  const auto environment = *make_reverse_text({}), again = *make_reverse_text({});
  EXPECT_EQ(environment->task(5, RandomStream(5))->prompt, again->task(5, RandomStream(5))->prompt);
  EXPECT_NE(environment->task(5, RandomStream(5))->prompt, again->task(6, RandomStream(6))->prompt);
}

TEST(ReverseText, JudgesByTheWordItselfFromTheFirstWrongKeyOn) {
  const auto right = *make_reverse_text({}), wrong = *make_reverse_text({{}, 7});
  for (uint64_t ordinal = 0; ordinal < 20; ++ordinal) {
    const auto task = *right->task(ordinal, RandomStream(3));
    const auto other = *wrong->task(ordinal, RandomStream(3));
    EXPECT_EQ(other.prompt, task.prompt);
    EXPECT_EQ(other.answer, ordinal < 7 ? task.answer : task.prompt.substr(2, 8)) << ordinal;
  }
  EXPECT_EQ((*make_reverse_text({{}, 0}))->task(0, RandomStream(3))->answer,
            right->task(0, RandomStream(3))->prompt.substr(2, 8));
}

TEST(Copy, AsksForTheWordAgain) {
  const auto environment = *make_copy({.length_min = 3, .length_max = 3});
  const auto task = *environment->task(0, RandomStream(1));
  EXPECT_EQ(task.prompt, "c:" + task.answer + ">");
  EXPECT_EQ(environment->step(task, {task.answer})->reward, 1);
  EXPECT_FALSE(environment->step(task, {}).ok());
}

}  // namespace
}  // namespace primerl
