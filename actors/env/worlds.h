/// Worlds: those of the trajectories that an Env instance serves, kept between their turns.
///
/// At most `worlds_max` of them: one more, and the one that was not used for longest goes; its
/// next action must bring all turns again. Saved are the actions alone, not what an environment has
/// made of them: after a restart a world plays them again before its next turn. A value; not
/// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/env/environment.h"
#include "actors/messages/rollout.h"

namespace primerl {

class Worlds {
 public:
  /// All that is known of one trajectory.
  struct Played {
    uint64_t ordinal = 0;            // of its task
    uint64_t last_use = 0;           // rises
    std::vector<std::string> texts;  // actions so far
    std::shared_ptr<World> world;    // null: not made yet, or anew after a restart

    template <class F>
    static void fields(F& f) {
      f("ordinal", &Played::ordinal)("last_use", &Played::last_use)("texts", &Played::texts);
    }
  };

  /// The trajectory with the action's texts added; null when the turns before them are not known.
  Played* add(const Action& action, size_t worlds_max);
  void forget(uint64_t trajectory) { played_.erase(trajectory); }
  size_t size() const { return played_.size(); }

  /// Plays the last action of `played`, in a world that `begin` makes where there is none: all
  /// actions then. `before_call` is called before each call of the world.
  static Result<EnvironmentStep> play(Played& played,
                                      const std::function<Result<std::unique_ptr<World>>()>& begin,
                                      const std::function<void()>& before_call);

  template <class F>
  static void fields(F& f) {
    f("played", &Worlds::played_)("num_uses", &Worlds::num_uses_);
  }

 private:
  std::map<uint64_t, Played> played_;  // by trajectory
  uint64_t num_uses_ = 0;
};

}  // namespace primerl
