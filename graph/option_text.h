/// Options in words: types, limits and ranges, the same in errors, pages and on the terminal. Plain
/// functions.
#pragma once

#include <string>
#include <string_view>

#include "graph/options.h"

namespace primerl {

/// "integer", "duration", "list of strings".
std::string_view type_name(OptionType type);
/// "8", "0.25".
std::string number_text(double number);
/// A limit as a reader compares it with what was written: of a size "4MiB", else the number.
std::string limit_text(OptionType type, double number);
/// constraint_text() of an option, or where that is empty its unit or what it names; may be empty.
std::string range_text(const OptionField& field);

}  // namespace primerl
