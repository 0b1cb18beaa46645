/// PipedProcess: a command of a user that runs with three pipes and dies with the run.
///
/// It starts with default signals and without descriptors of this process, and leads a process
/// group of its own. It gets SIGKILL when the thread that started it ends. kill() ends the whole
/// group, and so does the end of this process, even by SIGKILL: a second process, the guard, is in
/// the group for that. The pipes are non-blocking. One owner; not thread-safe.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "graph/base/descriptor.h"
#include "graph/base/result.h"

namespace primerl {

class PipedProcess {
 public:
  /// `command`: program and arguments; a program without '/' is looked up in PATH. `variables`:
  /// "NAME=value", added to the environment.
  static Result<std::unique_ptr<PipedProcess>> start(const std::vector<std::string>& command,
                                                     const std::vector<std::string>& variables);
  ~PipedProcess();

  int input() const { return input_.get(); }    // we write; its stdin
  int output() const { return output_.get(); }  // we read; its stdout
  int errors() const { return errors_.get(); }  // we read; its stderr
  void close_input() { (void)Descriptor(input_.release()); }
  void close_errors() { (void)Descriptor(errors_.release()); }
  pid_t pid() const { return pid_; }
  /// True when it has ended; then end_text() says how.
  bool has_ended();
  const std::string& end_text() const { return end_text_; }  // "exited with code 1"
  /// SIGKILL for the process and every process of its group. Waits for the process and its guard.
  void kill();

 private:
  PipedProcess(pid_t pid, Descriptor input, Descriptor output, Descriptor errors)
      : pid_(pid),
        input_(std::move(input)),
        output_(std::move(output)),
        errors_(std::move(errors)) {}
  void note_end(int wait_status);

  const pid_t pid_;
  Descriptor input_, output_, errors_;
  pid_t guard_ = 0;  // 0: it has not started
  Descriptor life_;  // its other end closes when this process ends
  bool has_ended_ = false;
  std::string end_text_;
};

}  // namespace primerl
