/// SplitExecutor: a plan whose groups have one process each, all inside the test's process. Each
/// has a CafExecutor and links over a memory transport. A RunCoordinator connects them, as in
/// primerl-graph. The guarantees of an executor for one process must also hold for several.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/control/run_coordinator.h"
#include "runtime/transport/memory_transport.h"
#include "runtime/worker/run_member.h"

namespace primerl {

/// The plan with one process per group.
std::shared_ptr<const Plan> split_plan(const Plan& plan);

class SplitExecutor final : public Executor {
 public:
  /// `types` are the catalog's messages. The plan must have one process.
  SplitExecutor(std::shared_ptr<const Plan> plan, std::vector<const MessageType*> types,
                ProcessServices& process_services, ResourceFactory factory);
  ~SplitExecutor() override;

  Status start() override;
  void request_drain() override;
  void request_stop() override;
  Status change_tenant(const TenantChange&) override {
    return error(Code::kUnavailable, "tenants do not change in a split run of tests");
  }
  void drain_tenant(TenantSlot) override {}
  RunOutcome wait() override;
  RunStatus status() const override;

  /// Loses everything in transit between two groups' processes, and then restores the connection.
  void break_connection(ProcessId one, ProcessId other);

 private:
  struct Worker {
    std::unique_ptr<PeerConnections> links;
    std::unique_ptr<RunMember> member;
    std::deque<Payload> orders;  // guarded by mutex_
  };
  void lead();  // the coordinator's thread
  bool turn();  // false: nothing to do
  void end_as(RunOutcome outcome);
  StallReport stall_report() const;

  const std::shared_ptr<const Plan> plan_;
  std::shared_ptr<MemoryNetwork> network_;
  std::shared_ptr<const WireTypes> types_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<RunCoordinator> coordinator_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::pair<ProcessId, Payload>> said_;
  std::optional<RunOutcome> outcome_;
  RunStatus seen_;
  bool is_up_ = false;
  bool wants_drain_ = false, wants_stop_ = false;
  bool is_done_ = false;

  std::thread thread_;
};

}  // namespace primerl
