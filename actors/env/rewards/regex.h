/// A reward of 1 when a regular expression matches the last turn, else 0. If the expression has a
/// group, the text of the first group must also be the task's answer.
#pragma once

#include <memory>
#include <string>

#include "actors/env/reward.h"

namespace primerl {

struct RegexOptions {
  std::string pattern;  // PCRE2 syntax, UTF-8
};

OptionSet regex_options();
/// Refuses a pattern that is not a regular expression.
Result<std::unique_ptr<Reward>> make_regex(const RegexOptions& options);

}  // namespace primerl
