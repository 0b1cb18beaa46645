// fuzz/index_fuzz.cc and fuzz/schema_fuzz.cc over their corpora, every truncation and seeded
// mutations. Also whole traces that are opened with a forged index.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "fuzz/index_fuzz.h"
#include "fuzz/schema_fuzz.h"
#include "graph/base/random.h"
#include "runtime/trace/read/summary.h"
#include "tests/trace/segment_files.h"
#include "tests/trace/story.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

std::vector<Bytes> corpus(const std::string& name) {
  std::vector<fs::path> files;
  for (const auto& entry :
       fs::directory_iterator(fs::path(PRIMERL_SOURCE_DIR) / "fuzz/corpus" / name))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> inputs;
  for (const auto& file : files) inputs.push_back(file_bytes(file));
  return inputs;
}

Bytes mutated(Bytes bytes, RandomStream& random, std::string_view letters) {
  for (uint64_t i = 1 + random.below(4); i > 0 && !bytes.empty(); --i) {
    const size_t at = random.below(bytes.size());
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<std::byte>(letters[random.below(letters.size())]);
        break;
      case 1:
        bytes[at] ^= static_cast<std::byte>(1U << random.below(8));
        break;
      case 2:
        bytes.resize(bytes.size() - random.below(std::min<size_t>(bytes.size(), 40)));
        break;
      case 3: {
        const uint64_t values[] = {0,         1, 8, 1024, UINT32_MAX, kNumberMax, kNumberMax + 1,
                                   UINT64_MAX};
        const uint64_t value = values[random.below(std::size(values))];
        const size_t word = at & ~size_t{7};
        if (word + 8 <= bytes.size()) std::memcpy(bytes.data() + word, &value, 8);
        break;
      }
      default: {  // copies a piece of the input to another offset
        const size_t from = random.below(bytes.size());
        const size_t size = std::min(bytes.size() - std::max(at, from), random.below(80));
        std::memmove(bytes.data() + at, bytes.data() + from, size);
      }
    }
  }
  return bytes;
}

/// A trace of the generated run, closed, with its index.
fs::path story_with_index(const fs::path& folder) {
  SegmentWriterOptions options = small_segments(folder);
  options.catalog = story::story_catalog().to_json().dump();
  auto writer = SegmentWriter::open(options);
  CHECK(writer.ok(), "a trace for the index");
  story::StoryOptions told;
  told.num_rounds = 40;
  story::tell(told, [&](story::StoryFrame& frame) { (*writer)->append(frame.head, frame.tail); });
  CHECK((*writer)->close().ok(), "a trace for the index");
  CHECK(Trace::open(folder).ok(), "a trace for the index");
  return SegmentIndex::file_of(segment_path(folder, "main", 1, 1));
}

/// Calls every query of a trace. Answers may be wrong or missing, but must not read outside the
/// trace.
void ask_everything(const Trace& trace) {
  uint64_t num_seen = 0;
  trace.visit(Time::from_nanoseconds(INT64_MIN), Time::from_nanoseconds(INT64_MAX),
              [&](const TraceStep&) { return ++num_seen < 1000; });
  for (uint32_t h = 0; h < trace.catalog().groups.size(); ++h) {
    const GroupId group(h);
    (void)trace.started(group);
    (void)trace.digest(group, 0);
    const uint64_t first = trace.first_step(group);
    for (uint64_t step = first; step <= trace.last_step(group) && step < first + 60; ++step) {
      (void)trace.step(group, step);
      (void)trace.notes(group, step);
      for (const MessageKey& key : trace.stored_emissions(group, step)) {
        (void)trace.payload(key);
        (void)trace.delivery(key);
      }
    }
  }
  (void)trace.summary();
}

TEST(IndexFuzz, NoTruncationOfARealOneCrashes) {
  TestFolder folder;
  const Bytes index = file_bytes(story_with_index(folder.path()));
  for (size_t size = 0; size <= index.size(); size += size < 400 ? 1 : 37)
    fuzz_index(std::span(index).first(size));
}

TEST(IndexFuzz, NoMutationCrashes) {
  TestFolder folder;
  auto inputs = corpus("index");
  inputs.push_back(file_bytes(story_with_index(folder.path())));
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    const Bytes& input = inputs[random.below(inputs.size())];
    fuzz_index(mutated(input, random, "abc"));
  }
}

TEST(IndexFuzz, ATraceWithAForgedIndexIsReadWithoutACrash) {
  TestFolder folder;
  const auto file = story_with_index(folder.path());
  const Bytes index = file_bytes(file);
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    write_bytes(file, with_good_hash(mutated(index, random, "abc")));
    const auto trace = Trace::open(folder.path());
    if (trace.ok()) ask_everything(**trace);
  }
}

TEST(SchemaFuzz, NothingOfTheCorpusNorAnyTruncationOfItCrashes) {
  const auto inputs = corpus("schema");
  ASSERT_GE(inputs.size(), 8U);
  for (const auto& bytes : inputs)
    for (size_t size = 0; size <= bytes.size(); ++size) fuzz_schema(std::span(bytes).first(size));
}

TEST(SchemaFuzz, NoMutationCrashes) {
  const auto inputs = corpus("schema");
  for (uint64_t seed = 0; seed < 60'000; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    fuzz_schema(mutated(inputs[random.below(inputs.size())], random, "{}<>:;\nlistu8"));
  }
}

}  // namespace
}  // namespace primerl
