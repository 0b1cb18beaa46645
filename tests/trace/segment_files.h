/// Segments for tests: a temporary folder, frames of every kind, and the contents of a folder.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/trace/record/segment_writer.h"
#include "runtime/trace/segment_files.h"
#include "runtime/trace/segment_reader.h"

namespace primerl {

/// A new folder; its destructor removes it with all contents.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Options with the smallest segments and no packing.
SegmentWriterOptions small_segments(const std::filesystem::path& folder);

DeliveryFrame delivery(uint32_t group, uint64_t step);
bool append(SegmentWriter& writer, DeliveryFrame frame);
/// Delivery `step` of `group`; its fields are computed from both.
bool append_delivery(SegmentWriter& writer, uint32_t group, uint64_t step);
/// A note whose text is `text`.
bool append_note(SegmentWriter& writer, uint32_t group, uint64_t step, const std::string& text);
/// A payload with `body` and inline Blobs.
bool append_payload(SegmentWriter& writer, uint32_t group, uint64_t step, const std::string& body,
                    const std::vector<std::string>& blobs);

/// Segment 2 of a writer with these options, before anything is written into it.
std::vector<std::byte> prepared_segment(SegmentWriterOptions options);

std::vector<std::byte> file_bytes(const std::filesystem::path& file);
void write_bytes(const std::filesystem::path& file, std::span<const std::byte> bytes);

/// The contents of a folder, read to the end.
struct Contents {
  std::map<uint32_t, std::vector<uint64_t>> steps;  // deliveries by group, in file order
  std::map<TraceFrameKind, uint64_t> count;
  std::vector<GapFrame> gaps;
  std::vector<Damage> damage;
  std::vector<uint64_t> numbers;  // segment numbers
  uint64_t num_frames = 0;
};
Contents read_all(const std::filesystem::path& folder);
void read_into(SegmentReader& reader, Contents& contents);

/// 1, 2, ..., count
std::vector<uint64_t> steps_to(uint64_t count);

}  // namespace primerl
