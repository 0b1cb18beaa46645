/// Facts about a process, and default signals for a new one. Any thread.
#pragma once

#include <cstdint>

namespace primerl {

/// When process `pid` started, in clock ticks since boot; with it, a process number identifies one
/// process. 0: there is no such process, it has ended, or the system does not say.
int64_t start_ticks(int64_t pid);

/// Gives every signal of this process its default action, also those that its parent ignored and
/// the two (32 and 33) that sigaction() refuses. Async-signal-safe: for a child before exec.
void set_default_signals();

}  // namespace primerl
