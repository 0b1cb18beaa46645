/// Writes payload frames: a message's body and Blobs. Large ones go into the content store.
#pragma once

#include <span>
#include <vector>

#include "graph/base/blob.h"
#include "runtime/trace/frames.h"
#include "runtime/trace/record/segment_writer.h"

namespace primerl {

/// Appends `frame` with body and Blobs; large ones go to the content store. `frame` is complete
/// except for its sizes and flags. `scratch` is memory that is reused. False: the frame is lost;
/// the writer has the reason.
bool append_payload(SegmentWriter& writer, PayloadFrame& frame, std::span<const std::byte> body,
                    std::span<const Blob> blobs, std::vector<std::byte>& scratch);

}  // namespace primerl
