#include "runtime/trace/payload_frame.h"

#include <cstring>

namespace primerl {
namespace {

constexpr size_t kHashBytes = 32;

/// Takes `size` bytes and the zeros that pad them to a multiple of 8. The frame's own length ends
/// behind its last byte, so the last part may lack its padding.
bool take(std::span<const std::byte>& left, uint64_t size, std::span<const std::byte>& part) {
  if (size > left.size()) return false;
  part = left.first(size);
  const uint64_t padded = (size + kFrameAlignment - 1) & ~uint64_t{kFrameAlignment - 1};
  left = left.subspan(std::min<uint64_t>(padded, left.size()));
  return true;
}

void append_padded(std::vector<std::byte>& out, std::span<const std::byte> part) {
  out.insert(out.end(), part.begin(), part.end());
  out.resize((out.size() + kFrameAlignment - 1) & ~(kFrameAlignment - 1));
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
    if (!hash.ok()) return false;
    frame.header.flags |= kBodyInStore;
    append_padded(scratch, *hash);
  } else {
    append_padded(scratch, body);
  }
  for (const Blob& blob : blobs) {
    const uint64_t size = blob.size();
    append_padded(scratch, std::as_bytes(std::span(&size, 1)));
    if (size <= kInlineBytesMax) {
      append_padded(scratch, blob.bytes());
      continue;
    }
    const auto hash = writer.store(blob.bytes());
    if (!hash.ok()) return false;
    append_padded(scratch, *hash);
  }
  return writer.append(std::as_writable_bytes(std::span(&frame, 1)), scratch);
}

Result<PayloadParts> payload_parts(const Frame& frame) {
  const auto& fixed = frame.as<PayloadFrame>();
  const auto torn = [&] {
    return error(Code::kCorrupt, "the payload at {} does not fill its frame", frame.offset);
  };
  std::span<const std::byte> left = frame.after<PayloadFrame>();
  PayloadParts parts;
  parts.body.num_bytes = fixed.body_bytes;
  parts.body.in_store = (fixed.header.flags & kBodyInStore) != 0;
  if (!take(left, parts.body.in_store ? kHashBytes : fixed.body_bytes, parts.body.bytes))
    return torn();
  for (uint16_t i = 0; i < fixed.header.count; ++i) {
    if (left.size() < sizeof(uint64_t)) return torn();
    PayloadParts::Part part;
    std::memcpy(&part.num_bytes, left.data(), sizeof part.num_bytes);
    left = left.subspan(sizeof part.num_bytes);
    part.in_store = part.num_bytes > kInlineBytesMax;
    if (!take(left, part.in_store ? kHashBytes : part.num_bytes, part.bytes)) return torn();
    parts.blobs.push_back(part);
  }
  if (!left.empty()) return torn();
  return parts;
}

}  // namespace primerl
