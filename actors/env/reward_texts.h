/// What most rewards begin with: the policy's last turn and the task's answer.
#pragma once

#include <string>
#include <vector>

#include "actors/env/environment.h"

namespace primerl {

/// The last turn; an error if there is none.
Result<const std::string*> last_turn(const std::vector<std::string>& actions);
/// The task's answer; an error if it has none.
Result<const std::string*> answer_of(const EnvironmentTask& task);

}  // namespace primerl
