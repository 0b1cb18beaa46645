#include "runtime/worker/waiting_cuts.h"

#include <algorithm>
#include <utility>

namespace primerl {
namespace {

uint64_t bytes_of(const SavedFields& fields) {
  uint64_t bytes = fields.body.size();
  for (const Blob& blob : fields.blobs) bytes += blob.size();
  return bytes;
}

uint64_t bytes_of(const std::vector<SavedMessage>& messages) {
  uint64_t bytes = 0;
  for (const SavedMessage& each : messages) bytes += sizeof each + bytes_of(each.payload);
  return bytes;
}

}  // namespace

uint64_t bytes_of(const ProcessCut& cut) {
  uint64_t bytes = bytes_of(cut.in_transit);
  for (const GroupState& group : cut.groups) {
    bytes += sizeof group + group.in_links.size() * sizeof(SavedInLink);
    for (const SavedActor& actor : group.actors) bytes += sizeof actor + bytes_of(actor.state);
    for (const SavedInput& input : group.inputs)
      bytes += sizeof input + (input.message ? bytes_of(input.message->payload) : 0);
    for (const SavedOutLink& link : group.out_links)
      bytes += sizeof link + bytes_of(link.outbox) + bytes_of(link.unacknowledged);
    for (const Blob& resource : group.resources) bytes += resource.size();
  }
  return bytes;
}

WaitingCuts::WaitingCuts(size_t num_trained, Duration cut_every, std::vector<int64_t> newest)
    : cuts_max_(std::min(num_trained + 1, kWaitingCutsMax)),
      cut_every_(cut_every),
      checkpoints_(std::move(newest)) {}

std::optional<CutFile> WaitingCuts::add(CutFile made, const std::set<TenantSlot>& ended) {
  for (const CutSlot& each : made.head.slots)
    if (const auto known = joined_.find(each.slot);
        known == joined_.end() || known->second < each.tenancy)
      tenant_joined(each.slot, each.tenancy);
  std::map<TenantSlot, int64_t> least_steps;
  for (const auto& [slot, step] : checkpoints_needed(made.head))
    least_steps[TenantSlot(slot)] = step;
  drop_discarded(made.head);
  for (const TenantSlot tenant : ended) {
    drop_late(tenant);
    least_steps.erase(tenant);
  }
  const uint64_t num_bytes = bytes_of(made.cut);
  cuts_.push_back({std::move(made), std::move(least_steps), num_bytes, {}, std::nullopt});
  auto newest = extract_newest();
  drop_superfluous();
  return newest;
}

/// The tenant makes no checkpoint any more: drops the cuts that it has not passed.
void WaitingCuts::drop_late(TenantSlot tenant) {
  open_.erase(tenant);
  requests_.erase(tenant);
  std::erase_if(cuts_, [&](const Waiting& each) {
    const auto least = each.least_steps.find(tenant);
    return least != each.least_steps.end() && least->second > checkpoints_[tenant.index()];
  });
}

/// Drops the cuts with open gradients that are gone in a newer cut, at the same step.
void WaitingCuts::drop_discarded(const CutHead& newer) {
  std::map<uint32_t, int64_t> closed(newer.learner_steps.begin(), newer.learner_steps.end());
  for (const uint32_t tenant : newer.open_tenants) closed.erase(tenant);
  std::erase_if(cuts_, [&](const Waiting& each) {
    return std::ranges::any_of(each.file.head.open_tenants, [&](uint32_t tenant) {
      const auto now = closed.find(tenant);
      const auto then = each.least_steps.find(TenantSlot(tenant));
      return now != closed.end() && then != each.least_steps.end() &&
             now->second + 1 == then->second;
    });
  });
}

bool WaitingCuts::takes_new_cut(TenantSlot tenant) {
  bool takes = false;
  for (Waiting& each : cuts_)
    if (std::ranges::count(each.file.head.open_tenants, tenant.value) > 0)
      takes = each.discarded.insert(tenant).second || takes;
  return takes;
}

void WaitingCuts::tenant_joined(TenantSlot slot, uint32_t tenancy) {
  const auto [known, is_first] = joined_.try_emplace(slot, tenancy);
  if (!is_first && known->second >= tenancy) return;
  known->second = tenancy;
  drop_late(slot);
  for (Waiting& each : cuts_) each.least_steps.erase(slot);  // the earlier tenant has passed them
  checkpoints_[slot.index()] = 0;
}

void WaitingCuts::tenant_left(TenantSlot slot, uint32_t tenancy) {
  const auto joined = joined_.find(slot);
  if (joined == joined_.end() || joined->second <= tenancy) drop_late(slot);
}

std::optional<CutFile> WaitingCuts::checkpoint_committed(TenantSlot tenant, int64_t step) {
  int64_t& newest = checkpoints_[tenant.index()];
  newest = std::max(newest, step);
  if (const auto open = open_.find(tenant); open != open_.end() && open->second <= step)
    open_.erase(open);
  return extract_newest();
}

void WaitingCuts::checkpoint_begun(TenantSlot tenant, int64_t step) {
  open_[tenant] = step;
  requests_.erase(tenant);
}

std::vector<WaitingCuts::Request> WaitingCuts::requests(Time now) {
  for (Waiting& each : cuts_)
    if (!each.since) each.since = now;
  std::erase_if(requests_, [&](const auto& of) {
    const auto& [tenant, asked] = of;
    return checkpoints_[tenant.index()] >= asked.step || now - asked.at >= cut_every_;
  });
  std::vector<Request> requests;
  if (cuts_.empty() || now - *cuts_.front().since < cut_every_) return requests;
  // A copy of a tenant that was asked stays in memory until its checkpoint is committed.
  size_t num_busy = requests_.size() + open_.size();
  for (const auto& [tenant, step] : cuts_.front().least_steps) {
    if (num_busy >= kAskedMax) break;
    if (checkpoints_[tenant.index()] >= step || open_.contains(tenant) ||
        requests_.contains(tenant))
      continue;
    requests_[tenant] = {step, now};
    requests.push_back({tenant, step});
    ++num_busy;
  }
  return requests;
}

uint64_t WaitingCuts::num_bytes() const {
  uint64_t bytes = 0;
  for (const Waiting& each : cuts_) bytes += each.num_bytes;
  return bytes;
}

bool WaitingCuts::may_be_written(const Waiting& cut) const {
  return std::ranges::all_of(cut.least_steps, [this](const auto& each) {
    return each.second <= checkpoints_[each.first.index()];
  });
}

/// Older cuts than the newest that may be written save less, so they are of no use then.
std::optional<CutFile> WaitingCuts::extract_newest() {
  for (size_t i = cuts_.size(); i-- > 0;) {
    if (!may_be_written(cuts_[i])) continue;
    CutFile newest = std::move(cuts_[i].file);
    cuts_.erase(cuts_.begin(), cuts_.begin() + static_cast<ptrdiff_t>(i) + 1);
    return newest;
  }
  return std::nullopt;
}

/// The oldest is the first that may be written, the newest saves most.
void WaitingCuts::drop_superfluous() {
  while (cuts_.size() > cuts_max_ || (cuts_.size() > 1 && num_bytes() > kWaitingCutsBytesMax))
    cuts_.erase(cuts_.begin() + static_cast<ptrdiff_t>(most_superfluous()));
}

size_t WaitingCuts::most_superfluous() const {
  if (cuts_.size() == 2) return 1;
  const auto gap = [this](size_t i) {
    return cuts_[i + 1].file.head.at - cuts_[i - 1].file.head.at;
  };
  size_t closest = cuts_.size() - 2;  // of equal gaps the newest
  for (size_t i = closest; i-- > 1;)
    if (gap(i) < gap(closest)) closest = i;
  return closest;
}

}  // namespace primerl
