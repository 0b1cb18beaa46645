#include "runtime/outside/piped_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <thread>

#include "graph/base/real_clock.h"
#include "tests/base/patience.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// Reads a pipe until all its writers have closed it, or `enough` bytes have come.
std::string text_of(int pipe, size_t enough = std::string::npos) {
  std::string text;
  std::array<char, 4096> buffer;
  while (text.size() < enough) {
    pollfd ready{pipe, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(kPatience.to_seconds() * 1000)) <= 0) {
      ADD_FAILURE() << "the process wrote nothing more";
      return text;
    }
    const ssize_t size = ::read(pipe, buffer.data(), buffer.size());
    if (size <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
  return text;
}

/// Everything that the process writes until it closes its output.
std::string output_of(PipedProcess& process) { return text_of(process.output()); }

TEST(PipedProcess, SaysWhyACommandCannotBeStarted) {
  const auto fault = [](const std::vector<std::string>& command) {
    const auto started = PipedProcess::start(command, {});
    return started.ok() ? "" : started.error().text();
  };
  EXPECT_THAT(fault({}), HasSubstr("the command is empty"));
  EXPECT_THAT(fault({"no-such-program-here"}), HasSubstr("no program 'no-such-program-here'"));
  EXPECT_THAT(fault({"/no/such/file"}), HasSubstr("'/no/such/file' cannot be started"));
  EXPECT_THAT(fault({"/tmp"}), HasSubstr("cannot be started"));
}

TEST(PipedProcess, HasNoDescriptorOfOurs) {
  int leaked[2];  // without O_CLOEXEC, as a library may open them
  ASSERT_EQ(::pipe(leaked), 0);
  auto process = PipedProcess::start({"/bin/sh", "-c", "ls /proc/self/fd | tr '\\n' ' '"}, {});
  ASSERT_TRUE(process.ok()) << process.error().text();
  // 0, 1, 2, and the one with which ls reads the folder.
  EXPECT_EQ(output_of(**process), "0 1 2 3 ");
  ::close(leaked[0]);
  ::close(leaked[1]);
}

TEST(PipedProcess, StartsWithTheDefaultActionOfEverySignal) {
  // 33 is one of the two signals that sigaction() refuses; a launcher may ignore it.
  struct KernelAction {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    uint64_t mask;
  } ignored{SIG_IGN, 0, nullptr, 0}, before{};
  const auto usr1 = ::signal(SIGUSR1, SIG_IGN);
  ASSERT_EQ(::syscall(SYS_rt_sigaction, 33, &ignored, &before, sizeof before.mask), 0);
  auto process = PipedProcess::start({"/bin/grep", "SigIgn", "/proc/self/status"}, {});
  ::signal(SIGUSR1, usr1);
  ::syscall(SYS_rt_sigaction, 33, &before, nullptr, sizeof before.mask);
  ASSERT_TRUE(process.ok()) << process.error().text();
  EXPECT_EQ(output_of(**process), "SigIgn:\t0000000000000000\n");
}

TEST(PipedProcess, IsInAProcessGroupOfItsOwn) {
  auto process = PipedProcess::start({"/bin/cat"}, {});
  ASSERT_TRUE(process.ok()) << process.error().text();
  EXPECT_EQ(::getpgid((*process)->pid()), (*process)->pid());
}

/// A run that is killed at this moment would leave what its command had started.
TEST(PipedProcess, HasItsGuardBeforeTheCommandBegins) {
  auto process = PipedProcess::start({"/bin/sh", "-c",
                                      "count=0\n"
                                      "for file in /proc/[0-9]*/stat; do\n"
                                      "  read -r line 2>/dev/null <$file || continue\n"
                                      "  set -- ${line##*) }\n"  // state, parent, group
                                      "  [ \"$3\" = $$ ] && count=$((count + 1))\n"
                                      "done\n"
                                      "echo $count"},
                                     {});
  ASSERT_TRUE(process.ok()) << process.error().text();
  EXPECT_EQ(output_of(**process), "2\n") << "the shell and the guard";
}

TEST(PipedProcess, TellsHowItEnded) {
  auto process = PipedProcess::start({"/bin/sh", "-c", "exit 7"}, {});
  ASSERT_TRUE(process.ok());
  (void)output_of(**process);
  while (!(*process)->has_ended()) std::this_thread::yield();
  EXPECT_EQ((*process)->end_text(), "exited with code 7");
}

TEST(PipedProcess, KillsTheWholeGroup) {
  auto process = PipedProcess::start({"/bin/sh", "-c", "sleep 1000 & echo $!; wait"}, {});
  ASSERT_TRUE(process.ok());
  std::string text;
  std::array<char, 64> buffer;
  while (text.find('\n') == std::string::npos) {
    const ssize_t size = ::read((*process)->output(), buffer.data(), buffer.size());
    if (size > 0) text.append(buffer.data(), static_cast<size_t>(size));
  }
  (*process)->kill();
  EXPECT_THAT((*process)->end_text(), HasSubstr("signal 9"));
  // The pipe closes when its last writer, the child in the background, has died.
  EXPECT_EQ(output_of(**process), "");
}

TEST(PipedProcess, ItsGroupDiesWithTheRunThatIsKilled) {
  const auto fifo =
      std::filesystem::temp_directory_path() / fmt::format("piped_process_{}", ::getpid());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int written = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(written, 0);
  const pid_t run = ::fork();
  if (run == 0) {
    const auto process = PipedProcess::start(
        {"/bin/sh", "-c", "(echo up; exec sleep 1000) > " + fifo.string() + " & wait"}, {});
    if (process.ok()) ::pause();
    ::_exit(1);
  }
  // Reading gives an end as long as there is no writer.
  const auto until = deadline_after(kPatience);
  std::string text;
  while (text.empty() && std::chrono::steady_clock::now() < until) text = text_of(written, 3);
  EXPECT_EQ(text, "up\n");
  ::kill(run, SIGKILL);
  ::waitpid(run, nullptr, 0);
  EXPECT_EQ(text_of(written), "") << "the child of the command still has the pipe";
  ::close(written);
  std::filesystem::remove(fifo);
}

}  // namespace
}  // namespace primerl
