#include "runtime/exec/pending_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using ::testing::HasSubstr;

TenantChange change_of(uint32_t slot, TenantChange::Kind kind) {
  return {kind, TenantSlot(slot), 0, "alice", ""};
}

TEST(PendingChanges, AreMadeWhenTheLastGroupMadeThem) {
  PendingChanges changes;
  const auto join = change_of(1, TenantChange::Kind::kJoin);
  ASSERT_TRUE(changes.add(join, {GroupId(0), GroupId(2)}).ok());
  EXPECT_FALSE(changes.made(GroupId(1), join, ok())) << "a group that is not concerned";
  EXPECT_FALSE(changes.made(GroupId(0), join, ok()));
  EXPECT_FALSE(changes.made(GroupId(0), join, ok())) << "told twice";
  EXPECT_THAT(changes.left_for(GroupId(0)), ::testing::IsEmpty());
  EXPECT_THAT(changes.left_for(GroupId(2)), ::testing::ElementsAre(join));
  const auto made = changes.made(GroupId(2), join, ok());
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->change, join);
  EXPECT_TRUE(made->status.ok());
  EXPECT_EQ(changes.size(), 0U);
}

TEST(PendingChanges, TellTheFirstError) {
  PendingChanges changes;
  const auto join = change_of(1, TenantChange::Kind::kJoin);
  ASSERT_TRUE(changes.add(join, {GroupId(0), GroupId(1)}).ok());
  EXPECT_FALSE(changes.made(GroupId(0), join, error(Code::kInvalid, "no model")));
  const auto made = changes.made(GroupId(1), join, ok());
  ASSERT_TRUE(made.has_value());
  EXPECT_THAT(made->status.error().text(), HasSubstr("no model"));
}

/// A control plane may repeat an order before the first one is answered.
TEST(PendingChanges, OfEqualChangesTheOldestIsMadeFirst) {
  PendingChanges changes;
  const auto pause = change_of(0, TenantChange::Kind::kPause);
  ASSERT_TRUE(changes.add(pause, {GroupId(0), GroupId(1)}).ok());
  ASSERT_TRUE(changes.add(pause, {GroupId(0), GroupId(1)}).ok());
  EXPECT_FALSE(changes.made(GroupId(0), pause, ok()));
  EXPECT_FALSE(changes.made(GroupId(0), pause, ok()));
  EXPECT_TRUE(changes.made(GroupId(1), pause, ok()));
  EXPECT_TRUE(changes.made(GroupId(1), pause, ok()));
}

TEST(PendingChanges, AreAtMostTheirLimit) {
  PendingChanges changes;
  const auto pause = change_of(0, TenantChange::Kind::kPause);
  for (size_t i = 0; i < kTenantChangesMax; ++i) ASSERT_TRUE(changes.add(pause, {GroupId(0)}).ok());
  const Status refused = changes.add(pause, {GroupId(0)});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_TRUE(changes.made(GroupId(0), pause, ok()));
  EXPECT_TRUE(changes.add(pause, {GroupId(0)}).ok());
}

}  // namespace
}  // namespace primerl
