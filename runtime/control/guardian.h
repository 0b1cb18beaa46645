/// The guardian of a worker: a process between the launcher and the worker. It makes every process
/// that the worker starts (an environment's tools, a plugin's helpers) end with the worker.
///
///   launcher -> guardian -> worker -> processes that the worker started
///
/// The guardian is the subreaper of the worker: a process whose parent has died becomes its child,
/// even if that process has its own session. When the worker has exited, the remaining processes
/// get SIGTERM, and SIGKILL after kLeftoverGrace. If a signal killed the worker, they get SIGKILL
/// at once. When the launcher dies, or sends guardian_kill_signal(), the guardian kills the worker
/// and then the other processes. It exits when no process is left, or kLeftoverMax after the
/// worker. A process that the kernel cannot end (a hung disk) is left behind.
///
/// The guardian is a fork of a program with threads and never calls exec, so both functions make
/// only async-signal-safe calls. All its signals are blocked. So a batch system that sends SIGTERM
/// to every process of a job does not end the guardian before its worker.
///
/// Children are read from /proc/thread-self/children. A kernel without CONFIG_PROC_CHILDREN has no
/// such file; then only the worker's process group is ended.
#pragma once

#include <sys/types.h>

#include "graph/base/clock.h"

namespace primerl {

inline constexpr Duration kLeftoverGrace = Duration::seconds(2);
inline constexpr Duration kLeftoverMax = Duration::seconds(5);

/// How a worker ended. Its guardian writes this value.
struct WorkerEnd {
  int32_t wait_status = 0;
  int64_t peak_bytes = 0;  // most resident memory of the worker; 0: unknown
};

/// The signal that makes a guardian kill its worker and all processes that the worker started.
int guardian_kill_signal();

/// Must be the first call in the forked child, with all signals blocked. False: the launcher has
/// died.
bool become_guardian(pid_t launcher);

/// Watches `worker` until it ends. `worker` must be a child of this process and the leader of its
/// process group. Closes every descriptor except `status_fd`, writes a WorkerEnd there, and exits.
[[noreturn]] void guard(pid_t worker, pid_t launcher, int status_fd);

}  // namespace primerl
