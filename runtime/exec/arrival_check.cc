#include "runtime/exec/arrival_check.h"

#include <algorithm>

namespace primerl {

ArrivalCheck::ArrivalCheck(std::shared_ptr<const Plan> plan, std::shared_ptr<const Wiring> wiring,
                           ProcessId here)
    : plan_(std::move(plan)), wiring_(std::move(wiring)), here_(here) {
  expected_.reserve(wiring_->links.size());
  for (const auto& link : wiring_->links)
    expected_.push_back({plan_->contract_of(link.target).inputs[link.input].type,
                         plan_->instance(link.sender).tenant});
}

Status ArrivalCheck::filter(ProcessId from, MessageBatch& batch) const {
  if (Status ends = check_ends(from, batch); !ends.ok()) {
    batch.messages.clear();
    batch.grants.clear();
    return ends;
  }
  Status first;
  const auto fits = [&](const BatchedMessage& message) {
    Status status = check(batch, message);
    if (status.ok()) return true;
    if (first.ok()) first = std::move(status);
    return false;
  };
  const auto begin = batch.messages.begin(), end = batch.messages.end();
  // Fast path: every message is valid, so nothing is moved.
  auto kept = std::find_if_not(begin, end, fits);
  if (kept == end) return first;
  for (auto each = kept + 1; each != end; ++each)
    if (fits(*each)) *kept++ = std::move(*each);
  batch.messages.erase(kept, end);
  return first;
}

Status ArrivalCheck::check_ends(ProcessId from, const MessageBatch& batch) const {
  const auto is_of = [this](GroupId group, ProcessId process) {
    return group.index() < plan_->groups.size() && plan_->group(group).process == process;
  };
  if (!is_of(batch.to, here_))
    return error(Code::kCorrupt, "a batch for group {} arrived, which is not in '{}'",
                 batch.to.value, plan_->process(here_).name);
  if (!is_of(batch.from, from))
    return error(Code::kCorrupt, "a batch said to be of group {}, which is not its sender's",
                 batch.from.value);
  return ok();
}

Status ArrivalCheck::check(const MessageBatch& batch, const BatchedMessage& message) const {
  const Envelope& envelope = message.envelope;
  if (message.link.index() >= wiring_->links.size())
    return error(Code::kCorrupt, "a message of link {}, which does not exist", message.link.value);
  const auto& link = wiring_->links[message.link.index()];
  const Expected& expected = expected_[message.link.index()];
  const auto refused = [&](std::string_view what, const auto& found) {
    return error(Code::kCorrupt, "a message of edge '{}' {} ({})", plan_->edge(link.edge).name,
                 what, found);
  };
  if (link.sender_group != batch.from || link.target_group != batch.to ||
      envelope.edge != link.edge || envelope.sender != link.sender ||
      envelope.target != link.target)
    return refused("has other ends than its link", message.link.value);
  if (envelope.payload.type != expected.type)
    return refused("is of another type", envelope.payload.type->name);
  // Whether a tenant has the slot is known to the receiving group: it joins at one of its steps.
  // Every message belongs to a tenant; a link whose sender or target serves one tenant carries only
  // messages of that tenant.
  const TenantSlot tenant = envelope.tenant;
  if (tenant.is_none() || tenant.value >= wiring_->num_slots ||
      (!expected.sender_tenant.is_none() && tenant != expected.sender_tenant) ||
      (!link.target_tenant.is_none() && tenant != link.target_tenant))
    return refused("is for a tenant that the edge does not serve", tenant.value);
  const auto is_known = [this](InstanceId id) {
    return id.is_none() || id.index() < plan_->instances.size();
  };
  if (!is_known(envelope.origin) || !is_known(envelope.cause.instance))
    return refused("names an instance that there is not", envelope.origin.value);
  if (envelope.incarnation != batch.incarnation)
    return refused("is of another incarnation than its batch", envelope.incarnation);
  return ok();
}

}  // namespace primerl
