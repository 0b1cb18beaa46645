/// Writes payload frames: a message's body and Blobs, the large ones into the content store.
#pragma once

#include <span>
#include <vector>

#include "graph/base/blob.h"
#include "runtime/trace/frames.h"
#include "runtime/trace/record/segment_writer.h"

namespace primerl {

/// Appends `frame`, filled in but for its sizes and flags, with body and Blobs; large ones go to
/// the content store. `scratch` is memory that is reused. False: lost, the writer has the reason.
bool append_payload(SegmentWriter& writer, PayloadFrame& frame, std::span<const std::byte> body,
                    std::span<const Blob> blobs, std::vector<std::byte>& scratch);

}  // namespace primerl
