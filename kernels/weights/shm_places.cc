#include "kernels/weights/shm_places.h"

#include <utility>

namespace primerl {

Result<std::optional<OfferedPlaces::Named>> OfferedPlaces::offer(const DeviceBuffer& buffer) {
  for (const auto& [place, offered] : offered_)
    if (offered.memory.get() == &buffer) return std::optional(offered.named);
  ASSIGN_OR_RETURN(const DeviceHandle handle, buffer.handle());
  for (ShmPlace place = 0; place < kShmPlacesMax; ++place) {
    if (offered_.contains(place) || !directory_.offer(place)) continue;
    offered_[place] = {buffer.memory(), {std::make_shared<const ShmPlace>(place), handle}};
    return std::optional(offered_[place].named);
  }
  return std::optional<Named>();
}

void OfferedPlaces::attend() {
  for (auto each = offered_.begin(); each != offered_.end();) {
    const auto now = each++;
    auto& [place, offered] = *now;
    if (!offered.is_withdrawn && offered.memory.use_count() > 1) continue;
    if (!std::exchange(offered.is_withdrawn, true)) directory_.withdraw(place);
    if (directory_.is_open(place)) continue;
    offered.memory = nullptr;
    if (offered.named.place.use_count() == 1) offered_.erase(now);
  }
}

std::shared_ptr<const DeviceBuffer> OpenPlaces::find(ShmPlace place) const {
  const auto known = open_.find(place);
  if (known == open_.end()) return nullptr;
  return {known->second, known->second->buffer.get()};
}

void OpenPlaces::want(WantedPlace wanted) {
  CHECK(!open_.contains(wanted.place) && wanted_.insert(wanted.place).second,
        "a place that is open already is wanted again");
  waiting_.push_back(std::move(wanted));
}

void OpenPlaces::keep(WantedPlace wanted) {
  wanted_.erase(wanted.place);
  if (wanted.opened.ok())
    open_[wanted.place] =
        std::make_shared<Open>(std::move(wanted.lock), std::move(wanted.opened).value());
}

std::vector<std::shared_ptr<const void>> OpenPlaces::remove_withdrawn() {
  std::vector<std::shared_ptr<const void>> withdrawn;
  std::erase_if(open_, [&](auto& each) {
    const bool is_unused = each.second.use_count() == 1;
    if (!is_unused || ShmDirectory::is_offered(*each.second->lock, each.first)) return false;
    withdrawn.push_back(std::move(each.second));
    return true;
  });
  return withdrawn;
}

}  // namespace primerl
