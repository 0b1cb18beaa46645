#include "two_choices.h"

#include "graph/base/random.h"

namespace word_games {
namespace {

class TwoChoices final : public primerl::RoutePolicy {
 public:
  size_t choose(const primerl::RouteQuestion& question,
                std::span<const primerl::EngineView> engines) override {
    const size_t first = primerl::mix(question.session_key, 1) % engines.size();
    const size_t second = primerl::mix(question.session_key, 2) % engines.size();
    return engines[second].num_requests < engines[first].num_requests ? second : first;
  }
};

}  // namespace

primerl::RoutePolicyContract two_choices_contract() {
  return {"two_choices", "the less loaded one of two engines",
          [] { return std::make_unique<TwoChoices>(); }};
}

}  // namespace word_games
