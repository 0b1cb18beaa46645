#include "runtime/backends/outside_backend.h"

#include <utility>
#include <vector>

#include "runtime/outside/outside_pools.h"
#include "runtime/outside/outside_workers.h"
#include "runtime/outside/verifiers/verifiers_servers.h"

namespace primerl {

std::shared_ptr<Outside> make_outside(const OutsideSpec& spec,
                                      const std::function<void(std::string_view)>& log) {
  std::shared_ptr<Outside> workers, servers;
  std::vector<std::shared_ptr<Outside>> of_pool;
  for (const OutsidePool& pool : spec.pools) {
    const bool is_workers = pool.kind == OutsidePoolKind::kWorkers;
    if (is_workers && workers == nullptr) workers = make_outside_workers({spec, log});
    if (!is_workers && servers == nullptr) servers = make_verifiers_servers({spec, log});
    of_pool.push_back(is_workers ? workers : servers);
  }
  if (servers == nullptr) return workers != nullptr ? workers : make_outside_workers({spec, log});
  if (workers == nullptr) return servers;
  return make_outside_pools(std::move(of_pool));
}

}  // namespace primerl
