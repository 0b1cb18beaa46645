#include "kernels/train/advantage.h"

#include <cmath>

namespace primerl {

Result<std::vector<float>> group_advantages(std::span<const double> rewards) {
  double sum = 0;
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!std::isfinite(rewards[i]))
      return error(Code::kInvalid, "the reward of member {} is {}", i, rewards[i])
          .note("rewards are finite numbers");
    sum += rewards[i];
  }
  const double mean = rewards.empty() ? 0 : sum / static_cast<double>(rewards.size());
  std::vector<float> advantages;
  advantages.reserve(rewards.size());
  for (const double reward : rewards)
    advantages.push_back(rewards.size() == 1 ? 0.0F : static_cast<float>(reward - mean));
  return advantages;
}

}  // namespace primerl
