#include "graph/base/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace primerl {
namespace {

const std::vector<std::string> kNames = {"prefill", "decode", "router", "env"};

TEST(NearestName, FindsTypingMistakes) {
  EXPECT_EQ(nearest_name("prefil", kNames), "prefill");
  EXPECT_EQ(nearest_name("ruoter", kNames), "router");  // two adjacent letters swapped
  EXPECT_EQ(nearest_name("decoed", kNames), "decode");
}

TEST(NearestName, StaysSilentOneEditTooFar) {
  EXPECT_EQ(nearest_name("prexxxx", kNames), "");
  EXPECT_EQ(nearest_name("en", kNames), "env");
  EXPECT_EQ(nearest_name("e", kNames), "");  // short words: one edit, not two
}

TEST(JoinNames, ReadsAsASentence) {
  EXPECT_EQ(join_names(std::vector<std::string>{}), "");
  EXPECT_EQ(join_names(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(join_names(std::vector<std::string>{"a", "b", "c"}), "a, b and c");
  EXPECT_EQ(join_names(std::vector<std::string>{"", "a"}), "\"\" and a");
}

}  // namespace
}  // namespace primerl
