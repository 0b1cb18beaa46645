/// WorkerProcess: a process with a control channel, from exec to its exit. launch() makes it a
/// child of this process; on another machine its agent does (runtime/control/agent_client.h).
///
/// A worker is made by fork and exec, below a guardian (runtime/control/guardian.h) that ends what
/// it leaves behind. It gets one end of a socketpair as `--control FD`, a log file as its stderr, a
/// process group of its own (Ctrl-C reaches only the launcher), and PR_SET_PDEATHSIG, so that it
/// cannot outlive the thread that launched it: launch from a thread that lives as long as the run,
/// usually the main one. Only the launcher may declare a worker dead.
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
/// Not thread-safe but for control(); one owner.
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
  double peak_bytes = 0;  // most resident memory; 0: not known
  bool is_clean() const { return code == 0; }
  /// Started again as it was, it would end in the same way.
  bool needs_more_memory() const { return !lack_of_memory.empty(); }
  /// "exited with code 1", "was killed by signal 11 (Segmentation fault)".
  std::string text() const;
};

/// What the hello must contain; the error of a difference names both values.
struct ExpectedHello {
  uint64_t graph_hash = 0;
  uint64_t types_hash = 0;
  std::string process;
  uint32_t incarnation = 0;
};

/// A worker below a guardian, without its control channel. Not thread-safe; one owner.
class ChildProcess {
 public:
  /// What start() gives: the child, and this end of its control socket, the caller's to close.
  struct Started;
  /// An unknown program, an unwritable log file or a full process table is an error here; a program
  /// that fails later shows in poll() and last_words().
  static Result<Started> start(const LaunchOptions& options);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  /// Kills the worker and what it started, and waits until all are gone.
  ~ChildProcess();

  /// The worker's.
  pid_t pid() const { return worker_; }
  /// Readable once the worker and what it started have ended; -1 where the kernel has no pidfd.
  int pid_fd() const { return pid_fd_; }
  /// Whether, and how, it has ended, and what it started too; never waits.
  std::optional<ProcessExit> poll();
  /// Waits for the end; kDeadline after `timeout`.
  Result<ProcessExit> wait(Duration timeout);
  /// SIGKILL, for what it started too. wait() afterwards to reap.
  void kill();
  /// The end of the log file since this start, at most `bytes_max`, whole lines.
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
  const uint64_t log_start_;  // bytes that were in the log file before
  const std::filesystem::path memory_root_;
  const std::optional<uint64_t> killed_for_memory_;  // processes, before this one
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
  /// On its machine.
  virtual pid_t pid() const = 0;
  /// Whether, and how, it has ended; never waits.
  virtual std::optional<ProcessExit> poll() = 0;
  /// Waits for the end; kDeadline after `timeout`.
  virtual Result<ProcessExit> wait(Duration timeout) = 0;
  /// SIGKILL. wait() afterwards to know that it is gone.
  virtual void kill() = 0;
  /// The end of the log file since this launch, at most `bytes_max`, whole lines: the last output
  /// of a crashed process. Empty when it wrote nothing.
  virtual std::string last_words(size_t bytes_max = kLastWordsBytes) const = 0;

 protected:
  explicit WorkerProcess(ProcessId process) : process_(process) {}
  std::unique_ptr<ControlChannel> control_;

 private:
  const ProcessId process_;
};

/// ok, or an Error that names what differs, with both values.
Status check_hello(const WorkerHello& hello, const ExpectedHello& expected);

/// Waits for the worker's WorkerHello and compares it. The error of a worker that dies first names
/// its exit and its last words. Every other event that arrives meanwhile (log lines, events of
/// other workers on the same inbox) is put into `early`, in order.
Status expect_hello(WorkerProcess& worker, ControlInbox& inbox, const ExpectedHello& expected,
                    Duration timeout, std::vector<ControlEvent>& early);

}  // namespace primerl
