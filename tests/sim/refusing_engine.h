/// Engines for tests that refuse the weights of one tenant from a given version on, at every
/// request. The versions are the same in every run, so a replay repeats it.
#pragma once

#include <memory>
#include <utility>

#include "kernels/engine/engine_wrapper.h"
#include "runtime/backends/backends.h"

namespace primerl::sim {

class RefusingEngine final : public EngineWrapper {
 public:
  RefusingEngine(std::unique_ptr<Engine> engine, TenantSlot tenant, PolicyVersion first)
      : EngineWrapper(std::move(engine)), tenant_(tenant), first_(first) {}

  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    if (snapshot.key.tenant == tenant_ && snapshot.version >= first_)
      return error(Code::kInvalid, "made to refuse version {}", snapshot.version);
    return EngineWrapper::apply(snapshot);
  }
  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    ASSIGN_OR_RETURN(const uint64_t num_tensors, apply(*snapshot));
    return std::optional(num_tensors);
  }

 private:
  const TenantSlot tenant_;
  const PolicyVersion first_;  // the first refused version
};

/// The program's resources, with such engines.
inline ResourceFactory refusing_factory(TenantSlot tenant, PolicyVersion first) {
  return [make = resource_factory(), tenant, first](
             const Plan& plan, int32_t index) -> Result<std::unique_ptr<Resource>> {
    auto made = make(plan, index);
    if (!made.ok()) return made;
    auto engine = take_as<Engine>(*made);
    if (engine == nullptr) return made;
    return std::unique_ptr<Resource>(
        std::make_unique<RefusingEngine>(std::move(engine), tenant, first));
  };
}

}  // namespace primerl::sim
