#include "graph/tenant_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TenantValues values_of(const std::string& json) {
  return TenantValues::of(parse_json(json, "values").value()).value();
}

std::string fault_of(const std::string& json) {
  const auto made = TenantValues::of(parse_json(json, "values").value());
  return made.ok() ? "" : made.error().text();
}

TEST(TenantValues, AreNumbersOfFewKeys) {
  EXPECT_THAT(fault_of("{}"), HasSubstr("no value is given"));
  EXPECT_THAT(fault_of("[]"), HasSubstr("max_off_policy_steps"));
  EXPECT_THAT(fault_of(R"({"seq_len": 4})"), HasSubstr("'seq_len' of a tenant that trains cannot"));
  EXPECT_THAT(fault_of(R"({"inflight": "4"})"), HasSubstr("not a number"));
  EXPECT_THAT(fault_of(R"({"inflight": 4.5})"), HasSubstr("it is a whole number"));
  EXPECT_THAT(fault_of(R"({"inflight": 1e300})"), HasSubstr("it is a whole number"));
  EXPECT_THAT(fault_of(R"({"inflight": 0})"), HasSubstr("a whole number from 1 on"));
  EXPECT_THAT(fault_of(R"({"max_off_policy_steps": -1})"), HasSubstr("a whole number from 0 on"));
  EXPECT_EQ(fault_of(R"({"max_off_policy_steps": 0})"), "");
  EXPECT_THAT(fault_of(R"({"share": 0})"), HasSubstr("above 0 and at most 1"));
  EXPECT_THAT(fault_of(R"({"share": 1.0001})"), HasSubstr("above 0 and at most 1"));
  EXPECT_EQ(fault_of(R"({"share": 1})"), "");
}

TEST(TenantValues, TheirTextIsReadAgain) {
  TenantValues values = values_of(R"({"share": 0.5, "max_steps": 12})");
  EXPECT_EQ(values.text(), "max_steps = 12\nshare = 0.5\n");
  values.merge(values_of(R"({"share": 1, "inflight": 3})"));
  EXPECT_EQ(values.text(), "inflight = 3\nmax_steps = 12\nshare = 1.0\n");
  EXPECT_EQ(TenantValues::read(values.text()).value().text(), values.text());
  for (const char* wrong : {"share", "share = ", "share = 2\n", "seq_len = 3\n", "inflight = 1.5\n",
                            "inflight = 3 # more", "\n"})
    EXPECT_FALSE(TenantValues::read(wrong).ok()) << wrong;
}

TEST(TenantValues, ReplaceTheLinesOfATable) {
  const std::string table =
      "[tenant.alice]\nmax_off_policy_steps = 8\nshare = 0.25\neval = { max_steps = 3 }\n";
  EXPECT_EQ(
      values_of(R"({"max_off_policy_steps": 1, "share": 0.5, "max_steps": 9})").in_table(table),
      "[tenant.alice]\nmax_steps = 9\nmax_off_policy_steps = 1\nshare = 0.5\n"
      "eval = { max_steps = 3 }\n");
}

TEST(TenantValues, ChangeOnlyTheirMembers) {
  auto tenant = std::make_shared<Tenant>();
  tenant->name = "alice";
  tenant->inflight = 8;
  tenant->max_steps = 100;
  const TenantValues values = values_of(R"({"inflight": 2, "share": 0.125})");
  const auto changed = values.applied_to(tenant);
  EXPECT_EQ(changed->name, "alice");
  EXPECT_EQ(changed->inflight, 2);
  EXPECT_EQ(changed->share, 0.125);
  EXPECT_EQ(changed->max_steps, 100);
  EXPECT_EQ(tenant->inflight, 8);
  EXPECT_THAT(values.other_than(*changed), IsEmpty());
  EXPECT_THAT(values.other_than(*tenant), ElementsAre("inflight"));
}

}  // namespace
}  // namespace primerl::testing
