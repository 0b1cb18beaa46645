/// The part of a world that a gateway and a judge add: HTTP clients whose requests follow from the
/// world's number, and the nodes and options of both.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "graph/base/random.h"
#include "graph/http_calls.h"
#include "graph/outside.h"
#include "tests/sim/world_spec.h"

namespace primerl::sim {

/// A listener whose clients send requests at random looks for answers; some leave before the reply.
/// Each look takes time.
class WorldListener : public Outside {
 public:
  struct Limits {
    uint64_t num_requests = 0;
    uint64_t look_us = 1;       // a look takes less
    uint64_t leaves_every = 5;  // one of so many clients leaves
  };
  WorldListener(uint64_t world, uint64_t purpose, Limits limits)
      : random_(mix(world, purpose)), world_(world), limits_(limits) {}

  Status ask(OutsideCall call) override;
  void forget(uint32_t, uint64_t) override {}
  std::vector<OutsideAnswer> receive_answers() override;
  void stop() override;
  void set_wake(std::function<void()>) override {}
  bool has_work() const override;
  Duration take_cost() override { return std::exchange(cost_, {}); }

 protected:
  /// `call`: that the reply will name.
  virtual ClientRequest next_request(uint64_t number, uint64_t call) = 0;
  /// A reply that its client got.
  virtual void on_reply(const ClientReply& reply) { (void)reply; }

  RandomStream random_;

 private:
  bool may_send() const { return num_sent_ < limits_.num_requests; }
  void send_next(uint64_t look);
  void report_gone(uint64_t look);

  const uint64_t world_;
  const Limits limits_;
  bool is_stopped_ = false;
  uint64_t num_looks_ = 0, num_sent_ = 0, next_at_ = 0;
  std::deque<uint64_t> accepts_, closed_calls_;
  std::map<uint64_t, bool> open_;              // requests without a reply
  std::multimap<uint64_t, uint64_t> leaving_;  // requests, by look
  std::deque<OutsideAnswer> answers_;
  Duration cost_;
};

/// Draws what the world has, with random numbers of its own.
void add_clients(WorldSpec& spec);
/// The entries of a tenant's `reward` list that a judge gives; "" without a judge.
std::string judge_entries(const WorldSpec& spec, RandomStream& random);
/// The graph with a gateway, if the world has one.
std::string with_gateway(const WorldSpec& spec, std::string graph);
/// The options of both, as `--set`s.
std::vector<std::string> client_sets(const WorldSpec& spec);
/// Nodes for the place of the driver, of routers, and of engines of the judge: `, "judge"`.
std::string driver_nodes(const WorldSpec& spec);

/// Clients that ask for completions, chats, tokens and pages that do not exist; some repeat a
/// request, and some leave before the reply. Each look for answers takes time.
std::shared_ptr<Outside> make_world_clients(const WorldSpec& spec);

/// Calls `seen` with every call of `outside`, which is visible from outside of the actor.
std::shared_ptr<Outside> make_seen_outside(std::shared_ptr<Outside> outside,
                                           std::function<void(std::string_view)> seen);

}  // namespace primerl::sim
