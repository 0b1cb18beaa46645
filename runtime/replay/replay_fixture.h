/// Fixtures: the result of a replay as a separate test. A fixture is a folder with four parts: the
/// excerpt of the trace that one actor group needs up to one step (runtime/replay/excerpt.h), the
/// model files of its graph, a GoogleTest case, and a README with the steps to add it.
///
/// `primerl-graph replay --fixture` writes it and the GoogleTest case replays it. It contains no
/// paths of a machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runtime/replay/replay_session.h"

namespace primerl {

struct WrittenFixture {
  std::filesystem::path folder, test_file;
  std::string group;
  uint64_t last_step = 0;
  std::string depth;
  uint64_t num_bytes = 0;  // of all files
};

/// Writes the fixture of the first divergence in `report`. Without a divergence it writes the
/// replayed steps of `chosen`. Then it replays the fixture and compares. `folder` must not exist or
/// must be empty. kInvalid, with the reason, when a test cannot show the divergence.
Result<WrittenFixture> write_fixture(const ReplaySession& session, const ReplaySetup& setup,
                                     const ReplayReport& report, std::optional<GroupId> chosen,
                                     const std::filesystem::path& folder);

struct PlayedFixture {
  bool is_identical = false;  // every step was made and its emissions were equal
  std::string text;           // the differences, for a person
  std::optional<Divergence> first;
};

/// Replays a fixture with the actors of this program. An error when that is impossible, such as
/// after a change of a message's schema.
Result<PlayedFixture> play_fixture(const std::filesystem::path& folder, const std::string& depth);

}  // namespace primerl
