/// IdleWork: finds an actor group that makes work calls without end and without progress.
///
/// A work call that sends no message is idle. Any other step of its group is progress, and so is a
/// work call that sends one. A group whose work is done is not called again, so the idle calls of a
/// right run in a row are few: at most the tokens of the longest sequence, the looks of a slow
/// answer, or the passes of a step.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>

#include "runtime/exec/actor_group.h"

namespace primerl::sim {

class IdleWork {
 public:
  static constexpr uint64_t kIdleMax = 3000;  // calls in a row

  void add(const StepRecord& record) {
    uint64_t& count = num_idle_[record.group.value];
    const bool is_idle = record.kind == StepKind::kWork && record.num_emissions == 0;
    count = is_idle ? count + 1 : 0;
    if (count > kIdleMax && fault_.empty())
      fault_ = fmt::format("group {} has made {} work calls in a row that sent nothing",
                           record.group.value, count);
  }
  /// Empty while no group has made more than kIdleMax idle calls in a row.
  const std::string& fault() const { return fault_; }

 private:
  std::map<uint32_t, uint64_t> num_idle_;  // by group
  std::string fault_;
};

}  // namespace primerl::sim
