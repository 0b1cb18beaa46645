#include "runtime/transport/simulated_transport.h"

#include <map>
#include <queue>
#include <set>
#include <tuple>

#include "runtime/transport/connection_transport.h"

namespace primerl {

class SimulatedTransport;

namespace {

struct SimulatedFrame {
  ProcessId from;
  std::string from_address;
  std::string to_address;
  Lane lane = Lane::kFrames;
  std::vector<std::byte> first;
  Blob second;
};

std::pair<ProcessId, ProcessId> pair_of(ProcessId one, ProcessId other) {
  return std::minmax(one, other);
}

}  // namespace

/// All frames in transit, and the clock.
struct SimulatedNetwork::Body {
  struct Arrival {
    Time at;
    uint64_t ordinal = 0;  // for equal times: the order in which they were sent
    std::shared_ptr<SimulatedFrame> frame;
    bool operator>(const Arrival& other) const {
      return std::tie(at, ordinal) > std::tie(other.at, other.ordinal);
    }
  };

  explicit Body(SimulatedOptions options)
      : faults(options.faults), random(mix(options.seed, stable_hash("network"))) {}

  bool happens(double chance) { return chance > 0 && random.uniform() < chance; }
  void put(SimulatedFrame frame);
  void schedule(const std::shared_ptr<SimulatedFrame>& frame, Time at) {
    arrivals.push({at, ++num_scheduled, frame});
  }
  ProcessId process_at(const std::string& address) const;

  SimulatedFaults faults;
  RandomStream random;
  Time now = Time::from_nanoseconds(1);
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals;
  uint64_t num_scheduled = 0;
  uint64_t num_lost = 0;
  std::map<std::string, SimulatedTransport*> transports;
  std::map<std::pair<std::string, std::string>, Time> last_arrival;  // by connection, for order
  std::set<std::pair<ProcessId, ProcessId>> cuts;
};

class SimulatedTransport final : public ConnectionTransport {
 public:
  SimulatedTransport(SimulatedNetwork& network, TransportIdentity identity, ConnectionLimits limits,
                     TransportReceiver& receiver)
      : ConnectionTransport(std::move(identity), limits, receiver),
        network_(network),
        address_(simulated_address(this->identity().process, this->identity().incarnation)) {
    network_.body_->transports[address_.frames] = this;
  }
  ~SimulatedTransport() override {
    end_connections();
    network_.body_->transports.erase(address_.frames);
  }

  const PeerAddress& address() const override { return address_; }
  Time next_turn() const { return next_turn_; }
  ProcessId process() const { return identity().process; }
  void arrive_frame(SimulatedFrame& frame);
  void turn();
  Status close(Duration deadline) override;

 protected:
  void wake() override { next_turn_ = std::min(next_turn_, now()); }
  Status check_peer(const PeerSpec& peer) const override {
    if (peer.address.empty() || peer.address.frames.starts_with("simulated://")) return ok();
    return error(Code::kInvalid, "'{}' is no address of a simulated transport",
                 peer.address.frames);
  }
  Time now() const override { return network_.body_->now; }

 private:
  SimulatedNetwork& network_;
  const PeerAddress address_;
  Time next_turn_;
  bool is_closed_ = false;
  Status closed_;
};

void SimulatedNetwork::Body::put(SimulatedFrame frame) {
  const ProcessId to = process_at(frame.to_address);
  if (to.is_none() || cuts.contains(pair_of(frame.from, to)) || happens(faults.loss)) {
    ++num_lost;
    return;
  }
  if (happens(faults.damage)) {
    const uint64_t bit = random.below(frame.first.size() * 8);
    frame.first[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  const auto jitter = faults.jitter.to_nanoseconds();
  Time at = now + faults.delay;
  if (jitter > 0)
    at = at + Duration::nanoseconds(
                  static_cast<int64_t>(random.below(static_cast<uint64_t>(jitter) + 1)));
  // Each lane has its own connection, which keeps the order unless reordering is enabled.
  const auto connection =
      std::pair(frame.from_address + (frame.lane == Lane::kBulk ? "b" : "f"), frame.to_address);
  Time& last = last_arrival[connection];
  at = std::max(at, last);
  const auto shared = std::make_shared<SimulatedFrame>(std::move(frame));
  if (happens(faults.duplication)) schedule(shared, at + faults.reordered_by);
  if (happens(faults.reordering)) return schedule(shared, at + faults.reordered_by);
  last = at;
  schedule(shared, at);
}

ProcessId SimulatedNetwork::Body::process_at(const std::string& address) const {
  const auto found = transports.find(address);
  return found == transports.end() ? ProcessId::none() : found->second->process();
}

void SimulatedTransport::arrive_frame(SimulatedFrame& frame) {
  if (is_closed_) return;
  // Shared, because a duplicate arrives again.
  const auto first = std::make_shared<const std::vector<std::byte>>(frame.first);
  const auto second = std::make_shared<const Blob>(frame.second);
  const std::lock_guard lock(mutex());
  const PeerConnection* connection = find(frame.from);
  const FrameOrigin origin = {frame.from_address, 0,
                              connection != nullptr && connection->connects()};
  arrive(frame.lane, frame.from, origin, {first, first->size(), *first},
         {second, second->size(), second->bytes()});
  wake();
}

void SimulatedTransport::turn() {
  const std::lock_guard lock(mutex());
  next_turn_ = begin_turn();
  each_connection([&](PeerConnection& connection) {
    for (const Lane lane : kLanes) {
      OutFrame frame;
      while (connection.next(lane, now(), frame))
        network_.body_->put({identity().process, address_.frames,
                             connection.connects() ? connection.peer().address.frames
                                                   : connection.route_of(lane, frame),
                             lane, first_part(frame), frame.data});
    }
    next_turn_ = std::min(next_turn_, connection.next_timer());
  });
}

Status SimulatedTransport::close(Duration deadline) {
  if (std::exchange(is_closed_, true)) return closed_;
  is_closed_ = false;  // frames still arrive while it waits
  const Time until = now() + std::min(deadline, Duration::seconds(3600));
  const auto is_done = [&] {
    const std::lock_guard lock(mutex());
    return is_settled() || now() >= until;
  };
  while (!is_done() && network_.advance()) {
  }
  {
    const std::lock_guard lock(mutex());
    closed_ = settled_or_deadline(deadline);
    leave_peers();
  }
  turn();
  const std::lock_guard lock(mutex());
  end_connections();
  is_closed_ = true;
  return closed_;
}

SimulatedNetwork::SimulatedNetwork(SimulatedOptions options)
    : body_(std::make_unique<Body>(options)) {}
SimulatedNetwork::~SimulatedNetwork() = default;

std::unique_ptr<Transport> SimulatedNetwork::make_transport(TransportIdentity identity,
                                                            ConnectionLimits limits,
                                                            TransportReceiver& receiver) {
  return std::make_unique<SimulatedTransport>(*this, std::move(identity), limits, receiver);
}

void SimulatedNetwork::set_faults(const SimulatedFaults& faults) { body_->faults = faults; }

void SimulatedNetwork::cut(ProcessId one, ProcessId other) {
  body_->cuts.insert(pair_of(one, other));
  decltype(body_->arrivals) kept;
  while (!body_->arrivals.empty()) {
    const auto& arrival = body_->arrivals.top();
    const ProcessId to = body_->process_at(arrival.frame->to_address);
    if (pair_of(arrival.frame->from, to) == pair_of(one, other))
      ++body_->num_lost;
    else
      kept.push(arrival);
    body_->arrivals.pop();
  }
  body_->arrivals = std::move(kept);
}

void SimulatedNetwork::reconnect(ProcessId one, ProcessId other) {
  body_->cuts.erase(pair_of(one, other));
}

bool SimulatedNetwork::advance() {
  SimulatedTransport* next = nullptr;
  for (const auto& [address, transport] : body_->transports)
    if (next == nullptr || transport->next_turn() < next->next_turn()) next = transport;
  if (next == nullptr) return false;
  if (body_->arrivals.empty() || next->next_turn() <= body_->arrivals.top().at) {
    body_->now = std::max(body_->now, next->next_turn());
    next->turn();
    return true;
  }
  const auto arrival = body_->arrivals.top();
  body_->arrivals.pop();
  body_->now = std::max(body_->now, arrival.at);
  const auto to = body_->transports.find(arrival.frame->to_address);
  if (to != body_->transports.end()) to->second->arrive_frame(*arrival.frame);
  return true;
}

bool SimulatedNetwork::run_until(const std::function<bool()>& done, uint64_t events_max) {
  for (uint64_t i = 0; i < events_max; ++i) {
    if (done()) return true;
    if (!advance()) break;
  }
  return done();
}

void SimulatedNetwork::run_for(Duration time) {
  const Time until = now() + time;
  while (now() < until && advance()) {
  }
}

Time SimulatedNetwork::now() const { return body_->now; }
uint64_t SimulatedNetwork::num_lost() const { return body_->num_lost; }

PeerAddress simulated_address(ProcessId process, uint32_t incarnation) {
  const std::string address = fmt::format("simulated://{}.{}", process, incarnation);
  return {address, address};
}

}  // namespace primerl
