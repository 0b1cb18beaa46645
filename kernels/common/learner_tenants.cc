// Tenants of a LearnerCore that join and leave (docs/design/hosted.md).
#include <fmt/ranges.h>

#include <utility>

#include "kernels/common/learner_core.h"
#include "kernels/models/adapter_folder.h"

namespace primerl {

Result<size_t> LearnerCore::check_begins(const AdapterTraining& tenant) const {
  if (!has_adapters())
    return error(Code::kInvalid, "this learner trains whole weights, which no tenant can join");
  const auto found = std::ranges::find(trained_, tenant.tenant, &Trained::tenant);
  if (found == trained_.end())
    return error(Code::kNotFound, "this learner has no slot for tenant {}", tenant.tenant)
        .note(fmt::format("it was made with {} slots", trained_.size()));
  if (!found->is_free)
    return error(Code::kExists, "this learner already has an adapter of tenant {}", tenant.tenant)
        .note("end the tenant first");
  RETURN_IF_ERROR(validate(tenant.adapter));
  if (tenant.adapter.rank > largest_.rank)
    return error(Code::kInvalid, "an adapter of rank {} is larger than the {} of this learner",
                 tenant.adapter.rank, largest_.rank)
        .note("the largest rank is that of its tenants at the start and of [graph.tenant_limits]");
  for (const std::string& target : named_targets(tenant.adapter))
    if (!largest_.targets.contains(target))
      return error(Code::kInvalid, "this learner was not made for adapters of '{}'", target)
          .note(fmt::format("it has {}", fmt::join(largest_.targets, ", ")));
  RETURN_IF_ERROR(check_rules(tenant.rules));
  return static_cast<size_t>(found - trained_.begin());
}

Status LearnerCore::begin_tenant(const AdapterTraining& tenant) {
  const auto checked = check_begins(tenant);
  if (!checked.ok())
    return Error(checked.error()).while_doing(fmt::format("tenant {} joins", tenant.tenant));
  const size_t slot = *checked;
  std::vector<WeightTensor> start;
  if (!tenant.start.empty()) {
    auto read = read_adapter_start(tenant.start, backend_->model().config, tenant.adapter);
    if (!read.ok()) return Error(read.error()).while_doing(tenant.start);
    start = std::move(read).value();
  }
  Trained next{tenant.tenant, tenant.rules, objective_of(tenant.rules.loss)};
  const auto make = [&]() -> Status {
    Status made = backend_->begin_tenant(slot, tenant);
    if (!made.ok() || tenant.start.empty()) return made;
    Status filled = backend_->fill_adapter(slot, start);
    if (!filled.ok()) backend_->end_tenant(slot);
    return filled;
  };
  RETURN_IF_ERROR(backend_->run("making the adapter of a tenant that joins", 0, make));
  trained_[slot] = std::move(next);
  return ok();
}

/// The device may still read what is dropped: the backend waits. An error there is of a lost device
/// and shows in the next call.
void LearnerCore::end_tenant(TenantSlot tenant) {
  Learner::end_tenant(tenant);
  const auto slot = slot_of(tenant);
  if (!slot.ok() || !has_adapters()) return;
  (void)backend_->run("dropping the adapter of a tenant that left", 0, [&] {
    backend_->end_tenant(*slot);
    return ok();
  });
  Trained& trained = trained_[*slot];
  trained = Trained{};
  trained.tenant = tenant;
  trained.is_free = true;
}

}  // namespace primerl
