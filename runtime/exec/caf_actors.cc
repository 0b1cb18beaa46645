#include "runtime/exec/caf_actors.h"

#include <algorithm>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/logger.hpp>
#include <caf/policy/work_sharing.hpp>
#include <caf/scheduler/coordinator.hpp>
#include <caf/send.hpp>

#include "runtime/exec/leak_on_purpose.h"

namespace primerl {
namespace {

using TurnAtom = caf::atom_constant<caf::atom("turn")>;

// Maximum number of turns of a pooled actor before the pool runs the next actor.
constexpr size_t kTurnsInARow = 4;

class TurnActor final : public caf::event_based_actor {
 public:
  TurnActor(caf::actor_config& config, CafActors::Turn turn)
      : caf::event_based_actor(config), turn_(std::move(turn)) {}

  caf::behavior make_behavior() override {
    return {[this](TurnAtom) {
      switch (turn_()) {
        case TurnEnd::kIdle:
          return;
        case TurnEnd::kMore:
          send(this, TurnAtom::value);
          return;
        case TurnEnd::kQuit:
          turn_ = nullptr;
          quit();
          return;
      }
    }};
  }
  const char* name() const override { return "primerl group"; }

 private:
  CafActors::Turn turn_;
};

// CAF stores its logger in a thread-local of the thread that made a system or spawned an actor. A
// system's destructor waits until no thread holds the logger. Without this call, destruction on
// another thread would never end.
void release_logger() { caf::logger::set_current_actor_system(nullptr); }

}  // namespace

struct CafActors::System {
  explicit System(int64_t pool_threads) {
    config.set("scheduler.policy", caf::atom("sharing"));
    config.set("scheduler.max-threads", static_cast<size_t>(pool_threads));
    config.set("scheduler.max-throughput", kTurnsInARow);
    system = std::make_unique<caf::actor_system>(config);
    release_logger();
  }
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
};

int64_t default_pool_threads(int64_t num_cores) { return num_cores <= 4 ? 1 : num_cores / 4; }

Result<std::unique_ptr<CafActors>> CafActors::make(int64_t pool_threads) {
  CHECK(pool_threads >= 1, "a pool has one thread at least");
  auto system = std::make_unique<System>(pool_threads);
  // CAF ignores a setting with a wrong name or type: it prints a line on stderr and uses its
  // default.
  auto& scheduler = system->system->scheduler();
  const bool is_sharing =
      dynamic_cast<caf::scheduler::coordinator<caf::policy::work_sharing>*>(&scheduler) != nullptr;
  if (scheduler.num_workers() != static_cast<size_t>(pool_threads) ||
      scheduler.max_throughput() != kTurnsInARow || !is_sharing)
    return error(Code::kInternal,
                 "CAF runs {} threads with {} turns in a row{}, asked for {}, {} and the sharing "
                 "policy",
                 scheduler.num_workers(), scheduler.max_throughput(),
                 is_sharing ? "" : " and another policy", pool_threads, kTurnsInARow);
  return std::unique_ptr<CafActors>(new CafActors(std::move(system)));
}

CafActors::CafActors(std::unique_ptr<System> system) : system_(std::move(system)) {}

CafActors::~CafActors() = default;

CafActors::WakeUp CafActors::spawn(Turn turn, bool detached) {
  auto& system = *system_->system;
  const caf::actor actor = detached ? system.spawn<TurnActor, caf::detached>(std::move(turn))
                                    : system.spawn<TurnActor>(std::move(turn));
  release_logger();
  return [actor] { caf::anon_send(actor, TurnAtom::value); };
}

void CafActors::leak() { leak_on_purpose(system_); }

int64_t CafActors::pool_threads() const {
  return static_cast<int64_t>(system_->system->scheduler().num_workers());
}

}  // namespace primerl
