#include "actors/common/ordinals.h"

#include <gtest/gtest.h>

#include <set>

#include "graph/base/random.h"

namespace primerl {
namespace {

TEST(OrdinalSet, RefusesInvalidRanges) {
  for (const char* text : {"3", "[3]", "[[1]]", "[[2,1]]", "[[-1,3]]", "[[1,2],[3,4]]",
                           "[[5,6],[1,2]]", "[[1,\"2\"]]", "[[1,9223372036854775807]]"}) {
    const auto json = parse_json(text, "test");
    ASSERT_TRUE(json.ok());
    EXPECT_FALSE(OrdinalSet::from_json(*json).ok()) << text;
  }
}

TEST(OrdinalSet, JoinsNeighbours) {
  OrdinalSet set;
  for (const uint64_t ordinal : {4, 2, 3, 0, 3}) set.add(ordinal);
  EXPECT_EQ(set.to_json().dump(), "[[0,0],[2,4]]");
  EXPECT_EQ(set.next_free(0), 1U);
  EXPECT_EQ(set.next_free(2), 5U);
  set.add(1);
  EXPECT_EQ(set.num_ranges(), 1U);
  EXPECT_EQ(set.size(), 5U);
}

TEST(OrdinalSet, EqualsAPlainSet) {
  RandomStream random(7);
  for (int round = 0; round < 50; ++round) {
    OrdinalSet set;
    std::set<uint64_t> plain;
    for (int i = 0; i < 60; ++i) {
      const uint64_t ordinal = random.below(80);
      set.add(ordinal);
      plain.insert(ordinal);
    }
    for (uint64_t ordinal = 0; ordinal < 90; ++ordinal) {
      EXPECT_EQ(set.contains(ordinal), plain.count(ordinal) == 1);
      uint64_t free = ordinal;
      while (plain.count(free) == 1) ++free;
      EXPECT_EQ(set.next_free(ordinal), free);
    }
    EXPECT_EQ(set.size(), plain.size());
    EXPECT_EQ(*OrdinalSet::from_json(set.to_json()), set);
  }
}

}  // namespace
}  // namespace primerl
