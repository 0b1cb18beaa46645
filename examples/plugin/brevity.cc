#include "brevity.h"

#include <algorithm>

namespace word_games {
namespace {

class Brevity final : public primerl::Reward {
 public:
  explicit Brevity(const BrevityOptions& options) : options_(options) {}

  primerl::Result<double> score(const primerl::EnvironmentTask&,
                                const std::vector<std::string>& actions, double given) override {
    int64_t num_letters = 0;
    for (const auto& action : actions) num_letters += static_cast<int64_t>(action.size());
    const auto beyond =
        static_cast<double>(std::max<int64_t>(num_letters - options_.letters_free, 0));
    return given * std::max(0.0, 1.0 - options_.price * beyond);
  }

 private:
  const BrevityOptions options_;
};

primerl::Result<std::unique_ptr<primerl::Reward>> make(const BrevityOptions& options) {
  return std::unique_ptr<primerl::Reward>(std::make_unique<Brevity>(options));
}

}  // namespace

primerl::RewardContract brevity_contract() {
  using O = BrevityOptions;
  return primerl::reward_contract(
      "brevity", "the environment's reward, less for long answers",
      primerl::OptionsOf<O>()
          .field("letters_free", &O::letters_free, primerl::at_least(0) | primerl::unit("letters"),
                 "of all turns, without a price")
          .field("price", &O::price, primerl::between(0, 1),
                 "share of the reward that each further letter takes"),
      make);
}

}  // namespace word_games
