// Records of runs whose tenants come and go: who had a slot, at which step.
#include "runtime/trace/read/tenant_uses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/trace/read/summary.h"
#include "runtime/trace/tenant_note.h"
#include "tests/store/scratch_folder.h"
#include "tests/trace/hosted_record.h"
#include "tests/trace/segment_files.h"

namespace primerl::story {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr TenantSlot kMain{0};

std::vector<std::string> labels(const std::vector<const TenantUse*>& uses) {
  std::vector<std::string> labels;
  for (const TenantUse* use : uses) labels.push_back(use->label());
  return labels;
}

/// Slot 1 is used by alice, then by bob, then by alice again.
struct ThreeUses {
  ThreeUses() {
    HostedRecord record(folder.path());
    before = record.handle(kMain);
    const auto use = [&](const std::string& name, uint32_t tenancy) {
      joined.push_back(record.change(kTrainer, record.join(name, tenancy)));
      record.change(kRollout, record.join(name, tenancy));
      rollout.push_back(record.work(kRollout));
      handled.push_back(record.handle(kFree, 1));
      record.handle(kFree, 2);
      record.handle(kMain, 1);
      record.change(kRollout, record.leave(name, tenancy));
      left.push_back(record.change(kTrainer, record.leave(name, tenancy)));
    };
    use("alice", 0);
    use("bob", 1);
    use("alice", 2);
    trace = record.close();
  }
  ScratchFolder folder;
  uint64_t before = 0;
  std::vector<uint64_t> joined, rollout, handled, left;  // steps, by use
  std::shared_ptr<const Trace> trace;
};

TEST(TenantUses, NameTheTenantOfEveryStep) {
  const ThreeUses run;
  const TenantUses& uses = run.trace->tenants();
  EXPECT_TRUE(run.trace->is_complete());
  ASSERT_THAT(uses.all(), SizeIs(4));
  EXPECT_EQ(uses.all()[3].label(), "alice~2");
  EXPECT_THAT(uses.all()[3].table, HasSubstr("max_steps = 10"));
  const std::vector<std::string> names = {"alice", "bob~1", "alice~2"};
  for (size_t i = 0; i < names.size(); ++i) {
    for (const uint64_t step : {run.joined[i], run.handled[i], run.left[i]})
      EXPECT_EQ(uses.label(GroupId(kTrainer), step, kFree), names[i]) << step;
    EXPECT_EQ(uses.label(GroupId(kRollout), run.rollout[i], kFree), names[i]);
    EXPECT_EQ(uses.label(GroupId(kTrainer), run.handled[i], kMain), "main");
    EXPECT_EQ(uses.joined_at(GroupId(kTrainer), uses.all()[i + 1]), run.joined[i]);
    EXPECT_EQ(uses.left_at(GroupId(kTrainer), uses.all()[i + 1]), run.left[i]);
  }
  EXPECT_EQ(uses.label(GroupId(kTrainer), run.before, kFree), "slot-1") << "it was free";
  EXPECT_EQ(uses.at(GroupId(kTrainer), run.left[2] + 1, kFree), nullptr);
  EXPECT_EQ(uses.label(GroupId(kTrainer), 1, TenantSlot()), "");
}

/// A busy group makes both changes after another group has made them.
TEST(TenantUses, ValuesAreInTheOrderInWhichTheyWereSet) {
  TenantUses uses;
  uint64_t step = 0;
  const auto set = [&](uint32_t group, int64_t second, const std::string& text) {
    uses.add(GroupId(group), ++step, Time() + Duration::seconds(second),
             {TenantChange::Kind::kSet, kMain, 0, "main", text});
  };
  set(0, 1, "inflight = 1\n");
  set(0, 2, "inflight = 2\n");
  set(1, 3, "inflight = 1\n");
  set(1, 4, "inflight = 2\n");
  set(0, 5, "inflight = 1\n");
  set(0, 6, "inflight = 1\n");  // an order that was repeated
  set(1, 7, "inflight = 1\n");
  std::vector<std::string> texts;
  for (const auto& [time, text] : uses.all().front().values) texts.push_back(text);
  EXPECT_THAT(texts, ElementsAre("inflight = 1\n", "inflight = 2\n", "inflight = 1\n"));
}

TEST(TenantUses, AreFoundByNameAndNumber) {
  const ThreeUses run;
  const auto named = [&](std::string_view text) {
    const auto found = run.trace->tenants().named(text, "this trace");
    EXPECT_TRUE(found.ok()) << found.error().text();
    return labels(*found);
  };
  EXPECT_THAT(named("main"), ElementsAre("main"));
  EXPECT_THAT(named("alice"), ElementsAre("alice", "alice~2"));
  EXPECT_THAT(named("alice~0"), ElementsAre("alice"));
  EXPECT_THAT(named("alice~2"), ElementsAre("alice~2"));
  EXPECT_THAT(named("slot-1"), ElementsAre("alice", "bob~1", "alice~2"));
  const auto unknown = run.trace->tenants().named("alice~1", "this trace");
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().text(), HasSubstr("no tenant 'alice~1' in this trace"));
  EXPECT_THAT(unknown.error().text(), HasSubstr("bob~1"));
}

/// A change that a group had made already, or of a tenant that is gone, is a step that does
/// nothing.
TEST(TenantUses, PassLateAndRepeatedChangesOver) {
  const ScratchFolder folder;
  HostedRecord record(folder.path());
  record.change(kTrainer, record.join("alice", 0));
  const uint64_t again = record.change(kTrainer, record.join("alice", 0));
  record.change(kTrainer, record.leave("alice", 0));
  record.change(kTrainer, record.join("bob", 1));
  record.change(kTrainer, record.leave("alice", 0));
  const uint64_t of_bob = record.handle(kFree);
  const uint64_t left = record.change(kTrainer, record.leave("bob", 1));
  record.change(kTrainer, record.leave("bob", 1));
  record.change(kTrainer, record.join("bob", 1));
  const uint64_t after = record.work(kTrainer);
  const auto trace = record.close();
  const TenantUses& uses = trace->tenants();
  ASSERT_THAT(uses.all(), SizeIs(3));
  EXPECT_EQ(uses.joined_at(GroupId(kTrainer), uses.all()[1]), again - 1);
  EXPECT_EQ(uses.label(GroupId(kTrainer), of_bob, kFree), "bob~1");
  EXPECT_EQ(uses.left_at(GroupId(kTrainer), uses.all()[2]), left);
  EXPECT_EQ(uses.at(GroupId(kTrainer), after, kFree), nullptr);
}

/// The group stayed as it was.
TEST(TenantUses, DoNotNameATenantThatCouldNotJoin) {
  const ScratchFolder folder;
  HostedRecord record(folder.path());
  const Error full = error(Code::kExhausted, "no room for an adapter");
  const uint64_t failed = record.change(kTrainer, record.join("alice", 0), &full);
  record.change(kTrainer, record.join("bob", 1));
  const auto trace = record.close();
  ASSERT_THAT(trace->tenants().all(), SizeIs(2));
  EXPECT_EQ(trace->tenants().label(GroupId(kTrainer), failed, kFree), "slot-1");
  EXPECT_TRUE(trace->is_complete());
}

/// Versions begin anew with each use of a slot.
TEST(TenantUses, HaveVersionsOfTheirOwn) {
  const ThreeUses run;
  std::vector<std::string> marks;
  for (const VersionMark& mark : run.trace->summary().versions)
    marks.push_back(fmt::format(
        "{} {}", run.trace->tenants().label(TenantSlot(mark.tenant), mark.tenancy), mark.version));
  EXPECT_THAT(marks, ElementsAre("main 0", "alice 1", "alice 2", "main 1", "bob~1 1", "bob~1 2",
                                 "alice~2 1", "alice~2 2"));
}

/// With its index file the trace reads as without it.
TEST(TenantUses, AreTheSameWithAnIndex) {
  const ThreeUses run;
  const auto again = open_trace(run.folder.path());
  EXPECT_GT(again->summary().num_indexed, 0U);
  ASSERT_THAT(again->tenants().all(), SizeIs(4));
  EXPECT_EQ(again->tenants().label(GroupId(kTrainer), run.handled[1], kFree), "bob~1");
}

/// The joins were retired: a saved state names the tenant that was there.
TEST(TenantUses, AreKnownFromASavedState) {
  CutHead cut;
  cut.steps = {{kTrainer, 20}, {kRollout, 5}};
  cut.slots = {{kFree, 1, "bob"}};
  const ScratchFolder folder;
  HostedRecord record(folder.path());
  TenantUses uses(record.catalog());
  uses.add(cut);
  const auto left = record.leave("bob", 1);
  uses.add(GroupId(kTrainer), 25, Time(), left);
  EXPECT_EQ(uses.label(GroupId(kTrainer), 18, kFree), "bob~1");
  EXPECT_EQ(uses.label(GroupId(kTrainer), 25, kFree), "bob~1");
  EXPECT_EQ(uses.label(GroupId(kTrainer), 26, kFree), "slot-1");
  EXPECT_EQ(uses.label(GroupId(kRollout), 6, kFree), "bob~1");
}

/// A step as Recorder writes it, but with other bytes in its note.
std::shared_ptr<const Trace> with_note(const std::filesystem::path& folder,
                                       std::span<const std::byte> note) {
  HostedRecord record(folder);
  record.work(kTrainer);
  NoteFrame frame{};
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kNote);
  frame.header.group = kTrainer;
  frame.header.count = static_cast<uint16_t>(NoteKind::kTenant);
  frame.step = 2;
  frame.instance = UINT32_MAX;
  frame.num_bytes = static_cast<uint32_t>(note.size());
  EXPECT_TRUE(record.writer().append(std::as_writable_bytes(std::span(&frame, 1)), note));
  const TenantChange change = record.join("alice", 0);
  DeliveryFrame step{};
  step.header.kind = static_cast<uint8_t>(TraceFrameKind::kDelivery);
  step.header.group = kTrainer;
  step.header.flags = kHasNotes;
  step.step = 2;
  step.num_notes = 1;
  step.instance = step.type = step.cause_instance = step.origin = UINT32_MAX;
  step.step_kind = static_cast<uint8_t>(StepKind::kTenant);
  step.tenant = kFree.value;
  step.payload_check = tenant_check(change).value;
  EXPECT_TRUE(record.writer().append(std::as_writable_bytes(std::span(&step, 1))));
  return record.close();
}

TEST(TenantUses, ADamagedNoteIsAFaultOfItsStep) {
  const ScratchFolder sound, damaged, other;
  const auto join = write_tenant_note(
      {TenantChange::Kind::kJoin, kFree, 0, "alice", "[tenant.alice]\nmax_steps = 10\n"});
  ASSERT_TRUE(join.ok());
  EXPECT_TRUE(with_note(sound.path(), *join)->is_complete());
  const auto trace = with_note(damaged.path(), std::span(*join).first(join->size() - 1));
  EXPECT_FALSE(trace->is_complete());
  ASSERT_THAT(trace->faults(), SizeIs(1));
  EXPECT_EQ(trace->faults()[0].kind, TraceFault::Kind::kDamage);
  EXPECT_EQ(trace->faults()[0].group, GroupId(kTrainer));
  EXPECT_EQ(trace->faults()[0].first, 2U);
  EXPECT_THAT(trace->faults()[0].text,
              HasSubstr("the tenant event of 'trainer:2' cannot be read: the note of a tenant "
                        "event is damaged"));
  const auto bob = write_tenant_note({TenantChange::Kind::kJoin, kFree, 0, "bob", ""});
  const auto swapped = with_note(other.path(), *bob);
  ASSERT_THAT(swapped->faults(), SizeIs(1));
  EXPECT_THAT(swapped->faults()[0].text, HasSubstr("its note is of another event"));
}

/// A slot or a kind that does not exist is no step.
TEST(TenantUses, AStepOutsideTheCatalogIsStrange) {
  const ScratchFolder folder;
  HostedRecord record(folder.path());
  TenantChange change = record.join("alice", 0);
  change.slot = TenantSlot(2);
  record.change(kTrainer, change);
  const auto trace = record.close();
  EXPECT_FALSE(trace->is_complete());
  EXPECT_FALSE(trace->step(GroupId(kTrainer), 1).has_value());
}

}  // namespace
}  // namespace primerl::story
