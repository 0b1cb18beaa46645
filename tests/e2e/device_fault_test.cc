// A run that loses a device: the process reports why and ends, and the run continues as after kill
// -9.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

/// The split graph on scripted resources, one of which loses its device when a file is written.
class DeviceFault : public testing::Test {
 protected:
  std::vector<std::string> words(const std::string& resource, const std::string& max_steps) const {
    return {"primerl-graph",
            "run",
            source_path("tests/cli/graphs/split.toml"),
            "--out",
            folder_.string(),
            "--max-steps",
            max_steps,
            "--set",
            fmt::format("resource.{}.device_fault_file={}", resource, file_.string())};
  }
  std::vector<std::string> variables() const {
    return {"XDG_RUNTIME_DIR=" + scratch_.path().string()};
  }
  void lose_device() const { have("lost"); }
  /// Written completely at once, so that a reader never sees an empty file.
  void have(const std::string& fault) const {
    write_text(scratch_.path() / "fault", fault);
    fs::rename(scratch_.path() / "fault", file_);
  }
  /// The lines of all processes' logs that name the lost device.
  std::vector<std::string> last_words() const {
    std::vector<std::string> found;
    for (const auto& file : fs::directory_iterator(folder_ / "logs"))
      if (file.path().extension() == ".jsonl")
        for (const Json& line : lines_of(file.path()))
          if (line.get_string("message")->find("the device is lost") != std::string::npos)
            found.push_back(file.path().stem().string() + ": " + *line.get_string("message"));
    return found;
  }

  const ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
  const fs::path file_ = scratch_.path() / "lost";
};

TEST_F(DeviceFault, AnEnginesProcessIsStartedAgainAndNothingIsTrainedTwice) {
  Program run(words("engine", "400"), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  lose_device();
  ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
  const auto end = run.wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("exited with code 5"));
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 400);
  const auto said = last_words();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_THAT(said[0], HasSubstr("inference"));
  EXPECT_THAT(said[0], HasSubstr("scriptedDeviceLost"));
  EXPECT_THAT(said[0], HasSubstr("this process ends; the run continues as after its death"));
}

TEST_F(DeviceFault, ATrainersProcessIsResumedFromTheRecord) {
  Program run(words("learner", "1000000000"), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  lose_device();
  ASSERT_TRUE(run.wait_until_said("messages as recorded; the run is live"));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_THAT(end.err, HasSubstr("process 'training' exited with code 5"));
  EXPECT_THAT(end.err, HasSubstr("scriptedDeviceLost")) << "its last words";
  expect_steps_and_rollouts_once(folder_);
  expect_replays(folder_);
  EXPECT_EQ(last_words().size(), 1U);
}

TEST_F(DeviceFault, AFullDeviceCostsAStepAndNothingElse) {
  for (const std::string resource : {"engine", "learner"}) {
    fs::remove_all(folder_);
    Program run(words(resource, "200"), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    have("full");
    const auto end = run.wait();
    EXPECT_EQ(end.code, 0) << end.err;
    EXPECT_FALSE(fs::exists(file_)) << "no step read it";
    EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 200);
    // Rollouts of an engine are issued again; those of a skipped step have failed.
    size_t num_hit = 0;
    for (const Json& rollout : lines_of(folder_ / "rollouts.jsonl"))
      num_hit += *rollout.get_int("attempt") > 0 ||
                         rollout.dump().find("no memory left") != std::string::npos
                     ? 1
                     : 0;
    EXPECT_GT(num_hit, 0U) << resource;
    EXPECT_TRUE(last_words().empty());
  }
}

TEST_F(DeviceFault, EndsARunThatMayNotBeTakenUp) {
  auto line = words("learner", "1000000000");
  line.insert(line.end(), {"--set", "graph.restarts_max=0"});
  Program run(line, variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  lose_device();
  const auto end = run.wait();
  EXPECT_EQ(end.code, 1) << end.err;
  EXPECT_THAT(end.err, HasSubstr("process 'training' exited with code 5"));
  EXPECT_THAT(end.err, HasSubstr("scriptedDeviceLost"));
  EXPECT_EQ(run_end(folder_), "failed");
}

}  // namespace
}  // namespace primerl
