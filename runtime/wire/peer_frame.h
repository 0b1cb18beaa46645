/// The frames of a connection between two workers: a header of 48 bytes, then the payload.
///
/// A connection has two lanes: frames (batches, small) and bulk (chunks of Blobs). Both carry these
/// frames, each lane with its own sequence numbers and acknowledgements. docs/formats/wire.md fixes
/// the layout. Nothing here allocates except the greeting. An invalid header is refused, with the
/// reason, before its payload is read. Plain functions: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "graph/base/ids.h"
#include "graph/message.h"
#include "runtime/wire/frame.h"

namespace primerl {

inline constexpr size_t kPeerFrameHeaderBytes = 48;
inline constexpr uint16_t kPeerProtocolMagic = 0x4c50;  // "PL"
inline constexpr uint8_t kPeerProtocolVersion = 5;

enum class Lane : uint8_t { kFrames = 0, kBulk = 1 };
inline constexpr Lane kLanes[] = {Lane::kFrames, Lane::kBulk};
inline constexpr size_t kNumLanes = std::size(kLanes);

enum class PeerFrameKind : uint8_t {
  kHello = 1,       // a greeting on a new socket connection; answered with a welcome
  kWelcome = 2,     // a greeting that answers a hello
  kProbe = 3,       // no payload: asks what the receiver has received; answered with a position
  kPosition = 4,    // no payload: received up to `acknowledged`; resend later frames
  kAck = 5,         // no payload: only `acknowledged`
  kRefusal = 6,     // the receiver does not belong to this run: a RefusedGreeting
  kBye = 7,         // no payload: this process ends the connection in order
  kBatches = 8,     // numbered, frames lane
  kChunk = 9,       // numbered, bulk lane
  kReads = 10,      // frames lane: nonce of the receiver's pool, which the sender now reads
  kReference = 11,  // numbered, bulk lane: a Blob in the pool that the receiver reads
  kStream = 12,     // numbered, bulk lane: a frame of a stream
};
std::string_view to_string(PeerFrameKind kind);
constexpr bool is_numbered(PeerFrameKind kind) {
  return kind == PeerFrameKind::kBatches || kind == PeerFrameKind::kChunk ||
         kind == PeerFrameKind::kReference || kind == PeerFrameKind::kStream;
}

struct PeerFrameHeader {
  PeerFrameKind kind = PeerFrameKind::kAck;
  uint32_t incarnation = 0;       // of the sender
  uint32_t peer_incarnation = 0;  // of the receiver, as the sender knows it
  ProcessId process;              // the sender
  uint64_t sequence = 0;          // from 1, rises by one; 0 when not numbered
  uint64_t acknowledged = 0;
  uint64_t payload_bytes = 0;
  uint64_t check = 0;  // frame_check() of all fields above and the payload
  friend bool operator==(const PeerFrameHeader&, const PeerFrameHeader&) = default;
};

void encode_peer_frame_header(const PeerFrameHeader& header,
                              std::span<std::byte, kPeerFrameHeaderBytes> bytes);

/// `bytes` begins with the header. Fills `header` and returns kNone. Or returns the reason and does
/// not change `header`.
FrameRefusal decode_peer_frame_header(std::span<const std::byte> bytes, Lane lane,
                                      uint64_t payload_bytes_max, PeerFrameHeader& header);

/// Hash of the payload, given in its two parts.
uint64_t frame_payload_hash(std::span<const std::byte> head, std::span<const std::byte> data);
/// Check of all header fields except `check`, and a payload's hash. Detects damage, does not
/// authenticate.
uint64_t frame_check(const PeerFrameHeader& header, uint64_t payload_hash);

/// The version byte of data that begins like a peer frame, for the text of a refusal; 0 for other
/// data.
uint8_t version_of_peer_frame(std::span<const std::byte> bytes);

/// The payload of kHello and kWelcome, as msgpack.
struct PeerGreeting {
  static constexpr std::string_view kName = "PeerGreeting";
  static constexpr uint32_t kVersion = 3;

  std::string pass;  // the receiver's secret, known only to the peers that it expects
  std::string run;
  uint64_t graph_hash = 0;
  uint64_t types_hash = 0;
  std::string name;          // of the sending process
  uint64_t received = 0;     // numbered frames received on this lane so far
  int64_t sent_at_ns = 0;    // the sender's clock
  int64_t echoed_at_ns = 0;  // for a welcome: sent_at_ns of the hello that it answers
  int64_t pool_pid = 0;      // address of the sender's pool (ShmBlobAddress)
  int32_t pool_descriptor = -1;
  uint64_t pool_nonce = 0;  // 0: the sender shares no memory
  uint64_t reads = 0;       // nonce of the receiver's pool that the sender reads; 0: none

  template <class F>
  static void fields(F& f) {
    using G = PeerGreeting;
    f("pass", &G::pass)("run", &G::run)("graph_hash", &G::graph_hash)("types_hash", &G::types_hash)(
        "name", &G::name)("received", &G::received)("sent_at_ns", &G::sent_at_ns)(
        "echoed_at_ns", &G::echoed_at_ns)("pool_pid", &G::pool_pid)(
        "pool_descriptor", &G::pool_descriptor)("pool_nonce", &G::pool_nonce)("reads", &G::reads);
  }
};

/// The payload of kRefusal: ConnectionRefusal of transport.h, from the view of the refusing side.
struct RefusedGreeting {
  static constexpr std::string_view kName = "RefusedGreeting";
  static constexpr uint32_t kVersion = 1;

  std::string name;  // of the refusing process
  std::string field;
  std::string ours;    // value of the refusing side
  std::string theirs;  // value of the refused side

  template <class F>
  static void fields(F& f) {
    using R = RefusedGreeting;
    f("name", &R::name)("field", &R::field)("ours", &R::ours)("theirs", &R::theirs);
  }
};

inline constexpr size_t kGreetingBytesMax = 4096;

/// A chunk of a Blob (or body) on the bulk lane: these 24 bytes, then the bytes themselves.
struct ChunkHeader {
  uint64_t object = 0;  // from 0, rises by one per object of the connection
  uint64_t object_bytes = 0;
  uint64_t offset = 0;
  friend bool operator==(const ChunkHeader&, const ChunkHeader&) = default;
};
inline constexpr size_t kChunkHeaderBytes = 24;
void encode_chunk_header(const ChunkHeader& header, std::span<std::byte, kChunkHeaderBytes> bytes);
ChunkHeader decode_chunk_header(std::span<const std::byte, kChunkHeaderBytes> bytes);

/// A whole Blob (or body) in the sender's pool: the complete payload of kReference.
struct BlobReference {
  uint64_t object = 0;  // counted together with objects sent in chunks
  uint64_t object_bytes = 0;
  uint64_t offset = 0;  // in the pool; offset, slot and turn as in ShmBlobRef
  uint32_t slot = 0;
  uint32_t turn = 0;
  friend bool operator==(const BlobReference&, const BlobReference&) = default;
};
inline constexpr size_t kReferenceBytes = 32;
void encode_reference(const BlobReference& reference, std::span<std::byte, kReferenceBytes> bytes);
BlobReference decode_reference(std::span<const std::byte, kReferenceBytes> bytes);
/// kStream begins with the number of its stream, then the stream's own head; its body is the second
/// part.
inline constexpr size_t kStreamNumberBytes = 4;
/// The payload of kReads.
inline constexpr size_t kReadsBytes = 8;

}  // namespace primerl
