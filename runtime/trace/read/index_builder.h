/// IndexBuilder: adds the frames of one segment, in their order, to the sections of its index.
/// Owned by SegmentIndex::build(); one thread.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "runtime/trace/read/index.h"
#include "runtime/trace/schema.h"

namespace primerl {

/// Whether every number of a frame is valid in the catalog.
bool is_of(const TraceCatalog& catalog, const DeliveryFrame& frame);
bool is_of(const TraceCatalog& catalog, const PayloadFrame& frame);

class IndexBuilder {
 public:
  explicit IndexBuilder(const TraceCatalog& catalog);

  void add(const Frame& frame);
  /// The header after all frames were added, without the fields about the file.
  IndexHeader finish(SegmentReader& reader);
  /// The whole index, except its hash.
  void write(IndexHeader header, std::vector<uint64_t>& out) const;

 private:
  /// Consecutive steps.
  struct Run {
    uint64_t first = 0;
    std::vector<uint32_t> positions;
  };
  struct Keyed {
    uint32_t incarnation;
    uint64_t sequence;
    uint32_t position;
    friend auto operator<=>(const Keyed&, const Keyed&) = default;
  };
  struct Stepped {
    uint64_t step;
    uint32_t position;
    friend auto operator<=>(const Stepped&, const Stepped&) = default;
  };
  struct OfGroup {
    std::vector<Run> runs;
    std::vector<Stepped> emissions, notes, lifecycle, tenant_steps;
    std::map<uint64_t, uint64_t> step_digests, payload_digests;  // by block
    GroupStats stats[kNumStepKinds];                             // by StepKind
  };
  struct OfLink {
    std::vector<Keyed> deliveries, payloads;
    LinkStats stats;
  };

  void add_delivery(const Frame& frame);
  void add_payload(const Frame& frame);
  void add_step(OfGroup& group, uint64_t step, uint32_t position);
  void note_versions(const Frame& frame);
  void note_blobs(const Frame& frame);

  const TraceCatalog& catalog_;
  std::vector<std::optional<FieldSchema>> version_schemas_;  // by type; only those with versions
  std::vector<OfGroup> groups_;
  std::vector<OfLink> links_;
  std::vector<uint32_t> gaps_;
  std::vector<VersionMark> versions_;
  std::map<uint32_t, int64_t> newest_;  // version, by tenant
  std::set<std::array<std::byte, 32>> blobs_;
  std::vector<IndexDamage> damage_;
  IndexHeader header_{};
};

}  // namespace primerl
