#include "runtime/monitor/curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace primerl {
namespace {

TEST(Curve, ARiseIsDrawnFromBottomToTop) {
  const std::vector<double> rise{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(draw_curve(rise, 1, {.width = 10, .height = 2, .utf8 = false}),
            "  7 |  .'\n"
            "  0 |.'\n"
            "    +----\n"
            "     step 1 8\n");
}

TEST(Curve, BrailleIsUsedWithUtf8) {
  const std::vector<double> rise{0, 1, 2, 3};
  EXPECT_EQ(draw_curve(rise, 1, {.width = 10, .height = 1, .utf8 = true}),
            "  3 │⡠⠊\n"
            "    └──\n"
            "     step 1 4\n");
}

TEST(Curve, MoreValuesThanColumnsAreAveraged) {
  std::vector<double> many(1000, 0.0);
  for (size_t i = 500; i < many.size(); ++i) many[i] = 1.0;
  const std::string text = draw_curve(many, 1, {.width = 4, .height = 2, .utf8 = false});
  EXPECT_NE(text.find("+----\n"), std::string::npos) << text;
  EXPECT_NE(text.find("step 1 1000"), std::string::npos) << text;
}

TEST(Curve, NothingFiniteDrawsNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(draw_curve({}, 1, {}), "");
  EXPECT_EQ(draw_curve(std::vector<double>{nan, nan}, 1, {}), "");
}

TEST(Curve, OneValueAndAConstantHaveAMiddle) {
  EXPECT_NE(draw_curve(std::vector<double>{0.5}, 1, {.utf8 = false}), "");
  EXPECT_NE(draw_curve(std::vector<double>{0.5, 0.5, 0.5}, 1, {.utf8 = false}), "");
}

}  // namespace
}  // namespace primerl
