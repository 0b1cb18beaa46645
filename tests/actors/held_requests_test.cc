#include "actors/router/held_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "graph/base/random.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;

HeldRequest a_request(uint64_t request, uint64_t session, uint32_t tenant = 0,
                      int64_t version = 0) {
  HeldRequest held;
  held.request.request = request;
  held.request.session = session;
  held.request.version = PolicyVersion(version);
  held.tenant = TenantSlot(tenant);
  return held;
}

HeldLane lane(int64_t version, InstanceId home = {}) { return {PolicyVersion(version), home}; }

std::vector<uint64_t> offer(HeldRequests& held, int64_t most, bool has_more,
                            const std::function<bool(const HeldRequest&)>& takes) {
  std::vector<uint64_t> taken;
  EXPECT_EQ(held.offer(most,
                       [&](const HeldRequest& each) {
                         if (!takes(each)) return false;
                         taken.push_back(each.request.request);
                         return true;
                       }),
            has_more);
  return taken;
}

bool any(const HeldRequest&) { return true; }

TEST(HeldRequests, OfferNothingWhenNoRequestWaits) {
  HeldRequests held;
  EXPECT_TRUE(held.is_empty());
  EXPECT_THAT(offer(held, 16, false, any), ElementsAre());
}

TEST(HeldRequests, OfferUpToTheLimitAndReportWhetherMoreCouldBeSent) {
  HeldRequests held;
  for (uint64_t i = 0; i < 3; ++i) held.add(a_request(i, i), lane(0));
  EXPECT_THAT(offer(held, 2, true, any), ElementsAre(0, 1));
  EXPECT_THAT(offer(held, 2, false, any), ElementsAre(2));
  EXPECT_TRUE(held.is_empty());
}

TEST(HeldRequests, ARefusedLaneIsOfferedOnceAndBlocksNoOther) {
  HeldRequests held;
  held.add(a_request(1, 1, 0, 5), lane(5));
  held.add(a_request(2, 2, 0, 5), lane(5));
  held.add(a_request(3, 3, 0, 0), lane(0));
  int num_asked = 0;
  EXPECT_THAT(offer(held, 16, false,
                    [&](const HeldRequest& each) {
                      ++num_asked;
                      return each.request.version == PolicyVersion(0);
                    }),
              ElementsAre(3));
  EXPECT_EQ(num_asked, 2);
  EXPECT_EQ(held.size(), 2U);
}

TEST(HeldRequests, RemovingARequestKeepsTheOrderOfItsLane) {
  HeldRequests held;
  for (uint64_t i = 0; i < 4; ++i) held.add(a_request(i, i), lane(0));
  EXPECT_EQ(held.take({TenantSlot(0), 2})->request.request, 2U);
  EXPECT_FALSE(held.take({TenantSlot(0), 2}).has_value());
  EXPECT_FALSE(held.take({TenantSlot(1), 1}).has_value());
  EXPECT_THAT(offer(held, 16, false, any), ElementsAre(0, 1, 3));
}

/// Random arrivals, cancels, engines that serve some lanes, and changes of the only allowed engine.
/// Each request leaves once, the requests of a session leave in order, and no tenant waits while
/// another one leaves twice.
TEST(HeldRequests, KeepTheirRulesInEveryOrder) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    HeldRequests held;
    std::set<RequestName> waiting;
    std::map<SessionName, uint64_t> newest;
    uint64_t next = 1;
    uint32_t open_homes = 0;
    const auto lane_of = [&](const HeldRequest& each) {
      return lane(each.request.version.value,
                  InstanceId(static_cast<uint32_t>(mix(each.request.session, open_homes) % 3)));
    };
    const auto gone = [&](const HeldRequest& each) {
      EXPECT_EQ(waiting.erase(each.name()), 1U);
      EXPECT_LT(newest[each.session()], each.request.request) << "a session lost its order";
      newest[each.session()] = each.request.request;
    };
    for (int i = 0; i < 200; ++i) {
      const uint64_t draw = random.below(8);
      if (draw < 4) {
        auto made = a_request(next++, random.below(6), static_cast<uint32_t>(random.below(3)),
                              static_cast<int64_t>(random.below(3)));
        waiting.insert(made.name());
        const auto where = lane_of(made);
        held.add(std::move(made), where);
      } else if (draw == 4 && !waiting.empty()) {
        const auto taken = held.take(*waiting.begin());
        ASSERT_TRUE(taken.has_value());
        waiting.erase(taken->name());
      } else if (draw == 5) {
        ++open_homes;
        held.assign(lane_of);
      } else {
        const auto closed = static_cast<int64_t>(random.below(4));
        held.offer(static_cast<int64_t>(random.below(6)), [&](const HeldRequest& each) {
          if (each.request.version.value == closed) return false;
          gone(each);
          return true;
        });
      }
      ASSERT_EQ(held.size(), waiting.size());
    }
    held.offer(1000, [&](const HeldRequest& each) {
      gone(each);
      return true;
    });
    EXPECT_TRUE(held.is_empty());
    EXPECT_TRUE(waiting.empty());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace primerl
