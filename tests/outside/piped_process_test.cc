#include "runtime/outside/piped_process.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <thread>

#include "tests/base/patience.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// Everything that the process writes until it closes its output.
std::string output_of(PipedProcess& process) {
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    pollfd ready{process.output(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(kPatience.to_seconds() * 1000)) <= 0) {
      ADD_FAILURE() << "the process wrote nothing more";
      return text;
    }
    const ssize_t size = ::read(process.output(), buffer.data(), buffer.size());
    if (size <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
}

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

TEST(PipedProcess, HasNoDescriptorOfOursDefaultSignalsAndAGroupOfItsOwn) {
  // One without O_CLOEXEC, as a library may open it; and a signal that this process ignores.
  int leaked[2];
  ASSERT_EQ(::pipe(leaked), 0);
  const auto before = ::signal(SIGUSR1, SIG_IGN);
  auto process = PipedProcess::start(
      {"/bin/sh", "-c",
       "ls /proc/self/fd | wc -l; grep SigIgn /proc/self/status; cut -d' ' -f1,5 /proc/$$/stat"},
      {});
  ::signal(SIGUSR1, before);
  ASSERT_TRUE(process.ok()) << process.error().text();
  const std::string text = output_of(**process);
  ::close(leaked[0]);
  ::close(leaked[1]);
  const std::string pid = std::to_string((*process)->pid());
  // 0, 1, 2, and the one with which ls reads the folder.
  EXPECT_THAT(text, ::testing::StartsWith("4\n"));
  EXPECT_THAT(text, HasSubstr("SigIgn:\t0000000000000000"));
  EXPECT_THAT(text, HasSubstr(pid + " " + pid));
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

}  // namespace
}  // namespace primerl
