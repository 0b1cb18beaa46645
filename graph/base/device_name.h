/// Names of devices that engines and learners compute on. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace primerl {

/// True for "cpu" and "cuda:0" to "cuda:63". It does not check that the machine has the device.
bool is_device_name(std::string_view text);

/// The valid name that "gpu:1", "cuda1" or "GPU" probably means; "" if that is not clear.
std::string meant_device(std::string_view text);

}  // namespace primerl
