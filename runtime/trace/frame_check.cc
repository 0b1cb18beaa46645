#include "runtime/trace/frame_check.h"

#include <algorithm>
#include <cstring>

namespace primerl {
namespace {

constexpr uint64_t kHashBytes = 32;

template <class F>
F read_as(std::span<const std::byte> frame) {
  F fixed;
  std::memcpy(&fixed, frame.data(), sizeof(F));
  return fixed;
}

// Takes a part and the zeros that pad it; the last part may lack them.
bool take(std::span<const std::byte>& left, uint64_t size) {
  if (size > left.size()) return false;
  const uint64_t padded = (size + kFrameAlignment - 1) & ~uint64_t{kFrameAlignment - 1};
  left = left.subspan(std::min<uint64_t>(padded, left.size()));
  return true;
}

bool payload_fits(std::span<const std::byte> frame) {
  const auto fixed = read_as<PayloadFrame>(frame);
  std::span<const std::byte> left = frame.subspan(sizeof(fixed));
  const bool in_store = (fixed.header.flags & kBodyInStore) != 0;
  if (!take(left, in_store ? kHashBytes : fixed.body_bytes)) return false;
  for (uint16_t i = 0; i < fixed.header.count; ++i) {
    uint64_t size = 0;
    if (left.size() < sizeof(size)) return false;
    std::memcpy(&size, left.data(), sizeof(size));
    left = left.subspan(sizeof(size));
    if (!take(left, size > kInlineBytesMax ? kHashBytes : size)) return false;
  }
  return left.empty();
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

bool is_well_formed(std::span<const std::byte> frame, uint64_t offset) {
  const auto head = read_as<TraceFrameHeader>(frame);
  switch (static_cast<TraceFrameKind>(head.kind)) {
    case TraceFrameKind::kCatalog:
      return true;
    case TraceFrameKind::kPayload:
      return payload_fits(frame);
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
