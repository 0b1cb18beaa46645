/// The memory of a device, as reported to the code that places engines and learners there. Plain
/// values, in bytes.
#pragma once

#include <string_view>

namespace primerl {

struct DeviceMemoryInfo {
  double free_bytes = 0;  // free now; other processes may use it
  double total_bytes = 0;
};

/// The memory that an engine or a learner needs on a device.
struct DeviceBytes {
  double all = 0;
  /// How many of those bytes are frozen base weights. Engines and learners of one process with the
  /// same model folder and data type share one copy.
  double base = 0;
  std::string_view base_type = "";  // "bfloat16", "float32"
};

}  // namespace primerl
