/// A stop function that never requests a stop.
#pragma once

namespace primerl::testing {

inline bool never() { return false; }

}  // namespace primerl::testing
