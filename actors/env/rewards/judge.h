/// The reward `judge`: another model of the graph, which does not train, scores the last turn
/// (docs/design/judge.md). Env writes the question, node `judge` asks it and reads the score.
/// Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/env/environment.h"
#include "graph/tenant.h"

namespace primerl {

struct JudgeOptions {
  std::string rubric;             // what a good answer is
  std::string prompt;             // with {question}, {reference}, {answer}, {rubric}; "" = built in
  std::string system;             // a system message; "" = none
  std::string score = "number";   // or "yes_no"
  double best = 10;               // the number that gives a score of 1
  std::string yes = "Yes";        // one token of the judge
  std::string no = "No";          // one token of the judge
  int64_t max_tokens = 512;       // of an answer, for "number"
  double temperature = 0;         // for "number"
  std::string unparsed = "fail";  // or "zero"
  std::string kwargs;             // JSON object of chat_template_kwargs; "" = none
  Duration timeout = Duration::seconds(60);  // from question to score
};

inline constexpr std::string_view kJudgeReward = "judge";

RewardContract judge_reward();

inline bool is_judge(const TenantReward& reward) { return reward.name == kJudgeReward; }
/// The options of a reward for which is_judge() is true.
const JudgeOptions& judge_options_of(const TenantReward& reward);
/// Number of the tenant's rewards that a judge gives.
int64_t num_judges(const Tenant& tenant);
/// The longest timeout of a judge of the tenant; 0 without one.
Duration judge_time(const Tenant& tenant);

/// The conversation that the judge continues.
std::vector<ChatMessage> judge_question(const JudgeOptions& options, const EnvironmentTask& task,
                                        const std::vector<std::string>& actions);

/// The score in the last line that is not empty: its last number divided by `best`. "7/10" is 7 if
/// `best` is 10. An error if the line has none, or if it is not in [0, best].
Result<double> judge_rating(const JudgeOptions& options, std::string_view answer);

}  // namespace primerl
