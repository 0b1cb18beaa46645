#include "actors/env/scripted_environment.h"

namespace primerl {
namespace {

/// Expects one letter of the answer in each turn.
class ScriptedEnvironment final : public Environment {
 public:
  Result<EnvironmentTask> task(uint64_t ordinal, RandomStream) override {
    return EnvironmentTask{fmt::format("{}?", ordinal % 10), ordinal % 2 == 0 ? "a" : "bc"};
  }

  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>& actions) override {
    if (actions.size() < task.answer.size()) return EnvironmentStep{"!", 0, false};
    const uint64_t draw = stable_hash(actions.back(), stable_hash(task.prompt));
    return EnvironmentStep{"", static_cast<double>(draw % 1000) / 1000, true};
  }

  std::vector<std::string> demonstration(const EnvironmentTask& task) const override {
    std::vector<std::string> turns;
    for (const char letter : task.answer) turns.emplace_back(1, letter);
    return turns;
  }
};

}  // namespace

std::unique_ptr<Environment> make_scripted_environment() {
  return std::make_unique<ScriptedEnvironment>();
}

}  // namespace primerl
