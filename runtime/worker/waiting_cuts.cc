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

std::optional<CutFile> WaitingCuts::add(CutFile made, const std::set<TenantSlot>& ended,
                                        std::map<TenantSlot, int64_t> least_steps) {
  for (const auto& [slot, step] : made.head.learner_steps)
    least_steps.emplace(TenantSlot(slot), step);
  for (const TenantSlot tenant : ended) {
    open_.erase(tenant);
    requests_.erase(tenant);
    std::erase_if(cuts_, [&](const Waiting& each) {
      const auto least = each.least_steps.find(tenant);
      return least != each.least_steps.end() && least->second > checkpoints_[tenant.index()];
    });
    least_steps.erase(tenant);
  }
  const uint64_t num_bytes = bytes_of(made.cut);
  cuts_.push_back({std::move(made), std::move(least_steps), num_bytes, std::nullopt});
  auto newest = extract_newest();
  drop_superfluous();
  return newest;
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
