/// Facts that the operating system knows about a process. Any thread.
#pragma once

#include <cstdint>

namespace primerl {

/// When process `pid` started, in clock ticks since boot; with it, a process number identifies one
/// process. 0: there is no such process, it has ended, or the system does not say.
int64_t start_ticks(int64_t pid);

}  // namespace primerl
