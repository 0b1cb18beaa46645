/// The guardian of a worker: a process between the launcher and the worker, so that whatever a
/// worker starts (an environment's tools, a plugin's helpers) ends with it.
///
///   launcher -> guardian -> worker -> processes that the worker started
///
/// It is the subreaper of the worker: a process whose parent has died becomes its child, even one
/// with a session of its own. When the worker has exited, the processes that are left get SIGTERM,
/// and SIGKILL after kLeftoverGrace; when a signal killed it, SIGKILL at once. When the launcher
/// dies, or sends guardian_kill_signal(), the guardian kills the worker and then the rest. It exits
/// when no process is left, or kLeftoverMax after the worker: a process that the kernel cannot end
/// (a hung disk) stays.
///
/// The guardian is a fork of a program with threads and never calls exec, so both functions make
/// only async-signal-safe calls. All its signals are blocked: a batch system that sends SIGTERM to
/// every process of a job does not end it before its worker.
///
/// Children are read from /proc/thread-self/children. A kernel without CONFIG_PROC_CHILDREN lacks
/// it; then only the worker's process group is ended.
#pragma once

#include <sys/types.h>

#include "graph/base/clock.h"

namespace primerl {

inline constexpr Duration kLeftoverGrace = Duration::seconds(2);
inline constexpr Duration kLeftoverMax = Duration::seconds(5);

/// How a worker ended, as its guardian writes it.
struct WorkerEnd {
  int32_t wait_status = 0;
  int64_t peak_bytes = 0;  // most resident memory of the worker; 0: not known
};

/// Tells a guardian to kill its worker and all that the worker started.
int guardian_kill_signal();

/// First call in the forked child, with all signals blocked: false when the launcher has died.
bool become_guardian(pid_t launcher);

/// Watches `worker`, a child of this process and leader of its process group, to its end. Closes
/// every descriptor but `status_fd`, writes a WorkerEnd there, and exits.
[[noreturn]] void guard(pid_t worker, pid_t launcher, int status_fd);

}  // namespace primerl
