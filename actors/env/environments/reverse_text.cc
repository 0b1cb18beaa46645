#include "actors/env/environments/reverse_text.h"

namespace primerl {
namespace {

class ReverseText final : public Environment {
 public:
  explicit ReverseText(const ReverseTextOptions& options) : options_(options) {}

  Result<EnvironmentTask> task(uint64_t ordinal, RandomStream random) override {
    const std::string word = random_word(options_, random);
    EnvironmentTask task{"r:" + word + ">", std::string(word.rbegin(), word.rend())};
    if (options_.wrong_key_from >= 0 && ordinal >= static_cast<uint64_t>(options_.wrong_key_from))
      task.answer = word;
    return task;
  }

  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    if (actions.empty()) return error(Code::kInvalid, "a step needs an action");
    return EnvironmentStep{"", equal_share(actions.front(), task.answer), true};
  }

 private:
  const ReverseTextOptions options_;
};

}  // namespace

Result<std::unique_ptr<Environment>> make_reverse_text(const ReverseTextOptions& options) {
  RETURN_IF_ERROR(validate(options));
  return std::unique_ptr<Environment>(std::make_unique<ReverseText>(options));
}

}  // namespace primerl
