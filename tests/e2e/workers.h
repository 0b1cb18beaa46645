/// Finds the worker processes below a program of a test, by asking the system.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"

namespace primerl {

/// The first line of a file of /proc; empty if the process has gone. A stream iterator would throw
/// if it goes between open() and read().
inline std::string line_of_process(pid_t pid, const char* file) {
  std::ifstream stream("/proc/" + std::to_string(pid) + "/" + file);
  std::string line;
  std::getline(stream, line);
  return line;
}

inline std::vector<pid_t> children_of(pid_t parent) {
  const std::string pid = std::to_string(parent);
  std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

/// Each worker has a guardian between it and the program; processes that a guardian adopted come
/// after the worker.
inline std::vector<pid_t> workers_of(const Program& program) {
  std::vector<pid_t> workers;
  for (const pid_t guardian : children_of(program.pid()))
    if (const auto below = children_of(guardian); !below.empty()) workers.push_back(below.front());
  return workers;
}

/// The worker of a program with one process; -1 without one now.
inline pid_t worker_of(const Program& program) {
  const auto workers = workers_of(program);
  return workers.empty() ? -1 : workers.front();
}

/// The worker of a process of the plan; -1 without one now. Restarts change their order.
inline pid_t worker_named(const Program& program, const std::string& process) {
  for (const pid_t worker : workers_of(program)) {
    const std::string words = line_of_process(worker, "cmdline");
    const std::string wanted = std::string("--process") + '\0' + process + '\0';
    if (words.find(wanted) != std::string::npos) return worker;
  }
  return -1;
}

/// For a process that is not a child: whether it is gone, or dead and not yet reaped by its new
/// parent.
inline bool has_ended(pid_t pid) {
  const std::string text = line_of_process(pid, "stat");
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos || text.substr(name_end + 2, 1) == "Z";
}

}  // namespace primerl
