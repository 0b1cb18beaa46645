#include "runtime/control/agent_server.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "graph/base/real_clock.h"
#include "runtime/wire/control_messages.h"

namespace primerl {
namespace {

constexpr int kAgentFramesPerTurn = 256;
constexpr Duration kAgentTick = Duration::milliseconds(100);
// Interval for sending frames that could not be sent.
constexpr Duration kAgentRetry = Duration::milliseconds(5);
constexpr int kAgentTriesMax = 400;
constexpr Duration kFarewellMax = Duration::seconds(1);
constexpr Duration kDeadAfterMin = Duration::seconds(1), kDeadAfterMax = Duration::seconds(3600);

uint64_t draw_challenge() {
  uint64_t drawn = 0;
  CHECK(::getrandom(&drawn, sizeof drawn, 0) == sizeof drawn, "the system gives no random bytes");
  return drawn;
}

}  // namespace

Result<std::unique_ptr<AgentServer>> AgentServer::open(AgentSettings settings) {
  std::unique_ptr<AgentServer> server(new AgentServer(std::move(settings)));
  ASSIGN_OR_RETURN(
      server->listener_,
      FrameListener::open(server->settings_.listen, server->settings_.keys, kAgentFrameBytesMax));
  return server;
}

AgentServer::~AgentServer() {
  run_.reset();
  flush();
}

void AgentServer::serve() {
  while (!is_done()) turn();
  flush();
}

bool AgentServer::is_done() const {
  if (run_ != nullptr) return false;
  if (num_signals_applied_ == 0 && !(settings_.once && has_served_)) return false;
  // The last frame may be lost with the connection, so wait a short time until the client has
  // answered.
  const bool all_know = std::none_of(clients_.begin(), clients_.end(), [](const auto& each) {
    return each.second.needs_run_dropped;
  });
  return all_know || steady_now() >= leave_by_;
}

void AgentServer::turn() {
  receive_frames();
  end_checks(steady_now());
  if (run_ != nullptr) {
    PeerOutbox& outbox = clients_.at(session_).outbox;
    run_->turn([&outbox] { return outbox.has_room(); });
  }
  watch_session(steady_now());
  apply_signals();
  flush();
  if (is_done()) return;
  std::vector<pollfd> descriptors;
  if (run_ != nullptr) run_->poll_for(descriptors, clients_.at(session_).outbox.has_room());
  const bool is_waiting = std::any_of(clients_.begin(), clients_.end(), [](const auto& each) {
    return !each.second.outbox.empty() || each.second.check != nullptr;
  });
  listener_->wait(descriptors, is_waiting ? kAgentRetry : kAgentTick);
}

void AgentServer::receive_frames() {
  std::string from;
  std::vector<std::byte> frame;
  for (int i = 0; i < kAgentFramesPerTurn && !broken_ && listener_->receive(from, frame); ++i) {
    if (is_greeting(frame)) {
      greet(from, frame);
      continue;
    }
    const auto client = clients_.find(from);
    if (client == clients_.end()) {
      ++num_refused_;
      continue;
    }
    const auto message = client->second.outbox.decode(frame);
    if (message.ok()) {
      obey(from, client->second, *message);
      continue;
    }
    ++num_refused_;
    if (from == session_)
      broken_ = message.error().message();
    else
      clients_.erase(client);
  }
}

void AgentServer::greet(const std::string& from, std::span<const std::byte> frame) {
  const auto greeting = decode_greeting(frame);
  if (!greeting.ok()) {
    ++num_refused_;
    return;
  }
  AgentGreeting answer = settings_.greeting;
  // A client whose greeting differs gets this agent's greeting without a challenge.
  if (check_greeting(*greeting, answer, "the control plane").ok()) {
    auto [client, is_new] = clients_.try_emplace(from);
    if (is_new) {
      client->second.challenge = draw_challenge();
      client->second.number = ++num_greeted_;
    }
    answer.challenge = client->second.challenge;
  } else {
    ++num_refused_;
  }
  (void)listener_->send(from, encode_greeting(answer));
  if (clients_.size() <= kClientsMax) return;
  auto oldest = clients_.end();
  for (auto each = clients_.begin(); each != clients_.end(); ++each)
    if (each->first != session_ && each->first != from &&
        (oldest == clients_.end() || each->second.number < oldest->second.number))
      oldest = each;
  clients_.erase(oldest);
}

/// A message that cannot be encoded ends the session if the client has a run. For any other client
/// it is dropped.
void AgentServer::tell(const std::string& to, Client& client, Payload message) {
  const Status put = client.outbox.put(message);
  if (!put.ok() && to == session_ && !broken_) broken_ = put.error().message();
}

void AgentServer::obey(const std::string& from, Client& client, const Payload& message) {
  if (const auto* order = as_if<PrepareRun>(message)) return prepare(from, client, *order);
  if (from != session_) {
    // The client has confirmed that its run is over; it does not matter which side ended it.
    if (as_if<LeaveRun>(message) != nullptr) client.needs_run_dropped = false;
    return;
  }
  if (const auto* leave = as_if<LeaveRun>(message)) return end_run(leave->why);
  if (const Status handled = run_->handle(message); !handled.ok())
    broken_ = handled.error().message();
}

/// Only starts the checks, because anyone who can connect to the port may send this.
void AgentServer::prepare(const std::string& from, Client& client, const PrepareRun& order) {
  const auto begin = [&]() -> Status {
    RETURN_IF_ERROR(check_names(order));
    if (client.check != nullptr || !client.outbox.empty())
      return error(Code::kExists, "the previous order is not answered yet");
    ASSIGN_OR_RETURN(client.check, RunCheck::begin(order, client.challenge,
                                                   {settings_.find_worker, settings_.check_run},
                                                   looks_, steady_now()));
    return ok();
  };
  if (const Status begun = begin(); !begun.ok()) answer(from, client, {}, begun);
}

void AgentServer::end_checks(Time time) {
  for (auto& [from, client] : clients_) {
    if (client.check == nullptr) continue;
    const auto worker = client.check->poll(time);
    if (!worker) continue;
    const auto check = std::move(client.check);
    RunPrepared prepared;
    const Status taken =
        worker->ok() ? take(from, check->order(), **worker, prepared) : Status(worker->error());
    answer(from, client, prepared, taken);
  }
}

void AgentServer::answer(const std::string& to, Client& client, RunPrepared prepared,
                         const Status& taken) {
  prepared.pid = ::getpid();
  if (!taken.ok()) prepared.fault = to_fault(taken.error());
  tell(to, client, Payload::of(std::move(prepared)));
}

/// The sender has proved that it runs as this user.
Status AgentServer::take(const std::string& from, const PrepareRun& order,
                         const std::filesystem::path& worker, RunPrepared& prepared) {
  if (num_signals_applied_ > 0) return error(Code::kUnavailable, "the agent has been told to stop");
  if (run_ != nullptr && run_->order().run_id != order.run_id)
    return error(Code::kExists, "the agent serves run {} of graph '{}' already",
                 run_->order().run_id, run_->order().graph)
        .note(
            "an agent serves one run at a time: wait for its end, or start another agent on "
            "another port");
  if (run_ != nullptr && order.incarnation <= run_->order().incarnation)
    return error(Code::kExists, "the agent serves start {} of run {}, this is start {}",
                 run_->order().incarnation, order.run_id, order.incarnation);
  if (run_ != nullptr) {
    prepared.num_killed = static_cast<uint32_t>(run_->num_workers());
    end_run(fmt::format("start {} of the run takes its place", order.incarnation));
  }
  AgentSite site = settings_.site;
  site.worker = worker;
  PrepareRun kept = order;
  kept.dead_after_ms = std::clamp(order.dead_after_ms, kDeadAfterMin.to_milliseconds(),
                                  kDeadAfterMax.to_milliseconds());
  session_ = from;
  broken_.reset();
  run_ = std::make_unique<AgentRun>(std::move(kept), std::move(site), [this](Payload message) {
    tell(session_, clients_.at(session_), std::move(message));
  });
  settings_.say(fmt::format("serving run {} of graph '{}', start {}, in {}", order.run_id,
                            order.graph, order.incarnation, order.run_folder));
  return ok();
}

void AgentServer::watch_session(Time time) {
  if (run_ == nullptr) return;
  const auto dead_after = Duration::milliseconds(run_->order().dead_after_ms);
  Client& client = clients_.at(session_);
  const bool is_silent = client.outbox.is_silent(time, dead_after);
  if (broken_) return end_run(*broken_);
  if (is_silent)
    return end_run(fmt::format("the control plane has sent nothing for {}", to_string(dead_after)));
  if (client.outbox.is_beat_due(time, beat_every(dead_after)))
    tell(session_, client, Payload::of(AgentBeat{static_cast<uint32_t>(run_->num_workers())}));
}

void AgentServer::apply_signals() {
  while (num_signals_applied_ < settings_.num_signals()) {
    ++num_signals_applied_;
    if (run_ == nullptr) return;
    if (num_signals_applied_ > 1) return end_run("the agent was told twice to stop");
    settings_.say("stopping: the run is asked to drain (again stops now)");
    tell(session_, clients_.at(session_), Payload::of(AgentLeaving{"the agent was told to stop"}));
  }
}

/// Kills and reaps, then sends RunDropped.
void AgentServer::end_run(std::string why) {
  why = cut(std::move(why), kReasonBytesMax);
  const size_t num_left = run_->num_workers();
  const std::string run_id = run_->order().run_id;
  run_.reset();
  broken_.reset();
  has_served_ = true;
  if (settings_.clean_up) settings_.clean_up();
  settings_.say(num_left == 0 ? fmt::format("run {} has left: {}", run_id, why)
                              : fmt::format("run {} has left, {} of its processes were killed: {}",
                                            run_id, num_left, why));
  const std::string to = std::exchange(session_, {});
  Client& client = clients_.at(to);
  tell(to, client, Payload::of(RunDropped{std::move(why)}));
  client.needs_run_dropped = true;
  leave_by_ = steady_now() + kFarewellMax;
}

/// A client that has not received its answers for kAgentTriesMax turns is removed.
void AgentServer::flush() {
  for (auto each = clients_.begin(); each != clients_.end();) {
    const std::string& to = each->first;
    Client& client = each->second;
    client.outbox.flush(
        [&](std::span<const std::byte> frame) { return listener_->send(to, frame); });
    client.num_tries = client.outbox.empty() ? 0 : client.num_tries + 1;
    const bool is_gone = to != session_ && client.num_tries > kAgentTriesMax;
    each = is_gone ? clients_.erase(each) : std::next(each);
  }
}

}  // namespace primerl
