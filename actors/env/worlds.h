/// Worlds: the worlds of the trajectories that an Env instance serves, kept between turns.
///
/// At most `worlds_max` worlds. When there are more, the least recently used one is dropped, and
/// the next action of its trajectory must bring all turns again. Only the actions are saved, not
/// what an environment has made of them. After a restart a new world repeats the actions before its
/// next turn. A value; not thread-safe.
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
  /// The state of one trajectory.
  struct Played {
    uint64_t ordinal = 0;               // of the task
    uint64_t last_use = 0;              // number of the last use; rises
    std::string prompt;                 // of the task, if Rollout sends it
    std::vector<std::string> texts;     // actions so far
    std::vector<ChatMessage> messages;  // the same actions parsed; empty without a chat template
    /// For an environment outside: digest() of the observation of each earlier action.
    std::vector<std::string> observed;
    std::shared_ptr<World> world;  // null: not made yet, or lost in a restart

    template <class F>
    static void fields(F& f) {
      f("ordinal", &Played::ordinal)("last_use", &Played::last_use)("prompt", &Played::prompt)(
          "texts", &Played::texts)("messages", &Played::messages)("observed", &Played::observed);
    }
  };

  /// Adds the action's texts and returns the trajectory; null when the earlier turns are not known.
  Played* add(const Action& action, size_t worlds_max);
  Played* find(uint64_t trajectory) {
    const auto found = played_.find(trajectory);
    return found == played_.end() ? nullptr : &found->second;
  }
  void forget(uint64_t trajectory) { played_.erase(trajectory); }
  size_t size() const { return played_.size(); }

  /// Plays the last action of `played`. If there is no world, `begin` makes one and all actions are
  /// played. `before_call` runs before each call of the world.
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
