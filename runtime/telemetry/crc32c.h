/// CRC-32C (Castagnoli), as TensorBoard's record files use it. Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace primerl {

uint32_t crc32c(std::string_view bytes);

/// The rotated form records carry, so that a CRC of bytes that hold CRCs stays a good one.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace primerl
