#include "actors/env/environment.h"

namespace primerl {

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
