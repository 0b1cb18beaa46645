/// The variable part of a payload frame: written, and cut into body and Blobs again. The reading
/// half believes nothing.
#pragma once

#include <vector>

#include "graph/base/blob.h"
#include "runtime/trace/segment_reader.h"
#include "runtime/trace/segment_writer.h"

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

/// Appends `frame`, filled in but for its sizes and flags, with body and Blobs; large ones go to
/// the content store. `scratch` is memory to use again. False: lost, the writer knows why.
bool append_payload(SegmentWriter& writer, PayloadFrame& frame, std::span<const std::byte> body,
                    std::span<const Blob> blobs, std::vector<std::byte>& scratch);

}  // namespace primerl
