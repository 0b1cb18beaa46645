// Cuts as files: complete or refused, newest first.
#include "runtime/trace/cut_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

CutHead a_head(uint64_t number = 3) {
  CutHead head;
  head.run_id = 0x1122334455667788;
  head.program_version = "0.1.0";
  head.state_hash = 0xfedcba9876543210;
  head.process = "driver";
  head.incarnation = 2;
  head.number = number;
  head.segment = 7;
  head.steps = {{0, 41}, {1, 1000000}};
  head.learner_steps = {{0, 20}};
  head.line_files = {{"rollouts.jsonl", 12345}};
  return head;
}

ProcessCut a_cut() {
  ProcessCut cut;
  cut.number = 3;
  GroupState& state = cut.groups.emplace_back();
  state.group = GroupId(1);
  state.num_steps = 1000000;
  state.finished = {TenantSlot(0)};
  SavedActor& actor = state.actors.emplace_back();
  actor.state.body = Blob(std::vector<std::byte>(40, std::byte{7}));
  actor.state.blobs = {Blob(std::vector<std::byte>(70000, std::byte{9}))};
  actor.counters = {{"errors", 3}};
  state.timers = {{Time::from_nanoseconds(5), 0, 1, 9}};
  return cut;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void put(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(CutFile, NamesTenantsThatJoinedAndThoseWithOpenGradients) {
  ScratchFolder scratch;
  CutHead head = a_head();
  head.learner_steps = {{0, 20}, {2, 0}, {3, 7}};
  head.open_tenants = {2, 3};
  head.slots = {{TenantSlot(2), 0, "alice"}, {TenantSlot(3), 4, "bob"}};
  ASSERT_TRUE(write_cut(scratch.path(), head, a_cut()).ok());
  const auto read = read_cut_head(scratch.path() / "driver.2.3.cut");
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->open_tenants, head.open_tenants);
  EXPECT_EQ(read->slots, head.slots);
  EXPECT_THAT(checkpoints_needed(*read), ElementsAre(Pair(0U, 20), Pair(2U, 1), Pair(3U, 8)));
}

TEST(CutFile, ComesBackAsItWasWritten) {
  ScratchFolder scratch;
  ASSERT_TRUE(write_cut(scratch.path(), a_head(), a_cut()).ok());
  const fs::path file = scratch.path() / "driver.2.3.cut";
  const auto read = read_cut(file);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->head.run_id, a_head().run_id);
  EXPECT_EQ(read->head.state_hash, a_head().state_hash);
  EXPECT_EQ(read->head.segment, 7U);
  EXPECT_THAT(read->head.steps, ElementsAre(Pair(0U, 41U), Pair(1U, 1000000U)));
  EXPECT_THAT(read->head.learner_steps, ElementsAre(Pair(0U, 20)));
  EXPECT_THAT(read->head.line_files, ElementsAre(Pair("rollouts.jsonl", 12345U)));
  const GroupState& state = read->cut.groups.front();
  EXPECT_EQ(state.actors.front().state.body, a_cut().groups.front().actors.front().state.body);
  EXPECT_EQ(state.actors.front().state.blobs, a_cut().groups.front().actors.front().state.blobs);
  EXPECT_EQ(state.finished, std::set<TenantSlot>{TenantSlot(0)});
  EXPECT_EQ(read_cut_head(file)->number, 3U);
}

TEST(CutFile, IsRefusedWithAnyByteChanged) {
  ScratchFolder scratch;
  ProcessCut small = a_cut();
  small.groups.front().actors.front().state.blobs.clear();
  ASSERT_TRUE(write_cut(scratch.path(), a_head(), small).ok());
  const fs::path file = scratch.path() / "driver.2.3.cut";
  const std::string whole = bytes_of(file);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    put(file, changed);
    const auto read = read_cut(file);
    ASSERT_FALSE(read.ok()) << "byte " << at;
    ASSERT_THAT(read.error().text(), HasSubstr("driver.2.3.cut"));
  }
}

TEST(CutFile, IsRefusedWhenItsEndIsMissing) {
  ScratchFolder scratch;
  ASSERT_TRUE(write_cut(scratch.path(), a_head(), a_cut()).ok());
  const fs::path file = scratch.path() / "driver.2.3.cut";
  const std::string whole = bytes_of(file);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{19}, size_t{20}, whole.size() / 2, whole.size() - 1}) {
    put(file, whole.substr(0, size));
    EXPECT_FALSE(read_cut(file).ok()) << size;
  }
  put(file, whole + "x");
  EXPECT_FALSE(read_cut(file).ok());
}

TEST(CutFile, AreListedNewestFirstAndByProcess) {
  ScratchFolder scratch;
  for (const uint64_t number : {9, 10, 0})
    ASSERT_TRUE(write_cut(scratch.path(), a_head(number), a_cut()).ok());
  CutHead older = a_head(30);
  older.incarnation = 1;
  ASSERT_TRUE(write_cut(scratch.path(), older, a_cut()).ok());
  CutHead other = a_head(1);
  other.process = "inference#0";
  ASSERT_TRUE(write_cut(scratch.path(), other, a_cut()).ok());
  for (const char* name : {"driver.2.x.cut", "driver.cut", "driver.2.8.cut.tmp", ".cut"})
    put(scratch.path() / name, "no cut");
  std::vector<std::string> names;
  for (const auto& file : list_cuts(scratch.path(), "driver"))
    names.push_back(file.filename().string());
  EXPECT_THAT(
      names, ElementsAre("driver.2.10.cut", "driver.2.9.cut", "driver.2.0.cut", "driver.1.30.cut"));
  EXPECT_EQ(list_cuts(scratch.path()).size(), 5U);
}

TEST(CutFile, NamesTheFileThatCannotBeWritten) {
  const Status written = write_cut("/nowhere/at/all", a_head(), a_cut());
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().text(), HasSubstr("driver.2.3.cut"));
}

}  // namespace
}  // namespace primerl
