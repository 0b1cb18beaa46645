/// A reward of 1 when the last turn contains the task's answer, else 0.
#pragma once

#include <memory>

#include "actors/env/reward.h"

namespace primerl {

struct ContainsOptions {
  bool ignore_case = false;  // of the letters A to Z
};

OptionSet contains_options();
Result<std::unique_ptr<Reward>> make_contains(const ContainsOptions& options);

}  // namespace primerl
