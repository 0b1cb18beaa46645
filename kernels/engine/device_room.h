/// The memory of a device, as whoever places engines and learners there hears of it. Values, in
/// bytes.
#pragma once

#include <string_view>

namespace primerl {

struct DeviceRoom {
  double free_bytes = 0;  // now; others may take them
  double total_bytes = 0;
};

/// What an engine or a learner needs of a device.
struct DeviceBytes {
  double all = 0;
  /// Of them, of frozen weights: those of one process, folder and type of numbers have one set.
  double base = 0;
  std::string_view base_type = "";  // "bfloat16", "float32"
};

}  // namespace primerl
