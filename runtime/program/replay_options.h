/// The flags of `replay` and `bisect`, declared once. primerl-graph checks them without torch and
/// executes primerl-worker, which parses the same words again.
#pragma once

#include <string>
#include <vector>

#include "graph/base/result.h"
#include "runtime/program/command_line.h"

namespace primerl {

struct ReplayArguments {
  std::string run;
  std::string depth = "full";
  std::string node;
  std::string tenant;
  std::vector<std::string> sets;
  int64_t threads = 1;
  std::string from;     // a training step or NODE:STEP; empty = the first step
  int64_t stop_at = 0;  // 0 = the end
  bool is_stepped = false;
  std::string out;
  std::string fixture;
  bool json = false;

  void declare(Arguments& arguments);
  Status validate() const;
  std::vector<std::string> words() const;
};

struct BisectArguments {
  std::string run;
  std::string until;
  bool json = false;

  void declare(Arguments& arguments);
  Status validate() const;
  std::vector<std::string> words() const;
};

}  // namespace primerl
