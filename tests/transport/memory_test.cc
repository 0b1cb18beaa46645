#include "runtime/transport/memory_transport.h"

#include "tests/conformance/transport_conformance.h"

namespace primerl {
namespace {

class MemoryStage final : public TransportStage {
 public:
  void open(size_t side, const TransportIdentity& identity, const LinkLimits& limits,
            CollectingReceiver& receiver) override {
    transports_[side] = make_memory_transport(network_, identity, limits, receiver);
    if (side == 0) address_of_0_ = transports_[0]->address();
  }
  void kill(size_t side) override {
    // Cut off first, so that it cannot say goodbye.
    network_->cut(ProcessId(0), ProcessId(1));
    transports_[side].reset();
    network_->heal(ProcessId(0), ProcessId(1));
  }
  void break_link() override {
    network_->cut(ProcessId(0), ProcessId(1));
    network_->heal(ProcessId(0), ProcessId(1));
  }

 private:
  std::shared_ptr<MemoryNetwork> network_ = make_memory_network();
};

TransportUnderTest on_memory() {
  return {"memory", [] { return std::make_unique<MemoryStage>(); }};
}

INSTANTIATE_TEST_SUITE_P(Memory, TransportConformance, ::testing::Values(on_memory()));

}  // namespace
}  // namespace primerl
