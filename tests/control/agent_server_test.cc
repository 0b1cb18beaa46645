// An agent on its own thread, and control planes that connect to it: what it accepts, from whom,
// and what happens to the processes.
#include "runtime/control/agent_server.h"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "tests/control/agent_stage.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(AgentServerTest, StartsAWorkerAndTellsHowItEnds) {
  Agent agent(scratch_.path());
  auto client = dial(agent.address());
  ASSERT_TRUE(client.ok());
  ASSERT_EQ(text_of(prepare(**client, order())), "ok");
  options_.environment = {{"PRIMERL_TEST_WORD", "heard"}};
  auto worker = launch(**client, "answer");
  ASSERT_TRUE(worker.ok()) << worker.error().text();
  expect_hello();
  EXPECT_FALSE((*worker)->poll().has_value());
  EXPECT_EQ(::kill((*worker)->pid(), 0), 0);
  ASSERT_TRUE((*worker)->control().send(StartRun{}).ok());
  auto ended = inbox_->take(kPatience);
  ASSERT_TRUE(ended && as_if<RunEnded>(ended->message) != nullptr);
  EXPECT_EQ(as_if<RunEnded>(ended->message)->text, "heard");
  EXPECT_TRUE(inbox_->take(kPatience)->is_closed());
  const auto exit = (*worker)->wait(kPatience);
  ASSERT_TRUE(exit.ok());
  EXPECT_TRUE(exit->is_clean());
}

TEST_F(AgentServerTest, KillsAndReapsWhatItIsToldTo) {
  Agent agent(scratch_.path());
  auto client = dial(agent.address());
  ASSERT_EQ(text_of(prepare(**client, order())), "ok");
  auto worker = launch(**client, "hang");
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ((*worker)->wait(Duration::milliseconds(1)).error().code(), Code::kDeadline);
  (*worker)->kill();
  const auto exit = (*worker)->wait(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.error().text();
  EXPECT_EQ(exit->signal, SIGKILL);
  EXPECT_EQ(::kill((*worker)->pid(), 0), -1);
}

TEST_F(AgentServerTest, KeepsTheLastWords) {
  Agent agent(scratch_.path());
  auto client = dial(agent.address());
  ASSERT_EQ(text_of(prepare(**client, order())), "ok");
  auto worker = launch(**client, "complain");
  ASSERT_TRUE(worker.ok());
  const auto exit = (*worker)->wait(kPatience);
  ASSERT_TRUE(exit.ok());
  EXPECT_EQ(exit->code, 7);
  EXPECT_EQ((*worker)->last_words(), "first line\nthe model folder 'x' is missing\n");
}

TEST_F(AgentServerTest, LeavesNothingBehindWhenTheControlPlaneLeaves) {
  Agent agent(scratch_.path());
  pid_t pid = 0;
  {
    auto client = dial(agent.address());
    ASSERT_EQ(text_of(prepare(**client, order())), "ok");
    auto worker = launch(**client, "hang");
    ASSERT_TRUE(worker.ok());
    pid = (*worker)->pid();
  }
  EXPECT_EQ(::kill(pid, 0), -1);
  auto next = dial(agent.address());
  EXPECT_EQ(text_of(prepare(**next, order("run2"))), "ok");
}

TEST_F(AgentServerTest, ServesOneRunAndFencesItsOlderStart) {
  Agent agent(scratch_.path());
  auto first = dial(agent.address());
  ASSERT_EQ(text_of(prepare(**first, order("run1", 2))), "ok");
  auto worker = launch(**first, "hang");
  ASSERT_TRUE(worker.ok());
  const pid_t pid = (*worker)->pid();
  auto other = dial(agent.address());
  EXPECT_THAT(text_of(prepare(**other, order("run2"))),
              HasSubstr("the agent serves run run1 of graph 'story' already"));
  auto same = dial(agent.address());
  EXPECT_THAT(text_of(prepare(**same, order("run1", 2))),
              HasSubstr("the agent serves start 2 of run run1, this is start 2"));
  EXPECT_EQ(::kill(pid, 0), 0);
  auto newer = dial(agent.address());
  ASSERT_EQ(text_of(prepare(**newer, order("run1", 3))), "ok");
  EXPECT_EQ(::kill(pid, 0), -1);  // killed before the answer
  ASSERT_TRUE(inbox_->take(kPatience)->is_closed());
  EXPECT_THAT((*first)->fault()->text(),
              HasSubstr("it has ended its part of the run: start 3 of the run takes its place"));
}

TEST_F(AgentServerTest, RefusesAFolderThatIsNotShared) {
  Agent agent(scratch_.path());
  auto client = dial(agent.address());
  EXPECT_THAT(
      text_of(prepare(**client, order(), false)),
      AllOf(HasSubstr("the run folder '" + folder_.string() + "' is not the control plane's here"),
            HasSubstr("shared file system")));
  auto again = dial(agent.address());
  EXPECT_EQ(text_of(prepare(**again, order())), "ok");
}

TEST_F(AgentServerTest, RefusesWhatItsMachineCannotRun) {
  Agent agent(scratch_.path());
  PrepareRun other = order();
  other.graph_hash = 12;
  auto client = dial(agent.address());
  EXPECT_THAT(text_of(prepare(**client, other)), HasSubstr("another graph"));
  PrepareRun outside = order();
  outside.socket_folder = "../links";
  auto second = dial(agent.address());
  EXPECT_THAT(text_of(prepare(**second, outside)), HasSubstr("no name for a folder"));
}

TEST_F(AgentServerTest, WritesLogsInTheRunFolderAlone) {
  Agent agent(scratch_.path());
  auto client = dial(agent.address());
  ASSERT_EQ(text_of(prepare(**client, order())), "ok");
  for (const auto* file : {"/../worker.stderr", "/logs/../x", "/logs/sub/x"}) {
    options_.log_file = folder_.string() + file;
    const auto refused = launch(**client, "hang");
    ASSERT_FALSE(refused.ok()) << file;
    EXPECT_THAT(refused.error().text(), HasSubstr("not in the run folder's logs"));
  }
}

TEST_F(AgentServerTest, NamesBothVersionsWhereTheyDiffer) {
  Agent agent(scratch_.path());
  auto client = dial(agent.address(), {}, own_greeting(5, "2.0"));
  EXPECT_THAT(text_of((*client)->wait_for_greeting(kPatience, false, kNeverStops)),
              AllOf(HasSubstr("the program version of the agent of host 'x' at " + agent.address() +
                              " is '1.0', of this program '2.0'")));
}

TEST_F(AgentServerTest, OutlivesGarbage) {
  Agent agent(scratch_.path());
  // Bytes that are not ZeroMQ, or at best its first version: not a frame.
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(
      static_cast<uint16_t>(std::stoi(agent.address().substr(agent.address().rfind(':') + 1))));
  ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  const std::string garbage(4096, 'x');
  EXPECT_GT(::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  // Frames that are not agent frames.
  auto stranger = FrameDialer::open("tcp://" + agent.address(), {}, kAgentFrameBytesMax);
  ASSERT_TRUE(stranger.ok());
  const std::vector<std::byte> frame(100, std::byte{7});
  while (!(*stranger)->send(frame)) (*stranger)->wait({}, Duration::milliseconds(1));
  // An invalid greeting; the answer to the next one shows that both were read.
  while (!(*stranger)->send(encode_greeting(own_greeting(5, "1.0"))))
    (*stranger)->wait({}, Duration::milliseconds(1));
  std::vector<std::byte> answer;
  while (!(*stranger)->receive(answer)) (*stranger)->wait({}, Duration::milliseconds(1));
  EXPECT_TRUE(is_greeting(answer));
  auto client = dial(agent.address());
  EXPECT_EQ(text_of(prepare(**client, order())), "ok");
  ::close(fd);
  EXPECT_GE(agent.stop(), 1u);
}

/// A control plane that sends whatever the test chooses.
class RawControl {
 public:
  explicit RawControl(const std::string& address)
      : dialer_(*FrameDialer::open("tcp://" + address, {}, kAgentFrameBytesMax)) {
    send_bytes(encode_greeting(own_greeting(5, "1.0")));
    greeting_ = *decode_greeting(receive_bytes());
  }
  uint64_t challenge() const { return greeting_.challenge; }
  void send(const Payload& message) { send_bytes(*frames_.encode(message)); }
  /// Numbers a message without sending it.
  void lose(const Payload& message) { (void)*frames_.encode(message); }
  /// The next message that is not a heartbeat.
  Payload receive() {
    while (true) {
      auto message = *frames_.decode(receive_bytes());
      if (as_if<AgentBeat>(message) == nullptr) return message;
    }
  }

 private:
  void send_bytes(const std::vector<std::byte>& bytes) {
    while (!dialer_->send(bytes)) dialer_->wait({}, Duration::milliseconds(1));
  }
  std::vector<std::byte> receive_bytes() {
    std::vector<std::byte> bytes;
    while (!dialer_->receive(bytes)) dialer_->wait({}, Duration::milliseconds(1));
    return bytes;
  }

  std::unique_ptr<FrameDialer> dialer_;
  AgentFrames frames_;
  AgentGreeting greeting_;
};

class RawControlTest : public AgentServerTest {
 protected:
  void prepare_raw(RawControl& control) const {
    const auto file = folder_ / challenge_file(control.challenge());
    std::ofstream(file) << challenge_text(control.challenge());
    control.send(Payload::of(order()));
    const Payload answer = control.receive();
    ASSERT_NE(as_if<RunPrepared>(answer), nullptr);
    ASSERT_EQ(as_if<RunPrepared>(answer)->fault.text, "");
  }
  pid_t launch_raw(RawControl& control, uint32_t channel) const {
    control.send(Payload::of(
        LaunchWorker{channel, "x", {"hang"}, {}, (folder_ / "logs" / "x.stderr").string()}));
    const Payload answer = control.receive();
    EXPECT_NE(as_if<WorkerLaunched>(answer), nullptr);
    return static_cast<pid_t>(answer.as<WorkerLaunched>().pid);
  }
  /// Why the agent has ended the run.
  static std::string end_of(RawControl& control) {
    while (true) {
      const Payload message = control.receive();
      if (const auto* dropped = as_if<RunDropped>(message)) return dropped->why;
    }
  }
};

TEST_F(RawControlTest, AFrameThatIsMissingEndsTheRunAndItsProcesses) {
  Agent agent(scratch_.path());
  RawControl control(agent.address());
  prepare_raw(control);
  const pid_t pid = launch_raw(control, 1);
  EXPECT_EQ(::kill(pid, 0), 0);
  control.lose(Payload::of(AgentBeat{0}));
  control.send(Payload::of(AgentBeat{0}));
  EXPECT_EQ(end_of(control), "the connection broke: frame 4 follows 2");
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST_F(RawControlTest, AWorkerThatDoesNotReadHoldsAWindowAndNotAByteMore) {
  Agent agent(scratch_.path());
  RawControl control(agent.address());
  prepare_raw(control);
  (void)launch_raw(control, 1);
  const std::vector<uint8_t> piece(kTunnelPieceBytes, 7);
  for (uint64_t sent = 0; sent < kTunnelWindowBytes; sent += piece.size())
    control.send(Payload::of(TunnelBytes{1, piece}));
  // It still accepts orders.
  EXPECT_GT(launch_raw(control, 2), 0);
  control.send(Payload::of(TunnelBytes{1, {1}}));
  EXPECT_EQ(end_of(control), "1 bytes of a channel where 0 were granted");
}

TEST_F(RawControlTest, MessagesOutOfTurnEndTheRun) {
  Agent agent(scratch_.path());
  const auto outcome = [&](const Payload& message) {
    RawControl control(agent.address());
    prepare_raw(control);
    (void)launch_raw(control, 3);
    control.send(message);
    return end_of(control);
  };
  EXPECT_EQ(outcome(Payload::of(WorkerExited{3, 0, 0, ""})), "'WorkerExited' out of turn");
  EXPECT_EQ(outcome(Payload::of(KillWorker{4})), "channel 4 was never opened");
  EXPECT_EQ(outcome(Payload::of(LaunchWorker{3, "x", {}, {}, "x"})), "channel 3 was opened twice");
  EXPECT_EQ(outcome(Payload::of(TunnelCredit{3, 1})),
            "1 bytes granted, after 1048576 and with 0 sent");
}

TEST_F(AgentServerTest, SomethingElseThatListensIsNamed) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof own;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&own), size), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size), 0);
  ASSERT_EQ(::listen(fd, 8), 0);
  // It accepts connections and sends nothing.
  auto client = dial("127.0.0.1:" + std::to_string(ntohs(own.sin_port)));
  const Status silent =
      (*client)->wait_for_greeting(Duration::milliseconds(50), false, kNeverStops);
  EXPECT_THAT(text_of(silent), HasSubstr("the agent of host 'x'"));
  EXPECT_FALSE(silent.ok());
  ::close(fd);
}

TEST_F(AgentServerTest, LetsOnlyKeysOfItsListIn) {
  const KeyPair agents = make_key_pair(), ours = make_key_pair(), others = make_key_pair();
  Agent agent(scratch_.path(), {agents, {{ours.public_key, ProcessId(0), {}}}, ""});
  const auto outcome = [&](FrameKeys keys) {
    auto client = dial(agent.address(), std::move(keys));
    return text_of(prepare(**client, order()));
  };
  EXPECT_THAT(outcome({others, {}, agents.public_key}), HasSubstr("does not let this key in"));
  EXPECT_THAT(outcome({ours, {}, others.public_key}), HasSubstr("the handshake failed"));
  EXPECT_THAT(outcome({}), HasSubstr("the handshake failed"));
  EXPECT_EQ(outcome({ours, {}, agents.public_key}), "ok");
}

TEST_F(AgentServerTest, BeyondLoopbackItWantsKeys) {
  AgentSettings settings;
  settings.listen = "tcp://0.0.0.0:0";
  auto server = AgentServer::open(std::move(settings));
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.error().text(), HasSubstr("needs keys"));
  EXPECT_FALSE(dial("192.0.2.1:7300").ok());
}

TEST_F(AgentServerTest, ToldToStopItAsksTheRunToEndAndThenGoes) {
  Agent agent(scratch_.path());
  auto client = dial(agent.address());
  ASSERT_EQ(text_of(prepare(**client, order())), "ok");
  auto worker = launch(**client, "hang");
  ASSERT_TRUE(worker.ok());
  agent.signal();
  while (!(*client)->leaving() && !(*client)->fault()) std::this_thread::yield();
  EXPECT_EQ((*client)->leaving(), "the agent was told to stop");
  EXPECT_FALSE((*worker)->poll().has_value());
  worker->reset();
  client->reset();
  agent.wait();
}

TEST_F(AgentServerTest, ToldTwiceItStopsAtOnce) {
  Agent agent(scratch_.path());
  auto client = dial(agent.address());
  ASSERT_EQ(text_of(prepare(**client, order())), "ok");
  auto worker = launch(**client, "hang");
  ASSERT_TRUE(worker.ok());
  const pid_t pid = (*worker)->pid();
  agent.stop();
  EXPECT_EQ(::kill(pid, 0), -1);
  while (!(*client)->fault()) std::this_thread::yield();
  EXPECT_THAT(agent.said(), HasSubstr("1 of its processes were killed: the agent was told twice"));
}

}  // namespace
}  // namespace primerl
