/// The text files of a fixture: its GoogleTest case and its README.
#pragma once

#include <optional>
#include <string>

#include "runtime/replay/replay.h"

namespace primerl {

struct FixtureFacts {
  GroupId group;
  std::string host_name;  // "rollout.main"
  uint64_t last_step = 0;
  std::string depth;
  std::optional<Divergence> divergence;  // none: the replay was identical
  std::string graph_name, program_version;
  uint64_t run_id = 0;

  std::string test_name() const;  // "rollout_main_88_test": file and program
};

std::string test_text(const FixtureFacts& facts);
std::string readme_text(const FixtureFacts& facts);

}  // namespace primerl
