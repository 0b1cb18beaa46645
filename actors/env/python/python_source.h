/// The texts of the Python files beside this file. Constant.
#pragma once

#include <string_view>

namespace primerl {

std::string_view python_worker();
/// Starts verifiers servers and gives their tasks.
std::string_view python_verifiers_server();

/// A file that worker.py runs: its name, a line end, and its text.
std::string_view python_math_reward();
std::string_view python_gymnasium_environment();
std::string_view python_skyrl_environment();
std::string_view python_mcp_environment();

/// The file that mcp_environment.py loads, in the same form.
std::string_view python_mcp_http();

}  // namespace primerl
