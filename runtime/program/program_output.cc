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

constexpr int kLookMs = 5;  // at a program that has closed what we read and not ended
constexpr Duration kKilledWaitMax = Duration::seconds(1);

int milliseconds_left(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

/// A child of this process, until it is reaped.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  /// Killed. One that a driver holds may not end even so: nobody waits for it then.
  ~Child() {
    if (state_.has_value()) return;
    ::kill(pid_, SIGKILL);
    static_cast<void>(wait(deadline_after(kKilledWaitMax)));
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Its state as waitpid() has it; nothing: it has not ended by then.
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

/// 0, or the errno of why it cannot be started.
int start(const std::string& program, const std::vector<std::string>& arguments, int output,
          pid_t& pid) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  const int fault =
      ::posix_spawn(&pid, program.c_str(), &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return fault;
}

/// Reads until the other end is closed; false: it was not by then.
bool read_all(int from, TimePoint deadline, std::string& text) {
  char block[4096];
  for (;;) {
    pollfd polled{from, POLLIN, 0};
    const int ready = ::poll(&polled, 1, milliseconds_left(deadline));
    if (ready == 0) return false;
    if (ready < 0 && errno == EINTR) continue;
    const ssize_t count = ready < 0 ? -1 : ::read(from, block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    const size_t room = kProgramTextMax - text.size();
    text.append(block, std::min(static_cast<size_t>(count), room));
  }
}

}  // namespace

Result<ProgramOutput> output_of(const std::filesystem::path& program,
                                const std::vector<std::string>& arguments, Duration most) {
  const auto deadline = deadline_after(most);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0)
    return error(Code::kIo, "no pipe for '{}': {}", program.string(), std::strerror(errno));
  const Descriptor ours(ends[0]);
  Descriptor theirs(ends[1]);
  pid_t pid = -1;
  if (const int fault = start(program.string(), arguments, theirs.get(), pid); fault != 0)
    return error(Code::kIo, "'{}' cannot be started: {}", program.string(), std::strerror(fault));
  Child child(pid);
  theirs.close();
  ProgramOutput output;
  std::optional<int> state;
  if (read_all(ours.get(), deadline, output.text)) state = child.wait(deadline);
  while (!output.text.empty() && output.text.back() == '\n') output.text.pop_back();
  if (!state.has_value())
    return error(Code::kDeadline, "'{}' has not ended within {}, and was killed{}",
                 program.string(), to_string(most),
                 output.text.empty() ? "" : "; it had said: " + output.text);
  if (WIFEXITED(*state)) output.exit_code = WEXITSTATUS(*state);
  return output;
}

}  // namespace primerl
