/// Writing results and talk, the same way in every command.
#pragma once

#include <string_view>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

/// To stdout, pretty, with a newline.
void print_json(const Json& value);
/// To stdout as it is.
void print_text(std::string_view text);
/// "error: ..." with its notes to stderr; returns `exit_code`.
int fail(const Error& error, int exit_code);

}  // namespace primerl
