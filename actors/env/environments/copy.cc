#include "actors/env/environments/copy.h"

namespace primerl {
namespace {

class Copy final : public Environment {
 public:
  explicit Copy(const LetterOptions& options) : options_(options) {}

  Result<EnvironmentTask> task(uint64_t, RandomStream random) override {
    const std::string word = random_word(options_, random);
    return EnvironmentTask{"c:" + word + ">", word};
  }

  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    if (actions.empty()) return error(Code::kInvalid, "a step needs an action");
    return EnvironmentStep{"", equal_share(actions.front(), task.answer), true};
  }

 private:
  const LetterOptions options_;
};

}  // namespace

Result<std::unique_ptr<Environment>> make_copy(const LetterOptions& options) {
  RETURN_IF_ERROR(validate(options));
  return std::unique_ptr<Environment>(std::make_unique<Copy>(options));
}

}  // namespace primerl
