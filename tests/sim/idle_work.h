/// IdleWork: finds runs that continue without progress.
///
/// A step that sends no message is idle. The idle work calls of a group in a row, without another
/// step of that group between them, are few in a right run: at most the tokens of the longest
/// sequence, the looks of a slow answer, or the passes of a step. The idle steps of a whole run in
/// a row are few too: work calls of several engines, and retries of what has a limit of its own.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>

#include "runtime/exec/actor_group.h"

namespace primerl::sim {

class IdleWork {
 public:
  static constexpr uint64_t kCallsMax = 3000;   // work calls of a group
  static constexpr uint64_t kStepsMax = 10000;  // steps of the run

  void add(const StepRecord& record) {
    uint64_t& calls = num_calls_[record.group.value];
    calls = record.kind == StepKind::kWork && record.num_emissions == 0 ? calls + 1 : 0;
    num_steps_ = record.num_emissions == 0 ? num_steps_ + 1 : 0;
    if (!fault_.empty()) return;
    if (calls > kCallsMax)
      fault_ = fmt::format("group {} has made {} work calls in a row that sent nothing",
                           record.group.value, calls);
    if (num_steps_ > kStepsMax)
      fault_ = fmt::format("the run has made {} steps in a row that sent nothing", num_steps_);
  }
  /// Empty while no limit was exceeded.
  const std::string& fault() const { return fault_; }

 private:
  std::map<uint32_t, uint64_t> num_calls_;  // by group
  uint64_t num_steps_ = 0;
  std::string fault_;
};

}  // namespace primerl::sim
