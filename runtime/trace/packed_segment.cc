#include "runtime/trace/packed_segment.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "graph/base/assert.h"
#include "graph/base/crc32c.h"
#include "runtime/trace/frames.h"

namespace primerl {
namespace {

constexpr int kZstdLevel = 1;

uint32_t crc_of(const PackedHeader& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(PackedHeader, crc)));
}

Error corrupt(const char* what) {
  return error(Code::kCorrupt, "not a packed trace segment: {}", what);
}

}  // namespace

Result<std::vector<std::byte>> pack_segment(std::span<const std::byte> raw) {
  if (raw.size() > kSegmentBytesMax)
    return error(Code::kExhausted, "a segment of {} bytes; at most {}", raw.size(),
                 kSegmentBytesMax);
  PackedHeader header{};
  std::memcpy(header.magic, kPackedMagic, sizeof(kPackedMagic));
  header.format_version = kTraceFormatVersion;
  header.header_bytes = sizeof(PackedHeader);
  header.raw_bytes = raw.size();
  header.block_bytes = kPackedBlockBytes;
  header.num_blocks =
      static_cast<uint32_t>((raw.size() + kPackedBlockBytes - 1) / kPackedBlockBytes);

  std::vector<PackedBlock> blocks(header.num_blocks);
  const size_t blocks_at = sizeof(header) + std::as_bytes(std::span(blocks)).size();
  std::vector<std::byte> file(blocks_at +
                              header.num_blocks * ZSTD_compressBound(kPackedBlockBytes));
  size_t at = blocks_at;
  for (auto& block : blocks) {
    const std::span<const std::byte> part =
        raw.first(std::min<size_t>(raw.size(), kPackedBlockBytes));
    raw = raw.subspan(part.size());
    const size_t size =
        ZSTD_compress(file.data() + at, file.size() - at, part.data(), part.size(), kZstdLevel);
    if (ZSTD_isError(size) != 0) return error(Code::kInternal, "zstd: {}", ZSTD_getErrorName(size));
    block = {.offset = at,
             .num_bytes = static_cast<uint32_t>(size),
             .crc = crc32c(std::span<const std::byte>(file).subspan(at, size))};
    at += size;
  }
  file.resize(at);
  header.table_crc = crc32c(std::as_bytes(std::span(blocks)));
  header.crc = crc_of(header);
  std::memcpy(file.data(), &header, sizeof(header));
  if (!blocks.empty())
    std::memcpy(file.data() + sizeof(header), blocks.data(), blocks_at - sizeof(header));
  return file;
}

uint64_t PackedTable::raw_bytes_of(size_t block) const {
  const uint64_t begin = uint64_t{header.block_bytes} * block;
  return std::min<uint64_t>(header.block_bytes, header.raw_bytes - begin);
}

Result<PackedTable> read_packed_table(std::span<const std::byte> file) {
  PackedTable table{};
  PackedHeader& header = table.header;
  if (file.size() < sizeof(header)) return corrupt("shorter than its header");
  std::memcpy(&header, file.data(), sizeof(header));
  if (std::memcmp(header.magic, kPackedMagic, sizeof(kPackedMagic)) != 0)
    return corrupt("it does not begin with 'PRMLTRZ'");
  if (header.format_version != kTraceFormatVersion)
    return error(Code::kInvalid, "format version {}; this program reads {}", header.format_version,
                 kTraceFormatVersion);
  if (header.crc != crc_of(header)) return corrupt("its header is damaged");
  if (header.header_bytes != sizeof(header) || header.block_bytes != kPackedBlockBytes)
    return corrupt("sizes that version 1 does not have");
  if (header.raw_bytes > kSegmentBytesMax) return corrupt("larger than a segment can be");
  if (header.num_blocks != (header.raw_bytes + kPackedBlockBytes - 1) / kPackedBlockBytes)
    return corrupt("its number of blocks does not fit its size");
  const size_t table_bytes = header.num_blocks * sizeof(PackedBlock);
  if (file.size() - sizeof(header) < table_bytes) return corrupt("its table of blocks is cut");
  if (crc32c(file.subspan(sizeof(header), table_bytes)) != header.table_crc)
    return corrupt("its table of blocks is damaged");
  table.blocks.resize(header.num_blocks);
  if (table_bytes > 0) std::memcpy(table.blocks.data(), file.data() + sizeof(header), table_bytes);
  return table;
}

bool unpack_block(const PackedTable& table, std::span<const std::byte> file, size_t block,
                  std::span<std::byte> into) {
  const PackedBlock& place = table.blocks[block];
  if (place.offset > file.size() || place.num_bytes > file.size() - place.offset) return false;
  const auto packed = file.subspan(place.offset, place.num_bytes);
  if (crc32c(packed) != place.crc) return false;
  return ZSTD_decompress(into.data(), into.size(), packed.data(), packed.size()) == into.size();
}

std::string pack_text(std::string_view text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  const size_t size =
      ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), kZstdLevel);
  CHECK(ZSTD_isError(size) == 0, "zstd refuses a text");
  packed.resize(size);
  return packed;
}

Result<std::string> unpack_text(std::span<const std::byte> packed, size_t bytes_max) {
  const unsigned long long size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN)
    return error(Code::kCorrupt, "it is not packed with zstd");
  if (size > bytes_max)
    return error(Code::kCorrupt, "unpacked it has {} bytes; at most {}", size, bytes_max);
  std::string text(static_cast<size_t>(size), '\0');
  if (ZSTD_decompress(text.data(), text.size(), packed.data(), packed.size()) != text.size())
    return error(Code::kCorrupt, "it is damaged");
  return text;
}

}  // namespace primerl
