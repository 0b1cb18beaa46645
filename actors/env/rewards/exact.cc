#include "actors/env/rewards/exact.h"

#include <string_view>

namespace primerl {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

class Exact final : public Reward {
 public:
  explicit Exact(const ExactOptions& options) : options_(options) {}

  Result<double> score(const EnvironmentTask& task, const std::vector<std::string>& actions,
                       double) override {
    if (actions.empty()) return error(Code::kInvalid, "a trajectory without a turn has no reward");
    if (task.answer.empty())
      return error(Code::kInvalid, "the task has no answer to compare with")
          .note("this environment judges in another way: leave 'reward' out");
    const std::string_view said = actions.back();
    const bool is_right =
        options_.trim ? trimmed(said) == trimmed(task.answer) : said == task.answer;
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
