#include "runtime/exec/instance_counters.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

TEST(InstanceCounters, KeepSoManyNamesAndAddTheRestUp) {
  InstanceCounters counters;
  for (size_t i = 0; i < InstanceCounters::kNamesMax; ++i) counters.add(fmt::format("n{}", i), 1);
  EXPECT_EQ(counters.values().count("other"), 0U) << "at the bound";
  counters.add("one past it", 5);
  counters.add("two past it", 2);
  counters.add("n3", 10);
  const auto values = counters.values();
  EXPECT_EQ(values.size(), InstanceCounters::kNamesMax + 1);
  EXPECT_EQ(values.find("other")->second, 7);
  EXPECT_EQ(values.find("n3")->second, 11);
}

TEST(InstanceCounters, KeepNoNameThatIsTooLong) {
  InstanceCounters counters;
  counters.add(std::string(InstanceCounters::kNameBytesMax, 'a'), 1);
  counters.add(std::string(InstanceCounters::kNameBytesMax + 1, 'b'), 1);
  const auto values = counters.values();
  EXPECT_EQ(values.size(), 2U);
  EXPECT_EQ(values.find("other")->second, 1);
}

TEST(InstanceCounters, HaveRoomForNamesBesideTheSumOfTheRest) {
  InstanceCounters counters;
  counters.add("other", 1);  // an actor's own counter
  for (size_t i = 0; i < InstanceCounters::kNamesMax; ++i) counters.add(fmt::format("n{}", i), 1);
  EXPECT_EQ(counters.values().find("other")->second, 1);
}

}  // namespace
}  // namespace primerl
