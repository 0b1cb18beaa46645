/// The version of the program, for clients that ask GET /version.
#pragma once

#include <string>

namespace primerl {

std::string program_version();

}  // namespace primerl
