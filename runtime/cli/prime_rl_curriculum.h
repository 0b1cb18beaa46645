/// The curricula of a prime-rl configuration, for `import`: `orchestrator.buffer` of 0.4 and 0.5,
/// and `sampler` and `gates` of an item of `[[orchestrator.train.source]]`. Pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/value.h"
#include "runtime/cli/prime_rl_keys.h"
#include "runtime/cli/prime_rl_text.h"

namespace primerl {

/// Values of the file by key, in the spelling of the key table.
using PrimeRlValues = std::map<std::string, const Value*>;

/// The fate of a key of `sampler` or `gates` if it depends on the value; none: that of its rule.
std::optional<std::pair<KeyFate, std::string>> fate_of_curriculum(const std::string& key,
                                                                  const Value& value);

/// `pools` as TOML, of the item "orchestrator.train.env[0]"; empty: it draws its tasks in order.
/// prime-rl states the largest reward of a pool, a graph the smallest.
std::string pools_text(const PrimeRlValues& values, const std::string& item);

/// Writes `curriculum` of the tenant, with the pools of `item` unless it is empty, and a note that
/// the number of rows is not in the file.
void write_curriculum(const PrimeRlValues& values, const std::string& item, GraphText& graph,
                      std::vector<std::string>& notes);

/// `curriculum` of an item of `environments`, as TOML; empty: none.
std::string curriculum_text(const PrimeRlValues& values, const std::string& item,
                            std::vector<std::string>& notes);

}  // namespace primerl
