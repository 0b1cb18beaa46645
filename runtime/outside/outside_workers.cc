#include "runtime/outside/outside_workers.h"

#include <poll.h>

#include <vector>

#include "runtime/outside/pool_queue.h"
#include "runtime/outside/pool_workers.h"

namespace primerl {
namespace {

// Workers may finish what they do, for example remove a temporary folder.
constexpr Duration kGrace = Duration::seconds(1);

class OutsideWorkers final : public PoolQueue<PoolWorkers> {
 public:
  explicit OutsideWorkers(OutsideWorkersSetup setup)
      : PoolQueue(std::move(setup.spec), OutsidePoolKind::kWorkers, std::move(setup.log)) {
    start([this] {
      serve(kGrace, [](std::vector<pollfd>& polls, Duration limit) {
        // Not before the deadline.
        const auto limit_ms = static_cast<int>(limit.to_nanoseconds() / 1'000'000) + 1;
        ::poll(polls.data(), polls.size(), limit_ms);
      });
    });
  }
  ~OutsideWorkers() override { end(); }
};

}  // namespace

std::shared_ptr<Outside> make_outside_workers(OutsideWorkersSetup setup) {
  return std::make_shared<OutsideWorkers>(std::move(setup));
}

}  // namespace primerl
