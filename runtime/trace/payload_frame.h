/// The variable part of a payload frame, cut into body and Blobs. Believes nothing.
#pragma once

#include <vector>

#include "runtime/trace/segment_reader.h"

namespace primerl {

struct PayloadParts {
  struct Part {
    uint64_t num_bytes = 0;
    std::span<const std::byte> bytes;  // or, in the store, the 32 bytes of its SHA-256
    bool in_store = false;
  };
  Part body;
  std::vector<Part> blobs;
};

/// kCorrupt when the parts do not fill the frame exactly.
Result<PayloadParts> payload_parts(const Frame& frame);

}  // namespace primerl
