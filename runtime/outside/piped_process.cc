#include "runtime/outside/piped_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "graph/base/process.h"

extern char** environ;

namespace primerl {
namespace {

constexpr int kFaultFd = 3;  // in the child: reports why exec failed

struct Pipe {
  Descriptor read, write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return error(Code::kIo, "no pipe for a process: {}", std::strerror(errno));
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

/// The file of a program that PATH has; the name itself if it has a '/'.
Result<std::string> program_file(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (true) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    const std::string file =
        (std::filesystem::path(folder.empty() ? "." : std::string(folder)) / name).string();
    if (::access(file.c_str(), X_OK) == 0) return file;
    if (folder.size() == rest.size()) break;
    rest.remove_prefix(folder.size() + 1);
  }
  return error(Code::kNotFound, "no program '{}' in PATH", name);
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  all.insert(all.end(), variables.begin(), variables.end());
  return all;
}

struct Child {
  const char* program;
  char** arguments;
  char** environment;
  int input, output, errors, fault;
  int go,
      go_end;  // the command begins when a byte has come; the end that only the parent writes to
  pid_t parent;
};

/// Makes only async-signal-safe calls, because other threads may own any lock.
[[noreturn]] void become(const Child& child) {
  // A descriptor below 4 would be overwritten by dup2(): moved above first.
  const int input = ::fcntl(child.input, F_DUPFD, 16), output = ::fcntl(child.output, F_DUPFD, 16);
  const int errors = ::fcntl(child.errors, F_DUPFD, 16), fault = ::fcntl(child.fault, F_DUPFD, 16);
  ::close(child.go_end);
  char byte = 0;
  ssize_t size = 0;
  do size = ::read(child.go, &byte, 1);
  while (size < 0 && errno == EINTR);
  if (size != 1) ::_exit(127);  // the parent has ended
  const bool is_ready = ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == child.parent &&
                        ::setpgid(0, 0) == 0 && ::dup2(input, STDIN_FILENO) >= 0 &&
                        ::dup2(output, STDOUT_FILENO) >= 0 && ::dup2(errors, STDERR_FILENO) >= 0 &&
                        ::dup3(fault, kFaultFd, O_CLOEXEC) >= 0;
  if (is_ready) {
    if (::close_range(kFaultFd + 1, ~0U, 0) != 0)
      for (int fd = kFaultFd + 1; fd < 65536; ++fd) ::close(fd);
    set_default_signals();
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve(child.program, child.arguments, child.environment);
  }
  const int why = errno;
  [[maybe_unused]] const auto written = ::write(is_ready ? kFaultFd : fault, &why, sizeof why);
  ::_exit(127);
}

pid_t fork_child(const Child& child) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become(child);
  const int fault = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = fault;
  return pid;
}

void set_non_blocking(const Descriptor& end) {
  ::fcntl(end.get(), F_SETFL, ::fcntl(end.get(), F_GETFL) | O_NONBLOCK);
}

/// Starts a shell in the process group `group` that reads from `input`, whose other end only this
/// process has. When this process has ended, also by SIGKILL, the shell kills the group, itself
/// included. A member of a group keeps the group's number from being used again.
Result<pid_t> start_guard(pid_t group, const Descriptor& input) {
  std::string shell = "sh", option = "-c", script = "read -r line; kill -9 0";
  char* arguments[] = {shell.data(), option.data(), script.data(), nullptr};
  char* environment[] = {nullptr};
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setpgroup(&attributes, group);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  pid_t pid = 0;
  const int fault = ::posix_spawn(&pid, "/bin/sh", &actions, &attributes, arguments, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (fault != 0) return error(Code::kIo, "no process to watch: {}", std::strerror(fault));
  return pid;
}

/// The error number of a command that could not be executed; 0 if it was.
int fault_of_start(const Descriptor& fault) {
  int why = 0;
  ssize_t size = 0;
  do size = ::read(fault.get(), &why, sizeof why);
  while (size < 0 && errno == EINTR);
  return size == sizeof why ? why : 0;
}

void wait_for(pid_t pid, int& status) {
  pid_t ended = 0;
  do ended = ::waitpid(pid, &status, 0);
  while (ended < 0 && errno == EINTR);
}

}  // namespace

Result<std::unique_ptr<PipedProcess>> PipedProcess::start(
    const std::vector<std::string>& command, const std::vector<std::string>& variables) {
  if (command.empty() || command.front().empty())
    return error(Code::kInvalid, "the command is empty");
  ASSIGN_OR_RETURN(const std::string program, program_file(command.front()));
  ASSIGN_OR_RETURN(Pipe input, make_pipe());
  ASSIGN_OR_RETURN(Pipe output, make_pipe());
  ASSIGN_OR_RETURN(Pipe errors, make_pipe());
  ASSIGN_OR_RETURN(Pipe fault, make_pipe());
  ASSIGN_OR_RETURN(Pipe go, make_pipe());
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = environment_with(variables);
  auto argument_pointers = pointers_to(arguments);
  auto environment_pointers = pointers_to(environment);
  const pid_t pid =
      fork_child({program.c_str(), argument_pointers.data(), environment_pointers.data(),
                  input.read.get(), output.write.get(), errors.write.get(), fault.write.get(),
                  go.read.get(), go.write.get(), ::getpid()});
  if (pid < 0)
    return error(Code::kIo, "no process for '{}': {}", command.front(), std::strerror(errno));
  (void)Descriptor(fault.write.release());
  for (const Descriptor* end : {&input.write, &output.read, &errors.read}) set_non_blocking(*end);
  std::unique_ptr<PipedProcess> process(new PipedProcess(
      pid, std::move(input.write), std::move(output.read), std::move(errors.read)));
  (void)::setpgid(pid, pid);  // the guard joins this group
  ASSIGN_OR_RETURN(Pipe life, make_pipe());
  ASSIGN_OR_RETURN(process->guard_, start_guard(pid, life.read));
  process->life_ = std::move(life.write);
  // Only now does the command begin: whatever it starts has a guard.
  const char byte = 1;
  [[maybe_unused]] const auto written = ::write(go.write.get(), &byte, 1);
  if (const int why = fault_of_start(fault.read); why != 0)
    return error(Code::kIo, "'{}' cannot be started: {}", program, std::strerror(why));
  return process;
}

PipedProcess::~PipedProcess() { kill(); }

bool PipedProcess::has_ended() {
  if (has_ended_) return true;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_)
    kill();
  return has_ended_;
}

void PipedProcess::kill() {
  if (has_ended_) return;
  // Until the process is reaped its number belongs to it, and so does that of its group. The group
  // may have processes that the command has left behind.
  (void)::kill(-pid_, SIGKILL);
  (void)::kill(pid_, SIGKILL);
  int status = 0;
  if (guard_ > 0) {
    (void)::kill(guard_, SIGKILL);
    wait_for(guard_, status);
  }
  wait_for(pid_, status);
  note_end(status);
}

void PipedProcess::note_end(int wait_status) {
  has_ended_ = true;
  end_text_ = WIFSIGNALED(wait_status)
                  ? fmt::format("was killed by signal {} ({})", WTERMSIG(wait_status),
                                ::strsignal(WTERMSIG(wait_status)))
                  : fmt::format("exited with code {}", WEXITSTATUS(wait_status));
}

}  // namespace primerl
