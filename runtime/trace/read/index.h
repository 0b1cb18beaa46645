/// SegmentIndex: positions and sums of the frames of one segment. With it a trace is opened,
/// counted and compared without reading all its frames.
///
/// It is a file `<process>.<incarnation>.<number>.index` beside a sealed segment, written by the
/// first program that opens the trace. It is never authoritative. A frame that it points to is
/// checked when it is read. It is rebuilt when it is missing, damaged or of another version of the
/// segment's file. It may be deleted at any time. Its layout is private and may change with every
/// version of the program.
///
/// Immutable; safe to read from several threads.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/trace/catalog.h"
#include "runtime/trace/read/histogram.h"
#include "runtime/trace/segment_reader.h"

namespace primerl {

inline constexpr uint32_t kIndexVersion = 3;
/// The digests of this many steps of a group are added to one sum: those with equal step /
/// kDigestSteps.
inline constexpr uint64_t kDigestSteps = 1024;

/// Steps and sequence numbers above this are not plausible.
inline constexpr uint64_t kNumberMax = uint64_t{1} << 62;

/// The contents of a section. Positions are offsets in the raw segment divided by 8, in file order.
enum class IndexKind : uint32_t {
  kSteps = 1,       // u32 position of each step of a group; 0 = missing
  kDeliveries,      // u32 positions of a link's deliveries, by (incarnation, sequence)
  kPayloads,        // u32 positions of a link's payloads, by (incarnation, sequence)
  kEmissions,       // u32 positions of a sending group's payloads, by step
  kNotes,           // u32 positions of a group's notes, by step
  kLifecycle,       // u32 positions of a group's lifecycle frames
  kGaps,            // u32 positions of gap frames
  kStepDigests,     // u64 of a group: sums of digest_of(delivery), by step / kDigestSteps
  kPayloadDigests,  // u64 of a group: sums of digest_of(payload), by step / kDigestSteps
  kLinkStats,       // LinkStats
  kGroupStats,      // GroupStats, by StepKind
  kDamage,          // IndexDamage
  kVersions,        // VersionMark
  kBlobs,           // 32-byte hashes of content in the content store
  kTenantSteps,     // u32 positions of a group's tenant events, by step
};

struct IndexSection {
  IndexKind kind;
  uint32_t id;  // group or link
  uint32_t first_incarnation, last_incarnation;
  uint64_t first, last;  // steps, blocks or sequences
  uint64_t offset;       // in the index
  uint64_t count;        // of items
  uint64_t num_missing;  // for kSteps: number of zeros
};

struct IndexHeader {
  char magic[8];
  uint32_t version;
  uint32_t num_sections;
  uint64_t hash;  // hash_bytes of everything after it
  uint64_t num_bytes;
  int64_t source_mtime_ns;  // of the segment's file
  uint64_t source_bytes;
  uint64_t run_id, seed, previous_seed, number;
  uint32_t process, incarnation;
  uint64_t catalog_hash;  // of the catalog frame's bytes; 0 = no catalog
  uint64_t num_deliveries;
  int64_t first_ns, last_ns;
  uint64_t end_offset;  // after the last frame
  uint64_t num_payloads, payload_bytes;
  uint32_t has_end;      // number of end frames
  uint32_t num_strange;  // frames with numbers outside the catalog
};

struct LinkStats {
  uint64_t num_messages = 0, num_bytes = 0, num_failed = 0;
  uint64_t num_skipped = 0;  // sequence numbers below the newest one that were never delivered
  uint64_t busy_us = 0;
  int64_t first_ns = 0, last_ns = 0;
  Histogram handler_us;
};

struct GroupStats {
  uint64_t num_steps = 0, num_failed = 0, num_abandoned = 0, num_emissions = 0, busy_us = 0;
  Histogram handler_us;
};

struct IndexDamage {
  uint64_t offset = 0, num_bytes = 0;
  uint32_t is_hole = 0, is_tail = 0;
};

/// The first message that carried `version` for a tenant.
struct VersionMark {
  int64_t at_ns = 0;
  int64_t version = 0;
  uint32_t tenant = 0;
  uint32_t tenancy = 0;  // 0 in an index, which may not have the join; known in an open trace
};

/// Digest of a frame's fields that a replay must repeat: all except times and whether the step was
/// stored.
uint64_t digest_of(const DeliveryFrame& frame);
uint64_t digest_of(const Frame& payload);

class SegmentIndex {
 public:
  /// Loads the file beside the segment; none when it is missing, damaged or out of date.
  static std::shared_ptr<const SegmentIndex> load(const std::filesystem::path& segment);
  /// Reads the whole segment. Numbers are checked against the catalog.
  static std::shared_ptr<const SegmentIndex> build(SegmentReader& reader,
                                                   const std::filesystem::path& segment,
                                                   const TraceCatalog& catalog);
  /// From bytes, for fuzzing; none when they are not an index.
  static std::shared_ptr<const SegmentIndex> parse(std::shared_ptr<const void> owner,
                                                   std::span<const std::byte> bytes);
  /// Writes the file beside the segment, completely or not at all. It is not an error if the folder
  /// cannot be written, because readers can do without an index.
  void save(const std::filesystem::path& segment) const;
  static std::filesystem::path file_of(const std::filesystem::path& segment);

  const IndexHeader& header() const { return *header_; }
  std::span<const IndexSection> sections() const { return sections_; }
  /// Sections of `kind`, in order of ids; sections of one id are in file order.
  std::span<const IndexSection> sections(IndexKind kind) const;
  template <class T>
  std::span<const T> items(const IndexSection& section) const {
    return {reinterpret_cast<const T*>(bytes_.data() + section.offset),
            static_cast<size_t>(section.count)};
  }

 private:
  SegmentIndex() = default;
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  const IndexHeader* header_ = nullptr;
  std::span<const IndexSection> sections_;
};

}  // namespace primerl
