#include "graph/base/result.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return error(Code::kInvalid, "{} is odd", number);
  return number / 2;
}

Result<int> quarter(int number) {
  ASSIGN_OR_RETURN(const int once, half(number));
  ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}

TEST(Result, CarriesTheFirstErrorOut) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().message(), "3 is odd");
  EXPECT_EQ(quarter(5).error().code(), Code::kInvalid);
}

TEST(Error, PutsNotesUnderTheMessage) {
  const Error fault = error(Code::kNotFound, "no node '{}'", "x")
                          .note("nodes: a and b")
                          .while_doing("reading g.toml");
  EXPECT_EQ(fault.text(), "reading g.toml: no node 'x'\n   nodes: a and b");
}

TEST(ResultDeathTest, ReadingAMissingValueEndsTheProcess) {
  EXPECT_DEATH((void)half(3).value(), "3 is odd");
}

}  // namespace
}  // namespace primerl
