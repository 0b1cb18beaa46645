/// Chooses the cuts of a process that stay on the disk. The newest two are for a resume. Older ones
/// are for `replay --from`: at most kOlderCutsMax, closer together near the end, as long as the
/// record after them exists. Values, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "graph/base/clock.h"

namespace primerl {

inline constexpr size_t kNewestCuts = 2;
inline constexpr size_t kOlderCutsMax = 32;

struct KeptCut {
  uint64_t number = 0;
  uint64_t segment = 1;  // the oldest segment that has a step after the cut
  Time at;
};

/// The cut to remove next, as an index into `kept` (oldest first); none: all stay. First come the
/// cuts whose segment was retired (up to `retired`). Then, while there are too many, the cut with
/// the smallest gap between its two neighbours, relative to its age. So the remaining cuts are
/// spaced evenly on a logarithmic scale of age. The oldest stays as long as its record.
std::optional<size_t> cut_to_remove(std::span<const KeptCut> kept, uint64_t retired);

}  // namespace primerl
