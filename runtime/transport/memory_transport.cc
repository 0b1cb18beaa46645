#include "runtime/transport/memory_transport.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <set>
#include <thread>

#include "graph/base/real_clock.h"
#include "runtime/transport/connection_transport.h"

namespace primerl {
namespace {

constexpr int kFramesPerTurn = 256;

struct MemoryFrame {
  ProcessId from;
  std::string from_address;
  Lane lane = Lane::kFrames;
  std::shared_ptr<const std::vector<std::byte>> first;
  Blob second;
};

/// The queue of frames that arrive at a transport.
class MemoryInbox {
 public:
  void put(MemoryFrame frame) {
    const std::lock_guard lock(mutex_);
    frames_.push_back(std::move(frame));
    changed_.notify_one();
  }
  void wake() {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
    changed_.notify_one();
  }
  void drop_from(ProcessId process) {
    const std::lock_guard lock(mutex_);
    std::erase_if(frames_, [&](const MemoryFrame& frame) { return frame.from == process; });
  }
  /// Waits for a frame, at most until `until`; returns at most `count` frames.
  std::deque<MemoryFrame> take(Time until, size_t count) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point deadline{std::chrono::nanoseconds(until.to_nanoseconds())};
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return is_woken_ || !frames_.empty(); });
    is_woken_ = false;
    std::deque<MemoryFrame> taken;
    while (!frames_.empty() && taken.size() < count) {
      taken.push_back(std::move(frames_.front()));
      frames_.pop_front();
    }
    return taken;
  }

 private:
  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<MemoryFrame> frames_;
  bool is_woken_ = false;
};

class Network final : public MemoryNetwork {
 public:
  void attach(const std::string& address, ProcessId process, std::shared_ptr<MemoryInbox> inbox) {
    const std::lock_guard lock(mutex_);
    inboxes_[address] = {process, std::move(inbox)};
  }
  void detach(const std::string& address) {
    const std::lock_guard lock(mutex_);
    inboxes_.erase(address);
  }
  /// False: no such transport. Frames sent while the network is cut are lost.
  bool put(const std::string& to, MemoryFrame frame) {
    const std::lock_guard lock(mutex_);
    const auto found = inboxes_.find(to);
    if (found == inboxes_.end()) return false;
    if (!cuts_.contains(pair(frame.from, found->second.process)))
      found->second.inbox->put(std::move(frame));
    return true;
  }
  void cut(ProcessId one, ProcessId other) override {
    const std::lock_guard lock(mutex_);
    cuts_.insert(pair(one, other));
    for (auto& [address, end] : inboxes_) {
      if (end.process == one) end.inbox->drop_from(other);
      if (end.process == other) end.inbox->drop_from(one);
    }
  }
  void reconnect(ProcessId one, ProcessId other) override {
    const std::lock_guard lock(mutex_);
    cuts_.erase(pair(one, other));
  }

 private:
  struct End {
    ProcessId process;
    std::shared_ptr<MemoryInbox> inbox;
  };
  static std::pair<ProcessId, ProcessId> pair(ProcessId one, ProcessId other) {
    return std::minmax(one, other);
  }
  // Guarded by mutex_.
  std::mutex mutex_;
  std::map<std::string, End> inboxes_;
  std::set<std::pair<ProcessId, ProcessId>> cuts_;
};

class MemoryTransport final : public ConnectionTransport {
 public:
  MemoryTransport(std::shared_ptr<Network> network, TransportIdentity identity,
                  ConnectionLimits limits, TransportReceiver& receiver)
      : ConnectionTransport(std::move(identity), limits, receiver),
        network_(std::move(network)),
        address_(memory_address(this->identity().process, this->identity().incarnation)) {
    network_->attach(address_.frames, this->identity().process, inbox_);
    thread_ = std::thread([this] { run(); });
  }
  ~MemoryTransport() override { (void)close(Duration()); }

  const PeerAddress& address() const override { return address_; }
  Status close(Duration deadline) override;

 protected:
  void wake() override { inbox_->wake(); }
  Status check_peer(const PeerSpec& peer) const override {
    if (peer.address.empty() || peer.address.frames.starts_with("memory://")) return ok();
    return error(Code::kInvalid, "'{}' is no address of a memory transport: 'memory://...'",
                 peer.address.frames);
  }
  Time now() const override { return steady_now(); }

 private:
  void run();
  bool send_frames(PeerConnection& connection);

  // Constant after construction.
  const std::shared_ptr<Network> network_;
  const PeerAddress address_;
  const std::shared_ptr<MemoryInbox> inbox_ = std::make_shared<MemoryInbox>();
  // Guarded by mutex().
  std::condition_variable turned_;
  bool is_stopping_ = false;
  Status closed_;
  std::thread thread_;
};

void MemoryTransport::run() {
  Time until = now();
  while (true) {
    auto frames = inbox_->take(until, kFramesPerTurn);
    const std::lock_guard lock(mutex());
    for (MemoryFrame& frame : frames) {
      const ReceivedPart first = {frame.first, frame.first->size(), *frame.first};
      const auto second = std::make_shared<const Blob>(frame.second);
      const PeerConnection* connection = find(frame.from);
      const FrameOrigin origin = {frame.from_address, 0,
                                  connection != nullptr && connection->connects()};
      arrive(frame.lane, frame.from, origin, first, {second, second->size(), second->bytes()});
    }
    until = begin_turn();
    bool has_more = frames.size() == kFramesPerTurn;
    each_connection([&](PeerConnection& connection) { has_more |= send_frames(connection); });
    if (has_more) until = now();
    turned_.notify_all();
    if (is_stopping_) return;
  }
}

bool MemoryTransport::send_frames(PeerConnection& connection) {
  int num_sent = 0;
  for (const Lane lane : kLanes) {
    OutFrame frame;
    while (num_sent < kFramesPerTurn && connection.next(lane, now(), frame)) {
      ++num_sent;
      const std::string& to = connection.connects() ? connection.peer().address.frames
                                                    : connection.route_of(lane, frame);
      auto first = std::make_shared<const std::vector<std::byte>>(first_part(frame));
      if (network_->put(to, {identity().process, address_.frames, lane, first, frame.data}))
        continue;
      connection.retry(lane, frame);
      return false;  // no such transport: the next timer tries again
    }
  }
  return num_sent == kFramesPerTurn;
}

Status MemoryTransport::close(Duration deadline) {
  if (!thread_.joinable()) return closed_;
  {
    std::unique_lock lock(mutex());
    turned_.wait_for(lock, std::chrono::nanoseconds(std::min(deadline, kWaitMax).to_nanoseconds()),
                     [&] { return is_settled(); });
    closed_ = settled_or_deadline(deadline);
    leave_peers();
    is_stopping_ = true;
  }
  wake();
  thread_.join();
  network_->detach(address_.frames);
  const std::lock_guard lock(mutex());
  end_connections();
  return closed_;
}

}  // namespace

std::shared_ptr<MemoryNetwork> make_memory_network() { return std::make_shared<Network>(); }

PeerAddress memory_address(ProcessId process, uint32_t incarnation) {
  const std::string address = fmt::format("memory://{}.{}", process, incarnation);
  return {address, address};
}

std::unique_ptr<Transport> make_memory_transport(std::shared_ptr<MemoryNetwork> network,
                                                 TransportIdentity identity,
                                                 ConnectionLimits limits,
                                                 TransportReceiver& receiver) {
  return std::make_unique<MemoryTransport>(std::static_pointer_cast<Network>(std::move(network)),
                                           std::move(identity), limits, receiver);
}

}  // namespace primerl
