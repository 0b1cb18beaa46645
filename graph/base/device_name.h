/// Names of devices that engines and learners compute on. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace primerl {

/// "cpu", or "cuda:0" to "cuda:63"; whether a machine has it is another question.
bool is_device_name(std::string_view text);

/// What "gpu:1", "cuda1" or "GPU" was meant to be; "" where that is not clear.
std::string meant_device(std::string_view text);

}  // namespace primerl
