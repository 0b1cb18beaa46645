#include "actors/env/environment.h"

namespace primerl {
namespace {

/// The world of an Environment that keeps no state between turns.
class StatelessWorld final : public World {
 public:
  StatelessWorld(Environment& environment, EnvironmentTask task)
      : environment_(environment), task_(std::move(task)) {}

  Result<EnvironmentStep> step(const std::string& action) override {
    actions_.push_back(action);
    return environment_.step(task_, actions_);
  }

 private:
  Environment& environment_;
  const EnvironmentTask task_;
  std::vector<std::string> actions_;
};

}  // namespace

Result<std::unique_ptr<World>> Environment::begin(const EnvironmentTask& task) {
  return std::unique_ptr<World>(std::make_unique<StatelessWorld>(*this, task));
}

Result<std::vector<EnvironmentContract::SampleTask>> sample_tasks(Environment& environment,
                                                                  uint64_t seed, size_t count) {
  std::vector<EnvironmentContract::SampleTask> tasks;
  for (uint64_t ordinal = 0; ordinal < count; ++ordinal) {
    ASSIGN_OR_RETURN(auto task, environment.task(ordinal, RandomStream(mix(seed, ordinal))));
    const auto num_turns = static_cast<int64_t>(environment.demonstration(task).size());
    tasks.push_back({std::move(task.prompt), num_turns});
  }
  return tasks;
}

}  // namespace primerl
