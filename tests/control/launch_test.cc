#include "runtime/control/launch.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "tests/base/patience.h"

namespace primerl {
namespace {

using testing::HasSubstr;

class LaunchTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              fmt::format("primerl-launch-{}-{}", ::getpid(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    options_.program = PRIMERL_LAUNCH_CHILD;
    options_.log_file = folder_ / "worker.log";
    options_.process = ProcessId(4);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<std::unique_ptr<WorkerProcess>> launch(std::string what) {
    options_.arguments = {std::move(what)};
    return WorkerProcess::launch(options_, inbox_);
  }
  ExpectedHello expected() { return {11, 12, "main", 3}; }
  Status hello(WorkerProcess& worker, const ExpectedHello& expected) {
    return expect_hello(worker, *inbox_, expected, kPatience, early_);
  }

  std::filesystem::path folder_;
  LaunchOptions options_;
  std::shared_ptr<ControlInbox> inbox_ = std::make_shared<ControlInbox>();
  std::vector<ControlEvent> early_;
};

TEST_F(LaunchTest, RunsAWorkerFromHelloToItsEnd) {
  options_.environment = {{"PRIMERL_TEST_WORD", "heard"}};
  auto worker = launch("answer");
  ASSERT_TRUE(worker.ok()) << worker.error().text();
  const auto greeted = hello(**worker, expected());
  ASSERT_TRUE(greeted.ok()) << greeted.error().text();
  ASSERT_EQ(early_.size(), 1u);
  EXPECT_EQ(as_if<LogLine>(early_[0].message)->text, "before the hello");
  EXPECT_FALSE((*worker)->poll().has_value());
  ASSERT_TRUE((*worker)->control().send(StartRun{}).ok());
  const auto ended = inbox_->take(kPatience);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->peer, ProcessId(4));
  ASSERT_NE(as_if<RunEnded>(ended->message), nullptr);
  EXPECT_EQ(as_if<RunEnded>(ended->message)->text, "heard");
  EXPECT_TRUE(inbox_->take(kPatience)->is_closed());
  const auto exit = (*worker)->wait(kPatience);
  ASSERT_TRUE(exit.ok());
  EXPECT_TRUE(exit->is_clean());
  EXPECT_EQ(exit->text(), "exited with code 0");
}

TEST_F(LaunchTest, RefusesAHelloThatDiffersAndShowsBothValues) {
  const auto refusal = [this](ExpectedHello wanted) {
    auto worker = launch("answer");
    const auto status = hello(**worker, wanted);
    EXPECT_FALSE(status.ok());
    worker->reset();
    while (!inbox_->take(kPatience)->is_closed()) {
    }
    return status.ok() ? std::string() : status.error().message();
  };
  EXPECT_EQ(refusal({10, 12, "main", 3}),
            "the worker's graph hash is '000000000000000b', expected '000000000000000a'");
  EXPECT_THAT(refusal({11, 13, "main", 3}), HasSubstr("message table"));
  EXPECT_THAT(refusal({11, 12, "other", 3}), HasSubstr("'main', expected 'other'"));
  EXPECT_THAT(refusal({11, 12, "main", 4}), HasSubstr("incarnation is '3', expected '4'"));
}

TEST_F(LaunchTest, KeepsTheLastWordsOfAWorkerThatGaveUp) {
  std::ofstream(options_.log_file) << "of an older run\n";
  auto worker = launch("complain");
  ASSERT_TRUE(worker.ok());
  const auto status = hello(**worker, expected());
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("exited with code 7 before it was ready"));
  EXPECT_THAT(status.error().text(), HasSubstr("the model folder 'x' is missing"));
  EXPECT_EQ((*worker)->last_words(), "first line\nthe model folder 'x' is missing\n");
  EXPECT_EQ((*worker)->last_words(40), "the model folder 'x' is missing\n");
}

TEST_F(LaunchTest, NamesTheSignalThatEndedAWorker) {
  auto worker = launch("answer");
  ASSERT_TRUE(hello(**worker, expected()).ok());
  ASSERT_TRUE((*worker)->control().send(StopRun{}).ok());
  EXPECT_TRUE(inbox_->take(kPatience)->is_closed());
  const auto exit = (*worker)->wait(kPatience);
  ASSERT_TRUE(exit.ok());
  EXPECT_EQ(exit->signal, SIGSEGV);
  EXPECT_THAT(exit->text(), HasSubstr("was killed by signal 11"));
}

// Counts of a simulated machine, read from a file.
TEST_F(LaunchTest, SaysOfAWorkerThatTheKernelKilledForMemoryWhatItHadAndMayHave) {
  std::filesystem::create_directories(folder_ / "proc");
  const auto count = [this](int killed) {
    std::ofstream(folder_ / "proc/vmstat") << "oom_kill " << killed << "\n";
    std::ofstream(folder_ / "proc/meminfo") << "MemTotal: 8388608 kB\n";
  };
  options_.memory_root = folder_;
  const auto end_of = [&](int killed_meanwhile, bool by_us) {
    count(4);
    auto worker = launch("hang");
    count(4 + killed_meanwhile);
    if (by_us)
      (*worker)->kill();
    else
      ::kill((*worker)->pid(), SIGKILL);
    const auto exit = (*worker)->wait(kPatience);
    worker->reset();
    while (!inbox_->take(kPatience)->is_closed()) {
    }
    return *exit;
  };
  const ProcessExit lacking = end_of(1, false);
  EXPECT_TRUE(lacking.needs_more_memory());
  EXPECT_GT(lacking.peak_bytes, 0);
  EXPECT_THAT(lacking.text(),
              testing::AllOf(HasSubstr("was killed by signal 9 (Killed) for lack of memory: its "
                                       "resident memory was "),
                             HasSubstr("the limit is 8 GiB (RAM of this machine)")));
  EXPECT_FALSE(end_of(0, false).needs_more_memory()) << "a person killed it";
  EXPECT_FALSE(end_of(1, true).needs_more_memory()) << "the control plane killed it";
}

TEST_F(LaunchTest, StartsNoWorkerWithAllocatorSettingsThatItWouldEndAt) {
  options_.environment = {{"PYTORCH_CUDA_ALLOC_CONF", "nonsense"}};
  const auto worker = launch("answer");
  ASSERT_FALSE(worker.ok());
  EXPECT_THAT(worker.error().message(), HasSubstr("PYTORCH_CUDA_ALLOC_CONF: 'nonsense'"));
}

TEST_F(LaunchTest, AWorkerInheritsNoDescriptorButItsOwn) {
  int ours[2];
  ASSERT_EQ(::pipe(ours), 0);  // like a library that opens one without O_CLOEXEC
  const auto name_of = [](const std::string& fd) {
    return std::filesystem::read_symlink("/proc/" + fd).string();
  };
  const std::string pipe = name_of(fmt::format("self/fd/{}", ours[1]));
  auto worker = launch("answer");
  // Before the worker sends hello, the loader may have a library open.
  ASSERT_TRUE(hello(**worker, expected()).ok());
  const std::string open = fmt::format("{}/fd", (*worker)->pid());
  size_t num_open = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + open)) {
    const std::string name = name_of(open + "/" + entry.path().filename().string());
    EXPECT_NE(name, pipe);
    num_open += name.starts_with("anon_inode:") ? 0 : 1;  // the worker's own eventfd
  }
  EXPECT_EQ(num_open, 4u);  // stdin, stdout, stderr, control
  ::close(ours[0]);
  ::close(ours[1]);
}

TEST_F(LaunchTest, WaitsNoLongerThanAskedAndKills) {
  auto worker = launch("hang");
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ((*worker)->wait(Duration()).error().code(), Code::kDeadline);
  EXPECT_EQ((*worker)->wait(Duration::milliseconds(20)).error().code(), Code::kDeadline);
  (*worker)->kill();
  EXPECT_EQ((*worker)->wait(kPatience)->signal, SIGKILL);
}

TEST_F(LaunchTest, LeavesNoChildBehind) {
  auto worker = launch("hang");
  ASSERT_TRUE(worker.ok());
  const pid_t pid = (*worker)->pid();
  EXPECT_EQ(::kill(pid, 0), 0);
  worker->reset();
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(LaunchTest, GivesTheChildAProcessGroupOfItsOwn) {
  auto worker = launch("hang");
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ(::getpgid((*worker)->pid()), (*worker)->pid());
}

TEST_F(LaunchTest, RefusesWhatCannotBeStarted) {
  options_.program = "/nowhere/primerl-worker";
  const auto missing = launch("answer");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message(),
              HasSubstr("'/nowhere/primerl-worker' cannot be started: No such file"));
  options_.program = PRIMERL_LAUNCH_CHILD;
  options_.log_file = folder_ / "no" / "folder" / "worker.log";
  EXPECT_THAT(launch("answer").error().message(), HasSubstr("log file"));
}

TEST_F(LaunchTest, RefusesADescriptorThatIsNoSocket) {
  const auto inbox = std::make_shared<ControlInbox>();
  const auto opened = open_inherited_control(STDIN_FILENO, inbox);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().message(), HasSubstr("'--control 0' is no control channel"));
  EXPECT_FALSE(open_inherited_control(9999, inbox).ok());
}

}  // namespace
}  // namespace primerl
