/// Which weights the engines of a process hold: an engine that writes down what it applied, for
/// /metrics and `ps`. The only source is Engine::apply() itself: what it did not take, it has not.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/wire/process_report.h"

namespace primerl {

/// One entry per engine of the process. Thread-safe: engines write on their groups' threads.
class EngineBoard {
 public:
  /// An engine that has applied nothing yet: version -1.
  void add(uint32_t resource, uint32_t group);
  void applied(uint32_t resource, uint32_t group, PolicyVersion version, Duration took);
  std::vector<EngineReport> reports() const;

 private:
  mutable std::mutex mutex_;
  std::vector<EngineReport> reports_;
};

/// What `make` makes; engines tell `board` what they applied.
ResourceFactory watching_factory(ResourceFactory make, std::shared_ptr<EngineBoard> board);

}  // namespace primerl
