/// The memory of a device, as whoever places engines and learners there hears of it. A value, in
/// bytes.
#pragma once

namespace primerl {

struct DeviceRoom {
  double free_bytes = 0;  // now; others may take them
  double total_bytes = 0;
};

}  // namespace primerl
