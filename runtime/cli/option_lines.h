/// Options as `actors` and `options` show them: lines for a terminal, and JSON.
#pragma once

#include <string>

#include "graph/base/json.h"
#include "graph/options.h"

namespace primerl {

/// One line per option; options of nested tables are "sampling.top_p":
///
///   group_size = 8  # integer, from 1 to 65536 rollouts: rollouts of one task
std::string option_lines(const OptionSet& set, const std::string& prefix = "");

/// One object per option: name, type, default, range, unit, doc. Nested tables list theirs in
/// "options".
Json options_json(const OptionSet& set);

}  // namespace primerl
