// Removal of shared memory that crashed runs left.
#include <set>

#include "kernels/weights/shm_directory.h"

namespace primerl {

std::string ShmLeftover::text() const {
  return fmt::format("removed {} segments of shared memory ({:.1f} MB) that a crashed run left: {}",
                     num_segments, static_cast<double>(num_bytes) / 1e6,
                     run_folder.empty() ? "key " + key : run_folder);
}

std::vector<ShmLeftover> remove_shm_leftovers(std::string_view shm_owner) {
  const std::string prefix = ShmDirectory::kPrefix;
  const std::string owned = prefix + ShmDirectory::owner_name(shm_owner) + "-";
  std::set<std::string> keys;
  for (const auto& name : shm_names(owned))
    if (const size_t dash = name.rfind('-'); dash > owned.size())
      keys.insert(name.substr(prefix.size(), dash - prefix.size()));
  std::vector<ShmLeftover> all;
  for (const auto& key : keys) {
    ShmLeftover removed;
    if (ShmDirectory::remove_if_left(key, removed)) all.push_back(std::move(removed));
  }
  return all;
}

}  // namespace primerl
