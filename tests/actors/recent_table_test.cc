#include "actors/common/recent_table.h"

#include <gtest/gtest.h>

#include <list>

#include "graph/base/random.h"

namespace primerl {
namespace {

struct Good {
  size_t operator()(uint64_t name) const { return name; }
};
/// A hash with many collisions, also of adjacent slots.
struct Bad {
  size_t operator()(uint64_t name) const { return name % 3; }
};

// Compares the table with a list: colliding names, growing tables, tables that forget.
template <class Hash>
void compare_with_a_list(uint64_t seed) {
  SCOPED_TRACE(seed);
  RandomStream draw(seed);
  const size_t entries_max = 1 + draw.below(40);
  const uint64_t num_names = 1 + draw.below(80);
  // Sequential names, multiples of 2^32, or random ones.
  const uint64_t step = draw.below(3) == 0   ? 1
                        : draw.below(2) == 0 ? uint64_t{1} << 32
                                             : draw.next();
  RecentTable<uint64_t, uint64_t, Hash> table;
  std::list<std::pair<uint64_t, uint64_t>> wanted;  // name and value, oldest first
  for (uint64_t i = 0; i < 400; ++i) {
    const uint64_t name = draw.below(num_names) * step;
    table.put(name, i, entries_max);
    wanted.remove_if([&](const auto& each) { return each.first == name; });
    wanted.emplace_back(name, i);
    if (wanted.size() > entries_max) wanted.pop_front();
    ASSERT_EQ(table.size(), wanted.size());
    size_t num_found = 0;
    for (uint64_t each = 0; each < num_names; ++each)
      num_found += table.find(each * step) != nullptr;
    ASSERT_EQ(num_found, wanted.size());
    for (const auto& [known, value] : wanted) {
      ASSERT_NE(table.find(known), nullptr);
      ASSERT_EQ(*table.find(known), value);
    }
  }
}

TEST(RecentTable, FindsWhatWasUsedLastAndNothingElse) {
  for (uint64_t seed = 1; seed <= 60; ++seed) compare_with_a_list<Good>(seed);
}

TEST(RecentTable, FindsNamesThatCollide) {
  for (uint64_t seed = 1; seed <= 60; ++seed) compare_with_a_list<Bad>(seed);
}

/// The others keep their ages: the oldest of them is the next that is forgotten.
TEST(RecentTable, ForgetsTheNamesOfATenantThatLeft) {
  for (const uint64_t left : {0U, 1U, 5U, 40U}) {
    RecentTable<uint64_t, uint64_t, Bad> table;
    for (uint64_t name = 0; name < 40; ++name) table.put(name, name + 100, 50);
    table.put(3, 7, 50);  // now the newest
    table.forget_if([&](uint64_t name) { return name < left; });
    ASSERT_EQ(table.size(), 40 - left);
    for (uint64_t name = 0; name < 40; ++name)
      EXPECT_EQ(table.find(name) != nullptr, name >= left) << name;
    for (uint64_t name = 100; name < 110 + left; ++name) table.put(name, 1, 50);
    EXPECT_EQ(table.size(), 50U);
    table.put(200, 1, 50);
    EXPECT_EQ(table.size(), 50U);
    if (left == 40) continue;
    EXPECT_EQ(table.find(left == 0 ? 0 : left), nullptr) << "the oldest that was left";
    EXPECT_NE(table.find(39), nullptr);
  }
}

TEST(RecentTable, AnEmptyOneKnowsNothing) {
  const RecentTable<uint64_t, uint64_t, Good> table;
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.size(), 0U);
}

}  // namespace
}  // namespace primerl
