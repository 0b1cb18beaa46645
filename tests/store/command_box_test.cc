#include "runtime/store/command_box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <fstream>

#include "graph/base/files.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const CommandedProcess kControl{77, 1234};
constexpr Duration kTimeout = Duration::seconds(60);

struct CommandBox : ::testing::Test {
  /// Sends a request; while the sender waits, the run reads it and answers with `answer`.
  Result<Json> ask(
      const Json& content, const std::function<void()>& meanwhile,
      const std::function<bool()>& is_alive = [] { return true; }, Duration timeout = kTimeout) {
    return ask_run(scratch.path(), kControl, content, timeout, is_alive, meanwhile);
  }
  void answer_all() {
    for (const auto& asked : inbox.take()) {
      seen.push_back(asked.content.dump());
      EXPECT_TRUE(inbox.answer(asked.id, Json::object().set("heard", seen.size())).ok());
    }
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    if (!fs::exists(folder)) return names;
    for (const auto& entry : fs::directory_iterator(folder))
      names.push_back(entry.path().filename().string());
    return names;
  }
  void put(const std::string& name, const std::string& text) {
    fs::create_directories(folder);
    std::ofstream(folder / name) << text;
  }

  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "commands";
  CommandInbox inbox{scratch.path(), kControl};
  std::vector<std::string> seen;
};

TEST_F(CommandBox, CarriesAQuestionAndItsAnswerAndLeavesNothingBehind) {
  const auto answer = ask(Json::object().set("owner", "anna"), [this] { answer_all(); });
  ASSERT_TRUE(answer.ok()) << answer.error().text();
  EXPECT_EQ(answer->dump(), R"({"heard":1})");
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_THAT(seen[0], HasSubstr(R"("owner":"anna")"));
  EXPECT_THAT(files(), IsEmpty());
  struct stat facts = {};
  ASSERT_EQ(::stat(folder.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700U);
}

TEST_F(CommandBox, ARunThatEndsMeanwhileIsNamedAndTheQuestionTakenBack) {
  bool is_alive = true;
  const auto answer = ask(
      Json::object(), [&] { is_alive = false; }, [&] { return is_alive; });
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), Code::kUnavailable);
  EXPECT_THAT(answer.error().text(), HasSubstr("the run ended before it answered"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(CommandBox, AnAnswerOfTheLastMomentIsStillRead) {
  bool is_alive = true;
  const auto meanwhile = [&] {
    answer_all();
    is_alive = false;
  };
  EXPECT_TRUE(ask(Json::object(), meanwhile, [&] { return is_alive; }).ok());
}

TEST_F(CommandBox, ARunThatDoesNotAnswerIsALateOne) {
  const auto answer = ask(
      Json::object(), [] {}, [] { return true; }, Duration::milliseconds(1));
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), Code::kDeadline);
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(CommandBox, RequestsToAnEarlierStartAreDiscarded) {
  put("1.ask.json", R"({"owner":"anna","pid":77,"start_ticks":1233})");
  put("2.ask.json", R"({"owner":"anna","pid":76,"start_ticks":1234})");
  EXPECT_THAT(inbox.take(), IsEmpty());
  EXPECT_THAT(files(), IsEmpty());
}

/// A user who can write into the folder may command the run, but must not be able to block its
/// control plane.
TEST_F(CommandBox, InvalidRequestsAreDiscardedUnread) {
  put("1.ask.json", "{");
  put("2.ask.json", "[1]");
  put("3.ask.json", "");
  put("4.ask.json", std::string(CommandInbox::kAskBytesMax + 1, ' '));
  put("5.ask.json", R"({"pid":"77","start_ticks":1234})");
  ASSERT_EQ(::mkfifo((folder / "6.ask.json").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", folder / "7.ask.json");
  put("somebody's notes", "hello");
  EXPECT_THAT(inbox.take(), IsEmpty());
  EXPECT_THAT(files(), testing::ElementsAre("somebody's notes"));
}

TEST_F(CommandBox, AQuestionMayHaveAsManyBytesAsItSays) {
  std::string text = R"({"pid":77,"start_ticks":1234})";
  text.resize(CommandInbox::kAskBytesMax, ' ');
  put("1.ask.json", text);
  EXPECT_THAT(inbox.take(), SizeIs(1));
}

TEST_F(CommandBox, TakesAsManyAtATimeAsItSays) {
  for (size_t i = 0; i <= CommandInbox::kAsksMax; ++i)
    put(fmt::format("{:03}.ask.json", i), R"({"pid":77,"start_ticks":1234})");
  const auto first = inbox.take();
  ASSERT_THAT(first, SizeIs(CommandInbox::kAsksMax));
  EXPECT_EQ(first.front().id, "000");
  EXPECT_THAT(inbox.take(), SizeIs(1));
  EXPECT_THAT(inbox.take(), IsEmpty());
}

TEST_F(CommandBox, AWatchedFolderIsReadableUntilItsRequestsAreTaken) {
  EXPECT_EQ(inbox.descriptor(), -1);
  inbox.watch();
  ASSERT_GE(inbox.descriptor(), 0);
  const auto is_readable = [this] {
    pollfd polled{inbox.descriptor(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 1;
  };
  EXPECT_FALSE(is_readable());
  const auto answer = ask(Json::object(), [&] {
    EXPECT_TRUE(is_readable());
    answer_all();
  });
  EXPECT_TRUE(answer.ok());
  EXPECT_TRUE(is_readable()) << "its own answer was moved there too";
  EXPECT_THAT(inbox.take(), IsEmpty());
  EXPECT_FALSE(is_readable());
}

TEST_F(CommandBox, KeepsUnfetchedAnswersUpToItsLimit) {
  fs::create_directories(folder);
  for (size_t i = 0; i <= CommandInbox::kAnswersMax; ++i)
    ASSERT_TRUE(inbox.answer(fmt::format("{:03}", i), Json::object()).ok());
  EXPECT_THAT(files(), SizeIs(CommandInbox::kAnswersMax));
  EXPECT_FALSE(fs::exists(folder / "000.answer.json"));
}

TEST_F(CommandBox, AnswersOfEarlierStartsGoAndThoseOfThisOneStay) {
  for (int i = 0; i < 300; ++i) put(fmt::format("old{}.answer.json", i), "{}");
  ASSERT_TRUE(inbox.answer("new", Json::object()).ok());
  put("1.ask.json", R"({"pid":77,"start_ticks":1234})");
  EXPECT_THAT(inbox.take(), SizeIs(1));
  EXPECT_THAT(files(), testing::ElementsAre("new.answer.json"));
}

TEST_F(CommandBox, AFolderThatIsNoneIsSaid) {
  std::ofstream(folder) << "a file";
  const auto answer = ask(Json::object(), [] {});
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), Code::kIo);
  EXPECT_THAT(inbox.take(), IsEmpty());
}

}  // namespace
}  // namespace primerl
