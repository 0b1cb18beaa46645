#include "rotate_word.h"

#include <algorithm>

namespace word_games {
namespace {

using primerl::EnvironmentStep;
using primerl::EnvironmentTask;
using primerl::RandomStream;
using primerl::Result;

class RotateWord final : public primerl::Environment {
 public:
  explicit RotateWord(const RotateWordOptions& options) : options_(options) {}

  Result<EnvironmentTask> task(uint64_t, RandomStream random) override {
    std::string word;
    for (int32_t i = 0; i < options_.length; ++i) word += static_cast<char>('a' + random.below(26));
    return EnvironmentTask{"r:" + word + ">", word.substr(1) + word[0]};
  }

  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    if (actions.empty()) return primerl::error(primerl::Code::kInvalid, "a step needs an action");
    const std::string& said = actions.front();
    size_t num_right = 0;
    for (size_t i = 0; i < std::min(said.size(), task.answer.size()); ++i)
      num_right += said[i] == task.answer[i] ? 1 : 0;
    const size_t length = std::max(said.size(), task.answer.size());
    return EnvironmentStep{"", static_cast<double>(num_right) / static_cast<double>(length), true};
  }

 private:
  const RotateWordOptions options_;
};

Result<std::unique_ptr<primerl::Environment>> make(const RotateWordOptions& options) {
  return std::unique_ptr<primerl::Environment>(std::make_unique<RotateWord>(options));
}

}  // namespace

primerl::EnvironmentContract rotate_word_contract() {
  using O = RotateWordOptions;
  return primerl::environment_contract(
      "rotate_word", "move the first letter of a word to its end",
      primerl::OptionsOf<O>().field("length", &O::length,
                                    primerl::between(2, 12) | primerl::unit("letters"),
                                    "of every word"),
      make);
}

}  // namespace word_games
