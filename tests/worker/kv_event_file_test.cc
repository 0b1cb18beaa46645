#include "runtime/worker/kv_event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;

KvEvents stored_and_removed() {
  KvEvents taken;
  taken.events.reserve(3);  // references to its elements are kept
  KvEvent& cleared = taken.events.emplace_back();
  cleared.number = 1;
  KvEvent& stored = taken.events.emplace_back();
  stored.number = 2;
  stored.kind = KvEventKind::kBlockStored;
  stored.name = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  stored.tokens = {5, 6};
  stored.key = {TenantSlot(0), AdapterId(3)};
  KvEvent& removed = taken.events.emplace_back();
  removed.number = 3;
  removed.kind = KvEventKind::kBlockRemoved;
  removed.name = stored.name;
  return taken;
}

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

constexpr const char* kLine =
    R"({"time":1.5,"events":[{"event":1,"type":"AllBlocksCleared"},)"
    R"({"event":2,"type":"BlockStored","block_hashes":["000102030405060708090a0b0c0d0e0f"],)"
    R"("parent_block_hash":null,"token_ids":[5,6],"block_size":2,"tenant":"main","lora_id":3,)"
    R"("medium":"cpu"},)"
    R"({"event":3,"type":"BlockRemoved","block_hashes":["000102030405060708090a0b0c0d0e0f"],)"
    R"("medium":"cpu"}]})";
constexpr const char* kEndLine = R"({"end":"kv_events_bytes_max"})";

KvEventFileSetup setup_in(const std::filesystem::path& folder, int64_t bytes_max) {
  return {folder / "kv_events" / "engine.jsonl", bytes_max, "cpu", {"main"}};
}

TEST(KvEventFile, HasALineForEachStepThatHadEvents) {
  const ScratchFolder folder;
  const auto setup = setup_in(folder.path(), 1 << 20);
  KvEventFile file(setup);
  file.write({}, 1.0);
  EXPECT_FALSE(std::filesystem::exists(setup.file)) << "nothing has happened yet";
  file.write(stored_and_removed(), 1.5);
  EXPECT_THAT(lines_of(setup.file), ElementsAre(kLine));
  EXPECT_EQ(file.num_written(), 3U);
  EXPECT_EQ(file.num_dropped(), 0U);
  struct stat of_file {};
  ASSERT_EQ(::stat(setup.file.c_str(), &of_file), 0);
  EXPECT_EQ(of_file.st_mode & 0777, 0600U) << "it holds tokens";
}

TEST(KvEventFile, EndsAtItsLimitWithTheReason) {
  const ScratchFolder folder;
  const auto line = static_cast<int64_t>(std::string(kLine).size() + 1);
  const auto end = static_cast<int64_t>(std::string(kEndLine).size() + 1);
  const auto setup = setup_in(folder.path(), 2 * line + end);
  KvEventFile file(setup);
  for (int i = 0; i < 2; ++i) file.write(stored_and_removed(), 1.5);
  EXPECT_EQ(file.num_dropped(), 0U) << "at the limit";
  for (int i = 0; i < 2; ++i) file.write(stored_and_removed(), 1.5);
  EXPECT_THAT(lines_of(setup.file), ElementsAre(kLine, kLine, kEndLine));
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(setup.file)), setup.bytes_max);
  EXPECT_EQ(file.num_written(), 6U);
  EXPECT_EQ(file.num_dropped(), 6U);
  // A later start of the run finds the file full.
  KvEventFile later(setup);
  later.write(stored_and_removed(), 1.5);
  EXPECT_EQ(later.num_dropped(), 3U);
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(setup.file)), setup.bytes_max);
}

/// The line that did not fit was long. A later start writes a short line, which would fit.
TEST(KvEventFile, NothingFollowsTheLineThatEndsIt) {
  const ScratchFolder folder;
  const auto setup = setup_in(folder.path(), 600);
  KvEvents longer = stored_and_removed();
  for (int i = 0; i < 3; ++i)
    for (const KvEvent& event : stored_and_removed().events) longer.events.push_back(event);
  KvEventFile file(setup);
  file.write(longer, 1.5);
  EXPECT_THAT(lines_of(setup.file), ElementsAre(kEndLine));
  for (int start = 2; start <= 3; ++start) {
    KvEventFile later(setup);
    KvEvents cleared;
    cleared.events.resize(1);
    cleared.events[0].kind = KvEventKind::kAllBlocksCleared;
    later.write(cleared, 2.5);
    EXPECT_EQ(later.num_dropped(), 1U) << "start " << start;
  }
  EXPECT_THAT(lines_of(setup.file), ElementsAre(kEndLine));
}

TEST(KvEventFile, ALaterStartAppendsToTheFileOfTheEarlierOne) {
  const ScratchFolder folder;
  const auto setup = setup_in(folder.path(), 1 << 20);
  KvEventFile(setup).write(stored_and_removed(), 1.5);
  KvEventFile(setup).write(stored_and_removed(), 1.5);
  EXPECT_THAT(lines_of(setup.file), ElementsAre(kLine, kLine));
}

TEST(KvEventFile, WithoutADiskItCountsWhatIsMissing) {
  const ScratchFolder folder;
  write_text(folder.path() / "kv_events", "a file where the folder should be");
  KvEventFile file(setup_in(folder.path(), 1 << 20));
  KvEvents taken = stored_and_removed();
  taken.num_dropped = 4;  // dropped by the engine so far
  file.write(taken, 1.5);
  file.write(taken, 1.5);
  EXPECT_EQ(file.num_written(), 0U);
  EXPECT_EQ(file.num_dropped(), 10U);
}

}  // namespace
}  // namespace primerl
