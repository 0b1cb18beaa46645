/// Splits the variable part of a payload frame into body and Blobs. Treats its input as untrusted.
/// record/payload_writer.h writes it.
#pragma once

#include <span>
#include <vector>

#include "runtime/trace/segment_reader.h"

namespace primerl {

/// Size of a SHA-256, the name of a file in the content store.
inline constexpr size_t kHashBytes = 32;

struct PayloadParts {
  struct Part {
    uint64_t num_bytes = 0;
    std::span<const std::byte> bytes;  // the bytes or, in the store, the 32 bytes of their SHA-256
    bool in_store = false;
  };
  Part body;
  std::vector<Part> blobs;
};

/// Removes `size` bytes from `left`, and the zeros that pad them to a multiple of 8. The frame's
/// length does not include its padding, so the last part may lack the zeros. False when fewer bytes
/// are left.
bool take_part(std::span<const std::byte>& left, uint64_t size, std::span<const std::byte>& part);

/// kCorrupt when the parts do not fill the frame exactly.
Result<PayloadParts> payload_parts(const Frame& frame);

}  // namespace primerl
