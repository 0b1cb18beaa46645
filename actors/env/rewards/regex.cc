#include "actors/env/rewards/regex.h"

#include "actors/common/text.h"
#include "actors/env/reward_texts.h"
#include "kernels/text/text_search.h"

namespace primerl {
namespace {

class Regex final : public Reward {
 public:
  explicit Regex(TextSearch search) : search_(std::move(search)) {}

  Result<double> score(const EnvironmentTask& task, const std::vector<std::string>& actions,
                       double) override {
    ASSIGN_OR_RETURN(const std::string* said, last_turn(actions));
    ASSIGN_OR_RETURN(const auto found, search_.find(*said));
    if (!found) return 0.0;
    if (!found->group) return 1.0;
    ASSIGN_OR_RETURN(const std::string* answer, answer_of(task));
    return trimmed(*found->group) == trimmed(*answer) ? 1.0 : 0.0;
  }

 private:
  const TextSearch search_;
};

}  // namespace

OptionSet regex_options() {
  return OptionsOf<RegexOptions>().field(
      "pattern", &RegexOptions::pattern, at_least(1) | required(),
      "regular expression (PCRE2); its first group, if it has one, must be the task's answer");
}

Result<std::unique_ptr<Reward>> make_regex(const RegexOptions& options) {
  auto search = TextSearch::compile(options.pattern);
  if (!search.ok()) return std::move(search).error().while_doing("'pattern'");
  return std::unique_ptr<Reward>(std::make_unique<Regex>(std::move(*search)));
}

}  // namespace primerl
