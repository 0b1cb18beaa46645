#include "actors/env/worlds.h"

#include <algorithm>

namespace primerl {

Worlds::Played* Worlds::add(const Action& action, size_t worlds_max) {
  if (action.first_turn == 0) {
    forget(action.trajectory);
    if (played_.size() >= worlds_max && !played_.empty())
      played_.erase(std::min_element(played_.begin(), played_.end(), [](auto& a, auto& b) {
        return a.second.last_use < b.second.last_use;
      }));
  } else {
    const auto found = played_.find(action.trajectory);
    if (found == played_.end() || found->second.ordinal != action.ordinal ||
        std::cmp_not_equal(found->second.texts.size(), action.first_turn))
      return nullptr;
  }
  Played& played = played_[action.trajectory];
  played.ordinal = action.ordinal;
  played.last_use = ++num_uses_;
  if (action.first_turn == 0) played.prompt = action.prompt;
  played.texts.insert(played.texts.end(), action.texts.begin(), action.texts.end());
  played.messages.insert(played.messages.end(), action.messages.begin(), action.messages.end());
  return &played;
}

Result<EnvironmentStep> Worlds::play(Played& played,
                                     const std::function<Result<std::unique_ptr<World>>()>& begin,
                                     const std::function<void()>& before_call) {
  CHECK(!played.texts.empty(), "a world without an action was played");
  size_t first = played.texts.size() - 1;
  if (played.world == nullptr) {
    ASSIGN_OR_RETURN(played.world, begin());
    first = 0;
  }
  for (size_t turn = first; turn + 1 < played.texts.size(); ++turn) {
    before_call();
    ASSIGN_OR_RETURN(const auto step, played.world->step(played.texts[turn]));
    if (step.done)
      return error(Code::kInvalid,
                   "the environment ended after turn {}, but before it had continued to turn {}",
                   turn + 1, played.texts.size())
          .note("an environment must do the same for the same actions");
  }
  before_call();
  return played.world->step(played.texts.back());
}

}  // namespace primerl
