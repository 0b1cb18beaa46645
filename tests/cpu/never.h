/// A stop that nobody requests.
#pragma once

namespace primerl::testing {

inline bool never() { return false; }

}  // namespace primerl::testing
