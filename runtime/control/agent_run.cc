#include "runtime/control/agent_run.h"

#include <algorithm>
#include <utility>

#include "runtime/wire/agent_frames.h"
#include "runtime/wire/control_messages.h"

namespace primerl {
namespace {

constexpr int kPiecesPerTurn = 16;  // pieces of one worker before the others get a turn

bool is_inside(const std::filesystem::path& file, const std::filesystem::path& folder) {
  const auto normal = file.lexically_normal();
  return normal.is_absolute() && normal.parent_path() == folder.lexically_normal();
}

}  // namespace

AgentRun::AgentRun(PrepareRun order, AgentSite site, Send send)
    : order_(std::move(order)), site_(std::move(site)), send_(std::move(send)) {}

AgentRun::~AgentRun() {
  for (auto& [channel, worker] : workers_) worker.child->kill();
  workers_.clear();
  std::error_code ignored;  // the parent folder is removed with the agent
  std::filesystem::remove_all(site_.sockets / order_.socket_folder, ignored);
}

size_t AgentRun::num_workers() const {
  return static_cast<size_t>(std::count_if(
      workers_.begin(), workers_.end(), [](const auto& each) { return !each.second.has_exited; }));
}

Result<AgentRun::Worker*> AgentRun::find(uint32_t channel) {
  const auto found = workers_.find(channel);
  if (found != workers_.end()) return &found->second;
  // The channel has ended already.
  if (channel <= newest_channel_) return static_cast<Worker*>(nullptr);
  return error(Code::kCorrupt, "channel {} was never opened", channel);
}

Status AgentRun::handle(const Payload& message) {
  if (const auto* order = as_if<LaunchWorker>(message)) return launch(*order);
  if (const auto* order = as_if<KillWorker>(message)) {
    ASSIGN_OR_RETURN(Worker * worker, find(order->channel));
    if (worker != nullptr) worker->child->kill();
  } else if (const auto* bytes = as_if<TunnelBytes>(message)) {
    ASSIGN_OR_RETURN(Worker * worker, find(bytes->channel));
    if (worker != nullptr) return worker->tunnel->arrived(bytes->bytes);
  } else if (const auto* credit = as_if<TunnelCredit>(message)) {
    ASSIGN_OR_RETURN(Worker * worker, find(credit->channel));
    if (worker != nullptr) return worker->tunnel->granted(credit->granted);
  } else if (const auto* end = as_if<TunnelEnded>(message)) {
    ASSIGN_OR_RETURN(Worker * worker, find(end->channel));
    if (worker != nullptr) return worker->tunnel->peer_ended();
  } else if (as_if<AgentBeat>(message) == nullptr) {
    return error(Code::kCorrupt, "'{}' out of turn", message.type->name);
  }
  return ok();
}

Status AgentRun::launch(const LaunchWorker& order) {
  if (order.channel <= newest_channel_)
    return error(Code::kCorrupt, "channel {} was opened twice", order.channel);
  newest_channel_ = order.channel;
  auto started = start(order);
  WorkerLaunched answer;
  answer.channel = order.channel;
  if (started.ok()) {
    answer.pid = started->child->pid();
    workers_.emplace(order.channel, std::move(started).value());
  } else {
    answer.fault = to_fault(started.error());
  }
  send_(Payload::of(std::move(answer)));
  return ok();
}

Result<AgentRun::Worker> AgentRun::start(const LaunchWorker& order) const {
  if (workers_.size() >= kWorkersMax)
    return error(Code::kExhausted, "this agent serves {} processes of the run already",
                 kWorkersMax);
  if (!is_inside(order.log_file, std::filesystem::path(order_.run_folder) / "logs"))
    return error(Code::kInvalid, "the log file '{}' is not in the run folder's logs",
                 order.log_file);
  LaunchOptions options;
  options.program = site_.worker;
  options.arguments = order.arguments;
  options.arguments.insert(options.arguments.end(),
                           {"--links", (site_.sockets / order_.socket_folder).string()});
  options.arguments.insert(options.arguments.end(), site_.key_words.begin(), site_.key_words.end());
  if (!order_.listen.empty())
    options.arguments.insert(options.arguments.end(), {"--listen", order_.listen});
  for (const auto& variable : order.environment) {
    const size_t name_end = variable.find('=');
    if (name_end == std::string::npos || name_end == 0)
      return error(Code::kInvalid, "'{}' sets no environment variable", variable);
    options.environment.emplace_back(variable.substr(0, name_end), variable.substr(name_end + 1));
  }
  options.log_file = order.log_file;
  ASSIGN_OR_RETURN(auto started, ChildProcess::start(options));
  Worker worker;
  worker.process = order.process;
  worker.child = std::move(started.child);
  worker.tunnel = std::make_unique<Tunnel>(started.control_fd);
  return worker;
}

void AgentRun::turn(const std::function<bool()>& has_room) {
  for (auto& [channel, worker] : workers_) {
    worker.tunnel->carry(channel, kPiecesPerTurn, has_room, send_);
    reap(channel, worker);
  }
  std::erase_if(workers_, [](const auto& each) {
    return each.second.has_exited && each.second.tunnel->is_over();
  });
}

void AgentRun::reap(uint32_t channel, Worker& worker) {
  if (worker.has_exited) return;
  const auto exit = worker.child->poll();
  if (!exit) return;
  worker.has_exited = true;
  send_(Payload::of(WorkerExited{channel, exit->code, exit->signal,
                                 worker.child->last_words(kLastWordsBytes), exit->lack_of_memory}));
}

void AgentRun::poll_for(std::vector<pollfd>& descriptors, bool has_room) const {
  for (const auto& [channel, worker] : workers_) {
    if (const short events = worker.tunnel->poll_events(has_room); events != 0)
      descriptors.push_back({worker.tunnel->fd(), events, 0});
    if (!worker.has_exited && worker.child->pid_fd() >= 0)
      descriptors.push_back({worker.child->pid_fd(), POLLIN, 0});
  }
}

}  // namespace primerl
