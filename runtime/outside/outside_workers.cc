#include "runtime/outside/outside_workers.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <vector>

#include "graph/base/real_clock.h"
#include "runtime/outside/outside_queue.h"
#include "runtime/outside/pool_workers.h"

namespace primerl {
namespace {

// Workers may finish what they do, for example remove a temporary folder.
constexpr Duration kGrace = Duration::seconds(1);
constexpr int kGracePollMs = 10;
constexpr int kPollMsMax = 60'000;

class OutsideWorkers final : public OutsideQueue {
 public:
  explicit OutsideWorkers(OutsideWorkersSetup setup) : setup_(std::move(setup)) {
    start([this] { run(); });
  }
  ~OutsideWorkers() override { end(); }

 private:
  using Pools = std::map<uint32_t, PoolWorkers>;  // by their index in the spec

  // On the I/O thread.

  void run() {
    Pools pools;
    for (uint32_t i = 0; i < setup_.spec.pools.size(); ++i)
      if (setup_.spec.pools[i].kind == OutsidePoolKind::kWorkers)
        pools.try_emplace(
            i, setup_.spec.pools[i],
            [this](OutsideAnswer answer) { add_answer(std::move(answer)); },
            [this](std::string_view line) {
              if (setup_.log) setup_.log(line);
            });
    while (!is_ending()) {
      const Time now = steady_now();
      if (!has_failed_)
        for (auto& [index, pool] : pools)
          if (Status started = pool.start_missing(now); !started.ok()) {
            has_failed_ = true;
            fail(std::move(started).error());
          }
      apply_orders(pools);
      if (is_ending()) break;  // apply_orders() may have read its notification
      if (!wait(pools)) continue;
      for (auto& [index, pool] : pools) pool.turn(steady_now());
    }
    for (auto& [index, pool] : pools) pool.close_inputs();
    const Time until = steady_now() + kGrace;
    while (steady_now() < until && !std::all_of(pools.begin(), pools.end(), [](auto& pool) {
             return pool.second.have_all_ended();
           }))
      ::poll(nullptr, 0, kGracePollMs);
  }

  void apply_orders(Pools& pools) {
    for (Order& order : receive_orders()) {
      PoolWorkers& pool = pools.at(order.call.pool);
      if (order.is_end)
        pool.forget(order.call.session);
      else
        pool.ask(std::move(order.call), steady_now());
    }
  }

  /// Waits for input, an order or a deadline.
  bool wait(const Pools& pools) {
    std::vector<pollfd> polls = {{event(), POLLIN, 0}};
    std::optional<Time> next;
    for (const auto& [index, pool] : pools) {
      pool.add_polls(polls);
      if (has_failed_) continue;
      if (const auto at = pool.next_deadline()) next = next ? std::min(*next, *at) : *at;
    }
    int timeout = kPollMsMax;
    if (next) {
      const int64_t left = (*next - steady_now()).to_nanoseconds() / 1'000'000 + 1;
      timeout = static_cast<int>(std::clamp<int64_t>(left, 1, kPollMsMax));
    }
    return ::poll(polls.data(), polls.size(), timeout) >= 0;
  }

  const OutsideWorkersSetup setup_;
  bool has_failed_ = false;  // used by the I/O thread
};

}  // namespace

std::shared_ptr<Outside> make_outside_workers(OutsideWorkersSetup setup) {
  return std::make_shared<OutsideWorkers>(std::move(setup));
}

}  // namespace primerl
