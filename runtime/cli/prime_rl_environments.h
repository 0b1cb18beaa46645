/// The environments of a prime-rl configuration as `environments` of a tenant, for `import`. Pure
/// functions.
#pragma once

#include <string>
#include <vector>

namespace primerl {

/// One item of `[[orchestrator.train.env]]`.
struct ImportedEnvironment {
  std::string name;         // in metrics
  std::string environment;  // of this program
  double ratio = 0;         // 0: the file has none
  std::string timeout;      // "30s"; empty: none
  std::string sampling;     // "temperature = 0.7, max_tokens = 9"; empty: the tenant's
  std::string curriculum;   // "pools = [...], rows = 1000"; empty: none
};

/// Whole numbers in the proportion of the ratios, from 1 to 1000. `is_exact` gets whether they have
/// exactly this proportion.
std::vector<int64_t> weights_of_ratios(const std::vector<double>& ratios, bool& is_exact);

/// The list as TOML, an item a line.
std::string environments_text(const std::vector<ImportedEnvironment>& environments,
                              const std::vector<int64_t>& weights);

}  // namespace primerl
