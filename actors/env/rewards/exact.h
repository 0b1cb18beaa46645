/// A reward of 1 when the last turn equals the task's answer, else 0.
#pragma once

#include <memory>

#include "actors/env/reward.h"

namespace primerl {

struct ExactOptions {
  bool trim = true;
};

OptionSet exact_options();
Result<std::unique_ptr<Reward>> make_exact(const ExactOptions& options);

}  // namespace primerl
