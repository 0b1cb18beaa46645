#include "actors/router/prefix_table.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "runtime/wire/msgpack_codec.h"

namespace primerl {
namespace {

constexpr BlockScope kScope{{TenantSlot(0)}, "main:1", PolicyVersion(1)};

std::vector<int32_t> a_prompt(int32_t num_tokens, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<uint64_t> names_of(const std::vector<int32_t>& tokens, BlockScope scope = kScope) {
  return RouteBlockNamer().names_of(tokens, scope);
}

TEST(RouteBlockNamer, NamesFullBlocksUpToALimit) {
  EXPECT_EQ(names_of(a_prompt(kRouteBlockTokens - 1)).size(), 0U);
  EXPECT_EQ(names_of(a_prompt(kRouteBlockTokens)).size(), 1U);
  const auto longest = static_cast<int32_t>(kRouteBlocksMax) * kRouteBlockTokens;
  EXPECT_EQ(names_of(a_prompt(longest)).size(), kRouteBlocksMax);
  EXPECT_EQ(names_of(a_prompt(longest + kRouteBlockTokens)).size(), kRouteBlocksMax);
}

TEST(RouteBlockNamer, ANameStandsForAllBeforeIt) {
  const auto one = names_of(a_prompt(96));
  auto tokens = a_prompt(96);
  tokens[40] = -1;
  const auto other = names_of(tokens);
  EXPECT_EQ(one[0], other[0]);
  EXPECT_NE(one[1], other[1]);
  EXPECT_NE(one[2], other[2]) << "its own tokens are the same";
}

TEST(RouteBlockNamer, TenantSaltAndVersionShareNothing) {
  const auto tokens = a_prompt(64);
  const auto names = names_of(tokens);
  EXPECT_NE(names[0], names_of(tokens, {{TenantSlot(1)}, "main:1", PolicyVersion(1)})[0]);
  EXPECT_NE(names[0], names_of(tokens, {{TenantSlot(0)}, "main:2", PolicyVersion(1)})[0]);
  EXPECT_EQ(names[0], names_of(tokens, {{TenantSlot(0)}, "main:1", PolicyVersion(2)})[0])
      << "the salt says which weights, as for the engine";
  const auto without = names_of(tokens, {{TenantSlot(0)}, "", PolicyVersion(1)});
  EXPECT_NE(without[0], names_of(tokens, {{TenantSlot(0)}, "", PolicyVersion(2)})[0]);
}

TEST(PrefixTable, KnowsTheBeginningThatWasSent) {
  PrefixTable table;
  const auto names = names_of(a_prompt(160));
  EXPECT_EQ(table.num_known(names), 0U);
  table.add(std::span(names).first(3), 100);
  EXPECT_EQ(table.num_known(names), 3U);
  EXPECT_EQ(table.num_known(names_of(a_prompt(160, 1))), 0U);
}

TEST(PrefixTable, ForgetsTheOldestPromptsAndTheirEndsFirst) {
  PrefixTable table;
  const auto one = names_of(a_prompt(128)), other = names_of(a_prompt(128, 5000));
  table.add(one, 6);
  table.add(other, 6);
  EXPECT_EQ(table.size(), 6U);
  EXPECT_EQ(table.num_known(one), 2U);
  EXPECT_EQ(table.num_known(other), 4U);
  table.add(one, 6);
  EXPECT_EQ(table.num_known(one), 4U);
  EXPECT_EQ(table.num_known(other), 2U);
}

TEST(PrefixTable, APromptBeyondItsLimitIsKnownByItsFirstBlocks) {
  PrefixTable table;
  const auto names = names_of(a_prompt(128));
  table.add(names, 3);
  EXPECT_EQ(table.size(), 3U);
  EXPECT_EQ(table.num_known(names), 3U);
}

TEST(PrefixTable, ContinuesFromACutAsBefore) {
  PrefixTable table;
  const auto one = names_of(a_prompt(64)), other = names_of(a_prompt(64, 5000));
  table.add(one, 4);
  table.add(other, 4);
  MsgpackWriter writer;
  wire::write(writer, table);
  const auto body = writer.take_body();
  MsgpackReader reader(body, {});
  PrefixTable read;
  wire::read(reader, read);
  ASSERT_TRUE(reader.finish().ok());
  for (PrefixTable* each : {&table, &read}) each->add(names_of(a_prompt(32, 9000)), 4);
  for (const PrefixTable* each : {&table, &read}) {
    EXPECT_EQ(each->num_known(one), 1U);
    EXPECT_EQ(each->num_known(other), 2U);
  }
}

}  // namespace
}  // namespace primerl
