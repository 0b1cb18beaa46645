// The file in which the control plane tells every process which record to follow.
#include "runtime/replay/follow_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "tests/sim/demo_run.h"
#include "tests/store/scratch_folder.h"

namespace primerl::sim {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

FollowFile a_file(const Plan& plan, const fs::path& record) {
  FollowFile follow;
  follow.record = record;
  follow.cuts = {(record / "main.1.3.cut").string()};
  for (uint64_t i = 0; i < plan.groups.size(); ++i) follow.last_steps.push_back(i * 1000);
  follow.absent = {{ProcessId(0), 4}};
  follow.ended = Time::from_nanoseconds(123456789012345678);
  follow.incarnation = 3;
  follow.resumed_from = {"runs/a \"b\"/checkpoints/step_5"};
  follow.bytes_before = {{"rollouts.jsonl", uint64_t{1} << 40}};
  follow.zero_ns = 98765432109876543;
  follow.wall_zero_seconds = 1.5e9;
  return follow;
}

TEST(FollowFile, ComesBackAsItWasWritten) {
  const auto plan = demo_plan({});
  ScratchFolder scratch;
  const FollowFile wanted = a_file(*plan, scratch.path());
  const auto file = write_follow_file(wanted);
  ASSERT_TRUE(file.ok()) << file.error().text();
  const auto got = read_follow_file(*file, *plan);
  ASSERT_TRUE(got.ok()) << got.error().text();
  EXPECT_EQ(got->record, wanted.record);
  EXPECT_EQ(got->cuts, wanted.cuts);
  EXPECT_EQ(got->last_steps, wanted.last_steps);
  EXPECT_TRUE(got->is_absent(ProcessId(0)));
  EXPECT_FALSE(got->is_absent(ProcessId(1)));
  EXPECT_EQ(got->absent[0].incarnation, 4U);
  EXPECT_EQ(got->ended, wanted.ended);
  EXPECT_EQ(got->incarnation, 3U);
  EXPECT_EQ(got->resumed_from, wanted.resumed_from);
  EXPECT_EQ(got->bytes_before, wanted.bytes_before);
  EXPECT_EQ(got->zero_ns, wanted.zero_ns);
  EXPECT_EQ(got->wall_zero_seconds, wanted.wall_zero_seconds);
}

TEST(FollowFile, OfAnotherPlanIsRefused) {
  const auto plan = demo_plan({});
  ScratchFolder scratch;
  FollowFile follow = a_file(*plan, scratch.path());
  follow.last_steps.push_back(1);
  const auto file = write_follow_file(follow).value();
  const auto read = read_follow_file(file, *plan);
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().text(), HasSubstr("'last_steps' does not have"));
  EXPECT_THAT(read.error().text(), HasSubstr("follow.json"));
}

// Every member is required and must have the right type.
TEST(FollowFile, ThatIsDamagedIsRefused) {
  const auto plan = demo_plan({});
  ScratchFolder scratch;
  const auto file = write_follow_file(a_file(*plan, scratch.path())).value();
  const Json whole = parse_json(read_text_file(file).value(), "whole").value();
  for (const auto& [name, value] : whole.as_object()) {
    for (const bool is_missing : {false, true}) {
      Json changed = Json::object();
      for (const auto& [other, content] : whole.as_object())
        if (other != name) changed.set(other, content);
      if (!is_missing) changed.set(name, true);
      std::ofstream(file) << changed.dump();
      const auto read = read_follow_file(file, *plan);
      EXPECT_FALSE(read.ok()) << name;
    }
  }
  std::ofstream(file) << whole.dump().substr(0, whole.dump().size() / 2);
  EXPECT_FALSE(read_follow_file(file, *plan).ok());
}

}  // namespace
}  // namespace primerl::sim
