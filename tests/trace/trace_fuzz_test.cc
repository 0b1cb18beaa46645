/// fuzz/trace_fuzz.cc over its corpus, every truncation and seeded mutations of it.
#include "fuzz/trace_fuzz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "graph/base/random.h"
#include "runtime/trace/packed_segment.h"
#include "tests/trace/segment_files.h"

namespace primerl {
namespace {

using Bytes = std::vector<std::byte>;

// A segment with a frame of every kind, at every alignment.
Bytes whole_segment() {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  CHECK(writer.ok(), "a segment for the corpus");
  const auto add = [&](auto frame, TraceFrameKind kind) {
    frame.header.kind = static_cast<uint8_t>(kind);
    (void)(*writer)->append(std::as_writable_bytes(std::span(&frame, 1)));
  };
  add(LifecycleFrame{}, TraceFrameKind::kLifecycle);
  for (uint64_t step = 1; step <= 3; ++step) {
    append_note(**writer, 0, step, std::string(step, 'n'));
    append_payload(**writer, 0, step, std::string(9 + step, 'b'), {"", "blob"});
    append_delivery(**writer, 0, step);
  }
  add(GapFrame{}, TraceFrameKind::kGap);
  CHECK((*writer)->close().ok(), "a segment for the corpus");
  return file_bytes(segment_path(folder.path(), "main", 1, 1));
}

std::map<std::string, Bytes> seeds() {
  const Bytes whole = whole_segment();
  std::map<std::string, Bytes> inputs = {{"whole", whole}, {"packed", *pack_segment(whole)}};
  Bytes& hole = inputs["hole"] = whole;
  std::fill(hole.begin() + 104, hole.begin() + 112, std::byte{0});
  Bytes& tail = inputs["tail"] = whole;
  tail.resize(whole.size() - 5);
  tail.resize(whole.size() + 300);
  inputs["header"] = Bytes(whole.begin(), whole.begin() + sizeof(SegmentHeader));
  // Every word looks like the begin of a frame that reaches to the end.
  Bytes& nested = inputs["nested"] = Bytes(whole.begin(), whole.begin() + sizeof(SegmentHeader));
  nested.resize(4096);
  for (size_t at = sizeof(SegmentHeader); at + 16 <= nested.size(); at += 8) {
    const auto length = static_cast<uint32_t>(nested.size() - at);
    std::memcpy(nested.data() + at, &length, sizeof(length));
    nested[at + 4] = std::byte{static_cast<uint8_t>(TraceFrameKind::kCatalog)};
  }
  return inputs;
}

std::map<std::string, Bytes> corpus() {
  std::map<std::string, Bytes> inputs;
  const auto folder = std::filesystem::path(PRIMERL_SOURCE_DIR) / "fuzz/corpus/trace";
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    inputs[entry.path().filename().string()] = file_bytes(entry.path());
  return inputs;
}

Bytes mutated(Bytes bytes, RandomStream& random) {
  for (uint64_t i = 1 + random.below(4); i > 0 && !bytes.empty(); --i) {
    const size_t at = random.below(bytes.size());
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<std::byte>(random.next());
        break;
      case 1:
        bytes[at] ^= static_cast<std::byte>(1U << random.below(8));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3: {  // replaces a number of one word
        const uint64_t values[] = {0, 1, 16, 96, UINT32_MAX, UINT64_MAX, kInlineBytesMax + 1};
        const uint64_t value = values[random.below(std::size(values))];
        const size_t width = random.below(2) == 0 ? 4 : 8;
        if (at + width <= bytes.size()) std::memcpy(bytes.data() + at, &value, width);
        break;
      }
      default: {  // copies a piece of the input to another offset
        const size_t from = random.below(bytes.size());
        const size_t size = std::min(bytes.size() - std::max(at, from), random.below(200));
        std::memmove(bytes.data() + at, bytes.data() + from, size);
      }
    }
  }
  return bytes;
}

TEST(TraceFuzz, TheCorpusHoldsWhatTheWriterWrites) {
  if (std::getenv("PRIMERL_UPDATE_GOLDEN") != nullptr) {
    for (const auto& [name, bytes] : seeds())
      write_bytes(std::filesystem::path(PRIMERL_SOURCE_DIR) / "fuzz/corpus/trace" / name, bytes);
  }
  const auto inputs = corpus();
  ASSERT_GE(inputs.size(), 6U);
  EXPECT_EQ(inputs.at("whole"), whole_segment())
      << "the format has changed: raise kTraceFormatVersion, or run with PRIMERL_UPDATE_GOLDEN=1";
}

TEST(TraceFuzz, NothingOfTheCorpusNorAnyTruncationOfItCrashes) {
  for (const auto& [name, bytes] : corpus())
    for (size_t size = 0; size <= bytes.size(); ++size) fuzz_trace(std::span(bytes).first(size));
}

TEST(TraceFuzz, NoMutationCrashes) {
  const auto inputs = corpus();
  for (uint64_t seed = 0; seed < 40'000; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    auto input = inputs.begin();
    std::advance(input, random.below(inputs.size()));
    fuzz_trace(mutated(input->second, random));
  }
}

// In a megabyte, every eighth byte begins a frame of a megabyte, all with a wrong CRC.
TEST(TraceFuzz, AHostileFileCostsNoMoreThanALinearScan) {
  Bytes bytes = whole_segment();
  bytes.resize(kFrameBytesMax);
  for (size_t at = sizeof(SegmentHeader); at + 16 <= bytes.size(); at += 8) {
    const auto length = static_cast<uint32_t>(bytes.size() - at);
    std::memcpy(bytes.data() + at, &length, sizeof(length));
    bytes[at + 4] = std::byte{static_cast<uint8_t>(TraceFrameKind::kCatalog)};
  }
  auto reader = SegmentReader::parse(bytes, "hostile");
  ASSERT_TRUE(reader.ok());
  EXPECT_FALSE((*reader)->next(0));
  ASSERT_EQ((*reader)->damage().size(), 1U);
  EXPECT_FALSE((*reader)->damage()[0].is_hole);
  EXPECT_EQ((*reader)->damage()[0].num_bytes, bytes.size() - sizeof(SegmentHeader));
}

}  // namespace
}  // namespace primerl
