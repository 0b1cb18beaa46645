#include "actors/env/rewards/contains.h"

#include <algorithm>

#include "actors/common/text.h"
#include "actors/env/reward_texts.h"

namespace primerl {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

class Contains final : public Reward {
 public:
  explicit Contains(const ContainsOptions& options) : options_(options) {}

  Result<double> score(const EnvironmentTask& task, const std::vector<std::string>& actions,
                       double) override {
    ASSIGN_OR_RETURN(const std::string* said, last_turn(actions));
    ASSIGN_OR_RETURN(const std::string* answer, answer_of(task));
    const std::string_view wanted = trimmed(*answer);
    const bool is_there = options_.ignore_case
                              ? lower(*said).find(lower(wanted)) != std::string::npos
                              : said->find(wanted) != std::string::npos;
    return is_there ? 1.0 : 0.0;
  }

 private:
  const ContainsOptions options_;
};

}  // namespace

OptionSet contains_options() {
  return OptionsOf<ContainsOptions>().field("ignore_case", &ContainsOptions::ignore_case, any(),
                                            "A to Z equal a to z");
}

Result<std::unique_ptr<Reward>> make_contains(const ContainsOptions& options) {
  return std::unique_ptr<Reward>(std::make_unique<Contains>(options));
}

}  // namespace primerl
