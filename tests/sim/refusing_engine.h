/// Engines for tests that refuse the weights of one tenant from one version on, at every request.
/// Every run refuses the same versions, so a replay repeats it.
#pragma once

#include <memory>
#include <utility>

#include "kernels/engine/engine_wrapper.h"
#include "runtime/backends/backends.h"

namespace primerl::sim {

class RefusingEngine final : public EngineWrapper {
 public:
  RefusingEngine(std::shared_ptr<Engine> engine, TenantSlot tenant, PolicyVersion first)
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
  const PolicyVersion first_;  // first version that it refuses
};

/// The program's resources, with such engines.
inline ResourceFactory refusing_factory(TenantSlot tenant, PolicyVersion first) {
  return [make = resource_factory(), tenant, first](
             const Plan& plan, int32_t index) -> Result<std::shared_ptr<Resource>> {
    auto made = make(plan, index);
    if (!made.ok()) return made;
    auto engine = std::dynamic_pointer_cast<Engine>(*made);
    if (engine == nullptr) return made;
    return std::shared_ptr<Resource>(
        std::make_unique<RefusingEngine>(std::move(engine), tenant, first));
  };
}

}  // namespace primerl::sim
