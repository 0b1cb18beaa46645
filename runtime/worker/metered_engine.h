/// What the engines of a process hold and do: an engine that notes which versions it applied and,
/// at the end of a step, how busy it is, for /metrics and `ps`. The only source of versions is
/// Engine::apply(): one that it refused is not noted.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/weights/weights_key.h"
#include "runtime/exec/executor.h"
#include "runtime/wire/process_report.h"

namespace primerl {

/// One entry per engine of the process and key of its weights. Thread-safe: engines write on the
/// threads of their actor groups.
class EngineBoard {
 public:
  /// An engine that has applied nothing yet: version -1 of the first tenant.
  void add(uint32_t resource, uint32_t group);
  void applied(uint32_t resource, uint32_t group, const KeyedVersion& version, Duration took);
  void stepped(uint32_t resource, uint32_t group, const EngineState& state);
  std::vector<EngineReport> reports() const;
  std::vector<EngineUse> uses() const;

 private:
  mutable std::mutex mutex_;
  std::vector<EngineReport> reports_;
  std::vector<EngineUse> uses_;
};

/// Wraps `make`: its engines report to `board` what they applied.
ResourceFactory watching_factory(ResourceFactory make, std::shared_ptr<EngineBoard> board);

}  // namespace primerl
