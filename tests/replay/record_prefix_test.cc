// How far a record is followed: up to the first step that cannot be repeated, in each group, and
// no further than what the others sent.
#include "runtime/replay/record_prefix.h"

#include <gmock/gmock.h>

#include <fstream>

#include "graph/base/files.h"
#include "runtime/trace/frames.h"
#include "tests/replay/replay_run.h"

namespace primerl::sim {
namespace {

using ::testing::HasSubstr;

/// Flips a bit where a segment of the folder has these bytes.
bool damage(const std::filesystem::path& folder, std::span<const std::byte> bytes) {
  const std::string_view wanted(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::string text = read_text_file(entry.path(), uint64_t{64} << 20).value();
    const size_t at = text.find(wanted);
    if (at == std::string::npos) continue;
    text[at + bytes.size() / 2] ^= 1;
    std::ofstream(entry.path(), std::ios::binary) << text;
    return true;
  }
  return false;
}

/// The demo's run, recorded, with one delivery changed or left out.
class APrefix : public ::testing::Test {
 protected:
  enum class Change { kFail, kGiveUp, kLeaveOut };
  /// Changes the record of the first step of `node`, from `first` on, that is of `kind`.
  void record(std::string_view node, StepKind kind, uint64_t first, Change change) {
    const GroupId group = host_of(*plan_, node);
    const auto tamper = [&](std::span<std::byte> head, std::vector<std::byte>&) {
      auto& frame = *reinterpret_cast<DeliveryFrame*>(head.data());
      if (changed_ != 0 || frame.header.kind != static_cast<uint8_t>(TraceFrameKind::kDelivery) ||
          frame.header.group != group.value || frame.step < first ||
          frame.step_kind != static_cast<uint8_t>(kind))
        return true;
      changed_ = frame.step;
      if (change == Change::kFail) frame.header.flags |= kFailed;
      if (change == Change::kGiveUp) frame.header.flags |= kGivenUp;
      return change != Change::kLeaveOut;
    };
    const auto folder = record_demo(demo_, run_, tamper);
    ASSERT_NE(changed_, 0U);
    trace_ = Trace::open(folder).value();
    prefix_ = longest_prefix(*plan_, trace_);
  }
  uint64_t last_of(std::string_view node) const {
    return prefix_.trace->last_step(host_of(*plan_, node));
  }

  DemoCase demo_{.seed = 5, .max_off_policy_steps = 0};
  std::shared_ptr<const Plan> plan_ = demo_plan(demo_);
  DemoResult run_;
  uint64_t changed_ = 0;  // the step
  std::shared_ptr<const Trace> trace_;
  RecordPrefix prefix_;
};

TEST_F(APrefix, EndsWhereAGroupBeganToDrain) {
  trace_ = Trace::open(record_demo(demo_, run_)).value();
  prefix_ = longest_prefix(*plan_, trace_);
  EXPECT_GT(prefix_.num_dropped, 0U);
  EXPECT_THAT(prefix_.dropped, HasSubstr("had begun to drain"));
  for (uint32_t i = 0; i < plan_->groups.size(); ++i) {
    const GroupId group(i);
    for (uint64_t step = 1; step <= prefix_.trace->last_step(group); ++step)
      ASSERT_NE(prefix_.trace->step(group, step)->kind, StepKind::kDrain);
  }
}

// The failure ended the run. The step is taken again, whether a message or its own turn failed.
TEST_F(APrefix, EndsBeforeAFailureThatEndedTheRun) {
  for (const StepKind kind : {StepKind::kMessage, StepKind::kWork}) {
    changed_ = 0;
    record("trainer", kind, 5, Change::kFail);
    EXPECT_EQ(last_of("trainer"), changed_ - 1);
    EXPECT_THAT(prefix_.dropped, HasSubstr("'trainer' had failed, which ended the run"));
  }
}

// The step had succeeded: it had stored an error that ended the run in a later step.
TEST_F(APrefix, EndsBeforeAnActorGaveUp) {
  for (const StepKind kind : {StepKind::kMessage, StepKind::kWork}) {
    changed_ = 0;
    record("trainer", kind, 5, Change::kGiveUp);
    EXPECT_EQ(last_of("trainer"), changed_ - 1);
    EXPECT_THAT(prefix_.dropped, HasSubstr("'trainer' had given up, which ended the run"));
  }
}

// A node that drops what it cannot handle had gone on.
TEST_F(APrefix, GoesPastAFailureThatTheRunHadSurvived) {
  record("rollout", StepKind::kMessage, 5, Change::kFail);
  EXPECT_GT(last_of("rollout"), changed_);
  EXPECT_THAT(prefix_.dropped, HasSubstr("had begun to drain"));
}

// A refused command is no failure of the actor.
TEST_F(APrefix, GoesPastACommandThatWasRefused) {
  demo_.holds_every = 20;
  demo_.sets = {"node.prefill.on_error=\"stop\"", "node.decode.on_error=\"stop\""};
  plan_ = demo_plan(demo_);
  ASSERT_NE(plan_, nullptr);
  record("prefill", StepKind::kCommand, 1, Change::kFail);
  EXPECT_GT(last_of("prefill"), changed_);
  EXPECT_THAT(prefix_.dropped, HasSubstr("had begun to drain"));
}

// A step has notes with the answers of resources. One note is damaged; the step itself is not.
TEST_F(APrefix, EndsBeforeAStepThatLacksANote) {
  const GroupId group = host_of(*plan_, "prefill");
  std::vector<std::byte> note;
  const auto look = [&](std::span<std::byte> head, std::vector<std::byte>& tail) {
    const auto& frame = *reinterpret_cast<const NoteFrame*>(head.data());
    if (changed_ == 0 && frame.header.kind == static_cast<uint8_t>(TraceFrameKind::kNote) &&
        frame.header.group == group.value && frame.step >= 40 && frame.num_bytes > 40) {
      changed_ = frame.step;
      note.assign(tail.begin(), tail.begin() + frame.num_bytes);
    }
    return true;
  };
  const auto folder = record_demo(demo_, run_, look);
  ASSERT_NE(changed_, 0U);
  ASSERT_TRUE(damage(folder, note));
  trace_ = Trace::open(folder).value();
  ASSERT_TRUE(trace_->step(group, changed_)) << "the step can be read, its note cannot";
  prefix_ = longest_prefix(*plan_, trace_);
  EXPECT_EQ(last_of("prefill"), changed_ - 1);
  EXPECT_THAT(prefix_.dropped, HasSubstr("a part of step"));
}

TEST_F(APrefix, EndsBeforeAMissingStepAndInAllThatDependOnIt) {
  record("rollout", StepKind::kMessage, 40, Change::kLeaveOut);
  EXPECT_EQ(last_of("rollout"), changed_ - 1);
  EXPECT_THAT(prefix_.dropped,
              HasSubstr(fmt::format("step {} of 'rollout.main' is missing", changed_)));
  // Every message that the other groups have handled was sent by a step of the prefix.
  uint64_t num_shortened = 0;
  for (uint32_t i = 0; i < plan_->groups.size(); ++i) {
    const GroupId group(i);
    if (prefix_.trace->last_step(group) < trace_->last_step(group)) ++num_shortened;
    for (uint64_t step = 1; step <= prefix_.trace->last_step(group); ++step) {
      const auto each = prefix_.trace->step(group, step);
      if (each->kind != StepKind::kMessage) continue;
      const auto& link = trace_->catalog().links[each->link.index()];
      const GroupId sender(trace_->catalog().instances[link.sender].group);
      ASSERT_LE(each->sender_step, prefix_.trace->last_step(sender));
    }
  }
  EXPECT_EQ(num_shortened, plan_->groups.size());
}

}  // namespace
}  // namespace primerl::sim
