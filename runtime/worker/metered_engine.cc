#include "runtime/worker/metered_engine.h"

#include <algorithm>
#include <chrono>

#include "kernels/engine/engine_wrapper.h"
#include "runtime/backends/backends.h"

namespace primerl {
namespace {

class MeteredEngine final : public EngineWrapper {
 public:
  MeteredEngine(std::unique_ptr<Engine> engine, std::shared_ptr<EngineBoard> board,
                uint32_t resource, uint32_t group)
      : EngineWrapper(std::move(engine)),
        board_(std::move(board)),
        resource_(resource),
        group_(group) {
    board_->add(resource_, group_);
  }

  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    const auto began = std::chrono::steady_clock::now();
    auto applied = EngineWrapper::apply(snapshot);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
    if (applied.ok())
      board_->applied(resource_, group_, snapshot.name(), Duration::nanoseconds(took.count()));
    return applied;
  }

 private:
  const std::shared_ptr<EngineBoard> board_;
  const uint32_t resource_, group_;
};

}  // namespace

void EngineBoard::add(uint32_t resource, uint32_t group) {
  const std::lock_guard lock(mutex_);
  reports_.push_back({.resource = resource, .group = group});
}

void EngineBoard::applied(uint32_t resource, uint32_t group, const KeyedVersion& version,
                          Duration took) {
  const std::lock_guard lock(mutex_);
  const uint32_t tenant = version.key.tenant.value, adapter = version.key.adapter.value;
  const auto is_it = [&](const EngineReport& one) {
    return one.resource == resource && one.group == group &&
           (one.version < 0 || (one.tenant == tenant && one.adapter == adapter));
  };
  auto report = std::find_if(reports_.begin(), reports_.end(), is_it);
  if (report == reports_.end())
    report = reports_.insert(report, {.resource = resource, .group = group});
  report->tenant = tenant;
  report->adapter = adapter;
  report->version = version.version.value;
  ++report->num_applied;
  report->apply_ns += static_cast<uint64_t>(took.to_nanoseconds());
}

std::vector<EngineReport> EngineBoard::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

ResourceFactory watching_factory(ResourceFactory make, std::shared_ptr<EngineBoard> board) {
  return [make = std::move(make), board = std::move(board)](
             const Plan& plan, int32_t index) -> Result<std::unique_ptr<Resource>> {
    auto made = make(plan, index);
    if (!made.ok()) return made;
    auto engine = take_as<Engine>(*made);
    if (engine == nullptr) return made;
    return std::unique_ptr<Resource>(std::make_unique<MeteredEngine>(
        std::move(engine), board, static_cast<uint32_t>(index), owner_of(plan, index).value));
  };
}

}  // namespace primerl
