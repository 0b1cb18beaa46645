#include "runtime/trace/record/payload_writer.h"

#include <algorithm>

#include "graph/base/bytes.h"
#include "runtime/trace/payload_frame.h"

namespace primerl {
namespace {

void append_padded(std::vector<std::byte>& out, std::span<const std::byte> part) {
  out.insert(out.end(), part.begin(), part.end());
  out.resize(padded(out.size()));
}

/// The largest size of a Blob that is stored in the frame, so that all of them fit into `room`
/// bytes. Larger Blobs go to the content store. The hashes of all Blobs that a message may have
/// always fit.
uint64_t largest_inline(std::span<const Blob> blobs, uint64_t room) {
  uint64_t num_bytes = 0;
  for (const Blob& blob : blobs)
    num_bytes +=
        sizeof(BlobWord) + (blob.size() > kInlineBytesMax ? kHashBytes : padded(blob.size()));
  if (num_bytes <= room) return kInlineBytesMax;
  std::vector<uint64_t> sizes;
  for (const Blob& blob : blobs)
    if (blob.size() > kHashBytes && blob.size() <= kInlineBytesMax) sizes.push_back(blob.size());
  std::sort(sizes.begin(), sizes.end());
  // Blobs of one size are treated equally.
  while (num_bytes > room && !sizes.empty()) {
    const uint64_t largest = sizes.back();
    for (; !sizes.empty() && sizes.back() == largest; sizes.pop_back())
      num_bytes -= padded(largest) - kHashBytes;
  }
  return sizes.empty() ? kHashBytes : sizes.back();
}

}  // namespace

bool append_payload(SegmentWriter& writer, PayloadFrame& frame, std::span<const std::byte> body,
                    std::span<const Blob> blobs, std::vector<std::byte>& scratch) {
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kPayload);
  frame.header.count = static_cast<uint16_t>(blobs.size());
  frame.body_bytes = static_cast<uint32_t>(body.size());
  scratch.clear();
  if (body.size() > kInlineBytesMax) {
    const auto hash = writer.store(body);
    if (!hash.ok()) return writer.lose(std::as_bytes(std::span(&frame, 1)), hash.error());
    frame.header.flags |= kBodyInStore;
    append_padded(scratch, *hash);
  } else {
    append_padded(scratch, body);
  }
  const uint64_t inline_max = largest_inline(blobs, kFrameBytesMax - sizeof frame - scratch.size());
  for (const Blob& blob : blobs) {
    const bool is_stored = blob.size() > inline_max;
    BlobWord word{blob.size()};
    if (is_stored && !word.in_store()) word.bits |= BlobWord::kInStore;
    append_padded(scratch, std::as_bytes(std::span(&word, 1)));
    if (!is_stored) {
      append_padded(scratch, blob.bytes());
      continue;
    }
    const auto hash = writer.store(blob.bytes());
    if (!hash.ok()) return writer.lose(std::as_bytes(std::span(&frame, 1)), hash.error());
    append_padded(scratch, *hash);
  }
  return writer.append(std::as_writable_bytes(std::span(&frame, 1)), scratch);
}

}  // namespace primerl
