/// The bodies of calls that Env makes outside of the process, and its reading of the answers
/// (docs/formats/outside.md). Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/env/environment.h"
#include "actors/messages/rollout.h"

namespace primerl {

/// The turns of a trajectory that a worker plays.
struct OutsideTurns {
  uint64_t trajectory = 0;
  uint64_t ordinal = 0;
  uint32_t seed = 0;       // of the task
  int32_t first_turn = 0;  // of `actions`; 0: a fresh worker can play them
  std::vector<std::string> actions;
  std::vector<ChatMessage> messages = {};  // the same actions parsed; empty without a chat template
  bool is_evaluation = false;              // then `ordinal` is the row
};

std::string task_body(uint64_t ordinal, uint32_t seed, bool is_evaluation = false);
std::string step_body(const OutsideTurns& turns);
/// `messages` are the actions parsed; empty without a chat template.
std::string reward_body(const EnvironmentTask& task, const std::vector<std::string>& actions,
                        double given, const std::vector<ChatMessage>& messages = {});

/// The answer to a step.
struct OutsideStep {
  EnvironmentStep step;
  std::string answer;               // of the task, for the tenant's rewards; may be empty
  std::string prompt;               // the same, for rewards, if it is not the task's prompt
  std::vector<std::string> played;  // digest() of the observation of each action but the last
};

/// Errors say which key is wrong. A prompt or a text that is not UTF-8 is refused by the JSON
/// reader before.
Result<EnvironmentTask> read_task(const std::string& body);
Result<OutsideStep> read_step(const std::string& body);
/// A finite number.
Result<double> read_score(const std::string& body);

/// Names an observation: a worker that plays turns again must give the same.
std::string digest(const EnvironmentStep& step);

}  // namespace primerl
