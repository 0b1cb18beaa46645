#include "runtime/control/guardian.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <initializer_list>

namespace primerl {
namespace {

constexpr int64_t kLookAgainNs = 20'000'000;
constexpr size_t kChildrenMax = 4096;  // read in one round
constexpr int kOpenFilesMax = 4096;    // closed one by one on a kernel before 5.9

int64_t now_ns() {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void close_all_but(int kept) {
  const auto first = static_cast<unsigned>(kept);
  if ((kept == 0 || ::close_range(0, first - 1, 0) == 0) && ::close_range(first + 1, ~0U, 0) == 0)
    return;
  for (int fd = 0; fd < kOpenFilesMax; ++fd)
    if (fd != kept) ::close(fd);
}

sigset_t signals_of(std::initializer_list<int> numbers) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : numbers) ::sigaddset(&set, number);
  return set;
}

/// Static, because the stack of the thread that forked may be small.
struct Children {
  pid_t pids[kChildrenMax];
  size_t count;
  pid_t told[kChildrenMax];  // children that already got SIGTERM
  size_t num_told;

  bool was_told(pid_t pid) const {
    for (size_t i = 0; i < num_told; ++i)
      if (told[i] == pid) return true;
    return false;
  }
};
Children children;

/// Reads the children of this process, at most kChildrenMax, except `left_out`.
void read_children(pid_t left_out) {
  children.count = 0;
  const int fd = ::open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  char bytes[1024];
  pid_t pid = 0;
  for (ssize_t num_read = 0; (num_read = ::read(fd, bytes, sizeof bytes)) > 0;)
    for (ssize_t i = 0; i < num_read; ++i) {
      if (bytes[i] >= '0' && bytes[i] <= '9') {
        pid = pid * 10 + (bytes[i] - '0');
      } else if (pid != 0) {
        if (pid != left_out && children.count < kChildrenMax) children.pids[children.count++] = pid;
        pid = 0;
      }
    }
  ::close(fd);
}

/// Waits until the worker is a zombie; true when it exited by itself.
bool wait_for_end(pid_t worker, pid_t launcher) {
  const sigset_t watched = signals_of({SIGCHLD, guardian_kill_signal()});
  bool is_forced = false;
  while (true) {
    if (::getppid() != launcher) is_forced = true;
    if (is_forced) ::kill(worker, SIGKILL);
    siginfo_t ended{};
    // The worker is left a zombie, so that the kernel does not reuse its pid and process group id.
    while (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) {
      if (ended.si_pid == worker) return !is_forced && ended.si_code == CLD_EXITED;
      (void)::waitpid(ended.si_pid, nullptr, WNOHANG);
      ended = {};
    }
    siginfo_t info{};
    if (::sigwaitinfo(&watched, &info) == guardian_kill_signal()) is_forced = true;
  }
}

void end_leftovers(pid_t worker, bool is_orderly) {
  const int64_t begun = now_ns();
  const int64_t kill_at = is_orderly ? begun + kLeftoverGrace.to_nanoseconds() : begun;
  const sigset_t watched = signals_of({SIGCHLD, guardian_kill_signal()});
  bool is_forced = !is_orderly;
  ::kill(-worker, is_forced ? SIGKILL : SIGTERM);
  while (now_ns() < begun + kLeftoverMax.to_nanoseconds()) {
    if (now_ns() >= kill_at) is_forced = true;
    if (is_forced) ::kill(-worker, SIGKILL);
    read_children(worker);
    size_t num_left = 0;
    for (size_t i = 0; i < children.count; ++i) {
      const pid_t pid = children.pids[i];
      if (::waitpid(pid, nullptr, WNOHANG) == pid) continue;
      ++num_left;
      if (is_forced) {
        ::kill(pid, SIGKILL);
      } else if (!children.was_told(pid) && children.num_told < kChildrenMax) {
        children.told[children.num_told++] = pid;
        ::kill(pid, SIGTERM);
        ::kill(pid, SIGCONT);  // a stopped process receives SIGTERM only when it continues
      }
    }
    if (num_left == 0) return;
    const timespec look_again{0, kLookAgainNs};
    if (::sigtimedwait(&watched, nullptr, &look_again) == guardian_kill_signal()) is_forced = true;
  }
}

}  // namespace

int guardian_kill_signal() { return SIGRTMAX; }

bool become_guardian(pid_t launcher) {
  (void)::prctl(PR_SET_NAME, "primerl-guard");
  return ::prctl(PR_SET_PDEATHSIG, guardian_kill_signal()) == 0 && ::getppid() == launcher &&
         ::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && ::setpgid(0, 0) == 0;
}

void guard(pid_t worker, pid_t launcher, int status_fd) {
  close_all_but(status_fd);
  const bool is_orderly = wait_for_end(worker, launcher);
  end_leftovers(worker, is_orderly);
  WorkerEnd end;
  struct rusage usage {};
  (void)::wait4(worker, &end.wait_status, 0, &usage);
  end.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
  [[maybe_unused]] const auto written = ::write(status_fd, &end, sizeof end);
  ::_exit(0);
}

}  // namespace primerl
