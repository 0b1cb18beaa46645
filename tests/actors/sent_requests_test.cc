// The requests that an actor sent for clients: cancels, completions, the tenant that is next.
#include "actors/common/sent_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace primerl {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(SentRequests, ACancelledRequestEndsOnceWithItsCompletion) {
  SentRequests sent;
  sent.num_inflight = 2;
  sent.cancel(7);
  EXPECT_FALSE(sent.end_cancelled(8)) << "a client waits for it";
  EXPECT_TRUE(sent.end_cancelled(7));
  EXPECT_FALSE(sent.end_cancelled(7));
  EXPECT_EQ(sent.num_inflight, 1);
}

TEST(SentRequests, CancelsAreSentInMessagesOfABoundedSize) {
  std::map<TenantSlot, SentRequests> tenants;
  for (int64_t i = 0; i <= kCancelRequestsMax; ++i)
    tenants[TenantSlot(0)].cancel(static_cast<uint64_t>(i));
  tenants[TenantSlot(1)].cancel(1);
  std::vector<size_t> sizes;
  const auto send = [&](TenantSlot, const Cancel& cancel) {
    sizes.push_back(cancel.requests.size());
  };
  send_cancels_of(tenants, 2, send);
  EXPECT_THAT(sizes, ::testing::ElementsAre(static_cast<size_t>(kCancelRequestsMax), 1U));
  EXPECT_THAT(tenants[TenantSlot(0)].to_cancel, IsEmpty());
  EXPECT_THAT(tenants[TenantSlot(1)].to_cancel, SizeIs(1)) << "in the next work call";
}

TEST(SentRequests, ARouterThatIsGoneAnswersNothing) {
  SentRequests sent;
  sent.num_inflight = 3;
  sent.cancel(7);
  sent.answered = {5};
  sent.forget_router();
  EXPECT_EQ(sent.num_inflight, 0);
  EXPECT_THAT(sent.answered, IsEmpty());
  EXPECT_THAT(sent.to_cancel, IsEmpty());
  EXPECT_FALSE(sent.end_cancelled(7));
}

TEST(SentRequests, ATenantHasItsOwnLimitWithinThatOfAll) {
  Tenant tenant;
  tenant.inflight = 0;
  EXPECT_EQ(inflight_limit(tenant, 9), 9);
  tenant.inflight = 4;
  EXPECT_EQ(inflight_limit(tenant, 9), 4);
  EXPECT_EQ(inflight_limit(tenant, 3), 3);
}

}  // namespace
}  // namespace primerl
