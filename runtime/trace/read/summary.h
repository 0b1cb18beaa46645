/// TraceSummary: totals of a whole trace, from its indices only. A value.
#pragma once

#include <array>
#include <vector>

#include "runtime/trace/read/index.h"

namespace primerl {

struct TraceSummary {
  struct OfLink {
    LinkStats stats;
    /// Sequence numbers that never arrived although later ones did. On a latest_wins link they were
    /// overwritten; otherwise the record is incomplete.
    uint64_t num_skipped = 0;
    uint64_t num_stored = 0;  // number of stored payloads
  };
  std::vector<OfLink> links;  // index = LinkId
  /// Index = GroupId, then StepKind.
  std::vector<std::array<GroupStats, kNumStepKinds>> groups;
  std::vector<VersionMark> versions;  // first occurrence of each version, by time
  int64_t first_ns = 0, last_ns = 0;  // begin times of the first and the last step
  uint32_t newest_incarnation = 0;
  uint64_t num_steps = 0, num_payloads = 0, payload_bytes = 0, file_bytes = 0;
  uint64_t num_segments = 0, num_indexed = 0;  // indexed: segments with an index file that is up to
                                               // date
};

}  // namespace primerl
