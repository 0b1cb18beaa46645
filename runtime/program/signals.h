/// Signals that do not end this program. Each gets a handler that does nothing, and not SIG_IGN:
/// exec resets a handler to the default, but what is ignored stays ignored in every program that
/// this one starts. For the same reason nothing is blocked.
#pragma once

namespace primerl {

/// A file that reaches a limit of its size (SIGXFSZ) is then an error of write(), as a full disk
/// is.
void report_file_limits();

/// For programs that outlive their terminal: when a reader of stdout or stderr goes away (SIGPIPE),
/// the output is lost and the program continues.
void outlive_readers();

/// For a worker: SIGINT, SIGTERM and SIGHUP are for the control plane, or the agent, to answer.
/// Blocked ones, as the launcher leaves them, are unblocked in the calling thread: call it before
/// starting any.
void leave_ending_to_launcher();

}  // namespace primerl
