/// The text of worker.py and math_reward.py beside this file. Constant.
#pragma once

#include <string_view>

namespace primerl {

std::string_view python_worker();
std::string_view python_math_reward();

}  // namespace primerl
