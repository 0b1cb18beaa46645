/// A reward of 1 when the last number of the last turn equals the last number of the task's answer,
/// within a tolerance, else 0.
///
/// A number is `-12`, `1,234.5`, `.5` or `6e3`; a `$` before it and a `.` after it do not count.
/// So `... #### 1,234` of a row is 1234.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "actors/env/reward.h"

namespace primerl {

struct NumberOptions {
  double tolerance = 1e-6;  // absolute, or relative to the answer; the larger one counts
};

/// The last number of a text; none if it has none.
std::optional<double> last_number(std::string_view text);

OptionSet number_options();
Result<std::unique_ptr<Reward>> make_number(const NumberOptions& options);

}  // namespace primerl
