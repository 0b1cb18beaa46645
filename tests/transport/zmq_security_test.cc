#include <chrono>

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "runtime/transport/zmq_transport.h"
#include "tests/conformance/transport_stage.h"
#include "tests/store/scratch_folder.h"
#include "tests/transport/hostile_frames.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(ZmqOptions options, size_t side = 0) {
  CollectingReceiver receiver;
  const auto made = make_zmq_transport(identity_of(side, 1), {}, std::move(options), receiver);
  return made.ok() ? "ok" : made.error().text();
}

bool wait_until(const std::function<bool()>& done) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience.to_nanoseconds());
  const CollectingReceiver waiting;
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    waiting.wait_for_change();
  }
  return true;
}

TEST(ZmqSecurity, KnowsWhatIsThisMachine) {
  for (const auto* address : {"tcp://127.0.0.1", "tcp://127.0.0.1:40", "tcp://127.9.8.7:1",
                              "tcp://localhost:1", "tcp://[::1]", "tcp://[::1]:40"})
    EXPECT_TRUE(is_loopback(address)) << address;
  for (const auto* address :
       {"tcp://0.0.0.0", "tcp://*", "tcp://10.0.0.1:5", "tcp://127.example.org:1", "tcp://127.1",
        "tcp://localhost.example.org", "tcp://[::]", "tcp://[::1f]:4", "ipc:///x", ""})
    EXPECT_FALSE(is_loopback(address)) << address;
}

TEST(ZmqSecurity, RefusesToListenBeyondThisMachineWithoutKeysAndList) {
  for (const auto* listen : {"tcp://0.0.0.0", "tcp://*", "tcp://192.0.2.1", "tcp://[::]"}) {
    ZmqOptions options;
    options.listen = {listen};
    EXPECT_THAT(refusal_of(options), HasSubstr("needs keys")) << listen;
    options.keys = make_key_pair();
    EXPECT_THAT(refusal_of(options), HasSubstr("needs a list of allowed keys")) << listen;
  }
  ZmqOptions options;
  options.listen = {"tcp://0.0.0.0"};
  options.keys = make_key_pair();
  options.allowed = {{make_key_pair().public_key, ProcessId(1), {}}};
  EXPECT_EQ(refusal_of(options), "ok");
}

TEST(ZmqSecurity, RefusesToConnectBeyondThisMachineWithoutKeys) {
  CollectingReceiver receiver;
  auto made = make_zmq_transport(identity_of(1, 1), {}, {}, receiver);
  ASSERT_TRUE(made.ok());
  PeerSpec peer;
  peer.process = ProcessId(0);
  peer.name = "side0";
  peer.address = {"tcp://192.0.2.1:9", "tcp://192.0.2.1:10"};
  const auto added = (*made)->add_peer(peer);
  ASSERT_FALSE(added.ok());
  EXPECT_THAT(added.error().text(), HasSubstr("needs keys"));
}

TEST(ZmqSecurity, AsksForKeysOnLoopbackToo) {
  ZmqOptions options;
  options.listen = {"tcp://127.0.0.1"};
  EXPECT_THAT(refusal_of(options), HasSubstr("is a tcp address and needs keys"));
  options.keys = make_key_pair();
  EXPECT_EQ(refusal_of(options), "ok");
  CollectingReceiver receiver;
  PeerSpec peer;
  peer.process = ProcessId(0);
  peer.name = "side0";
  peer.address = {"tcp://127.0.0.1:9", "tcp://127.0.0.1:10"};
  const auto refusal = [&](const ZmqOptions& with) {
    auto made = make_zmq_transport(identity_of(1, 1), {}, with, receiver);
    const auto added = (*made)->add_peer(peer);
    return added.ok() ? "ok" : added.error().text();
  };
  EXPECT_THAT(refusal({}), HasSubstr("is a tcp address and needs keys"));
  EXPECT_THAT(refusal(options), HasSubstr("its public key is ''"));
  peer.public_key = make_key_pair().public_key;
  EXPECT_EQ(refusal(options), "ok");
}

TEST(ZmqSecurity, RefusesWordsThatNoGreetingHasRoomFor) {
  CollectingReceiver receiver;
  for (std::string TransportIdentity::*word : {&TransportIdentity::run, &TransportIdentity::name}) {
    TransportIdentity identity = identity_of(0, 1);
    (identity.*word) = std::string(kGreetingWordBytesMax, 'x');
    EXPECT_TRUE(make_zmq_transport(identity, {}, {}, receiver).ok());
    (identity.*word) += 'x';
    const auto made = make_zmq_transport(identity, {}, {}, receiver);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().text(), HasSubstr("has 257 bytes, a greeting has room for 256"));
  }
}

TEST(ZmqSecurity, MakesItsFolderPrivateAndRefusesOneThatIsNot) {
  ScratchFolder scratch;
  const std::string folder = scratch.path().string() + "/sockets";
  ZmqOptions options;
  options.listen = {"ipc://" + folder};
  EXPECT_EQ(refusal_of(options), "ok");
  struct stat about {};
  ASSERT_EQ(::stat(folder.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0700u);
  for (const mode_t mode : {0750, 0701, 0770}) {
    ASSERT_EQ(::chmod(folder.c_str(), mode), 0);
    EXPECT_THAT(refusal_of(options), HasSubstr("others could reach its sockets")) << mode;
  }
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
  std::filesystem::create_directory_symlink(folder, folder + ".link");
  options.listen = {"ipc://" + folder + ".link"};
  EXPECT_THAT(refusal_of(options), HasSubstr("is no folder"));
}

TEST(ZmqSecurity, ConnectsToNoSocketInAFolderThatOthersCanEnter) {
  ScratchFolder scratch;
  const std::string folder = scratch.path().string() + "/sockets";
  CollectingReceiver receiver;
  auto made = make_zmq_transport(identity_of(1, 1), {}, {}, receiver);
  ASSERT_TRUE(made.ok());
  PeerSpec peer;
  peer.process = ProcessId(0);
  peer.name = "side0";
  peer.address = {"ipc://" + folder + "/p0.e1.frames", "ipc://" + folder + "/p0.e1.bulk"};
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(folder.c_str(), 0710), 0);
  EXPECT_THAT((*made)->add_peer(peer).error().text(), HasSubstr("others could reach its sockets"));
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
  EXPECT_TRUE((*made)->add_peer(peer).ok());
}

TEST(ZmqSecurity, NamesAddressesThatCannotBe) {
  ScratchFolder scratch;
  const auto with = [](std::string listen) {
    ZmqOptions options;
    options.listen = {std::move(listen)};
    return refusal_of(options);
  };
  EXPECT_THAT(with("ipc://relative"), HasSubstr("needs an absolute folder"));
  EXPECT_THAT(with("pgm://x"), HasSubstr("valid: 'ipc:///folder' and 'tcp://address'"));
  EXPECT_THAT(with("tcp://127.0.0.1:80"), HasSubstr("names a port"));
  EXPECT_THAT(with("ipc://" + scratch.path().string() + "/" + std::string(120, 'x')),
              HasSubstr("choose a shorter folder"));
}

/// Two processes with keys over tcp; the test sets the second one's options.
class Pair {
 public:
  explicit Pair(const KeyPair& keys0) : keys0_(keys0) {}
  void open0(std::vector<AllowedKey> allowed) {
    ZmqOptions options;
    options.listen = {"tcp://127.0.0.1"};
    options.keys = keys0_;
    options.allowed = std::move(allowed);
    auto made = make_zmq_transport(identity_of(0, 1), patient(), options, got0);
    ASSERT_TRUE(made.ok()) << made.error().text();
    transport0 = std::move(made).value();
  }
  void open1(ZmqOptions options, const std::string& key_of_0) {
    auto made = make_zmq_transport(identity_of(1, 1), impatient(), std::move(options), got1);
    ASSERT_TRUE(made.ok()) << made.error().text();
    transport1 = std::move(made).value();
    PeerSpec peer;
    peer.process = ProcessId(0);
    peer.name = "side0";
    peer.address = transport0->address();
    peer.public_key = key_of_0;
    const auto added = transport1->add_peer(peer);
    ASSERT_TRUE(added.ok()) << added.error().text();
  }
  void expect1(const std::string& key, std::vector<TenantSlot> tenants = {}) {
    PeerSpec peer;
    peer.process = ProcessId(1);
    peer.name = "side1";
    peer.public_key = key;
    peer.tenants = std::move(tenants);
    const auto added = transport0->add_peer(peer);
    ASSERT_TRUE(added.ok()) << added.error().text();
  }
  static ConnectionLimits patient() {
    ConnectionLimits limits;
    limits.silent_after = limits.greet_timeout = kPatience;
    return limits;
  }
  /// For processes that are never accepted: the test waits for their deadline.
  static ConnectionLimits impatient() {
    ConnectionLimits limits = patient();
    limits.greet_timeout = Duration::milliseconds(300);
    return limits;
  }

  CollectingReceiver got0, got1;
  std::unique_ptr<Transport> transport0, transport1;

 private:
  const KeyPair keys0_;
};

TEST(ZmqSecurity, LetsNoUnknownKeyIn) {
  const KeyPair keys0 = make_key_pair(), known = make_key_pair(), unknown = make_key_pair();
  Pair pair(keys0);
  pair.open0({{known.public_key, ProcessId(1), {}}});
  pair.expect1(known.public_key);
  ZmqOptions options;
  options.keys = unknown;
  options.allowed = {{keys0.public_key, ProcessId(0), {}}};
  pair.open1(options, keys0.public_key);
  ASSERT_TRUE(wait_until([&] { return pair.got1.num_failed() == 1; }));
  EXPECT_THAT(pair.got1.failures()[0], HasSubstr("did not greet within"));
  EXPECT_EQ(pair.got0.num_ups(), 0u);
  const auto refused = pair.transport0->refused_unknown_peers();
  EXPECT_GT(refused[static_cast<size_t>(FrameRefusal::kUnknownPeer)], 0u);
}

TEST(ZmqSecurity, LetsNoPlaintextIn) {
  const KeyPair keys0 = make_key_pair(), known = make_key_pair();
  Pair pair(keys0);
  pair.open0({{known.public_key, ProcessId(1), {}}});
  pair.expect1(known.public_key);
  Attacker plain;
  plain.connect(pair.transport0->address().frames, hostile_route(ProcessId(1), 1, 1));
  // A real peer connects after the plain connection. So the plain connection had time to send.
  ZmqOptions options;
  options.keys = known;
  options.allowed = {{keys0.public_key, ProcessId(0), {}}};
  pair.open1(options, keys0.public_key);
  const std::vector<std::vector<std::byte>> frame(1, std::vector<std::byte>(kPeerFrameHeaderBytes));
  size_t num_sent = 0;
  ASSERT_TRUE(wait_until([&] {
    num_sent += plain.send(frame);
    return pair.got0.num_ups() == 1;
  }));
  EXPECT_EQ(num_sent, 0u);
}

TEST(ZmqSecurity, HoldsAKeyToItsProcess) {
  const KeyPair keys0 = make_key_pair(), keys1 = make_key_pair();
  Pair pair(keys0);
  // The key is allowed, but for process 2, so it cannot act as process 1.
  const KeyPair other = make_key_pair();
  pair.open0({{keys1.public_key, ProcessId(2), {}}, {other.public_key, ProcessId(1), {}}});
  pair.expect1(other.public_key);
  ZmqOptions options;
  options.keys = keys1;
  options.allowed = {{keys0.public_key, ProcessId(0), {}}};
  pair.open1(options, keys0.public_key);
  ASSERT_TRUE(wait_until([&] { return pair.got1.num_failed() == 1; }));
  EXPECT_EQ(pair.got0.num_ups(), 0u);
}

TEST(ZmqSecurity, PinsTheKeyOfTheServer) {
  const KeyPair keys0 = make_key_pair(), keys1 = make_key_pair(), forged = make_key_pair();
  Pair pair(forged);
  pair.open0({{keys1.public_key, ProcessId(1), {}}});
  pair.expect1(keys1.public_key);
  ZmqOptions options;
  options.keys = keys1;
  options.allowed = {{keys0.public_key, ProcessId(0), {}}};
  pair.open1(options, keys0.public_key);
  ASSERT_TRUE(wait_until([&] { return pair.got1.num_failed() == 1; }));
  EXPECT_EQ(pair.got0.num_ups(), 0u);
}

TEST(ZmqSecurity, AllowsAPeerNoMoreTenantsThanItsKey) {
  const KeyPair keys0 = make_key_pair(), keys1 = make_key_pair();
  CollectingReceiver receiver;
  ZmqOptions options;
  options.keys = keys0;
  options.allowed = {{keys1.public_key, ProcessId(1), {TenantSlot(2), TenantSlot(3)}}};
  auto made = make_zmq_transport(identity_of(0, 1), {}, options, receiver);
  ASSERT_TRUE(made.ok()) << made.error().text();
  PeerSpec peer;
  peer.process = ProcessId(1);
  peer.name = "side1";
  peer.public_key = keys1.public_key;
  EXPECT_THAT((*made)->add_peer(peer).error().text(), HasSubstr("not allowed for"));
  peer.tenants = {TenantSlot(2), TenantSlot(4)};
  EXPECT_THAT((*made)->add_peer(peer).error().text(), HasSubstr("not allowed for"));
  peer.tenants = {TenantSlot(3)};
  peer.public_key = keys0.public_key;
  EXPECT_THAT((*made)->add_peer(peer).error().text(), HasSubstr("not in the list"));
  peer.public_key = keys1.public_key;
  EXPECT_TRUE((*made)->add_peer(peer).ok());
}

}  // namespace
}  // namespace primerl
