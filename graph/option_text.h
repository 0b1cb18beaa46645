/// Options in words: types, limits and ranges, equal in errors, pages and on the terminal. Plain
/// functions.
#pragma once

#include <string>
#include <string_view>

#include "graph/options.h"

namespace primerl {

/// For example "integer", "duration", "list of strings".
std::string_view type_name(OptionType type);
/// For example "8", "0.25".
std::string number_text(double number);
/// A limit in the form of the option's values: "4MiB" for a size, else the number.
std::string limit_text(OptionType type, double number);
/// constraint_text() of an option; if that is empty, its unit or what it names. May be empty.
std::string range_text(const OptionField& field);

}  // namespace primerl
