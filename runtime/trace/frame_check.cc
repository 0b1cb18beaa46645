#include "runtime/trace/frame_check.h"

#include <cstring>

#include "runtime/trace/payload_frame.h"

namespace primerl {
namespace {

template <class F>
F read_as(std::span<const std::byte> frame) {
  F fixed;
  std::memcpy(&fixed, frame.data(), sizeof(F));
  return fixed;
}

}  // namespace

size_t fixed_bytes(uint8_t kind) {
  switch (static_cast<TraceFrameKind>(kind)) {
    case TraceFrameKind::kCatalog:
      return sizeof(TraceFrameHeader);
    case TraceFrameKind::kDelivery:
      return sizeof(DeliveryFrame);
    case TraceFrameKind::kPayload:
      return sizeof(PayloadFrame);
    case TraceFrameKind::kNote:
      return sizeof(NoteFrame);
    case TraceFrameKind::kLifecycle:
      return sizeof(LifecycleFrame);
    case TraceFrameKind::kGap:
      return sizeof(GapFrame);
    case TraceFrameKind::kSync:
      return sizeof(SyncFrame);
    case TraceFrameKind::kEnd:
      return sizeof(EndFrame);
  }
  return kFrameBytesMax + 1;
}

bool visit_payload(std::span<const std::byte> frame,
                   const std::function<void(const PayloadPart&)>& visitor) {
  const auto fixed = read_as<PayloadFrame>(frame);
  std::span<const std::byte> left = frame.subspan(sizeof(fixed));
  PayloadPart part{.num_bytes = fixed.body_bytes,
                   .is_stored = (fixed.header.flags & kBodyInStore) != 0,
                   .bytes = {}};
  for (uint32_t i = 0;; ++i) {
    if (!take_part(left, part.is_stored ? kHashBytes : part.num_bytes, part.bytes)) return false;
    visitor(part);
    if (i == fixed.header.count) return left.empty();
    BlobWord word;
    if (left.size() < sizeof word) return false;
    std::memcpy(&word, left.data(), sizeof word);
    left = left.subspan(sizeof word);
    part.num_bytes = word.num_bytes();
    part.is_stored = word.in_store();
  }
}

bool is_well_formed(std::span<const std::byte> frame, uint64_t offset) {
  const auto head = read_as<TraceFrameHeader>(frame);
  switch (static_cast<TraceFrameKind>(head.kind)) {
    case TraceFrameKind::kCatalog:
      return true;
    case TraceFrameKind::kPayload:
      return visit_payload(frame, [](const PayloadPart&) {});
    case TraceFrameKind::kNote:
      return read_as<NoteFrame>(frame).num_bytes == frame.size() - sizeof(NoteFrame);
    case TraceFrameKind::kLifecycle:
      return read_as<LifecycleFrame>(frame).num_bytes == frame.size() - sizeof(LifecycleFrame);
    case TraceFrameKind::kSync:
      return frame.size() == sizeof(SyncFrame) && read_as<SyncFrame>(frame).offset == offset;
    case TraceFrameKind::kDelivery:
    case TraceFrameKind::kGap:
    case TraceFrameKind::kEnd:
      return frame.size() == fixed_bytes(head.kind);
  }
  return false;
}

}  // namespace primerl
