#include "runtime/program/program_output.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>

#include "graph/base/descriptor.h"
#include "graph/base/real_clock.h"

extern char** environ;

namespace primerl {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

// Interval for checking a program that closed its output but has not ended.
constexpr int kLookMs = 5;
constexpr Duration kKilledWaitMax = Duration::seconds(1);

int milliseconds_left(TimePoint deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

/// A child of this process, until it is reaped.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  /// Kills the child. A child that a driver blocks may not end even then; it is not waited for.
  ~Child() {
    if (state_.has_value()) return;
    ::kill(pid_, SIGKILL);
    static_cast<void>(wait(deadline_after(kKilledWaitMax)));
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Its state from waitpid(); none: it had not ended at the deadline.
  std::optional<int> wait(TimePoint deadline) {
    for (;;) {
      int state = 0;
      if (::waitpid(pid_, &state, WNOHANG) == pid_) state_ = state;
      const int left_ms = milliseconds_left(deadline);
      if (state_.has_value() || left_ms == 0) return state_;
      ::poll(nullptr, 0, std::min(left_ms, kLookMs));
    }
  }

 private:
  const pid_t pid_;
  std::optional<int> state_;
};

/// Starts the program. Returns 0, or the errno when it cannot be started.
int start(const std::string& program, const std::vector<std::string>& arguments, int output,
          int errors, pid_t& pid) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  const int fault =
      ::posix_spawn(&pid, program.c_str(), &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return fault;
}

/// The read end of a pipe that a program writes to, and the text so far.
struct Heard {
  Descriptor from;
  std::string& text;

  /// Reads the available bytes; false: the other end is closed.
  bool read_some() {
    char block[4096];
    const ssize_t count = ::read(from.get(), block, sizeof block);
    if (count < 0) return errno == EINTR;
    text.append(block, std::min(static_cast<size_t>(count), kProgramTextMax - text.size()));
    return count > 0;
  }
};

/// Reads until both other ends are closed; false: they were not closed at the deadline.
bool read_all(Heard (&streams)[2], TimePoint deadline) {
  pollfd polled[2] = {{streams[0].from.get(), POLLIN, 0}, {streams[1].from.get(), POLLIN, 0}};
  while (polled[0].fd >= 0 || polled[1].fd >= 0) {
    const int ready = ::poll(polled, 2, milliseconds_left(deadline));
    if (ready == 0) return false;
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return true;
    for (int i = 0; i < 2; ++i)  // poll() ignores negative descriptors
      if (polled[i].revents != 0 && !streams[i].read_some()) polled[i].fd = -1;
  }
  return true;
}

void drop_line_ends(std::string& text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
}

}  // namespace

Result<ProgramOutput> output_of(const std::filesystem::path& program,
                                const std::vector<std::string>& arguments, Duration most) {
  const auto deadline = deadline_after(most);
  ProgramOutput output;
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) < 0)
    return error(Code::kIo, "no pipe for '{}': {}", program.string(), std::strerror(errno));
  Descriptor out_theirs(out[1]);
  Heard streams[2] = {{Descriptor(out[0]), output.out}, {Descriptor(), output.err}};
  if (::pipe2(err, O_CLOEXEC) < 0)
    return error(Code::kIo, "no pipe for '{}': {}", program.string(), std::strerror(errno));
  Descriptor err_theirs(err[1]);
  streams[1].from = Descriptor(err[0]);
  pid_t pid = -1;
  const int fault = start(program.string(), arguments, out_theirs.get(), err_theirs.get(), pid);
  if (fault != 0)
    return error(Code::kIo, "'{}' cannot be started: {}", program.string(), std::strerror(fault));
  Child child(pid);
  out_theirs.close();
  err_theirs.close();
  std::optional<int> state;
  if (read_all(streams, deadline)) state = child.wait(deadline);
  drop_line_ends(output.out);
  drop_line_ends(output.err);
  if (!state.has_value())
    return error(Code::kDeadline, "'{}' has not ended within {}, and was killed{}",
                 program.string(), to_string(most),
                 output.why().empty() ? "" : "; it had said: " + output.why());
  if (WIFEXITED(*state)) output.exit_code = WEXITSTATUS(*state);
  return output;
}

}  // namespace primerl
