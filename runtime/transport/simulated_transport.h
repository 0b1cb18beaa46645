/// Transports on a virtual clock, over a network that loses, repeats, reorders, delays and
/// partitions frames. They test the protocol of peer_connection.h under every fault; a seed repeats
/// a test. One thread, no sockets.
///
///   SimulatedNetwork network({.seed = 7, .faults = {.loss = 0.1}});
///   auto transport = network.make_transport(identity, limits, receiver);
///   network.run_until([&] { return ...; });
///
/// All work is done in advance(): send() only queues, and deliver() is called from advance(). Not
/// thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph/base/random.h"
#include "runtime/transport/transport.h"

namespace primerl {

/// Probabilities per frame, each drawn independently.
struct SimulatedFaults {
  double loss = 0;
  double duplication = 0;
  double reordering = 0;  // the frame is delayed, and later frames overtake it
  Duration delay = Duration::microseconds(50);
  Duration jitter = Duration();  // random part of the delay; keeps the order
  Duration reordered_by = Duration::milliseconds(5);
  double damage = 0;  // one bit of the frame is flipped
};

struct SimulatedOptions {
  uint64_t seed = 1;
  SimulatedFaults faults;
};

class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(SimulatedOptions options);
  ~SimulatedNetwork();
  SimulatedNetwork(const SimulatedNetwork&) = delete;
  SimulatedNetwork& operator=(const SimulatedNetwork&) = delete;

  /// `receiver` must stay valid while the transport exists, and the network must too. One transport
  /// per process and incarnation; its address is that of simulated_address().
  std::unique_ptr<Transport> make_transport(TransportIdentity identity, ConnectionLimits limits,
                                            TransportReceiver& receiver);

  /// Applies from now on; frames in transit are not affected.
  void set_faults(const SimulatedFaults& faults);
  /// Drops all frames between the two until heal(), also those in transit.
  void cut(ProcessId one, ProcessId other);
  void reconnect(ProcessId one, ProcessId other);

  /// The next event: an arrival, or a timer. False: no event is left.
  bool advance();
  /// Runs until `done` returns true, at most `events_max` events. Returns whether it became true.
  bool run_until(const std::function<bool()>& done, uint64_t events_max = 1'000'000);
  /// Runs until the clock has advanced by `time`.
  void run_for(Duration time);
  Time now() const;
  uint64_t num_lost() const;

 private:
  friend class SimulatedTransport;
  struct Body;
  std::unique_ptr<Body> body_;
};

/// "simulated://2.1": process and incarnation.
PeerAddress simulated_address(ProcessId process, uint32_t incarnation);

}  // namespace primerl
