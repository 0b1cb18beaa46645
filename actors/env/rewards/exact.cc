#include "actors/env/rewards/exact.h"

#include <string_view>

#include "actors/common/text.h"
#include "actors/env/reward_texts.h"

namespace primerl {
namespace {

class Exact final : public Reward {
 public:
  explicit Exact(const ExactOptions& options) : options_(options) {}

  Result<double> score(const EnvironmentTask& task, const std::vector<std::string>& actions,
                       double) override {
    ASSIGN_OR_RETURN(const std::string* turn, last_turn(actions));
    ASSIGN_OR_RETURN(const std::string* answer, answer_of(task));
    const std::string_view said = *turn;
    const bool is_right = options_.trim ? trimmed(said) == trimmed(*answer) : said == *answer;
    return is_right ? 1.0 : 0.0;
  }

 private:
  const ExactOptions options_;
};

}  // namespace

OptionSet exact_options() {
  return OptionsOf<ExactOptions>().field("trim", &ExactOptions::trim, any(),
                                         "spaces and newlines around the answer do not count");
}

Result<std::unique_ptr<Reward>> make_exact(const ExactOptions& options) {
  return std::unique_ptr<Reward>(std::make_unique<Exact>(options));
}

}  // namespace primerl
