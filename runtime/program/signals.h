/// Signals that do not end this program. Each gets a handler that does nothing, not SIG_IGN: exec
/// resets a handler to the default, but an ignored signal stays ignored in every program that this
/// one starts. For the same reason no signal is blocked.
#pragma once

namespace primerl {

/// When a file reaches its size limit (SIGXFSZ), write() returns an error, as for a full disk.
void report_file_limits();

/// For programs that continue when their terminal closes. When a reader of stdout or stderr closes
/// (SIGPIPE), the output is lost and the program continues.
void outlive_readers();

/// For a worker: only the control plane, or the agent, reacts to SIGINT, SIGTERM and SIGHUP.
/// Unblocks them in the calling thread, because the launcher leaves them blocked. Call it before
/// starting any thread.
void leave_ending_to_launcher();

}  // namespace primerl
