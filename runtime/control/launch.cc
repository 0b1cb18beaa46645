#include "runtime/control/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "graph/base/descriptor.h"
#include "graph/base/process.h"
#include "graph/base/real_clock.h"
#include "runtime/control/guardian.h"
#include "runtime/program/allocator_settings.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/programs.h"

extern char** environ;

namespace primerl {
namespace {

using Clock = std::chrono::steady_clock;

Error system_error(std::string_view what) {
  return error(Code::kIo, "{}: {}", what, std::strerror(errno));
}

/// argv or envp: pointers into the strings that it owns.
struct Words {
  explicit Words(std::vector<std::string> list) : strings(std::move(list)) {
    for (auto& text : strings) pointers.push_back(text.data());
    pointers.push_back(nullptr);
  }
  std::vector<std::string> strings;
  std::vector<char*> pointers;
};

std::vector<std::string> merged_environment(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto name = text.substr(0, text.find('='));
    const bool is_replaced = std::any_of(added.begin(), added.end(),
                                         [name](const auto& pair) { return pair.first == name; });
    if (!is_replaced) merged.emplace_back(text);
  }
  for (const auto& [name, value] : added) merged.push_back(name + "=" + value);
  return merged;
}

/// Everything that the child needs between fork and exec, where allocation is forbidden.
struct ChildSetup {
  const char* program;
  char** arguments;
  char** environment;
  int control_fd;
  int log_fd;
  int null_fd;
  int fault_fd;   // closes at exec; carries errno when exec fails
  int status_fd;  // the guardian writes the worker's pid here, then its wait status
  bool keep_stdout;
  pid_t launcher;
};

[[noreturn]] void write_fault(const ChildSetup& setup) {
  const int fault = errno;
  [[maybe_unused]] const auto written = ::write(setup.fault_fd, &fault, sizeof fault);
  ::_exit(127);
}

/// Sets default dispositions, even for signals that the launcher ignores. A batch system sends
/// SIGTERM to every process of a job, but only the control plane or the agent may react, with a
/// drain. So these signals stay blocked until the worker has installed handlers. exec resets
/// handlers in the programs that the worker starts.
void reset_signals() {
  set_default_signals();
  sigset_t blocked;
  ::sigemptyset(&blocked);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&blocked, signal);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

/// Makes only async-signal-safe calls, because other threads of the launcher may have held any
/// lock.
[[noreturn]] void become_worker(const ChildSetup& setup, pid_t guardian) {
  // Closes descriptors that another thread has just opened. A socket in the child would stay open
  // after this process ends. Kernels before 5.11 keep descriptors that were opened without
  // O_CLOEXEC.
  (void)::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  const bool is_ready = ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == guardian &&
                        ::setpgid(0, 0) == 0 && ::dup2(setup.null_fd, STDIN_FILENO) >= 0 &&
                        ::dup2(setup.log_fd, STDERR_FILENO) >= 0 &&
                        (setup.keep_stdout || ::dup2(setup.log_fd, STDOUT_FILENO) >= 0) &&
                        ::fcntl(setup.control_fd, F_SETFD, 0) == 0;
  if (is_ready) {
    reset_signals();
    ::execve(setup.program, setup.arguments, setup.environment);
  }
  write_fault(setup);
}

/// fork() without the fork handlers of libraries, which may take locks.
pid_t plain_fork() {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
  return ::_Fork();
#else
  return ::fork();
#endif
}

/// Makes only async-signal-safe calls.
[[noreturn]] void become_guardian_of_worker(const ChildSetup& setup) {
  if (!become_guardian(setup.launcher)) write_fault(setup);
  const pid_t guardian = ::getpid();
  const pid_t worker = plain_fork();
  if (worker < 0) write_fault(setup);
  if (worker == 0) become_worker(setup, guardian);
  (void)::setpgid(worker, worker);  // before any process signals the group
  [[maybe_unused]] const auto written = ::write(setup.status_fd, &worker, sizeof worker);
  guard(worker, setup.launcher, setup.status_fd);
}

/// Forks with all signals blocked, so that no handler of this process runs in the child.
pid_t fork_guardian(const ChildSetup& setup) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become_guardian_of_worker(setup);
  const int fault = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = fault;
  return pid;
}

/// Reads a value that the child writes; none when it closed the pipe without one.
template <class T>
std::optional<T> read_from(int fd) {
  T value{};
  ssize_t num_read = 0;
  do num_read = ::read(fd, &value, sizeof value);
  while (num_read < 0 && errno == EINTR);
  if (num_read != sizeof value) return std::nullopt;
  return value;
}

int pid_descriptor(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

int milliseconds_until(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 60'000));
}

Error error_of_early_death(WorkerProcess& worker, const ControlEvent& event) {
  const auto exit = worker.wait(kLeftoverMax + Duration::seconds(2));
  std::string how = exit.ok() ? exit->text() : "closed its control channel";
  if (!event.closed.ok()) how += fmt::format(" ({})", event.closed.error().message());
  auto fault = error(Code::kUnavailable, "the worker {} before it was ready", how);
  const auto words = worker.last_words();
  if (!words.empty()) return std::move(fault).note("its last words:\n" + words);
  return fault;
}

/// A child of this process.
class LocalWorker final : public WorkerProcess {
 public:
  LocalWorker(ProcessId process, std::unique_ptr<ChildProcess> child,
              std::unique_ptr<ControlChannel> control)
      : WorkerProcess(process), child_(std::move(child)) {
    control_ = std::move(control);
  }
  ~LocalWorker() override { control_->close(); }

  pid_t pid() const override { return child_->pid(); }
  std::optional<ProcessExit> poll() override { return child_->poll(); }
  Result<ProcessExit> wait(Duration timeout) override { return child_->wait(timeout); }
  void kill() override { child_->kill(); }
  std::string last_words(size_t bytes_max) const override { return child_->last_words(bytes_max); }

 private:
  const std::unique_ptr<ChildProcess> child_;
};

}  // namespace

std::string ProcessExit::text() const {
  if (signal != 0)
    return fmt::format("was killed by signal {} ({}){}{}", signal, ::strsignal(signal),
                       lack_of_memory.empty() ? "" : " ", lack_of_memory);
  return fmt::format("exited with code {}{}", code,
                     code == kExitDeviceLost ? " (its device was lost)" : "");
}

Result<ChildProcess::Started> ChildProcess::start(const LaunchOptions& options) {
  Words environment_words(merged_environment(options.environment));
  RETURN_IF_ERROR(check_allocator_settings(environment_words.strings));
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0)
    return system_error("no socketpair for a worker");
  Descriptor ours(sockets[0]);
  const Descriptor theirs(sockets[1]);
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) < 0) return system_error("no pipe for a worker");
  const Descriptor fault_read(pipe_fds[0]);
  Descriptor fault_write(pipe_fds[1]);
  if (::pipe2(pipe_fds, O_CLOEXEC) < 0) return system_error("no pipe for a worker");
  Descriptor status_read(pipe_fds[0]);
  Descriptor status_write(pipe_fds[1]);
  // Follows no symlink, and does not block on a pipe that has no reader.
  Descriptor log(::open(options.log_file.c_str(),
                        O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (log.get() < 0)
    return system_error(
        fmt::format("the log file '{}' cannot be opened", options.log_file.string()));
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null.get() < 0) return system_error("'/dev/null' cannot be opened");
  struct stat log_facts {};
  if (::fstat(log.get(), &log_facts) != 0 || !S_ISREG(log_facts.st_mode))
    return error(Code::kInvalid, "the log file '{}' is no plain file", options.log_file.string());

  std::vector<std::string> arguments = {options.program.string()};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  arguments.insert(arguments.end(), {"--control", std::to_string(theirs.get())});
  Words argument_words(std::move(arguments));
  const ChildSetup setup{options.program.c_str(),
                         argument_words.pointers.data(),
                         environment_words.pointers.data(),
                         theirs.get(),
                         log.get(),
                         null.get(),
                         fault_write.get(),
                         status_write.get(),
                         options.keep_stdout,
                         ::getpid()};
  const pid_t guardian = fork_guardian(setup);
  if (guardian < 0) return system_error("no process for a worker");
  ::close(fault_write.release());
  ::close(status_write.release());
  const auto worker = read_from<pid_t>(status_read.get());
  if (const auto fault = read_from<int>(fault_read.get()); fault || !worker) {
    ::waitpid(guardian, nullptr, 0);
    if (!fault) return error(Code::kIo, "the process that guards a worker has died");
    return error(Code::kIo, "the worker program '{}' cannot be started: {}",
                 options.program.string(), std::strerror(*fault));
  }
  Started started;
  started.child.reset(new ChildProcess(guardian, *worker, status_read.release(), log.release(),
                                       static_cast<uint64_t>(log_facts.st_size),
                                       options.memory_root));
  started.control_fd = ours.release();
  return started;
}

ChildProcess::ChildProcess(pid_t guardian, pid_t worker, int status_fd, int log_fd,
                           uint64_t log_start, std::filesystem::path memory_root)
    : guardian_(guardian),
      worker_(worker),
      pid_fd_(pid_descriptor(guardian)),
      status_fd_(status_fd),
      log_fd_(log_fd),
      log_start_(log_start),
      memory_root_(std::move(memory_root)),
      killed_for_memory_(num_killed_for_memory(memory_root_)) {}

ChildProcess::~ChildProcess() {
  if (!poll()) {
    kill();
    int state = 0;
    while (::waitpid(guardian_, &state, 0) < 0 && errno == EINTR) {
    }
  }
  if (pid_fd_ >= 0) ::close(pid_fd_);
  ::close(status_fd_);
  ::close(log_fd_);
}

std::optional<ProcessExit> ChildProcess::poll() {
  if (exit_) return exit_;
  int state = 0;
  pid_t waited = 0;
  struct rusage usage {};  // the largest of the guardian's and its children's
  do waited = ::wait4(guardian_, &state, WNOHANG, &usage);
  while (waited < 0 && errno == EINTR);
  if (waited != guardian_) return std::nullopt;
  // A guardian that was itself killed has written nothing; then its own end stands for the
  // worker's.
  if (const auto told = read_from<WorkerEnd>(status_fd_)) state = told->wait_status;
  exit_ = exit_of(state, 1024.0 * static_cast<double>(usage.ru_maxrss));
  return exit_;
}

ProcessExit ChildProcess::exit_of(int state, double peak_bytes) const {
  if (!WIFSIGNALED(state)) return {.code = WEXITSTATUS(state), .peak_bytes = peak_bytes};
  ProcessExit exit{.code = -1, .signal = WTERMSIG(state), .peak_bytes = peak_bytes};
  if (exit.signal == SIGKILL && !is_killed_)
    exit.lack_of_memory =
        why_killed_for_memory(killed_for_memory_, num_killed_for_memory(memory_root_), peak_bytes,
                              memory_limit(memory_root_));
  return exit;
}

Result<ProcessExit> ChildProcess::wait(Duration timeout) {
  const auto deadline = deadline_after(timeout);
  while (true) {
    if (const auto exit = poll()) return *exit;
    const int left_ms = milliseconds_until(deadline);
    if (left_ms == 0 || Clock::now() >= deadline)
      return error(Code::kDeadline, "process {} has not ended within {}", worker_,
                   to_string(timeout));
    // Without pidfd: check again every few milliseconds.
    pollfd polled{pid_fd_, POLLIN, 0};
    ::poll(&polled, 1, pid_fd_ >= 0 ? left_ms : std::min(left_ms, 5));
  }
}

void ChildProcess::kill() {
  if (poll()) return;
  is_killed_ = true;
  ::kill(guardian_, guardian_kill_signal());
}

std::string ChildProcess::last_words(size_t bytes_max) const {
  // Size of the file that was opened, even if another file has its name now.
  struct stat facts {};
  if (::fstat(log_fd_, &facts) != 0) return {};
  const auto size = static_cast<uint64_t>(facts.st_size);
  if (size <= log_start_) return {};
  const uint64_t num_bytes = std::min<uint64_t>(size - log_start_, bytes_max);
  std::string text(num_bytes, '\0');
  const auto num_read =
      ::pread(log_fd_, text.data(), text.size(), static_cast<off_t>(size - num_bytes));
  text.resize(static_cast<size_t>(std::max<ssize_t>(num_read, 0)));
  // Drops the first line if its begin is missing.
  if (num_bytes < size - log_start_) {
    if (const auto line_end = text.find('\n'); line_end + 1 < text.size())
      text.erase(0, line_end + 1);
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> process_environment(const PlanProcess& process) {
  auto environment = worker_environment(process.variables);
  for (const auto& variable : process.variables) {
    const size_t name_end = variable.find('=');
    environment.emplace_back(variable.substr(0, name_end), variable.substr(name_end + 1));
  }
  return environment;
}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::launch(const LaunchOptions& options,
                                                             std::shared_ptr<ControlInbox> inbox) {
  ASSIGN_OR_RETURN(auto started, ChildProcess::start(options));
  ASSIGN_OR_RETURN(auto control, ControlChannel::open(started.control_fd, options.process,
                                                      std::move(inbox), options.control));
  return std::unique_ptr<WorkerProcess>(
      std::make_unique<LocalWorker>(options.process, std::move(started.child), std::move(control)));
}

Status check_hello(const WorkerHello& hello, const ExpectedHello& expected) {
  const auto differs = [](std::string_view what, const auto& theirs, const auto& ours) {
    return error(Code::kInvalid, "the worker's {} is '{}', expected '{}'", what, theirs, ours)
        .note("are primerl-graph and primerl-worker of the same build?");
  };
  if (hello.control_version != kControlVersion)
    return differs("control version", hello.control_version, kControlVersion);
  if (hello.wire_version != kFrameVersion)
    return differs("wire version", hello.wire_version, kFrameVersion);
  if (hello.types_hash != expected.types_hash)
    return differs("message table", fmt::format("{:016x}", hello.types_hash),
                   fmt::format("{:016x}", expected.types_hash));
  if (hello.graph_hash != expected.graph_hash)
    return differs("graph hash", fmt::format("{:016x}", hello.graph_hash),
                   fmt::format("{:016x}", expected.graph_hash));
  if (hello.process != expected.process) return differs("process", hello.process, expected.process);
  if (hello.incarnation != expected.incarnation)
    return differs("incarnation", hello.incarnation, expected.incarnation);
  return ok();
}

Status expect_hello(WorkerProcess& worker, ControlInbox& inbox, const ExpectedHello& expected,
                    Duration timeout, std::vector<ControlEvent>& early) {
  const auto deadline = deadline_after(timeout);
  while (true) {
    const auto left = Duration::milliseconds(milliseconds_until(deadline));
    auto event = inbox.take(left);
    if (!event) {
      if (Clock::now() < deadline) continue;
      return error(Code::kDeadline, "the worker '{}' sent nothing within {}", expected.process,
                   to_string(timeout));
    }
    const bool is_ours = event->peer == worker.process();
    if (is_ours && event->is_closed()) return error_of_early_death(worker, *event);
    if (is_ours) {
      if (const auto* hello = as_if<WorkerHello>(event->message))
        return check_hello(*hello, expected);
    }
    early.push_back(std::move(*event));
  }
}

}  // namespace primerl
