/// Runs a program as a person would: arguments in, exit code, stdout and stderr out.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/real_clock.h"
#include "tests/store/scratch_folder.h"

extern char** environ;

namespace primerl {

struct ProgramEnd {
  int code = -1;  // -1 if a signal ended it
  int signal = 0;
  std::string out;
  std::string err;
};

/// A program that starts at once; wait() waits for its end. stderr is a pipe that can be read while
/// it runs.
class Program {
 public:
  /// `words[0]` is a program of this build ("primerl-graph") or an absolute path. `set` are
  /// NAME=value pairs.
  explicit Program(std::vector<std::string> words, std::vector<std::string> set = {},
                   const std::string& folder = "")
      : out_file_(scratch_.path() / "out") {
    if (words[0].front() != '/') words[0] = std::string(PRIMERL_BINARY_DIR) + "/bin/" + words[0];
    if (!folder.empty()) words.insert(words.begin(), {"/usr/bin/env", "-C", folder});
    std::vector<char*> arguments, variables;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (auto& pair : set) variables.push_back(pair.data());
    for (char** entry = environ; *entry != nullptr; ++entry) variables.push_back(*entry);
    variables.push_back(nullptr);
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    err_ = ends[0];
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, 1, out_file_.c_str(), O_WRONLY | O_CREAT, 0644);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    EXPECT_EQ(
        ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), variables.data()),
        0)
        << arguments[0];
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(err_);
  }

  pid_t pid() const { return pid_; }
  /// False once it has ended; wait() then still returns its end.
  bool is_running() const {
    siginfo_t end{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           end.si_pid == 0;
  }
  /// Reads stderr until `text` appears; false if the program ended without it.
  bool wait_until_said(const std::string& text, size_t num_times = 1) {
    size_t from = 0;  // after the last match
    while (num_times > 0) {
      const size_t found = said_.find(text, from);
      if (found == std::string::npos) {
        if (!read_more()) return false;
        continue;
      }
      from = found + text.size();
      --num_times;
    }
    return true;
  }
  /// Closes the reading end of its stderr, as when `| tee` has ended.
  void stop_listening() {
    ::close(err_);
    err_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  /// The part of stderr that was read so far.
  const std::string& said() const { return said_; }
  /// Reads stderr until `until`, or until there was something to read. False: stderr is closed.
  bool listen(Time until) {
    const auto left = static_cast<int>((until - steady_now()).to_seconds() * 1e3) + 1;
    pollfd polled{err_, POLLIN, 0};
    return ::poll(&polled, 1, std::clamp(left, 0, 60'000)) <= 0 || read_more();
  }
  /// Reads stderr for so long; sleeps for the rest of it once stderr is closed.
  void listen_for(Duration time) {
    const Time until = steady_now() + time;
    while (steady_now() < until) {
      if (listen(until)) continue;
      const Duration left = until - steady_now();
      if (left > Duration())
        std::this_thread::sleep_for(std::chrono::nanoseconds(left.to_nanoseconds()));
    }
  }
  /// As wait(), at most until `until`; nothing if it has not ended by then.
  std::optional<ProgramEnd> wait(Time until) {
    while (listen(until))
      if (steady_now() >= until) return std::nullopt;
    while (is_running()) {
      if (steady_now() >= until) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return wait();
  }
  ProgramEnd wait() {
    while (read_more()) {
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    ProgramEnd end;
    if (WIFEXITED(status)) end.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
    end.out = *read_text_file(out_file_);
    end.err = said_;
    return end;
  }

 private:
  bool read_more() {
    char block[4096];
    const ssize_t got = ::read(err_, block, sizeof block);
    if (got > 0) said_.append(block, static_cast<size_t>(got));
    return got > 0;
  }

  ScratchFolder scratch_;
  const std::filesystem::path out_file_;
  pid_t pid_ = -1;
  int err_ = -1;
  std::string said_;
};

inline ProgramEnd run_graph_program(std::vector<std::string> words,
                                    std::vector<std::string> set = {}) {
  words.insert(words.begin(), "primerl-graph");
  return Program(std::move(words), std::move(set)).wait();
}

inline std::string source_path(const std::string& path) {
  return std::string(PRIMERL_SOURCE_DIR) + "/" + path;
}

}  // namespace primerl
