#include "runtime/cli/prime_rl_environments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/options.h"
#include "graph/tenant.h"

namespace primerl {

std::vector<int64_t> weights_of_ratios(const std::vector<double>& ratios, bool& is_exact) {
  const double smallest = *std::ranges::min_element(ratios);
  const double largest = *std::ranges::max_element(ratios);
  std::vector<int64_t> weights(ratios.size(), 1);
  is_exact = true;
  // The smallest weight with which all are whole.
  for (int64_t least = 1; least <= kEnvironmentWeightMax; ++least) {
    const double scale = static_cast<double>(least) / smallest;
    if (largest * scale > static_cast<double>(kEnvironmentWeightMax) + 0.5) break;
    const bool is_whole = std::ranges::all_of(ratios, [&](double ratio) {
      const double weight = ratio * scale;
      return std::abs(weight - std::round(weight)) < 1e-6 * std::max(1.0, weight);
    });
    if (!is_whole) continue;
    for (size_t i = 0; i < ratios.size(); ++i) weights[i] = std::llround(ratios[i] * scale);
    return weights;
  }
  is_exact = false;
  const double scale = static_cast<double>(kEnvironmentWeightMax) / largest;
  for (size_t i = 0; i < ratios.size(); ++i)
    weights[i] = std::max<int64_t>(1, std::llround(ratios[i] * scale));
  return weights;
}

std::string environments_text(const std::vector<ImportedEnvironment>& environments,
                              const std::vector<int64_t>& weights) {
  std::string text = "[\n";
  for (size_t i = 0; i < environments.size(); ++i) {
    const ImportedEnvironment& each = environments[i];
    text +=
        fmt::format("  {{ name = {}, weight = {}, environment = {{ name = {} }}",
                    detail::toml_text(each.name), weights[i], detail::toml_text(each.environment));
    if (!each.timeout.empty())
      text += fmt::format(", rollout_timeout = {}", detail::toml_text(each.timeout));
    if (!each.sampling.empty()) text += fmt::format(", sampling = {{ {} }}", each.sampling);
    if (!each.curriculum.empty()) text += fmt::format(", curriculum = {{ {} }}", each.curriculum);
    text += " },\n";
  }
  return text + "]";
}

}  // namespace primerl
