/// CRC-32C (Castagnoli, reflected 0x82f63b78): the check of trace segments and of TensorBoard's
/// records. Uses the SSE4.2 instruction where the machine has it, three interleaved streams for
/// long runs (one stream waits three cycles for every eight bytes). Pure, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace primerl {

/// The CRC of `bytes` after bytes whose CRC is `before`: crc32c(b, crc32c(a)) = crc32c(a + b).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

/// The same, one byte at a time, on any machine: what the fast one is tested against.
uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t before = 0);

/// The rotated form that TensorBoard's records carry, so that a CRC of bytes that hold CRCs stays
/// a good one.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace primerl
