// The command line of a worker: new, resumed, restarted, and one that follows its record.
#include "runtime/control/run_launcher.h"

#include "tests/control/session_stage.h"

namespace primerl::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class RunLauncherTest : public PublisherStage {
 protected:
  LaunchOptions options(uint32_t incarnation, bool follows_record = false) {
    start_.incarnation = 3;
    const RunLauncher launcher(*plan_, *folder_, resume_, keys_, start_, inbox_);
    return launcher.options_of(process("inference#0"), incarnation, follows_record);
  }
  /// The values of each `flag` in a command line.
  static std::vector<std::string> values_of(const LaunchOptions& options, std::string_view flag) {
    std::vector<std::string> values;
    for (size_t i = 0; i + 1 < options.arguments.size(); ++i)
      if (options.arguments[i] == flag) values.push_back(options.arguments[i + 1]);
    return values;
  }

  const PeerKeyFiles keys_;
  const std::shared_ptr<ControlInbox> inbox_ = std::make_shared<ControlInbox>();
};

TEST_F(RunLauncherTest, ANewWorkerGetsItsRunNameAndIncarnation) {
  const LaunchOptions made = options(3);
  EXPECT_THAT(made.arguments, ElementsAre("host", "--run", folder_->path().string(), "--process",
                                          "inference#0", "--incarnation", "3"));
  EXPECT_THAT(made.environment, Contains(Pair("PRIMERL_TEST_PLACE", "here")));
  EXPECT_EQ(made.log_file, folder_->logs_folder() / "inference-0.stderr");
  EXPECT_EQ(made.process, process("inference#0"));
}

TEST_F(RunLauncherTest, AResumedWorkerGetsACheckpointForEachTenant) {
  resume_.points.resize(2);
  resume_.points[0].folder = "/run/checkpoints/step_4";
  EXPECT_THAT(values_of(options(3), "--resume"), ElementsAre("/run/checkpoints/step_4", "none"));
  EXPECT_THAT(values_of(options(4), "--resume"), ElementsAre("/run/checkpoints/step_4", "none"))
      << "without a record a later incarnation starts from the same checkpoints";
}

TEST_F(RunLauncherTest, ALaterIncarnationStartsWhereTheRecordBegins) {
  resume_.points.resize(1);
  resume_.points[0].folder = "/run/checkpoints/step_9";
  resume_.follow.record = "/run/trace";
  resume_.follow.resumed_from = {"/run/checkpoints/step_2"};
  EXPECT_THAT(values_of(options(3), "--resume"), ElementsAre("/run/checkpoints/step_9"));
  EXPECT_THAT(values_of(options(4), "--resume"), ElementsAre("/run/checkpoints/step_2"));
}

TEST_F(RunLauncherTest, OnlyAWorkerThatFollowsItsRecordGetsItsFile) {
  resume_.follow_file = "/run/trace/follow.json";
  EXPECT_THAT(values_of(options(3, false), "--recover"), IsEmpty());
  EXPECT_THAT(values_of(options(3, true), "--recover"), ElementsAre("/run/trace/follow.json"));
}

TEST_F(RunLauncherTest, WithoutOtherMachinesThereIsNoAgent) {
  RunLauncher launcher(*plan_, *folder_, resume_, keys_, start_, inbox_);
  EXPECT_TRUE(launcher.connect_agents({}, false, nullptr).ok());
  EXPECT_FALSE(launcher.agent_fault().has_value());
  EXPECT_FALSE(launcher.agent_leaving().has_value());
}

TEST_F(RunLauncherTest, SeveralProcessesShareOneFolderOfSockets) {
  RunLauncher launcher(*plan_, *folder_, resume_, keys_, start_, inbox_);
  EXPECT_EQ(launcher.socket_folder(), "");
  ASSERT_TRUE(launcher.open_sockets().ok());
  EXPECT_THAT(launcher.socket_folder(), HasSubstr("1f2e"));
  EXPECT_TRUE(std::filesystem::is_directory(launcher.socket_folder()));
}

}  // namespace
}  // namespace primerl::testing
