#include "runtime/cli/prime_rl_curriculum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/options.h"
#include "graph/tenant.h"
#include "runtime/cli/prime_rl_values.h"

namespace primerl {
namespace {

constexpr int64_t kRowsStandIn = 1000;
constexpr std::string_view kSampler = ".curriculum.sampler.";
constexpr std::string_view kBufferOptions[] = {"easy_threshold", "hard_threshold", "easy_fraction",
                                               "hard_fraction"};

/// One of prime-rl's pools: rows with a mean reward of at most `most`.
struct Pool {
  double most = 0;
  double weight = 1;
};

/// Those of the file by rising reward; without one, prime-rl's defaults.
std::vector<Pool> pools_of(const PrimeRlValues& values, const std::string& prefix) {
  std::map<std::string, Pool> named;
  for (const auto& [key, value] : values) {
    if (!key.starts_with(prefix) || !value->is_number()) continue;
    const std::string rest = key.substr(prefix.size());
    const size_t dot = rest.rfind('.');
    if (dot == std::string::npos) continue;
    Pool& pool = named[rest.substr(0, dot)];
    if (rest.ends_with(".threshold")) pool.most = value->as_number();
    if (rest.ends_with(".weight")) pool.weight = value->as_number();
  }
  std::vector<Pool> pools;
  for (const auto& [name, pool] : named) pools.push_back(pool);
  if (pools.empty()) pools = {{0.25, 0.2}, {0.75, 1}, {1, 0.2}};
  std::ranges::stable_sort(pools, {}, &Pool::most);
  return pools;
}

bool draws_from_pools(const PrimeRlValues& values, const std::string& item) {
  const auto type = values.find(item + std::string(kSampler) + "type");
  return type != values.end() && type->second->is_string() &&
         type->second->as_string() == "difficulty_pool";
}

void note_rows(std::vector<std::string>& notes) {
  const std::string note = fmt::format(
      "prime-rl's file does not say how many rows the curriculum has: the graph has rows = {}, "
      "write the number of yours",
      kRowsStandIn);
  if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
}

}  // namespace

std::optional<std::pair<KeyFate, std::string>> fate_of_curriculum(const std::string& key,
                                                                  const Value& value) {
  using Fate = std::pair<KeyFate, std::string>;
  if (key.ends_with(std::string(kSampler) + "type") && value.is_string()) {
    if (value.as_string() == "standard")
      return Fate(KeyFate::kNotNeeded, "tasks come in the order of the environment");
    if (value.as_string() != "difficulty_pool")
      return Fate(KeyFate::kNotSupported, "samplers are standard and difficulty_pool");
  }
  if (key.find(".curriculum.gates.") == std::string::npos) return std::nullopt;
  if (key.ends_with(".type") && value.is_string() && value.as_string() == "advantage_range")
    return Fate(KeyFate::kNotNeeded, "filters.zero_advantage drops groups without an advantage");
  if (key.ends_with(".reject_min") || key.ends_with(".reject_max"))
    return value.is_number() && value.as_number() == 0
               ? Fate(KeyFate::kNotNeeded, "the value that this program has")
               : Fate(KeyFate::kNotSupported,
                      "a filter drops groups without an advantage, none with a small one");
  return Fate(KeyFate::kNotSupported, "the only gate is advantage_range");
}

std::string pools_text(const PrimeRlValues& values, const std::string& item) {
  if (item.empty() || !draws_from_pools(values, item)) return {};
  std::vector<std::string> parts;
  double least = -kNoReward;
  for (const Pool& pool : pools_of(values, item + std::string(kSampler) + "pools.")) {
    parts.push_back(fmt::format("{{ threshold = {}, weight = {} }}", detail::toml_text(least),
                                detail::toml_text(pool.weight)));
    // A reward at the limit is in the lower pool.
    least = std::nextafter(pool.most, std::numeric_limits<double>::infinity());
  }
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

void write_curriculum(const PrimeRlValues& values, const std::string& item, GraphText& graph,
                      std::vector<std::string>& notes) {
  constexpr std::string_view kTenant = "tenant.main";
  bool has_thresholds = false;
  for (const std::string_view option : kBufferOptions) {
    const auto found = values.find(fmt::format("orchestrator.buffer.{}", option));
    if (found == values.end()) continue;
    graph.set(kTenant, fmt::format("curriculum.{}", option), toml_of(*found->second));
    has_thresholds = has_thresholds || option.ends_with("_threshold");
  }
  const std::string pools = pools_text(values, item);
  if (!pools.empty()) graph.set(kTenant, "curriculum.pools", pools);
  if (pools.empty() && !has_thresholds) return;
  graph.set(kTenant, "curriculum.rows", std::to_string(kRowsStandIn));
  note_rows(notes);
}

std::string curriculum_text(const PrimeRlValues& values, const std::string& item,
                            std::vector<std::string>& notes) {
  const std::string pools = pools_text(values, item);
  if (pools.empty()) return {};
  note_rows(notes);
  return fmt::format("pools = {}, rows = {}", pools, kRowsStandIn);
}

}  // namespace primerl
