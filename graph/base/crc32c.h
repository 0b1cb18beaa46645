/// CRC-32C (Castagnoli, reflected 0x82f63b78): the checksum of trace segments and of TensorBoard's
/// records. Uses the SSE4.2 instruction if the machine has it, with three interleaved streams for
/// long inputs (one stream waits three cycles for every eight bytes). Pure, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace primerl {

/// The CRC of `bytes` after bytes whose CRC is `before`: crc32c(b, crc32c(a)) = crc32c(a + b).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

/// The same, one byte at a time, on any machine; the tests compare the fast one with it.
uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t before = 0);

/// The rotated form that TensorBoard's records use, so that a CRC over bytes that contain CRCs
/// still detects errors.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace primerl
