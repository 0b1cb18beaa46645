#include "actors/env/reward_texts.h"

namespace primerl {

Result<const std::string*> last_turn(const std::vector<std::string>& actions) {
  if (actions.empty()) return error(Code::kInvalid, "a trajectory without a turn has no reward");
  return &actions.back();
}

Result<const std::string*> answer_of(const EnvironmentTask& task) {
  if (task.answer.empty())
    return error(Code::kInvalid, "the task has no answer to compare with")
        .note("this environment judges in another way: leave 'reward' out");
  return &task.answer;
}

}  // namespace primerl
