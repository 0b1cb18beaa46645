/// The header frame of a wire message: 80 bytes, little-endian, at fixed offsets.
///
/// A wire message is this header, one body frame (msgpack of the message's fields(), see
/// msgpack_codec.h) and one raw frame per Blob. docs/formats/wire.md fixes the layout. Nothing here
/// allocates. An invalid header is refused, with the reason, before any byte of the body is read.
/// Plain functions: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "graph/base/ids.h"

namespace primerl {

inline constexpr size_t kFrameHeaderBytes = 80;
inline constexpr uint16_t kFrameMagic = 0x5250;  // "PR"
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr uint16_t kFrameCountMin = 2;       // header and body
inline constexpr uint16_t kFrameCountMax = 0x4000;  // header, body and Blobs

/// Bits of FrameHeader::flags; all others are reserved and must be zero.
enum FrameFlag : uint8_t {
  kFrameControl = 1,    // sent on the control lane, uses no credit
  kFrameRetry = 2,      // sent again after a broken connection: may be a duplicate
  kFrameDroppable = 4,  // the receiver may drop and count it
};
inline constexpr uint8_t kFrameFlags = kFrameControl | kFrameRetry | kFrameDroppable;

/// The header as values. `none` ids are all ones on the wire.
struct FrameHeader {
  uint8_t flags = 0;
  uint16_t num_frames = kFrameCountMin;
  uint32_t type = 0;  // WireTypes::id_of()
  TenantSlot tenant{};
  EdgeId edge{};
  InstanceId source{};
  InstanceId destination{};
  uint32_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t lamport = 0;
  StepRef cause{};
  uint32_t time_left_ms = 0;   // 0 = no deadline
  uint64_t payload_bytes = 0;  // body and Blobs
  uint64_t check = 0;          // payload_check() of the message

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

/// The reason why a header, or the frames after it, are refused; counted per reason.
enum class FrameRefusal : uint8_t {
  kNone,
  kSize,          // the header frame is not 80 bytes
  kMagic,         // another protocol
  kVersion,       // a header version this build does not know
  kReservedFlag,  // a flag bit without a meaning
  kReservedZero,  // bytes 6..7 are not zero
  kFrameCount,    // outside 2..kFrameCountMax
  kTooLong,       // payload_bytes above the receiver's limit
  kFramesDiffer,  // another number of frames than the header says
  kBytesDiffer,   // another number of bytes than the header says
  kUnknownType,   // no such type id
  kTenant,        // a tenant that the connection may not send for
  kBody,          // the body is not a message of its type
  kCheck,         // the check does not match: the message was damaged
  // For connections between workers (peer_frame.h):
  kKind,         // a frame kind that does not exist, or not on this lane
  kUnknownPeer,  // a process that was not added, or that does not match its connection
  kIncarnation,  // an older incarnation
  kNotGreeted,   // a numbered frame before the greeting
  kDuplicate,    // a numbered frame that has arrived already
  kGap,          // a numbered frame whose predecessor is missing: resent on request
  kChunk,        // a chunk of a Blob that does not follow the earlier ones
  kPlan,         // messages or grants that the plan does not allow: they are skipped
};
inline constexpr size_t kNumFrameRefusals = static_cast<size_t>(FrameRefusal::kPlan) + 1;
std::string_view to_string(FrameRefusal refusal);  // "magic", "frame_count", ...

void encode_frame_header(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> bytes);

/// Fills `header` and returns kNone. Or returns the reason and does not change `header`.
FrameRefusal decode_frame_header(std::span<const std::byte> bytes, uint64_t payload_bytes_max,
                                 FrameHeader& header);

}  // namespace primerl
