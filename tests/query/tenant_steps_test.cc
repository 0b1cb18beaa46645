// Queries of a run whose tenants come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/query/diff.h"
#include "runtime/query/maintenance.h"
#include "runtime/query/stat.h"
#include "runtime/query/step_filter.h"
#include "runtime/query/step_story.h"
#include "runtime/query/step_text.h"
#include "tests/store/scratch_folder.h"
#include "tests/trace/hosted_record.h"

namespace primerl::story {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Alice has slot 1, then bob, each for one message; then alice joins again.
std::shared_ptr<const Trace> write(const std::filesystem::path& folder,
                                   const std::string& third = "alice",
                                   const std::string& values = "") {
  HostedRecord record(folder);
  const auto use = [&](const std::string& name, uint32_t tenancy, const std::string& more) {
    record.change(kTrainer, record.join(name, tenancy, more));
    record.change(kRollout, record.join(name, tenancy, more));
    record.work(kRollout);
    record.handle(kFree, 1);
  };
  record.handle(TenantSlot(0), 0);
  use("alice", 0, "");
  record.change(kRollout, record.leave("alice", 0));
  record.change(kTrainer, record.leave("alice", 0));
  use("bob", 1, "");
  record.change(kRollout, record.leave("bob", 1));
  record.change(kTrainer, record.leave("bob", 1));
  use(third, 2, values);
  return record.close();
}

std::vector<std::string> found(const Trace& trace, const StepQuery& query) {
  const auto filter = StepFilter::make(trace, query);
  EXPECT_TRUE(filter.ok()) << filter.error().text();
  std::vector<std::string> names;
  for (const TraceStep& step : find_steps(trace, *filter, 100).steps)
    names.push_back(step_name(trace, step));
  return names;
}

class TenantEvents : public ::testing::Test {
 protected:
  TraceStep step(std::string_view name) { return find_step(*trace_, name).value(); }
  ScratchFolder folder_;
  const std::shared_ptr<const Trace> trace_ = write(folder_.path());
};

TEST_F(TenantEvents, AreShownWithTheNameOfTheUse) {
  EXPECT_THAT(step_line(*trace_, step("trainer:2")), HasSubstr("tenant alice joins slot 1"));
  EXPECT_THAT(step_line(*trace_, step("trainer:4")), HasSubstr("tenant alice leaves slot 1"));
  EXPECT_THAT(step_line(*trace_, step("trainer:5")), HasSubstr("tenant bob~1 joins slot 1"));
  EXPECT_THAT(step_line(*trace_, step("trainer:8")), HasSubstr("tenant alice~2 joins slot 1"));
  EXPECT_THAT(step_line(*trace_, step("trainer:9")), HasSubstr("  alice~2"));
  EXPECT_EQ(step_json(*trace_, step("trainer:9")).get_string("tenant").value(), "alice~2");
  const Json json = step_json(*trace_, step("trainer:8"));
  EXPECT_EQ(json.get_string("kind").value(), "tenant");
  EXPECT_EQ(json.get_string("tenant").value(), "alice~2");
  EXPECT_EQ(json.get_int("slot").value(), 1);
}

TEST_F(TenantEvents, TellTheTableOfAJoin) {
  const std::string text = step_story_text(*trace_, step("trainer:8"));
  EXPECT_THAT(text, HasSubstr("tenant 'alice', number 2"));
  EXPECT_THAT(text, HasSubstr("\n    max_steps = 10"));
  const Json notes = *step_story_json(*trace_, step("trainer:8")).find("notes");
  ASSERT_EQ(notes.as_array().size(), 1U);
  const Json* tenant = notes.as_array()[0].find("tenant");
  ASSERT_NE(tenant, nullptr);
  EXPECT_EQ(tenant->get_string("kind").value(), "join");
  EXPECT_EQ(tenant->get_string("table").value(), "[tenant.alice]\nmax_steps = 10\n");
}

TEST_F(TenantEvents, NarrowAFilterToOneUse) {
  EXPECT_THAT(found(*trace_, {.tenants = {"main"}}), ElementsAre("trainer:1"));
  EXPECT_THAT(found(*trace_, {.tenants = {"bob"}}),
              ElementsAre("trainer:5", "rollout.main:4", "rollout.main:5", "trainer:6",
                          "rollout.main:6", "trainer:7"));
  EXPECT_THAT(found(*trace_, {.tenants = {"alice~2"}}),
              ElementsAre("trainer:8", "rollout.main:7", "rollout.main:8", "trainer:9"));
  EXPECT_EQ(found(*trace_, {.tenants = {"alice"}}).size(), 10U) << "both uses of the name";
  EXPECT_EQ(found(*trace_, {.tenants = {"slot-1"}}).size(), 16U) << "all uses of the slot";
  const auto unknown = StepFilter::make(*trace_, {.tenants = {"bob~2"}});
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().text(), HasSubstr("no tenant 'bob~2' in this trace"));
}

TEST_F(TenantEvents, AreCountedAndTheirPoliciesKeptApart) {
  const TraceStat stat = stat_trace(*trace_);
  EXPECT_EQ(stat.groups[kTrainer].others.num_steps, 5U);
  const std::string text = to_text(*trace_, stat);
  for (const char* policy : {"policy of 'main': version 0", "policy of 'alice': version 1",
                             "policy of 'bob~1': version 1", "policy of 'alice~2': version 1"})
    EXPECT_THAT(text, HasSubstr(policy));
  const auto filter = StepFilter::make(*trace_, {.tenants = {"bob~1"}});
  EXPECT_THAT(to_text(*trace_, stat_trace(*trace_, *filter)), Not(HasSubstr("policy of 'alice'")));
}

TEST_F(TenantEvents, PassVerification) {
  const auto report = verify_trace(folder_.path());
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->is_sound());
}

TEST_F(TenantEvents, AreEqualInEqualRuns) {
  const ScratchFolder other;
  EXPECT_TRUE(diff_traces(*trace_, *write(other.path())).is_equal());
}

TEST_F(TenantEvents, DifferByTheTenantThatJoined) {
  const ScratchFolder other;
  const TraceDiff diff = diff_traces(*trace_, *write(other.path(), "carl"));
  ASSERT_FALSE(diff.differences.empty());
  EXPECT_EQ(diff.differences[0].step, 8U);
  EXPECT_EQ(diff.differences[0].what,
            "tenant alice~2 joins slot 1 in a, tenant carl~2 joins slot 1 in b");
}

TEST_F(TenantEvents, DifferByAValueOfTheTable) {
  const ScratchFolder other;
  const TraceDiff diff = diff_traces(*trace_, *write(other.path(), "alice", "group_size = 4\n"));
  ASSERT_FALSE(diff.differences.empty());
  EXPECT_EQ(diff.differences[0].what, "tenant alice~2 joins slot 1 with another table in b");
  EXPECT_THAT(diff.differences[0].details,
              ElementsAre("tenant.alice.group_size: absent in a, 4 in b"));
}

TEST_F(TenantEvents, DifferByAnEventThatOneRunLacks) {
  const ScratchFolder other;
  HostedRecord record(other.path());
  record.handle(TenantSlot(0), 0);
  record.handle(TenantSlot(0), 1);
  const TraceDiff diff = diff_traces(*trace_, *record.close());
  std::vector<std::string> what;
  for (const GroupDifference& each : diff.differences)
    if (each.group == GroupId(kTrainer)) what.push_back(each.what);
  ASSERT_EQ(what.size(), 1U);
  EXPECT_THAT(what[0], HasSubstr("it handled tenant alice joins slot 1 in a, group <- "));
}

}  // namespace
}  // namespace primerl::story
