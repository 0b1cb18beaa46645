#include "runtime/worker/kept_cuts.h"

#include <algorithm>

namespace primerl {

std::optional<size_t> cut_to_remove(std::span<const KeptCut> kept, uint64_t retired) {
  if (kept.size() <= kNewestCuts) return std::nullopt;
  const size_t num_older = kept.size() - kNewestCuts;
  for (size_t i = 0; i < num_older; ++i)
    if (kept[i].segment <= retired) return i;
  if (num_older <= kOlderCutsMax) return std::nullopt;
  const Time newest = kept.back().at;
  size_t closest = 1;
  double least = 0;
  for (size_t i = 1; i < num_older; ++i) {
    const double gap = (kept[i + 1].at - kept[i - 1].at).to_seconds();
    const double age = (newest - kept[i].at).to_seconds();
    const double relative = age > 0 ? gap / age : 0;
    if (i == 1 || relative < least) {
      closest = i;
      least = relative;
    }
  }
  return closest;
}

}  // namespace primerl
