#include "tests/conformance/transport_conformance.h"

#include "runtime/transport/memory_transport.h"
#include "runtime/transport/simulated_transport.h"
#include "runtime/transport/zmq_transport.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

class MemoryStage final : public TransportStage {
 public:
  void open(size_t side, const TransportIdentity& identity, const ConnectionLimits& limits,
            CollectingReceiver& receiver) override {
    transports_[side] = make_memory_transport(network_, identity, limits, receiver);
    if (side == 0) address_of_0_ = transports_[0]->address();
  }
  void kill(size_t side) override {
    // Disconnected first, so that it cannot send bye.
    network_->cut(ProcessId(0), ProcessId(1));
    transports_[side].reset();
    network_->reconnect(ProcessId(0), ProcessId(1));
  }
  void break_connection() override {
    network_->cut(ProcessId(0), ProcessId(1));
    network_->reconnect(ProcessId(0), ProcessId(1));
  }

 private:
  std::shared_ptr<MemoryNetwork> network_ = make_memory_network();
};

class ZmqStage : public TransportStage {
 public:
  explicit ZmqStage(std::string listen, bool shares_memory = false) : listen_(std::move(listen)) {
    shares_memory_ = shares_memory;
    if (listen_.empty()) listen_ = "ipc://" + folder_.path().string() + "/sockets";
  }
  void open(size_t side, const TransportIdentity& identity, const ConnectionLimits& limits,
            CollectingReceiver& receiver) override {
    transports_[side].reset();
    auto made = make_zmq_transport(identity, limits, options(side), receiver);
    ASSERT_TRUE(made.ok()) << made.error().text();
    transports_[side] = std::move(made).value();
    if (side == 0) address_of_0_ = transports_[0]->address();
  }
  void kill(size_t side) override { transports_[side].reset(); }
  void break_connection() override { break_connections(*transports_[1]); }

 protected:
  virtual ZmqOptions options(size_t side) const {
    ZmqOptions options;
    if (side == 0) options.listen = {listen_};
    return options;
  }

 private:
  ScratchFolder folder_;
  std::string listen_;
};

/// Over tcp: encrypted; each side knows the other's key, from a list or generated for the run.
class CurveStage final : public ZmqStage {
 public:
  explicit CurveStage(bool has_list) : ZmqStage("tcp://127.0.0.1"), has_list_(has_list) {}

 protected:
  ZmqOptions options(size_t side) const override {
    ZmqOptions options = ZmqStage::options(side);
    options.keys = keys_[side];
    if (has_list_)
      options.allowed = {
          {keys_[1 - side].public_key, ProcessId(static_cast<uint32_t>(1 - side)), {}}};
    return options;
  }
  std::string public_key_of(size_t side) const override { return keys_[side].public_key; }

 private:
  const bool has_list_;
  const KeyPair keys_[2] = {make_key_pair(), make_key_pair()};
};

/// One thread and a virtual clock: to wait means to process events.
class SimulatedStage final : public TransportStage {
 public:
  explicit SimulatedStage(SimulatedOptions options, bool shares_memory = false)
      : options_(options), network_(options) {
    shares_memory_ = shares_memory;
  }
  ~SimulatedStage() override {
    for (auto& transport : transports_) transport.reset();
  }
  void open(size_t side, const TransportIdentity& identity, const ConnectionLimits& limits,
            CollectingReceiver& receiver) override {
    receiver.never_hold();
    transports_[side] = network_.make_transport(identity, limits, receiver);
    if (side == 0) address_of_0_ = transports_[0]->address();
  }
  void kill(size_t side) override { transports_[side].reset(); }
  void break_connection() override {
    network_.run_for(Duration::microseconds(300));
    network_.cut(ProcessId(0), ProcessId(1));
    network_.reconnect(ProcessId(0), ProcessId(1));
  }
  bool wait(const std::function<bool()>& done) override { return network_.run_until(done); }
  bool may_lose_goodbye() const override { return options_.faults.loss > 0; }
  std::string describe() const override {
    return fmt::format("seed {} at {}\n{}", options_.seed, network_.now().to_nanoseconds(),
                       TransportStage::describe());
  }

 private:
  const SimulatedOptions options_;
  SimulatedNetwork network_;
};

TransportUnderTest simulated(std::string name, const SimulatedFaults& faults, uint64_t seed,
                             bool shares_memory = false) {
  return {std::move(name), [=] {
            return std::make_unique<SimulatedStage>(SimulatedOptions{seed, faults}, shares_memory);
          }};
}

const SimulatedFaults kEverything = {.loss = 0.1,
                                     .duplication = 0.1,
                                     .reordering = 0.1,
                                     .jitter = Duration::milliseconds(1),
                                     .damage = 0.05};

template <class Stage, class... Arguments>
TransportUnderTest on(std::string name, Arguments... arguments) {
  return {std::move(name), [=] { return std::make_unique<Stage>(arguments...); }};
}

INSTANTIATE_TEST_SUITE_P(Memory, TransportConformance,
                         ::testing::Values(on<MemoryStage>("memory")));
INSTANTIATE_TEST_SUITE_P(Simulated, TransportConformance,
                         ::testing::Values(simulated("perfect", {}, 1),
                                           simulated("loss", {.loss = 0.2}, 2),
                                           simulated("duplication", {.duplication = 0.3}, 3),
                                           simulated("reordering", {.reordering = 0.2}, 4),
                                           simulated("damage", {.damage = 0.2}, 5),
                                           simulated("everything", kEverything, 6),
                                           simulated("shared", {}, 7, true),
                                           simulated("shared_everything", kEverything, 8, true)));
INSTANTIATE_TEST_SUITE_P(Zmq, TransportConformance,
                         ::testing::Values(on<ZmqStage>("ipc", std::string()),
                                           on<ZmqStage>("ipc_shared", std::string(), true),
                                           on<CurveStage>("tcp", false),
                                           on<CurveStage>("curve", true)));

}  // namespace
}  // namespace primerl
