/// WorkerProcess: a process with a control channel, from exec to its exit. launch() makes it a
/// child of this process; on another machine its agent does (runtime/control/agent_client.h).
///
/// A worker is made by fork and exec, below a guardian (runtime/control/guardian.h) that ends the
/// worker's remaining processes. The worker gets one end of a socketpair as `--control FD`, a log
/// file as its stderr, and its own process group (Ctrl-C reaches only the launcher). It also gets
/// PR_SET_PDEATHSIG, so it dies with the thread that launched it. Therefore launch from a thread
/// that lives as long as the run, usually the main thread. Only the launcher may declare a worker
/// dead.
///
/// A worker begins with default signal dispositions. SIGINT, SIGTERM and SIGHUP are blocked until
/// it has handlers for them (runtime/program/signals.h).
///
/// Control side:
///   auto inbox = std::make_shared<ControlInbox>();
///   ASSIGN_OR_RETURN(auto worker, WorkerProcess::launch(options, inbox));
///   std::vector<ControlEvent> early;
///   RETURN_IF_ERROR(expect_hello(*worker, *inbox, expected, Duration::seconds(20), early));
///   RETURN_IF_ERROR(worker->control().send(StartRun{}));
///   ... inbox->take(...) until is_closed() ...
///   ASSIGN_OR_RETURN(auto exit, worker->wait(Duration::seconds(5)));
///
/// Not thread-safe, except control(); one owner.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/machine_memory.h"
#include "graph/plan.h"
#include "runtime/transport/control_channel.h"

namespace primerl {

inline constexpr size_t kLastWordsBytes = 4096;

struct LaunchOptions {
  std::filesystem::path program;
  /// Without argv[0]; "--control FD" is appended.
  std::vector<std::string> arguments;
  /// Added to (or replacing in) this process's environment.
  std::vector<std::pair<std::string, std::string>> environment;
  /// The child's stderr (appended) and, unless keep_stdout, its stdout too.
  std::filesystem::path log_file;
  bool keep_stdout = false;
  ProcessId process;
  ControlOptions control;
  /// The root of /proc and /sys, where counts of killed processes are read (machine_memory.h).
  std::filesystem::path memory_root = "/";
};

/// The environment variables of a process of the plan: worker_environment(), then its own.
std::vector<std::pair<std::string, std::string>> process_environment(const PlanProcess& process);

/// How a child ended.
struct ProcessExit {
  int code = 0;    // exit code; -1 when a signal ended it
  int signal = 0;  // 0 when it exited by itself
  /// "for lack of memory: its resident memory was ..., the limit is ..."; "" when it ended for
  /// another reason.
  std::string lack_of_memory{};
  double peak_bytes = 0;  // most resident memory; 0: unknown
  bool is_clean() const { return code == 0; }
  /// Whether the process would end in the same way if it were restarted unchanged.
  bool needs_more_memory() const { return !lack_of_memory.empty(); }
  /// "exited with code 1", "was killed by signal 11 (Segmentation fault)".
  std::string text() const;
};

/// The expected content of the hello. The error of a difference names both values.
struct ExpectedHello {
  uint64_t graph_hash = 0;
  uint64_t types_hash = 0;
  std::string process;
  uint32_t incarnation = 0;
};

/// A worker below a guardian, without its control channel. Not thread-safe; one owner.
class ChildProcess {
 public:
  /// Result of start(): the child, and this end of its control socket, which the caller must close.
  struct Started;
  /// An Error: an unknown program, a log file that cannot be written, or a full process table. If
  /// the program fails later, poll() and last_words() show it.
  static Result<Started> start(const LaunchOptions& options);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  /// Kills the worker and the processes that it started, and waits until all are gone.
  ~ChildProcess();

  /// The worker's process id.
  pid_t pid() const { return worker_; }
  /// Becomes readable when the worker and all processes that it started have ended; -1 if the
  /// kernel has no pidfd.
  int pid_fd() const { return pid_fd_; }
  /// How the worker ended; none until it and all processes that it started have ended. Never waits.
  std::optional<ProcessExit> poll();
  /// Waits for the end; kDeadline after `timeout`.
  Result<ProcessExit> wait(Duration timeout);
  /// Sends SIGKILL to the worker and the processes that it started. Call wait() afterwards to reap
  /// them.
  void kill();
  /// The end of the log file since this start: whole lines, at most `bytes_max` bytes.
  std::string last_words(size_t bytes_max) const;

 private:
  ChildProcess(pid_t guardian, pid_t worker, int status_fd, int log_fd, uint64_t log_start,
               std::filesystem::path memory_root);
  ProcessExit exit_of(int state, double peak_bytes) const;

  const pid_t guardian_;
  const pid_t worker_;
  const int pid_fd_;     // of the guardian
  const int status_fd_;  // the guardian writes the worker's wait status here
  const int log_fd_;
  const uint64_t log_start_;  // size of the log file at the start, in bytes
  const std::filesystem::path memory_root_;
  const std::optional<uint64_t> killed_for_memory_;  // number of processes killed for memory before
                                                     // this one
  bool is_killed_ = false;                           // by kill()
  std::optional<ProcessExit> exit_;
};

struct ChildProcess::Started {
  std::unique_ptr<ChildProcess> child;
  int control_fd = -1;
};

class WorkerProcess {
 public:
  /// Starts a child of this process.
  static Result<std::unique_ptr<WorkerProcess>> launch(const LaunchOptions& options,
                                                       std::shared_ptr<ControlInbox> inbox);
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  /// Kills the process if it still runs, and waits until it is gone.
  virtual ~WorkerProcess() = default;

  ControlChannel& control() { return *control_; }
  ProcessId process() const { return process_; }
  /// The process id on its machine.
  virtual pid_t pid() const = 0;
  /// How the process ended; none while it runs. Never waits.
  virtual std::optional<ProcessExit> poll() = 0;
  /// Waits for the end; kDeadline after `timeout`.
  virtual Result<ProcessExit> wait(Duration timeout) = 0;
  /// Sends SIGKILL. Call wait() afterwards to be sure that it is gone.
  virtual void kill() = 0;
  /// The end of the log file since this launch: whole lines, at most `bytes_max` bytes. It has the
  /// last output of a crashed process. Empty when the process wrote nothing.
  virtual std::string last_words(size_t bytes_max = kLastWordsBytes) const = 0;

 protected:
  explicit WorkerProcess(ProcessId process) : process_(process) {}
  std::unique_ptr<ControlChannel> control_;

 private:
  const ProcessId process_;
};

/// ok, or an Error that names each difference with both values.
Status check_hello(const WorkerHello& hello, const ExpectedHello& expected);

/// Waits for the worker's WorkerHello and compares it. If the worker dies first, the error names
/// its exit and its last log lines. Every other event that arrives meanwhile is appended to
/// `early`, in order: log lines, and events of other workers on the same inbox.
Status expect_hello(WorkerProcess& worker, ControlInbox& inbox, const ExpectedHello& expected,
                    Duration timeout, std::vector<ControlEvent>& early);

}  // namespace primerl
