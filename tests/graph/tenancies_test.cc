#include "graph/tenancies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "graph/base/random.h"

namespace primerl {
namespace {

Tenant a_use(const std::string& name, uint32_t tenancy) {
  Tenant tenant;
  tenant.name = name;
  tenant.tenancy = tenancy;
  return tenant;
}

TEST(Tenancies, AFirstUseHasNumberZero) {
  Tenancies tenancies;
  EXPECT_EQ(tenancies.begin(TenantSlot(0), "alice").value(), 0U);
  EXPECT_EQ(tenancies.begin(TenantSlot(1), "bob").value(), 0U);
}

TEST(Tenancies, ANumberComesBackNeitherForASlotNorForAName) {
  Tenancies tenancies;
  std::set<std::pair<uint32_t, uint32_t>> by_slot;
  std::set<std::pair<std::string, uint32_t>> by_name;
  const std::vector<std::pair<uint32_t, std::string>> uses = {
      {0, "alice"}, {1, "bob"},   {0, "alice"}, {0, "bob"},   {2, "alice"}, {2, "cy"},
      {1, "cy"},    {0, "alice"}, {1, "alice"}, {2, "alice"}, {0, "di"},    {2, "bob"}};
  for (const auto& [slot, name] : uses) {
    const uint32_t number = tenancies.begin(TenantSlot(slot), name).value();
    EXPECT_TRUE(by_slot.emplace(slot, number).second) << slot << " " << number;
    EXPECT_TRUE(by_name.emplace(name, number).second) << name << " " << number;
  }
}

TEST(Tenancies, ANewNameInAUsedSlotHasANumberOfItsOwn) {
  Tenancies tenancies;
  EXPECT_EQ(tenancies.begin(TenantSlot(0), "alice").value(), 0U);
  EXPECT_EQ(tenancies.begin(TenantSlot(0), "bob").value(), 1U);
  EXPECT_EQ(tenancies.begin(TenantSlot(1), "bob").value(), 2U);
  EXPECT_EQ(tenancies.begin(TenantSlot(1), "alice").value(), 3U);
}

TEST(Tenancies, HoldAtTheBoundAndOnePastIt) {
  Tenancies tenancies;
  for (uint32_t number = 0; number <= kTenancyMax; ++number)
    ASSERT_EQ(tenancies.begin(TenantSlot(0), "alice").value(), number);
  const auto past = tenancies.begin(TenantSlot(0), "bob");
  ASSERT_FALSE(past.ok());
  EXPECT_EQ(past.error().code(), Code::kExhausted);
  EXPECT_EQ(tenancies.begin(TenantSlot(1), "bob").value(), 0U) << "the refusal changed nothing";
}

/// A name that was forgotten gets a number that it did not have, also after its text was read.
TEST(Tenancies, KnowABoundedNumberOfNamesAndNoPairComesBack) {
  Tenancies tenancies;
  std::set<std::pair<uint32_t, uint32_t>> by_slot;
  std::set<std::pair<std::string, uint32_t>> by_name;
  constexpr uint32_t kSlots = 8;
  const auto use = [&](uint32_t index, uint64_t name) {
    const std::string called = fmt::format("t{}", name);
    const uint32_t number = tenancies.begin(TenantSlot(index % kSlots), called).value();
    EXPECT_TRUE(by_slot.emplace(index % kSlots, number).second) << index;
    EXPECT_TRUE(by_name.emplace(called, number).second) << called << " " << number;
  };
  for (uint32_t i = 0; i < kTenancyNamesMax; ++i) use(i, i);
  EXPECT_EQ(tenancies.num_names(), kTenancyNamesMax);
  use(0, 5);
  EXPECT_EQ(tenancies.num_names(), kTenancyNamesMax) << "a known name";
  for (uint32_t i = 0; i < 12'000; ++i) {
    use(i, i % 7 == 0 ? mix(i, 3) % kTenancyNamesMax : kTenancyNamesMax + i / 2);
    if (i == 6'000)
      tenancies = Tenancies::read(parse_json(tenancies.json().dump(), "numbers").value()).value();
    ASSERT_EQ(tenancies.num_names(), kTenancyNamesMax);
  }
  EXPECT_LT(tenancies.json().dump().size(), 128U << 10);
  for (const char* damaged : {R"({"slots":{},"names":{},"forgotten":16384})",
                              R"({"slots":{},"names":{},"forgotten":"a"})"})
    EXPECT_FALSE(Tenancies::read(parse_json(damaged, "numbers").value()).ok()) << damaged;
}

TEST(Tenancies, ContinueFromTheirText) {
  Tenancies tenancies;
  for (const char* name : {"alice", "bob", "alice"})
    ASSERT_TRUE(tenancies.begin(TenantSlot(1), name).ok());
  auto again = Tenancies::read(parse_json(tenancies.json().dump(), "numbers").value());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->begin(TenantSlot(1), "cy").value(), 3U);
  EXPECT_EQ(again->begin(TenantSlot(0), "bob").value(), 2U);
  for (const char* damaged : {"{}", R"({"slots":{"x":0},"names":{}})",
                              R"({"slots":{"0":16384},"names":{}})", R"({"slots":[],"names":{}})"})
    EXPECT_FALSE(Tenancies::read(parse_json(damaged, "numbers").value()).ok()) << damaged;
  EXPECT_TRUE(Tenancies::read(parse_json(R"({"slots":{"0":16383},"names":{}})", "n").value()).ok());
}

TEST(Tenancies, TheFirstUseIsNamedAndDrawsAsWithoutNumbers) {
  EXPECT_EQ(tenancy_name(a_use("alice", 0)), "alice");
  EXPECT_EQ(tenancy_name(a_use("alice", 2)), "alice~2");
  EXPECT_EQ(tenancy_salt("judge", a_use("alice", 0)), "judge");
  EXPECT_EQ(tenancy_salt("judge", a_use("alice", 2)), "judge~2");
  EXPECT_EQ(tenancy_key(a_use("alice", 0), 17), stable_hash("alice", 17));
  EXPECT_NE(tenancy_key(a_use("alice", 1), 17), tenancy_key(a_use("alice", 0), 17));
  EXPECT_NE(tenancy_key(a_use("alice", 1), 17), tenancy_key(a_use("alice", 2), 17));
  EXPECT_NE(tenancy_key(a_use("alice", 1), 17), tenancy_key(a_use("bob", 1), 17));
}

TEST(Tenancies, RequestNumbersOfTheLastUseEndBeforeThoseOfOtherActors) {
  EXPECT_EQ(first_request_of(0), 0U);
  EXPECT_EQ(first_request_of(1), uint64_t{1} << 32);
  EXPECT_EQ(first_request_of(kTenancyMax) + (uint64_t{1} << 32), uint64_t{1} << 46);
}

}  // namespace
}  // namespace primerl
