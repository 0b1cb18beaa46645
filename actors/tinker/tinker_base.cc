// Samplers of the base model. Its weights are a snapshot with an adapter of zeros, which the
// trainer publishes when a client first asks. It stays until the tenant leaves.
#include <algorithm>
#include <utility>

#include "actors/common/tenant_key.h"
#include "actors/tinker/tinker.h"
#include "graph/tenancies.h"

namespace primerl {

using namespace tinker;  // NOLINT: its names are those of the wire

namespace {

// The client repeats the request: it takes no answer after 60 s.
constexpr Duration kBaseHold = Duration::seconds(40);

}  // namespace

AdapterId Tinker::base_of(TenantSlot slot) const {
  const auto tenant = tenants_.find(slot);
  if (tenant == tenants_.end()) return {};
  const auto found = std::ranges::find_if(tenant->second.snapshots,
                                          [](const auto& each) { return each.second.is_base; });
  return found == tenant->second.snapshots.end() ? AdapterId() : found->first;
}

/// Replies once every engine has the weights.
Status Tinker::create_base_sampler(uint64_t call, const CreateSampler& wanted, TenantSlot slot,
                                   const Client& client) {
  const std::string name = sampler_name(wanted.session, wanted.sampler_seq);
  const AdapterId base = base_of(slot);
  const auto found = samplers_.find(name);
  if (found != samplers_.end() && (base.is_none() || found->second.adapter != base))
    return error(Code::kExists, "sampler '{}' has other weights", name);
  BaseWait wait{wanted.session, wanted.sampler_seq,          wanted.base_model, client.request_id,
                slot,           services().now() + kBaseHold};
  if (!base.is_none()) {
    ASSIGN_OR_RETURN(std::string body, add_base_sampler(wait, base));
    reply(call, 200, std::move(body), client.request_id);
    return ok();
  }
  wake_at(wait.deadline);
  base_waits_.emplace(call, std::move(wait));
  make_base(slot);
  return ok();
}

bool Tinker::make_base(TenantSlot slot) {
  const bool is_coming = std::ranges::any_of(jobs_, [slot](const auto& each) {
    return each.second.tenant == slot && each.second.kind == JobKind::kBase;
  });
  if (is_coming) return false;
  Job job;
  job.kind = JobKind::kBase;
  job.tenant = slot;
  add_own_job(std::move(job));
  return true;
}

Result<std::string> Tinker::add_base_sampler(const BaseWait& wait, AdapterId base) {
  const std::string name = sampler_name(wait.session, wait.sampler_seq);
  if (!sessions_.contains(wait.session))
    return error(Code::kCancelled, "session '{}' has ended", wait.session);
  if (const auto found = samplers_.find(name); found != samplers_.end()) {
    if (found->second.adapter == base) return sampler_answer(name);  // a repeat
    return error(Code::kExists, "sampler '{}' has other weights", name);
  }
  Sampler sampler;
  sampler.tenant = wait.tenant;
  sampler.session = wait.session;
  sampler.base_model = wait.base_model;
  sampler.adapter = base;
  sampler.salt = fmt::format("{}:snapshot", tenancy_name(services().tenant(wait.tenant)));
  RETURN_IF_ERROR(add_sampler(name, std::move(sampler)));
  return sampler_answer(name);
}

/// Every engine has the base model's weights under the key `base`.
void Tinker::finish_base(TenantSlot slot, AdapterId base, PolicyVersion version) {
  const AdapterId earlier = base_of(slot);
  Snapshot snapshot;
  snapshot.version = version;
  snapshot.is_base = true;
  if (!earlier.is_none()) {
    for (auto& [name, sampler] : samplers_)
      if (sampler.tenant == slot && sampler.adapter == earlier) sampler.adapter = base;
    forget_snapshot(slot, earlier);  // look_for_lost_base() has had the trainer drop it
  }
  tenants_[slot].snapshots.insert_or_assign(base, snapshot);
  for (auto wait = base_waits_.begin(); wait != base_waits_.end();) {
    if (wait->second.tenant != slot) {
      ++wait;
      continue;
    }
    const auto added = add_base_sampler(wait->second, base);
    if (added.ok())
      reply(wait->first, 200, *added, wait->second.request_id);
    else
      refuse_call(wait->first, added.error(), wait->second.request_id);
    wait = base_waits_.erase(wait);
  }
}

void Tinker::refuse_base(TenantSlot slot, const Error& error) {
  for (auto wait = base_waits_.begin(); wait != base_waits_.end();) {
    if (wait->second.tenant != slot) {
      ++wait;
      continue;
    }
    refuse_call(wait->first, error, wait->second.request_id);
    wait = base_waits_.erase(wait);
  }
}

/// The client sends the request again, and finds the weights later.
void Tinker::expire_base_waits() {
  for (auto wait = base_waits_.begin(); wait != base_waits_.end();) {
    if (wait->second.deadline > services().now()) {
      ++wait;
      continue;
    }
    refuse_call(wait->first,
                error(Code::kDeadline, "the base model's weights are not there within {}",
                      to_string(kBaseHold)),
                wait->second.request_id);
    wait = base_waits_.erase(wait);
  }
}

/// A run that was resumed has lost them: no file has weights that were published before its
/// checkpoint. The router and the engines name the key that they lack. The trainer drops it first:
/// it keeps one of the base model beside the snapshots.
void Tinker::look_for_lost_base(TenantSlot slot, AdapterId adapter, const std::string& detail) {
  if (adapter.is_none() || adapter != base_of(slot)) return;
  const std::string key = to_string(key_of(services(), slot, adapter));
  if (detail.find(key) == std::string::npos || !make_base(slot)) return;
  add_drop_job(slot, adapter);
}

}  // namespace primerl
