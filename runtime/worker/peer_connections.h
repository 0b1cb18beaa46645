/// PeerConnections: the connections of one process to the other processes of a run: a Transport
/// between an executor and its peers, from open() to close().
///
/// Order: open -> connect -> [all_live] -> receive -> ... -> leave -> close (or destroy). Batches
/// that arrive before receive() wait in order; the peers' credit limits them.
///
/// Threads: send() from the thread of any actor group. Events come from the transport's I/O thread
/// or an actor group's; handlers must return quickly and may not call back. Everything else from
/// one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/exec/other_processes.h"
#include "runtime/transport/keys.h"
#include "runtime/transport/transport.h"

namespace primerl {

/// How edges and weight streams between two processes are sent; kMemory: there are none.
EdgeTransport transport_between(const Plan& plan, ProcessId one, ProcessId other);

struct ConnectionEvents {
  std::function<void()> all_live;  // called once, when every peer of connect() has greeted
  // With "" once per use of a slot; or with the reason why the tenant failed.
  std::function<void(TenantSlot, uint32_t tenancy, const std::string&)> tenant_finished;
  std::function<void(const Error&)> failed;         // the run cannot continue; only the first call
                                                    // counts
  std::function<void(const std::string&)> changed;  // a connection broke or was restored; text for
                                                    // the log
};

/// The streams that are sent in addition to the message batches (see Transport). next() and
/// arrive() are called from the I/O thread. ended() is called from the thread of end_peer(), after
/// the last call of either for that incarnation.
class StreamEnds {
 public:
  virtual ~StreamEnds() = default;
  virtual bool next(ProcessId to, uint32_t incarnation, StreamFrame& frame) = 0;
  virtual void arrive(ProcessId from, uint32_t incarnation, const StreamFrame& frame) = 0;
  virtual void ended(ProcessId peer, uint32_t incarnation) = 0;
};

class PeerConnections final : public OtherProcesses, private TransportReceiver {
 public:
  using Make = std::function<Result<std::unique_ptr<Transport>>(TransportReceiver&)>;

  explicit PeerConnections(ConnectionEvents events) : events_(std::move(events)) {}
  ~PeerConnections() override;

  /// Returns the addresses at which peers can connect to this process from now on.
  Result<std::vector<PeerAddress>> open(const Make& make);
  /// Call before connect(). With keys: the tenants that each peer may send for.
  void admit(std::vector<AllowedKey> allowed) { allowed_ = std::move(allowed); }
  /// Whether every connection must prove a key of that list, also over ipc.
  bool has_key_list() const { return !allowed_.empty(); }
  /// Call before open(); `streams` must stay valid while the connections exist.
  void carry_streams(StreamEnds* streams) { streams_ = streams; }
  /// StreamEnds::next() may return a frame now. Call between open() and close(), any thread.
  void streams_ready() { transport_->streams_ready(); }
  /// Connects to the peers. Without peers all_live is called at once.
  Status connect(std::vector<PeerSpec> peers);
  /// A peer died; data that it has not acknowledged is dropped.
  void end_peer(ProcessId peer, uint32_t incarnation);
  /// Connects to the next incarnation of a peer that died.
  Status join(PeerSpec peer);
  /// Passes batches that have arrived and that will arrive to `take`, one message batch at a time.
  /// Its Status names what it skipped because the peer may not send it.
  using Take = std::function<Status(ProcessId from, MessageBatch&& batch)>;
  void receive(Take take);
  /// The run ends: from now on connections may break, and nothing more is received.
  void leave();
  void close();

  std::vector<ConnectionStatus> status() const;

  // OtherProcesses
  Status send(ProcessId to, MessageBatch&& batch) override;
  void refused(ProcessId from, const Error& why) override;
  void tenant_finished(TenantSlot tenant, uint32_t tenancy) override {
    tenant_failed(tenant, tenancy, "");
  }
  void tenant_failed(TenantSlot tenant, uint32_t tenancy, const std::string& why) override;

 private:
  void deliver(ProcessId from, MessageBatch&& batch) override;
  void on_connection_up(ProcessId peer, uint32_t incarnation) override;
  void on_connection_down(ProcessId peer, uint32_t incarnation, const Error& why) override;
  void on_refused(const ConnectionRefusal& refusal) override;
  void on_connection_failed(ProcessId peer, uint32_t incarnation, const Error& why) override;
  bool next_stream(ProcessId peer, uint32_t incarnation, StreamFrame& frame) override {
    return streams_ != nullptr && streams_->next(peer, incarnation, frame);
  }
  void receive_stream(ProcessId from, uint32_t incarnation, const StreamFrame& frame) override {
    if (streams_ != nullptr) streams_->arrive(from, incarnation, frame);
  }
  void fail(const Error& why);
  void note_refused(ProcessId from, const Error& why);
  std::string name_of(ProcessId peer) const;
  void add_credentials(PeerSpec& peer) const;

  const ConnectionEvents events_;
  std::vector<AllowedKey> allowed_;       // constant after connect()
  StreamEnds* streams_ = nullptr;         // constant after open()
  std::unique_ptr<Transport> transport_;  // constant between open() and close()

  mutable std::mutex mutex_;  // guards the members below
  std::map<ProcessId, std::string> names_;
  std::set<ProcessId> waiting_;  // peers that have not greeted yet
  std::vector<std::pair<ProcessId, MessageBatch>> early_;
  Take take_;
  std::map<ProcessId, uint64_t> num_refused_;  // number of batches of which a part was skipped
  std::map<TenantSlot, uint32_t> finished_;    // the newest tenancy that has finished or failed
  bool is_leaving_ = false;
  bool has_failed_ = false;
};

}  // namespace primerl
