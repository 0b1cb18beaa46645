#include "kernels/models/frozen_bases.h"

#include <algorithm>
#include <system_error>

namespace primerl {

FrozenBases::Key FrozenBases::canonical(const Key& key) {
  std::error_code fault;
  auto folder = std::filesystem::weakly_canonical(key.folder, fault);
  return {fault ? key.folder : std::move(folder), key.device, key.dtype};
}

std::shared_ptr<const FrozenBase> FrozenBases::find_or_claim(const Key& key) {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::erase_if(places_, [](const auto& each) {
      return !each.second.is_loading && each.second.base.expired();
    });
    Place& place = places_[key];
    if (!place.is_loading) {
      auto held = place.base.lock();
      place.is_loading = held == nullptr;
      return held;
    }
    released_.wait(lock);
  }
}

void FrozenBases::release(const Claim& claim) {
  {
    const std::lock_guard lock(mutex_);
    Place& place = places_[claim.key];
    place.is_loading = false;
    place.base = claim.loaded;
  }
  released_.notify_all();
}

size_t FrozenBases::size() {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::ranges::count_if(places_, [](const auto& each) { return !each.second.base.expired(); }));
}

}  // namespace primerl
