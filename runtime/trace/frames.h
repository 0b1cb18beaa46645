/// Frames: the contents of a trace segment, byte for byte. docs/formats/trace.md describes the same
/// in prose; that page is enough to write a reader.
///
/// A segment is a file `<process>.<incarnation>.<number>.ptr`: one SegmentHeader, then frames. All
/// numbers are little-endian. Every frame begins at a multiple of 8 bytes and is padded with zeros
/// to the next. A length of zero is a hole: space that was reserved and never filled, because the
/// process died, or the unused rest of the file. A reader looks for the next frame at every
/// following multiple of 8. The CRC is seeded by the segment and the frame's offset. So random
/// bytes, and stale bytes of a recycled file, fail the CRC check.
///
/// Threads append concurrently, so the frames of different groups are interleaved. The frames of
/// one group are in the order of its steps.
#pragma once

#include <cstddef>
#include <cstdint>

namespace primerl {

inline constexpr char kSegmentMagic[8] = {'P', 'R', 'M', 'L', 'T', 'R', 'C', '\n'};
inline constexpr uint32_t kTraceFormatVersion = 3;
inline constexpr size_t kFrameAlignment = 8;
inline constexpr size_t kSyncEveryBytes = size_t{64} << 10;
/// Limit of a frame: 1 MiB (the limit of a message) and the fields around it. The reader refuses
/// larger frames before it allocates memory.
inline constexpr size_t kFrameBytesMax = (size_t{1} << 20) + (size_t{64} << 10);
/// Limit of a catalog's JSON: enough for tens of thousands of nodes.
inline constexpr size_t kCatalogBytesMax = size_t{32} << 20;
/// Blobs and bodies larger than this go to the content store, by hash; larger catalogs are packed.
inline constexpr size_t kInlineBytesMax = size_t{64} << 10;

struct SegmentHeader {
  char magic[8];
  uint32_t format_version;
  uint32_t header_bytes;   // sizeof(SegmentHeader)
  uint64_t run_id;         // of run.json
  uint32_t process;        // index in the plan
  uint32_t incarnation;    // incarnation of the process
  uint64_t number;         // of the segment, from 1
  uint64_t seed;           // seeds every CRC of the segment
  uint64_t previous_seed;  // of segment number - 1; 0 in the first
  uint32_t reserved;
  uint32_t crc;  // CRC-32C of the bytes before it
};
static_assert(sizeof(SegmentHeader) == 64);

enum class TraceFrameKind : uint8_t {
  kCatalog = 1,    // JSON (catalog.h) that explains the numbers; first frame of each segment
  kDelivery = 2,   // DeliveryFrame: one step of one group
  kPayload = 3,    // PayloadFrame, body, Blobs: a message stored when it was emitted
  kNote = 4,       // NoteFrame, bytes: input of a step that a replay cannot compute
  kLifecycle = 5,  // LifecycleFrame, text
  kGap = 6,        // GapFrame: the recorder lost frames; the trace is incomplete
  kSync = 7,       // SyncFrame: about every kSyncEveryBytes
  kEnd = 8,        // EndFrame: the process closed its trace in order
};

struct TraceFrameHeader {
  uint32_t length;  // of the whole frame, without padding; written last: 0 = not complete
  uint32_t crc;     // CRC-32C of bytes [8, length), starting from fold(seed, offset), see frame_crc
  uint8_t kind;     // TraceFrameKind
  uint8_t flags;    // per kind
  uint16_t count;   // per kind
  uint32_t group;   // GroupId; UINT32_MAX: no group
};
static_assert(sizeof(TraceFrameHeader) == 16);

/// Flag of a catalog: its JSON is one zstd frame.
inline constexpr uint8_t kPackedCatalog = 1;

/// Flags of a delivery.
enum DeliveryFlags : uint8_t {
  kFailed = 1,          // the handler returned an error (a note kError has its text)
  kAbandoned = 2,       // the handler was abandoned at its deadline
  kInjected = 4,        // the error was injected, the handler did not run (simulation)
  kHasNotes = 8,        // note frames of this step exist; they are written before it
  kPayloadStored = 16,  // the input's payload frame exists (link, incarnation, sequence)
  kNotChecked = 32,     // record = "none": payload_check is 0 and not valid
  kGivenUp = 64,        // the actor said that it, or a tenant, cannot continue (fail_tenant,
                        // stop_on_error)
};

/// One finished step. TraceFrameHeader::count = number of emitted messages (65535: that many or
/// more).
struct DeliveryFrame {
  TraceFrameHeader header;
  uint64_t step;         // number of the group's step, from 1 without gaps
  int64_t began_ns;      // services().now() of the handler
  uint32_t instance;     // UINT32_MAX: a work call, which belongs to the whole group
  uint32_t duration_us;  // time of the handler; UINT32_MAX also stands for longer times
  uint8_t step_kind;     // StepKind of actor_group.h
  uint8_t num_notes;     // number of note frames of this step; 255 also stands for more
  uint8_t reserved[2];
  uint32_t subject;      // link of a message, timer of a timer, instance of a peer event, input of
                         // a command, TenantChange::Kind of a tenant event
  uint64_t sequence;     // of a message; a peer event's kind; a tenant event's tenancy
  uint32_t incarnation;  // of the sender; a peer event's incarnation
  uint32_t tenant;       // of a message; the slot of a tenant event; UINT32_MAX: none
  uint32_t type;         // index into the catalog's types; UINT32_MAX: no message
  uint32_t cause_instance;
  uint64_t cause_step;
  uint64_t sender_step;    // step of the sender's group that emitted the message
  uint64_t payload_check;  // runtime/wire/payload_check.h
  uint32_t payload_bytes;  // size as payload_check counts it; UINT32_MAX also stands for more
  uint32_t origin;         // InstanceId of the instance that sent the conversation's first message
};
static_assert(sizeof(DeliveryFrame) == 104);

/// Flags of a payload.
enum PayloadFlags : uint8_t {
  kBodyInStore = 1,  // instead of body_bytes bytes, the 32 bytes of the SHA-256 follow
};

/// Written before a Blob: its size, and whether it is in the store. A small Blob is in the store
/// when all Blobs of the message together are too long for a frame.
struct BlobWord {
  uint64_t bits = 0;
  static constexpr uint64_t kInStore = uint64_t{1} << 63;
  uint64_t num_bytes() const { return bits & ~kInStore; }
  bool in_store() const { return num_bytes() > kInlineBytesMax || (bits & kInStore) != 0; }
};
static_assert(sizeof(BlobWord) == 8);

/// A stored message. If TraceFrameHeader::group is its sender's group, it was stored when it was
/// emitted; if it is the target's group, when it was handled. The body (msgpack of fields())
/// follows. Then, for each of TraceFrameHeader::count Blobs: BlobWord, then its bytes, or its
/// 32-byte SHA-256 in `trace/blobs/`. Each part is padded to 8 bytes.
struct PayloadFrame {
  TraceFrameHeader header;
  uint64_t step;  // step of the header's group that emitted the message, or handled it
  uint32_t link;
  uint32_t incarnation;
  uint64_t sequence;
  int64_t sent_at_ns;
  uint32_t tenant;
  uint32_t type;
  uint32_t cause_instance;
  uint32_t origin;
  uint64_t cause_step;
  uint64_t payload_check;
  uint32_t body_bytes;
  uint32_t reserved;
};
static_assert(sizeof(PayloadFrame) == 88);

/// The kind of a note. Values are numbers of 8 bytes unless a comment says otherwise.
enum class NoteKind : uint16_t {
  kRoom = 1,   // answers of room(), in the order of the calls: i64 each
  kStop = 2,   // u64: number of the first progress() call of the step that answered kStopRequested
  kError = 3,  // u8 code, text: the handler's error
  kResource = 4,  // an answer of a resource: bytes as its recording wrapper wrote them (msgpack)
  kCommand = 5,   // a command (command_note.h)
  kEngineResume = 6,  // an engine continued anew: bytes as its owner wrote them (msgpack)
  kTenant = 7,        // a tenant event (tenant_note.h)
};

/// TraceFrameHeader::count = NoteKind. Then the bytes.
struct NoteFrame {
  TraceFrameHeader header;
  uint64_t step;
  uint32_t instance;
  uint32_t num_bytes;
};
static_assert(sizeof(NoteFrame) == 32);

enum class LifecycleKind : uint16_t {
  kGroupStarted = 1,  // ActorGroup::start() with this time
  kPeerDown = 2,      // value = process
  kPeerUp = 3,
  kRestarted = 4,  // an actor was replaced; text = reason
};

/// TraceFrameHeader::count = LifecycleKind. Then `num_bytes` of text.
struct LifecycleFrame {
  TraceFrameHeader header;
  int64_t at_ns;
  uint64_t step;  // the group's last step before it
  uint64_t value;
  uint64_t num_bytes;
};
static_assert(sizeof(LifecycleFrame) == 48);

struct GapFrame {
  TraceFrameHeader header;
  uint64_t num_lost;               // frames, since the last gap
  uint64_t first_step, last_step;  // steps of the group that lost them
};

struct SyncFrame {
  TraceFrameHeader header;
  uint64_t offset;  // its own, in the segment
};

/// The process closed its trace. Without an end frame, the tail is missing.
struct EndFrame {
  TraceFrameHeader header;
  uint64_t num_deliveries;
  uint64_t num_lost;
};

/// Start value of a frame's CRC. It makes the check fail for equal bytes at another offset or in
/// another segment.
constexpr uint32_t crc_start(uint64_t segment_seed, uint64_t offset) {
  const uint64_t mixed = (segment_seed ^ (offset * 0x9e3779b97f4a7c15ULL)) * 0xd6e8feb86659fd93ULL;
  return static_cast<uint32_t>(mixed >> 32);
}

}  // namespace primerl
