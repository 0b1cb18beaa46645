#include "runtime/wire/frame.h"

namespace primerl {
namespace {

/// Writes and reads little-endian numbers at fixed offsets; the compiler turns the loops into
/// single moves.
template <class T>
void put(std::span<std::byte, kFrameHeaderBytes> bytes, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    bytes[at + i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

template <class T>
T take(std::span<const std::byte> bytes, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | (static_cast<T>(bytes[at + i]) << (8 * i)));
  return value;
}

}  // namespace

std::string_view to_string(FrameRefusal refusal) {
  switch (refusal) {
    case FrameRefusal::kNone:
      return "none";
    case FrameRefusal::kSize:
      return "size";
    case FrameRefusal::kMagic:
      return "magic";
    case FrameRefusal::kVersion:
      return "version";
    case FrameRefusal::kReservedFlag:
      return "reserved_flag";
    case FrameRefusal::kReservedZero:
      return "reserved_zero";
    case FrameRefusal::kFrameCount:
      return "frame_count";
    case FrameRefusal::kTooLong:
      return "too_long";
    case FrameRefusal::kFramesDiffer:
      return "frames_differ";
    case FrameRefusal::kBytesDiffer:
      return "bytes_differ";
    case FrameRefusal::kUnknownType:
      return "unknown_type";
    case FrameRefusal::kTenant:
      return "tenant";
    case FrameRefusal::kBody:
      return "body";
    case FrameRefusal::kCheck:
      return "check";
    case FrameRefusal::kKind:
      return "kind";
    case FrameRefusal::kUnknownPeer:
      return "stranger";
    case FrameRefusal::kIncarnation:
      return "incarnation";
    case FrameRefusal::kNotGreeted:
      return "not_greeted";
    case FrameRefusal::kDuplicate:
      return "duplicate";
    case FrameRefusal::kGap:
      return "gap";
    case FrameRefusal::kChunk:
      return "chunk";
    case FrameRefusal::kPlan:
      return "plan";
  }
  return "none";
}

void encode_frame_header(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> bytes) {
  put<uint16_t>(bytes, 0, kFrameMagic);
  put<uint8_t>(bytes, 2, kFrameVersion);
  put<uint8_t>(bytes, 3, header.flags);
  put<uint16_t>(bytes, 4, header.num_frames);
  put<uint16_t>(bytes, 6, 0);
  put<uint32_t>(bytes, 8, header.type);
  put<uint32_t>(bytes, 12, header.tenant.value);
  put<uint32_t>(bytes, 16, header.edge.value);
  put<uint32_t>(bytes, 20, header.source.value);
  put<uint32_t>(bytes, 24, header.destination.value);
  put<uint32_t>(bytes, 28, header.incarnation);
  put<uint64_t>(bytes, 32, header.sequence);
  put<uint64_t>(bytes, 40, header.lamport);
  put<uint32_t>(bytes, 48, header.cause.instance.value);
  put<uint32_t>(bytes, 52, header.time_left_ms);
  put<uint64_t>(bytes, 56, header.cause.step);
  put<uint64_t>(bytes, 64, header.payload_bytes);
  put<uint64_t>(bytes, 72, header.check);
}

FrameRefusal decode_frame_header(std::span<const std::byte> bytes, uint64_t payload_bytes_max,
                                 FrameHeader& header) {
  if (bytes.size() != kFrameHeaderBytes) return FrameRefusal::kSize;
  if (take<uint16_t>(bytes, 0) != kFrameMagic) return FrameRefusal::kMagic;
  if (take<uint8_t>(bytes, 2) != kFrameVersion) return FrameRefusal::kVersion;
  if ((take<uint8_t>(bytes, 3) & ~kFrameFlags) != 0) return FrameRefusal::kReservedFlag;
  if (take<uint16_t>(bytes, 6) != 0) return FrameRefusal::kReservedZero;
  const auto num_frames = take<uint16_t>(bytes, 4);
  if (num_frames < kFrameCountMin || num_frames > kFrameCountMax) return FrameRefusal::kFrameCount;
  const auto payload_bytes = take<uint64_t>(bytes, 64);
  if (payload_bytes > payload_bytes_max) return FrameRefusal::kTooLong;

  header.flags = take<uint8_t>(bytes, 3);
  header.num_frames = num_frames;
  header.type = take<uint32_t>(bytes, 8);
  header.tenant = TenantSlot(take<uint32_t>(bytes, 12));
  header.edge = EdgeId(take<uint32_t>(bytes, 16));
  header.source = InstanceId(take<uint32_t>(bytes, 20));
  header.destination = InstanceId(take<uint32_t>(bytes, 24));
  header.incarnation = take<uint32_t>(bytes, 28);
  header.sequence = take<uint64_t>(bytes, 32);
  header.lamport = take<uint64_t>(bytes, 40);
  header.cause.instance = InstanceId(take<uint32_t>(bytes, 48));
  header.time_left_ms = take<uint32_t>(bytes, 52);
  header.cause.step = take<uint64_t>(bytes, 56);
  header.payload_bytes = payload_bytes;
  header.check = take<uint64_t>(bytes, 72);
  return FrameRefusal::kNone;
}

}  // namespace primerl
