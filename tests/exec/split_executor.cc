#include "tests/exec/split_executor.h"

#include <algorithm>
#include <chrono>

#include "runtime/exec/stall.h"

namespace primerl {
namespace {

Time now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return Time::from_nanoseconds(std::chrono::nanoseconds(since).count());
}

std::vector<EdgeLedger> ledger_of(const std::vector<EdgeLedger>& counts) {
  std::vector<EdgeLedger> ledger;
  for (const auto& edge : counts)
    ledger.push_back({edge.sent, edge.handled, edge.in_flight, edge.returned, edge.dropped,
                      edge.failed, edge.waiting_max});
  return ledger;
}

}  // namespace

std::shared_ptr<const Plan> split_plan(const Plan& plan) {
  auto split = std::make_shared<Plan>(plan);
  split->processes.clear();
  for (uint32_t i = 0; i < split->groups.size(); ++i) {
    PlanProcess process;
    process.name = fmt::format("p{}", i);
    process.groups = {GroupId(i)};
    process.place = static_cast<int32_t>(i);
    split->groups[i].process = ProcessId(i);
    split->processes.push_back(std::move(process));
  }
  for (auto& node : split->nodes)
    node.process = split->group(split->instance(node.instances.front()).group).process;
  return split;
}

SplitExecutor::SplitExecutor(std::shared_ptr<const Plan> plan,
                             std::vector<const MessageType*> types,
                             ProcessServices& process_services, ResourceFactory factory)
    : plan_(split_plan(*plan)),
      network_(make_memory_network()),
      types_(std::make_shared<const WireTypes>(std::move(types))) {
  for (uint32_t i = 0; i < plan_->processes.size(); ++i) {
    auto& worker = workers_.emplace_back(std::make_unique<Worker>());
    const auto say = [this, i](Payload message) {
      const std::lock_guard lock(mutex_);
      said_.emplace_back(ProcessId(i), std::move(message));
      changed_.notify_all();
    };
    const auto failed = [say](const Error& why) {
      RunEnded ended;
      ended.end = static_cast<uint8_t>(RunEnd::kFailed);
      ended.text = why.text();
      say(Payload::of(std::move(ended)));
    };
    worker->links =
        std::make_unique<PeerConnections>(connection_events(say, failed, [](const auto&) {}));
    CafExecutorSetup setup;
    setup.plan = plan_;
    setup.process = ProcessId(i);
    setup.process_services = &process_services;
    setup.factory = factory;
    worker->member = std::make_unique<RunMember>(
        setup, plan_->processes.size() > 1 ? worker->links.get() : nullptr, say);
  }
}

SplitExecutor::~SplitExecutor() {
  request_stop();
  if (thread_.joinable()) thread_.join();
  workers_.clear();
}

Status SplitExecutor::start() {
  coordinator_ = std::make_unique<RunCoordinator>(
      *plan_, types_->hash(), 1, [this](ProcessId to, Payload message) {
        const std::lock_guard lock(mutex_);
        workers_[to.index()]->orders.push_back(std::move(message));
      });
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    const auto addresses = workers_[i]->links->open([&](TransportReceiver& receiver) {
      TransportIdentity identity{"split",      plan_->graph_hash,        types_,
                                 ProcessId(i), plan_->processes[i].name, 1};
      return Result<std::unique_ptr<Transport>>(
          make_memory_transport(network_, identity, {}, receiver));
    });
    RETURN_IF_ERROR(addresses);
    WorkerHello hello;
    hello.graph_hash = plan_->graph_hash;
    hello.types_hash = types_->hash();
    hello.process = plan_->processes[i].name;
    hello.incarnation = 1;
    for (const PeerAddress& each : *addresses) hello.addresses.push_back({each.frames, each.bulk});
    const std::lock_guard lock(mutex_);
    said_.emplace_back(ProcessId(i), Payload::of(std::move(hello)));
  }
  thread_ = std::thread([this] { lead(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_up_ || outcome_; });
  return outcome_ && !is_up_ ? outcome_->status : ok();
}

void SplitExecutor::request_drain() {
  const std::lock_guard lock(mutex_);
  wants_drain_ = true;
  changed_.notify_all();
}

void SplitExecutor::request_stop() {
  const std::lock_guard lock(mutex_);
  wants_stop_ = true;
  changed_.notify_all();
}

RunOutcome SplitExecutor::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_done_; });
  return *outcome_;
}

RunStatus SplitExecutor::status() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

void SplitExecutor::break_connection(ProcessId one, ProcessId other) {
  network_->cut(one, other);
  network_->reconnect(one, other);
}

void SplitExecutor::end_as(RunOutcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    if (!outcome_ || (outcome_->status.ok() && !outcome.status.ok())) outcome_ = std::move(outcome);
    changed_.notify_all();
  }
  for (auto& worker : workers_) worker->member->stop();
}

/// Like the control plane, it uses every process's report about its own groups.
StallReport SplitExecutor::stall_report() const {
  const auto wiring = make_wiring(*plan_);
  std::vector<GroupView> views;
  for (const auto& worker : workers_)
    for (const GroupReport& report : worker->member->heartbeat().groups)
      if (auto view = to_view(*plan_, *wiring, report, now())) views.push_back(std::move(*view));
  return make_stall_report(*plan_, *wiring, views, now());
}

bool SplitExecutor::turn() {
  std::deque<std::pair<ProcessId, Payload>> said;
  bool wants_drain = false, wants_stop = false;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return !said_.empty(); });
    std::swap(said, said_);
    wants_drain = std::exchange(wants_drain_, false);
    wants_stop = std::exchange(wants_stop_, false);
  }
  Status status;
  for (const auto& [from, message] : said) {
    if (const auto* ended = as_if<RunEnded>(message); ended != nullptr && status.ok())
      status = error(Code::kInternal, "{}", ended->text);
    if (status.ok()) status = coordinator_->handle(from, message, now());
  }
  if (wants_drain) coordinator_->drain("asked", static_cast<uint8_t>(RunEnd::kInterrupted));
  for (uint32_t i = 0; i < workers_.size(); ++i)
    if (workers_[i]->member->has_begun())
      (void)coordinator_->handle(ProcessId(i), Payload::of(workers_[i]->member->heartbeat()),
                                 now());
  if (status.ok()) {
    status = coordinator_->tick(now());
    if (!status.ok()) {
      end_as({RunEnd::kStalled, status, {}, stall_report()});
    }
  } else {
    end_as({RunEnd::kFailed, status, {}, {}});
  }
  if (wants_stop) end_as({RunEnd::kInterrupted, ok(), {}, {}});
  for (auto& worker : workers_) {
    std::deque<Payload> orders;
    {
      const std::lock_guard lock(mutex_);
      std::swap(orders, worker->orders);
    }
    for (const Payload& order : orders)
      if (const Status obeyed = worker->member->obey(order); !obeyed.ok())
        end_as({RunEnd::kFailed, obeyed, {}, {}});
    worker->member->poll(now());
    if (const auto& outcome = worker->member->outcome())
      if (outcome->end != RunEnd::kInterrupted || !outcome->status.ok() || outcome_)
        end_as(*outcome);
  }
  {
    const std::lock_guard lock(mutex_);
    if (coordinator_->is_up() && !is_up_) {
      is_up_ = true;
      changed_.notify_all();
    }
    seen_.edges = ledger_of(coordinator_->total_edges());
    seen_.num_steps = 0;
    for (uint32_t i = 0; i < workers_.size(); ++i)
      seen_.num_steps += coordinator_->heartbeat_of(ProcessId(i)).num_steps;
  }
  bool all_ended = true;
  for (auto& worker : workers_)
    all_ended =
        all_ended && (worker->member->outcome() || (outcome_ && !worker->member->has_begun()));
  return !all_ended;
}

void SplitExecutor::lead() {
  while (turn()) {
  }
  std::vector<EdgeLedger> total(plan_->edges.size());
  for (auto& worker : workers_) {
    if (!worker->member->outcome()) continue;
    const auto& part = worker->member->outcome()->ledger;
    for (size_t e = 0; e < part.size(); ++e) {
      total[e].sent += part[e].sent;
      total[e].handled += part[e].handled;
      total[e].in_flight += part[e].in_flight;
      total[e].returned += part[e].returned;
      total[e].dropped += part[e].dropped;
      total[e].failed += part[e].failed;
      total[e].waiting_max = std::max(total[e].waiting_max, part[e].waiting_max);
    }
  }
  const std::lock_guard lock(mutex_);
  if (!outcome_) outcome_ = workers_.front()->member->outcome();
  outcome_->ledger = std::move(total);
  seen_.edges = outcome_->ledger;
  is_done_ = true;
  changed_.notify_all();
}

}  // namespace primerl
