/// PoolQueue: an OutsideQueue whose I/O thread serves those pools of a spec that are of one kind.
///
/// A Pool has start_missing(), ask(), forget(), add_polls(), turn(), next_deadline(),
/// close_inputs() and have_all_ended(), as PoolWorkers and ServerPool do. With describe() it is
/// shown in reports of stalls. Pools are made and used by the I/O thread.
#pragma once

#include <poll.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "graph/base/real_clock.h"
#include "runtime/outside/outside_queue.h"

namespace primerl {

template <class Pool>
class PoolQueue : public OutsideQueue {
 protected:
  using Log = std::function<void(std::string_view)>;

  PoolQueue(OutsideSpec spec, OutsidePoolKind kind, Log log)
      : spec_(std::move(spec)), kind_(kind), log_(std::move(log)) {}

  /// On the I/O thread: serves until the end, then gives processes `grace` to end by themselves.
  /// `wait` (polls, limit) returns when a descriptor is ready or `limit` has passed. `more` are
  /// arguments of a Pool between its OutsidePool and its hooks.
  template <class Wait, class... More>
  void serve(Duration grace, const Wait& wait, More&... more) {
    Pools pools;
    for (uint32_t i = 0; i < spec_.pools.size(); ++i)
      if (spec_.pools[i].kind == kind_)
        pools.try_emplace(
            i, spec_.pools[i], more...,
            [this](OutsideAnswer answer) { add_answer(std::move(answer)); },
            [this](std::string_view line) {
              if (log_) log_(line);
            });
    while (!is_ending()) {
      start_missing(pools);
      apply_orders(pools);
      if (is_ending()) break;  // apply_orders() may have read its notification
      for (auto& [index, pool] : pools) pool.turn(steady_now());
      show_state(pools);
      wait_for(pools, wait);
    }
    for (auto& [index, pool] : pools) pool.close_inputs();
    const Time until = steady_now() + grace;
    const auto has_ended = [](auto& pool) { return pool.second.have_all_ended(); };
    while (steady_now() < until && !std::ranges::all_of(pools, has_ended))
      ::poll(nullptr, 0, kGracePollMs);
  }

 private:
  using Pools = std::map<uint32_t, Pool>;  // by their index in the spec
  static constexpr int kGracePollMs = 10;
  static constexpr Duration kWaitMax = Duration::seconds(60);

  void start_missing(Pools& pools) {
    const Time now = steady_now();
    for (auto& [index, pool] : pools) {
      if (has_failed_) return;
      if (Status started = pool.start_missing(now); !started.ok()) {
        has_failed_ = true;
        fail(std::move(started).error());
      }
    }
  }

  void apply_orders(Pools& pools) {
    for (Order& order : receive_orders()) {
      Pool& pool = pools.at(order.call.pool);
      if (order.is_end)
        pool.forget(order.call.session);
      else
        pool.ask(std::move(order.call), steady_now());
    }
  }

  void show_state(const Pools& pools) {
    if constexpr (requires(const Pool& pool) { pool.describe(); }) {
      std::string state;
      for (const auto& [index, pool] : pools)
        state += (state.empty() ? "" : "; ") + pool.describe();
      set_state(std::move(state));
    }
  }

  /// Waits for a message, output of a process, an order or a deadline.
  template <class Wait>
  void wait_for(const Pools& pools, const Wait& wait) {
    std::vector<pollfd> polls = {{event(), POLLIN, 0}};
    std::optional<Time> next;
    for (const auto& [index, pool] : pools) {
      pool.add_polls(polls);
      if (has_failed_) continue;
      if (const auto at = pool.next_deadline()) next = next ? std::min(*next, *at) : *at;
    }
    Duration limit = kWaitMax;
    if (next) limit = std::clamp(*next - steady_now(), Duration::milliseconds(1), kWaitMax);
    wait(polls, limit);
  }

  const OutsideSpec spec_;
  const OutsidePoolKind kind_;
  const Log log_;
  bool has_failed_ = false;  // used by the I/O thread
};

}  // namespace primerl
