#include "tests/trace/segment_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>

#include "graph/base/real_clock.h"
#include "tests/base/patience.h"

namespace primerl {

TestFolder::TestFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "primerl_trace_XXXXXX").string();
  path_ = ::mkdtemp(name.data());
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

SegmentWriterOptions small_segments(const std::filesystem::path& folder) {
  SegmentWriterOptions options;
  options.folder = folder;
  options.run_id = 77;
  options.catalog = R"({"graph_name": "test"})";
  options.segment_bytes = 1'200 << 10;
  options.block_max = kPatience;
  options.packs = false;
  return options;
}

DeliveryFrame delivery(uint32_t group, uint64_t step) {
  DeliveryFrame frame{};
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kDelivery);
  frame.header.group = group;
  frame.step = step;
  frame.began_ns = static_cast<int64_t>(1'000 * step);
  frame.instance = group;
  frame.sequence = step;
  frame.incarnation = 1;
  frame.payload_check = step * 0x9e3779b97f4a7c15ULL + group;
  return frame;
}

bool append(SegmentWriter& writer, DeliveryFrame frame) {
  return writer.append(std::as_writable_bytes(std::span(&frame, 1)));
}

bool append_delivery(SegmentWriter& writer, uint32_t group, uint64_t step) {
  return append(writer, delivery(group, step));
}

bool append_note(SegmentWriter& writer, uint32_t group, uint64_t step, const std::string& text) {
  NoteFrame frame{};
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kNote);
  frame.header.count = static_cast<uint16_t>(NoteKind::kError);
  frame.header.group = group;
  frame.step = step;
  frame.num_bytes = static_cast<uint32_t>(text.size());
  return writer.append(std::as_writable_bytes(std::span(&frame, 1)),
                       std::as_bytes(std::span(text)));
}

bool append_payload(SegmentWriter& writer, uint32_t group, uint64_t step, const std::string& body,
                    const std::vector<std::string>& blobs) {
  PayloadFrame frame{};
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kPayload);
  frame.header.count = static_cast<uint16_t>(blobs.size());
  frame.header.group = group;
  frame.step = step;
  frame.sequence = step;
  frame.body_bytes = static_cast<uint32_t>(body.size());
  std::string tail = body;
  const auto pad = [&] { tail.resize((tail.size() + 7) & ~size_t{7}); };
  pad();
  for (const auto& blob : blobs) {
    const uint64_t size = blob.size();
    tail.append(reinterpret_cast<const char*>(&size), sizeof(size));
    tail += blob;
    pad();
  }
  return writer.append(std::as_writable_bytes(std::span(&frame, 1)),
                       std::as_bytes(std::span(tail)));
}

std::vector<std::byte> prepared_segment(SegmentWriterOptions options) {
  const TestFolder folder;
  options.folder = folder.path();
  const auto writer = SegmentWriter::open(options);
  EXPECT_TRUE(writer.ok()) << writer.error().text();
  const auto file = segment_path(folder.path(), options.process, options.incarnation, 2);
  const auto deadline = steady_now() + kPatience;
  while (!std::filesystem::exists(file) && steady_now() < deadline) std::this_thread::yield();
  return file_bytes(file);
}

std::vector<std::byte> file_bytes(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_bytes(const std::filesystem::path& file, std::span<const std::byte> bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

void read_into(SegmentReader& reader, Contents& contents) {
  uint64_t offset = 0;
  while (auto frame = reader.next(offset)) {
    ++contents.num_frames;
    ++contents.count[frame->kind()];
    if (frame->kind() == TraceFrameKind::kDelivery)
      contents.steps[frame->header().group].push_back(frame->as<DeliveryFrame>().step);
    if (frame->kind() == TraceFrameKind::kGap) contents.gaps.push_back(frame->as<GapFrame>());
    offset = SegmentReader::next_offset(*frame);
  }
  contents.damage.insert(contents.damage.end(), reader.damage().begin(), reader.damage().end());
}

Contents read_all(const std::filesystem::path& folder) {
  Contents contents;
  const auto files = list_segments(folder);
  EXPECT_TRUE(files.ok()) << files.error().text();
  if (!files.ok()) return contents;
  for (const auto& file : *files) {
    auto reader = SegmentReader::open(file.path);
    EXPECT_TRUE(reader.ok()) << reader.error().text();
    if (!reader.ok()) continue;
    EXPECT_EQ((*reader)->header().number, file.number);
    contents.numbers.push_back(file.number);
    read_into(**reader, contents);
  }
  return contents;
}

std::vector<uint64_t> steps_to(uint64_t count) {
  std::vector<uint64_t> steps(count);
  std::iota(steps.begin(), steps.end(), 1);
  return steps;
}

}  // namespace primerl
