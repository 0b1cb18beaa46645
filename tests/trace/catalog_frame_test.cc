// The catalog is the first frame of every segment; the catalog of a large graph is packed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "runtime/trace/packed_segment.h"
#include "runtime/trace/record/segment_writer.h"
#include "runtime/trace/segment_files.h"
#include "runtime/trace/segment_reader.h"
#include "tests/trace/segment_files.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// The catalog in the first segment's frame, unpacked.
std::string catalog_in(const fs::path& folder, bool& is_packed) {
  const auto files = list_segments(folder);
  const auto reader = SegmentReader::open(files.value().front().path);
  const auto frame = (*reader)->next(0);
  is_packed = (frame->header().flags & kPackedCatalog) != 0;
  return catalog_text(*frame).value();
}

// The catalog of a graph with a thousand nodes has 2 MB, more than a frame may have.
TEST(CatalogFrame, IsPackedWhenItIsLarge) {
  for (const size_t num_bytes : {kInlineBytesMax, kInlineBytesMax + 1, kCatalogBytesMax}) {
    TestFolder folder;
    SegmentWriterOptions options;
    options.folder = folder.path();
    options.catalog = "\"" + std::string(num_bytes - 2, 'x') + "\"";
    auto writer = SegmentWriter::open(options);
    ASSERT_TRUE(writer.ok()) << writer.error().text();
    ASSERT_TRUE((*writer)->close().ok());
    bool is_packed = false;
    EXPECT_EQ(catalog_in(folder.path(), is_packed), options.catalog);
    EXPECT_EQ(is_packed, num_bytes > kInlineBytesMax);
  }
  TestFolder folder;
  SegmentWriterOptions options;
  options.folder = folder.path();
  options.catalog = std::string(kCatalogBytesMax + 1, 'x');
  EXPECT_THAT(SegmentWriter::open(options).error().text(), HasSubstr("at most 33554432"));
  // Data that cannot be compressed must fit unpacked.
  RandomStream draw(1);
  options.catalog.resize(kFrameBytesMax + kFrameBytesMax / 4);
  for (char& byte : options.catalog) byte = static_cast<char>(draw.below(256));
  EXPECT_THAT(SegmentWriter::open(options).error().text(), HasSubstr("when packed"));
}

TEST(PackedText, IsRefusedWhenItIsNoneOrTooLarge) {
  const std::string packed = pack_text(std::string(1000, 'x'));
  const auto bytes = std::as_bytes(std::span(packed));
  EXPECT_EQ(unpack_text(bytes, 1000).value(), std::string(1000, 'x'));
  EXPECT_FALSE(unpack_text(bytes, 999).ok());
  EXPECT_FALSE(unpack_text({}, 1000).ok());
  for (size_t left = 0; left < bytes.size(); ++left)
    EXPECT_FALSE(unpack_text(bytes.first(left), 1000).ok()) << left;
}

}  // namespace
}  // namespace primerl
