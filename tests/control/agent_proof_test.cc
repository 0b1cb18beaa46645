// The proof that an agent requires before it accepts orders, and that it never waits for a disk.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <functional>
#include <future>

#include "tests/control/agent_stage.h"

namespace primerl {
namespace {

using testing::HasSubstr;
using testing::Not;

using AgentProof = AgentServerTest;

TEST_F(AgentProof, TouchesNothingAndTellsNothingBeforeTheProof) {
  Agent agent(scratch_.path());
  auto first = dial(agent.address());
  ASSERT_EQ(text_of(prepare(**first, order("secret-run", 2))), "ok");
  auto worker = launch(**first, "hang");
  ASSERT_TRUE(worker.ok());
  const pid_t pid = (*worker)->pid();
  // A client that knows the run's name but cannot write here; one that knows nothing; one whose
  // file belongs to another user.
  PrepareRun known = order("secret-run", 3), unknown = order("other");
  for (const PrepareRun& asked : {known, unknown}) {
    auto stranger = dial(agent.address());
    const std::string refused = text_of(prepare(**stranger, asked, false));
    EXPECT_THAT(refused, HasSubstr("is not the control plane's here"));
    EXPECT_THAT(refused, Not(HasSubstr("secret-run")));
    EXPECT_THAT(refused, Not(HasSubstr("start 2")));
  }
  EXPECT_EQ(::kill(pid, 0), 0) << "its worker was killed";
  EXPECT_FALSE((*first)->fault().has_value());
  // With the proof it gets the answer.
  auto proved = dial(agent.address());
  EXPECT_THAT(text_of(prepare(**proved, unknown)), HasSubstr("the agent serves run secret-run"));
}

TEST_F(AgentProof, LooksAtAPlainFileOfTheChallengesSizeAlone) {
  namespace fs = std::filesystem;
  Agent agent(scratch_.path());
  const auto refusal = [&](const std::function<void(const fs::path&, const std::string&)>& make) {
    auto client = dial(agent.address());
    EXPECT_TRUE((*client)->wait_for_greeting(kPatience, false, kNeverStops).ok());
    const uint64_t challenge = (*client)->challenge();
    const fs::path file = folder_ / challenge_file(challenge);
    make(file, challenge_text(challenge));
    const std::string text = text_of((*client)->prepare(order(), kPatience, kNeverStops));
    fs::remove(file);
    return text;
  };
  const auto write = [](const fs::path& file, const std::string& text) {
    std::ofstream(file) << text;
  };
  // A pipe without a writer: the agent must not wait for it.
  EXPECT_THAT(refusal([](const auto& file, const auto&) { ::mkfifo(file.c_str(), 0600); }),
              HasSubstr("no plain file"));
  EXPECT_THAT(refusal([](const auto& file, const auto&) { fs::create_directory(file); }),
              HasSubstr("no plain file"));
  EXPECT_THAT(refusal([&](const auto& file, const auto& text) {
                write(scratch_.path() / "elsewhere", text);
                fs::create_symlink(scratch_.path() / "elsewhere", file);
              }),
              HasSubstr("symbolic link"));
  EXPECT_THAT(refusal([&](const auto& file, const auto& text) { write(file, text + "x"); }),
              HasSubstr("no plain file of the challenge's size"));
  EXPECT_THAT(refusal([&](const auto& file, const auto& text) {
                write(file, text.substr(0, text.size() - 1));
              }),
              HasSubstr("no plain file of the challenge's size"));
  EXPECT_THAT(refusal([&](const auto& file, const auto& text) {
                write(file, std::string(text.size(), '0'));
              }),
              HasSubstr("has written otherwise"));
  EXPECT_EQ(refusal(write), "ok");
}

TEST_F(AgentProof, RefusesNamesOnePastTheirLimits) {
  struct Limit {
    std::string PrepareRun::*name;
    size_t bytes_max;
  };
  const Limit limits[] = {{&PrepareRun::run_id, kRunIdBytesMax},
                          {&PrepareRun::graph, kOrderWordBytesMax},
                          {&PrepareRun::host, kOrderWordBytesMax},
                          {&PrepareRun::run_folder, kRunFolderBytesMax},
                          {&PrepareRun::socket_folder, kSocketFolderBytesMax},
                          {&PrepareRun::listen, kOrderWordBytesMax}};
  for (const auto& [name, bytes_max] : limits) {
    PrepareRun order = this->order();
    (order.*name) = std::string(bytes_max, 'x');
    EXPECT_EQ(text_of(check_names(order)), "ok") << bytes_max;
    (order.*name) += 'x';
    EXPECT_THAT(text_of(check_names(order)), HasSubstr("bytes, at most"));
    (order.*name) = std::string("a\0b", 3);
    EXPECT_THAT(text_of(check_names(order)), HasSubstr("characters that are no text"));
  }
}

TEST_F(AgentProof, AnswersANameOf600KilobytesAndServesTheNext) {
  Agent agent(scratch_.path());
  PrepareRun huge = order();
  huge.run_folder = "/" + std::string(600'000, 'x');
  auto client = dial(agent.address());
  EXPECT_THAT(text_of(prepare(**client, huge)),
              HasSubstr("the name of the run folder has 600001 bytes, at most 3072 are allowed"));
  auto next = dial(agent.address());
  EXPECT_EQ(text_of(prepare(**next, order())), "ok");
}

TEST_F(AgentProof, ServesOthersWhileADiskHangs) {
  // The check of the run's files does not return until the test allows it.
  std::promise<void> disk;
  const auto hang = disk.get_future().share();
  std::atomic<int> num_looks{0};
  Agent agent(scratch_.path(), {}, false, [&](const PrepareRun& order) {
    if (order.graph != "hangs") return;
    ++num_looks;
    hang.wait();
  });
  auto stuck = dial(agent.address());
  PrepareRun hanging = order("stuck");
  hanging.graph = "hangs";
  ASSERT_TRUE((*stuck)->wait_for_greeting(kPatience, false, kNeverStops).ok());
  std::ofstream(folder_ / challenge_file((*stuck)->challenge()))
      << challenge_text((*stuck)->challenge());
  std::thread asking([&] { (void)(*stuck)->prepare(hanging, kPatience, kNeverStops); });
  while (num_looks == 0) std::this_thread::yield();
  auto next = dial(agent.address());
  EXPECT_EQ(text_of(prepare(**next, order())), "ok");
  disk.set_value();
  asking.join();
}

TEST(RunCheck, GivesUpALookThatDoesNotEndAndBoundsHowManyThereAre) {
  const ScratchFolder folder;
  std::promise<void> disk;
  const auto hang = disk.get_future().share();
  const auto looks = std::make_shared<std::atomic<int>>(0);
  PrepareRun order;
  order.run_folder = folder.path().string();
  std::ofstream(folder.path() / challenge_file(7)) << challenge_text(7);
  const RunCheck::Machine machine = {
      [] { return Result<std::filesystem::path>(std::filesystem::path("worker")); },
      [hang](const PrepareRun&) {
        hang.wait();
        return ok();
      }};
  const Time begin = Time::from_nanoseconds(1);
  std::vector<std::unique_ptr<RunCheck>> checks;
  for (int i = 0; i < RunCheck::kLooksMax; ++i) {
    auto check = RunCheck::begin(order, 7, machine, looks, begin);
    ASSERT_TRUE(check.ok());
    checks.push_back(std::move(check).value());
  }
  EXPECT_EQ(RunCheck::begin(order, 7, machine, looks, begin).error().code(), Code::kUnavailable);
  const auto late = begin + RunCheck::kLookMax;
  EXPECT_FALSE(
      checks[0]->poll(begin + (RunCheck::kLookMax - Duration::nanoseconds(1))).has_value());
  EXPECT_EQ(checks[0]->poll(late)->error().code(), Code::kDeadline);
  checks.erase(checks.begin());  // its thread still counts
  EXPECT_FALSE(RunCheck::begin(order, 7, machine, looks, begin).ok());
  disk.set_value();
  while (looks->load() > 0) std::this_thread::yield();
  for (const auto& check : checks) EXPECT_TRUE(check->poll(late)->ok());
}

}  // namespace
}  // namespace primerl
