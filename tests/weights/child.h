/// A test child in a separate process: fork and exec, its output line by line.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace primerl {

class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments) {
    int to[2], from[2];
    EXPECT_EQ(::pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(from, O_CLOEXEC), 0);
    std::vector<char*> argv = {const_cast<char*>(PRIMERL_WEIGHTS_CHILD)};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    input_ = to[1];
    output_ = ::fdopen(from[0], "r");
  }
  ~Child() {
    kill();
    wait();
    end_input();
    std::fclose(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The next line without its line end; empty at the end of the output.
  std::string line() {
    std::string text;
    for (int c = std::fgetc(output_); c != EOF && c != '\n'; c = std::fgetc(output_))
      text += static_cast<char>(c);
    return text;
  }
  void end_input() {
    if (input_ >= 0) ::close(input_);
    input_ = -1;
  }
  void kill() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
  }
  /// Exit code, or minus the signal that ended it.
  int wait() {
    if (pid_ > 0) {
      int status = 0;
      ::waitpid(pid_, &status, 0);
      pid_ = -1;
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    return code_;
  }
  /// Waits until the child ends by itself.
  int finish() {
    end_input();
    return wait();
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  std::FILE* output_ = nullptr;
  int code_ = -1000;
};

}  // namespace primerl
