// examples/read_trace/read_trace.py is written from docs/formats/trace.md only. It must read the
// same as the C++ reader, so that page, reader and writer agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "actors/messages/catalog.h"
#include "actors/messages/rollout.h"
#include "runtime/query/maintenance.h"
#include "runtime/trace/catalog.h"
#include "runtime/wire/msgpack_codec.h"
#include "tests/trace/segment_files.h"
#include "tests/wire/random_message.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

// One group of one instance, and a link for every message type.
TraceCatalog catalog() {
  TraceCatalog catalog;
  catalog.tenants = catalog.processes = {"main"};
  catalog.groups.push_back({.name = "actor", .process = 0, .instances = {0}});
  catalog.instances.push_back({.name = "actor.main",
                               .node = "actor",
                               .actor = "actor",
                               .group = 0,
                               .tenant = 0,
                               .timers = {}});
  for (const auto* type : message_catalog()) {
    const std::string name(type->name);
    TraceCatalog::TraceLink link;
    link.edge = "a." + name + " -> a." + name;
    link.type = static_cast<uint32_t>(catalog.types.size());
    link.record = "payload";
    catalog.links.push_back(link);
    catalog.types.push_back({name, type->version, type->schema, type->schema_hash});
  }
  return catalog;
}

class Steps {
 public:
  explicit Steps(SegmentWriter& writer) : writer_(writer) {}

  // Writes the payload, and after it the step that handled it.
  void handle(uint32_t type, const Payload& message) {
    const auto encoded = encode_message(message);
    ASSERT_TRUE(encoded.ok());
    ++step_;
    PayloadFrame frame{};
    frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kPayload);
    frame.header.count = static_cast<uint16_t>(encoded->blobs.size());
    frame.step = frame.sequence = step_;
    frame.link = frame.type = type;
    frame.body_bytes = static_cast<uint32_t>(encoded->body.size());
    std::vector<std::byte> tail;
    const auto add = [&](std::span<const std::byte> part) {
      tail.insert(tail.end(), part.begin(), part.end());
      tail.resize((tail.size() + 7) & ~size_t{7});
    };
    if (step_ % 5 == 0) {
      frame.header.flags |= kBodyInStore;
      const auto hash = writer_.store(encoded->body);
      ASSERT_TRUE(hash.ok());
      add(*hash);
    } else {
      add(encoded->body);
    }
    for (const auto& blob : encoded->blobs) {
      const uint64_t size = blob.size();
      add(std::as_bytes(std::span(&size, 1)));
      if (size <= kInlineBytesMax) {
        add(blob.bytes());
        continue;
      }
      const auto hash = writer_.store(blob.bytes());
      ASSERT_TRUE(hash.ok());
      add(*hash);
    }
    ASSERT_TRUE(writer_.append(std::as_writable_bytes(std::span(&frame, 1)), tail));
    DeliveryFrame delivered = delivery(0, step_);
    delivered.subject = delivered.type = type;
    delivered.header.count = 2;
    ASSERT_TRUE(append(writer_, delivered));
    if (step_ % 3 == 0) {
      ASSERT_TRUE(append_note(writer_, 0, step_, "note"));
    }
  }

 private:
  SegmentWriter& writer_;
  uint64_t step_ = 0;
};

void write_trace(const std::filesystem::path& folder) {
  auto options = small_segments(folder);
  options.catalog = catalog().to_json().dump();
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  Steps steps(**writer);
  Task task;
  task.ordinal = 7;
  task.prompt = "reverse: abc";
  uint32_t number = 0;
  for (const auto* type : message_catalog()) {
    if (type->name == Task::kName) {
      steps.handle(number, Payload::of(task));
      Task long_task;
      long_task.prompt.assign(100'000, 'y');
      long_task.prompt.append("z");
      steps.handle(number, Payload::of(long_task));
    }
    if (type->name == Completion::kName) {
      Completion completion;
      completion.tokens.assign(1000, 12345);      // outside the body, in the frame
      completion.logprobs.assign(50'000, -0.5F);  // outside the body, in the store
      completion.kept = Blob(std::vector<std::byte>(3));
      completion.num_cached_tokens = 4321;
      steps.handle(number, Payload::of(completion));
    }
    for (uint64_t seed = 0; seed < 10; ++seed) steps.handle(number, random_message(*type, seed));
    ++number;
  }
  ASSERT_TRUE((*writer)->close().ok());
}

struct Output {
  std::string text;
  int status = 0;
};

Output read_by_python(const std::filesystem::path& folder) {
  const std::string command = std::string(PRIMERL_PYTHON) + " '" + PRIMERL_SOURCE_DIR +
                              "/examples/read_trace/read_trace.py' '" + folder.string() + "' 2>&1";
  Output output;
  FILE* pipe = ::popen(command.c_str(), "r");
  char block[4096];
  while (std::fgets(block, sizeof block, pipe) != nullptr) output.text += block;
  output.status = ::pclose(pipe);
  return output;
}

// The expected last line of the Python reader.
std::string totals_of(const std::filesystem::path& folder) {
  auto contents = read_all(folder / "trace");
  std::map<std::string, uint64_t> counts;
  const char* names[] = {"",          "catalog", "delivery", "payload", "note",
                         "lifecycle", "gap",     "sync",     "end"};
  for (const auto& [kind, count] : contents.count) counts[names[static_cast<int>(kind)]] = count;
  for (const auto& damage : contents.damage)
    ++counts[damage.is_tail ? "torn tail" : damage.is_hole ? "hole" : "damage"];
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  return "total: " + text + "\n";
}

TEST(ReadTracePy, SeesWhatOurReaderSees) {
  TestFolder folder;
  write_trace(folder.path() / "trace");
  const Output output = read_by_python(folder.path());
  EXPECT_EQ(output.status, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr(totals_of(folder.path())));
  EXPECT_THAT(
      output.text,
      HasSubstr(
          R"(: {"ordinal": 7, "prompt": "reverse: abc", "messages": [], "tools": "", )"
          R"("data": "", "scores_groups": false, )"
          R"("source": {"environment": 0, "number": 0, "row": 0, "position": 0, "stage": 0}})"));
  EXPECT_THAT(output.text, HasSubstr("1000 actor:1 actor.main a."));
  // Blobs outside the body are shown in the right fields.
  EXPECT_THAT(output.text, HasSubstr(R"("prompt": "yyyy)"));
  EXPECT_THAT(output.text, HasSubstr("yyyz\", \"messages\": []"));
  EXPECT_THAT(output.text, HasSubstr(R"("tokens": [12345, 12345, )"));
  EXPECT_THAT(output.text, HasSubstr(R"(12345], "logprobs": [-0.5, -0.5, )"));
  EXPECT_THAT(output.text, HasSubstr(R"("kept": 3, "num_cached_tokens": 4321, "ranks": [])"));
  for (const auto* type : message_catalog())
    EXPECT_THAT(output.text, HasSubstr(fmt::format("\n  {} #", type->name)));
}

TEST(ReadTracePy, CountsHolesDamageAndATornTailAsWeDo) {
  TestFolder folder;
  write_trace(folder.path() / "trace");
  const auto file = segment_path(folder.path() / "trace", "main", 1, 1);
  auto bytes = file_bytes(file);
  auto reader = SegmentReader::parse(bytes, "test");
  uint64_t offset = 0;
  for (int i = 0; auto frame = (*reader)->next(offset); ++i) {
    if (i == 10) std::memset(bytes.data() + frame->offset, 0, frame->bytes.size());
    if (i == 20 || i == 30) bytes[frame->offset + 17] ^= std::byte{4};
    offset = SegmentReader::next_offset(*frame);
  }
  bytes.resize(bytes.size() - 3);
  write_bytes(file, bytes);
  const std::string totals = totals_of(folder.path());
  EXPECT_THAT(totals, HasSubstr("2 damage"));
  EXPECT_THAT(totals, HasSubstr("1 hole"));
  EXPECT_THAT(totals, HasSubstr("1 torn tail"));
  const Output output = read_by_python(folder.path());
  EXPECT_EQ(output.status, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr(totals));
}

TEST(ReadTracePy, ReadsPackedSegmentsOrSaysWhatItNeeds) {
  TestFolder folder;
  write_trace(folder.path() / "trace");
  const Output raw = read_by_python(folder.path());
  ASSERT_TRUE(pack_trace(folder.path()).ok());
  const Output packed = read_by_python(folder.path());
  const std::string probe = std::string(PRIMERL_PYTHON) + " -c 'import zstandard' 2>/dev/null";
  if (std::system(probe.c_str()) == 0) {
    EXPECT_EQ(packed.text, raw.text);
  } else {
    EXPECT_NE(packed.status, 0);
    EXPECT_THAT(packed.text, HasSubstr("install the Python package 'zstandard' to read it"));
  }
}

}  // namespace
}  // namespace primerl
