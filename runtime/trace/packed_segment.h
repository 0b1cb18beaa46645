/// A packed segment (`.ptrz`): the bytes of a raw segment as independent zstd blocks, so that a
/// reader unpacks one block to read one frame. It has a PackedHeader, one PackedBlock per block,
/// then the blocks, all without gaps. Raw block i begins at i * block_bytes. Pure functions over
/// memory, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

inline constexpr char kPackedMagic[8] = {'P', 'R', 'M', 'L', 'T', 'R', 'Z', '\n'};
inline constexpr uint32_t kPackedBlockBytes = 256U << 10;
/// Limit of a segment, for the writer and the reader.
inline constexpr uint64_t kSegmentBytesMax = uint64_t{1} << 30;

struct PackedHeader {
  char magic[8];
  uint32_t format_version;  // kTraceFormatVersion
  uint32_t header_bytes;    // sizeof(PackedHeader)
  uint64_t raw_bytes;       // of the whole raw segment
  uint32_t block_bytes;     // raw bytes of every block but the last
  uint32_t num_blocks;
  uint32_t table_crc;  // CRC-32C of the table of blocks
  uint32_t crc;        // CRC-32C of the bytes before it
};
static_assert(sizeof(PackedHeader) == 40);

struct PackedBlock {
  uint64_t offset;  // in the file
  uint32_t num_bytes;
  uint32_t crc;  // CRC-32C of the packed bytes
};
static_assert(sizeof(PackedBlock) == 16);

/// zstd level 1. kExhausted above kSegmentBytesMax.
Result<std::vector<std::byte>> pack_segment(std::span<const std::byte> raw);

/// The checked head of a packed segment. A block may still lie beyond the end of a truncated file.
struct PackedTable {
  PackedHeader header;
  std::vector<PackedBlock> blocks;
  uint64_t raw_bytes_of(size_t block) const;
};
Result<PackedTable> read_packed_table(std::span<const std::byte> file);

/// Unpacks one block into exactly raw_bytes_of(block) bytes. False: damaged.
bool unpack_block(const PackedTable& table, std::span<const std::byte> file, size_t block,
                  std::span<std::byte> into);

/// One zstd frame.
std::string pack_text(std::string_view text);
/// kCorrupt when it is not a zstd frame, or would have more than `bytes_max` bytes.
Result<std::string> unpack_text(std::span<const std::byte> packed, size_t bytes_max);

}  // namespace primerl
