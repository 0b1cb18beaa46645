/// Which cuts of a process stay on the disk. The newest two are for a resume. Older ones are for
/// `replay --from`: at most kOlderCutsMax, the nearer to the end the denser, as long as the record
/// behind them is there. Values, any thread.
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
  uint64_t segment = 1;  // no step after the cut stands in an older one
  Time at;
};

/// The cut that goes next, as an index into `kept` (oldest first); none: all stay. First those
/// whose segment is gone (up to `retired`). Then, while there are too many, the one whose
/// neighbours are closest to each other, measured by its age: what stays is spaced evenly on a
/// logarithmic scale of age. The oldest stays as long as its record.
std::optional<size_t> superfluous_cut(std::span<const KeptCut> kept, uint64_t retired);

}  // namespace primerl
