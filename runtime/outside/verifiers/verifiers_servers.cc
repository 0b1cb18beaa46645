#include "runtime/outside/verifiers/verifiers_servers.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "graph/base/real_clock.h"
#include "runtime/outside/outside_queue.h"
#include "runtime/outside/verifiers/server_pool.h"
#include "runtime/outside/verifiers/zmq_client.h"

namespace primerl {
namespace {

// Servers end their children when their input is closed.
constexpr Duration kGrace = Duration::seconds(2);
constexpr int kGracePollMs = 10;
constexpr Duration kWaitMax = Duration::seconds(60);

/// Ids of 32 hexadecimal digits: a server's pool keeps its table by them, for all of its clients.
class RequestIds {
 public:
  RequestIds() {
    std::random_device random;
    prefix_ = (static_cast<uint64_t>(random()) << 32) | random();
  }
  std::string next() { return fmt::format("{:016x}{:016x}", prefix_, ++count_); }

 private:
  uint64_t prefix_ = 0;
  uint64_t count_ = 0;
};

class VerifiersServers final : public OutsideQueue {
 public:
  explicit VerifiersServers(VerifiersServersSetup setup) : setup_(std::move(setup)) {
    start([this] { run(); });
  }
  ~VerifiersServers() override { end(); }

 private:
  using Pools = std::map<uint32_t, ServerPool>;  // by their index in the spec

  // On the I/O thread.

  void run() {
    const auto sockets = make_zmq_client();
    RequestIds ids;
    Pools pools;
    for (uint32_t i = 0; i < setup_.spec.pools.size(); ++i)
      if (setup_.spec.pools[i].kind == OutsidePoolKind::kVerifiers)
        pools.try_emplace(
            i, setup_.spec.pools[i], *sockets, [&ids] { return ids.next(); },
            [this](OutsideAnswer answer) { add_answer(std::move(answer)); },
            [this](std::string_view line) {
              if (setup_.log) setup_.log(line);
            });
    while (!is_ending()) {
      const Time now = steady_now();
      for (auto& [index, pool] : pools)
        if (Status started = has_failed_ ? ok() : pool.start_missing(now); !started.ok()) {
          has_failed_ = true;
          fail(std::move(started).error());
        }
      apply_orders(pools);
      if (is_ending()) break;  // apply_orders() may have read its notification
      for (auto& [index, pool] : pools) pool.turn(steady_now());
      show_state(pools);
      wait(pools, *sockets);
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
      ServerPool& pool = pools.at(order.call.pool);
      if (order.is_end)
        pool.forget(order.call.session);
      else
        pool.ask(std::move(order.call), steady_now());
    }
  }

  /// Waits for a message, output of a process, an order or a deadline.
  void wait(const Pools& pools, ZmqClient& sockets) {
    std::vector<pollfd> polls = {{event(), POLLIN, 0}};
    std::optional<Time> next;
    for (const auto& [index, pool] : pools) {
      pool.add_polls(polls);
      if (has_failed_) continue;
      if (const auto at = pool.next_deadline()) next = next ? std::min(*next, *at) : *at;
    }
    Duration limit = kWaitMax;
    if (next) limit = std::clamp(*next - steady_now(), Duration::milliseconds(1), kWaitMax);
    sockets.wait(polls, limit);
  }

  void show_state(const Pools& pools) {
    std::string state;
    for (const auto& [index, pool] : pools) state += (state.empty() ? "" : "; ") + pool.describe();
    set_state(std::move(state));
  }

  const VerifiersServersSetup setup_;
  bool has_failed_ = false;  // used by the I/O thread
};

}  // namespace

std::shared_ptr<Outside> make_verifiers_servers(VerifiersServersSetup setup) {
  return std::make_shared<VerifiersServers>(std::move(setup));
}

}  // namespace primerl
