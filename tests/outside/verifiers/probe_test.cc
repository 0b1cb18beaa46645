#include "runtime/outside/verifiers/probe.h"

#include <gmock/gmock.h>

#include "runtime/outside/verifiers/msgpack_json.h"
#include "tests/outside/verifiers/fake_sockets.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// A probe, its socket, and a virtual clock.
struct ServerProbeStory : ::testing::Test {
  void begin(std::optional<VerifiersDialect> pinned = std::nullopt) {
    ProbeOptions options;
    options.address = kAddress;
    options.pinned = pinned;
    options.start_timeout = Duration::seconds(60);
    probe.emplace(
        options, [this] { return fmt::format("{:032x}", ++num_ids); }, now);
  }
  /// Does everything that can be done now.
  void turn() {
    for (int i = 0; i < 100 && !probe->result(); ++i) {
      if (probe->wants_socket()) {
        if (socket) sockets.close(*socket);
        socket = *sockets.open(kAddress, 0);
        ++num_sockets;
        probe->on_opened();
      }
      while (!probe->wants_socket()) {
        const auto event = sockets.next_event(*socket);
        if (!event) break;
        if (*event == DealerSockets::Event::kConnected)
          probe->on_connected(now);
        else
          probe->on_disconnected();
      }
      if (const auto frames = probe->request()) sent.push_back(*frames);
      if (!sent.empty() && num_sent < sent.size()) {
        ++num_sent;
        sockets.send(*socket, sent.back());
      }
      while (const auto frames = sockets.receive(*socket)) probe->on_frames(*frames, now);
      probe->on_time(now);
    }
  }
  void pass(Duration time) {
    const Time until = now + time;
    turn();
    while (!probe->result()) {
      const auto next = probe->next_deadline();
      if (!next || *next > until) break;
      now = *next;
      turn();
    }
    now = until;
    turn();
  }
  std::string found() {
    if (!probe->result()) return "nothing yet";
    const auto& result = *probe->result();
    return result.ok() ? std::string(to_string(result->dialect)) : result.error().text();
  }

  FakeSockets sockets;
  std::optional<ServerProbe> probe;
  std::optional<uint64_t> socket;
  std::vector<Frames> sent;
  size_t num_sent = 0;
  int num_sockets = 0, num_ids = 0;
  Time now;
};

TEST_F(ServerProbeStory, RecognizesEveryDialectAndHarmsNoPool) {
  for (const char* name : {"w0", "w1a", "w1b", "w1c", "w2"}) {
    StandInServer server(*verifiers_dialect(name));
    sockets.start(kAddress, server);
    now = Time();
    begin();
    pass(Duration::seconds(30));
    EXPECT_EQ(found(), name);
    EXPECT_FALSE(server.is_killed);
    EXPECT_TRUE(server.runs.empty());
    sockets.kill(kAddress);
  }
}

TEST_F(ServerProbeStory, EveryRequestHasASocketOfItsOwn) {
  StandInServer server(VerifiersDialect::kW1b);
  sockets.start(kAddress, server);
  begin();
  pass(Duration::seconds(1));
  EXPECT_EQ(found(), "w1b");
  EXPECT_EQ(num_sockets, 3);  // health, info, run
  EXPECT_EQ(sent.size(), 3U);
}

TEST_F(ServerProbeStory, AsksNothingBeforeAConnectionIsComplete) {
  StandInServer server(VerifiersDialect::kW1c);
  begin();
  pass(Duration::seconds(30));
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(found(), "nothing yet");
  sockets.start(kAddress, server);
  turn();
  EXPECT_EQ(found(), "w1c");
}

TEST_F(ServerProbeStory, AsksInLegacyFormOnlyAfterThreeSilences) {
  StandInServer server(VerifiersDialect::kW0);
  sockets.start(kAddress, server);
  begin();
  pass(Duration::milliseconds(5999));
  EXPECT_EQ(found(), "nothing yet");
  EXPECT_EQ(server.num_health, 0);
  pass(Duration::milliseconds(1));
  EXPECT_EQ(found(), "w0");
}

TEST_F(ServerProbeStory, ABrokenConnectionBeginsTheCountOfSilencesAgain) {
  StandInServer silent(VerifiersDialect::kW1c), pool(VerifiersDialect::kW1c);
  silent.is_silent = true;
  sockets.start(kAddress, silent);
  begin();
  pass(Duration::milliseconds(5900));
  sockets.kill(kAddress);
  sockets.start(kAddress, pool);  // the same address, another server
  pass(Duration::milliseconds(200));
  EXPECT_EQ(found(), "w1c");
  EXPECT_FALSE(pool.is_killed);
}

TEST_F(ServerProbeStory, APoolWithoutWorkersIsWaitedForAndNeverAskedInLegacyForm) {
  StandInServer pool(VerifiersDialect::kW1c);
  pool.has_workers = false;
  sockets.start(kAddress, pool);
  begin();
  pass(Duration::seconds(40));
  EXPECT_EQ(found(), "nothing yet");
  EXPECT_FALSE(pool.is_killed);
  pool.has_workers = true;
  pass(Duration::seconds(3));
  EXPECT_EQ(found(), "w1c");
}

TEST_F(ServerProbeStory, ASilentServerIsAnErrorAfterTheTimeForItsStart) {
  StandInServer server(VerifiersDialect::kW2);
  server.is_silent = true;
  sockets.start(kAddress, server);
  begin();
  pass(Duration::milliseconds(59'999));
  EXPECT_EQ(found(), "nothing yet");
  pass(Duration::milliseconds(1));
  EXPECT_EQ(probe->result()->error().code(), Code::kDeadline);
  EXPECT_THAT(found(), HasSubstr("did not answer within 1m"));
}

TEST_F(ServerProbeStory, APinnedDialectIsNotGuessed) {
  StandInServer legacy(VerifiersDialect::kW0);
  sockets.start(kAddress, legacy);
  begin(VerifiersDialect::kW0);
  turn();
  EXPECT_EQ(found(), "w0");
  EXPECT_EQ(sent.size(), 1U);
}

TEST_F(ServerProbeStory, APinnedDialectThatTheServerDoesNotSpeakIsAnError) {
  StandInServer server(VerifiersDialect::kW1c);
  sockets.start(kAddress, server);
  begin(VerifiersDialect::kW2);
  turn();
  EXPECT_THAT(found(), HasSubstr("speaks w1a, w1b or w1c, not w2"));
}

TEST_F(ServerProbeStory, ASilentServerIsNeverAskedInLegacyFormIfItsDialectIsPinned) {
  StandInServer pool(VerifiersDialect::kW1a);
  pool.is_silent = true;
  sockets.start(kAddress, pool);
  begin(VerifiersDialect::kW1a);
  pass(Duration::seconds(50));
  for (const Frames& frames : sent) EXPECT_EQ(frames.size(), 3U);
}

TEST_F(ServerProbeStory, AnUnknownDialectIsATypedError) {
  StandInServer server(VerifiersDialect::kW2);
  server.is_silent = true;
  sockets.start(kAddress, server);
  begin();
  turn();
  sockets.push(kAddress, {sent.back().front(), "news", "\x81\xa7success\xc3"});
  turn();
  EXPECT_EQ(probe->result()->error().code(), Code::kInvalid);
  EXPECT_THAT(found(), HasSubstr("answers with 3 frames in a form that no known dialect has"));
}

TEST_F(ServerProbeStory, TheNumberOfTasksIsRead) {
  StandInServer server(VerifiersDialect::kW1a);
  server.num_tasks = 9;
  sockets.start(kAddress, server);
  begin();
  turn();
  EXPECT_EQ((*probe->result())->num_tasks, 9);
}

}  // namespace
}  // namespace primerl
