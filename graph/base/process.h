/// What the operating system says of a process. Any thread.
#pragma once

#include <cstdint>

namespace primerl {

/// When process `pid` was started, in clock ticks since the boot: with it a process number names
/// one process. 0: there is none, or it has ended, or the system does not tell.
int64_t start_ticks(int64_t pid);

}  // namespace primerl
