#include "runtime/control/agent_client.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "graph/base/real_clock.h"
#include "runtime/control/peer_outbox.h"
#include "runtime/control/unreachable.h"
#include "runtime/transport/tunnel.h"

namespace primerl {
namespace {

constexpr Duration kClientTick = Duration::milliseconds(100);
constexpr Duration kClientRetry = Duration::milliseconds(5);
constexpr Duration kGreetEvery = Duration::milliseconds(500);
constexpr Duration kGrace = Duration::seconds(1);       // for an agent that is just starting
constexpr Duration kLaunchMax = Duration::seconds(20);  // from the order to the answer
constexpr Duration kReapMax = Duration::seconds(10);    // from the kill to WorkerExited
constexpr Duration kLeaveMax = Duration::seconds(5);    // from LeaveRun to RunDropped
constexpr int kClientPiecesPerTurn = 16;
constexpr int kClientFramesPerTurn = 256;

/// State of one worker.
struct RemoteState {
  std::optional<WorkerLaunched> launched;
  std::optional<WorkerExited> exited;
};

class Client final : public AgentClient {
 public:
  Client(const AgentAddress& address, AgentGreeting own, Duration dead_after)
      : who_(fmt::format("the agent of host '{}' at {}", address.name, address.address)),
        public_key_(address.keys.own ? address.keys.own->public_key : ""),
        own_(std::move(own)),
        dead_after_(dead_after),
        event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    CHECK(event_ >= 0, "no event descriptor");
  }
  ~Client() override;

  Status dial(const AgentAddress& address);
  Status wait_for_greeting(Duration timeout, bool is_patient,
                           const std::function<bool()>& is_cancelled) override;
  uint64_t challenge() const override;
  Status prepare(PrepareRun order, Duration timeout,
                 const std::function<bool()>& is_cancelled) override;
  Result<std::unique_ptr<WorkerProcess>> launch(const LaunchOptions& options,
                                                std::shared_ptr<ControlInbox> inbox) override;
  std::optional<Error> fault() const override;
  std::optional<std::string> leaving() const override;

  // For RemoteWorker.
  std::optional<ProcessExit> exit_of(uint32_t channel) const;
  Result<ProcessExit> wait_for_exit(uint32_t channel, Duration timeout);
  void kill(uint32_t channel) { command(Payload::of(KillWorker{channel})); }
  std::string last_words(uint32_t channel, size_t bytes_max) const;

 private:
  enum class Phase { kDialing, kGreeted, kServed, kLeaving, kLeft };

  void command(Payload message, std::unique_ptr<Tunnel> tunnel = nullptr, uint32_t channel = 0);
  void wake();
  /// Waits with mutex_ held, in ticks, until `done` is true, the agent is lost, or the timeout has
  /// passed.
  Status await(std::unique_lock<std::mutex>& lock, Duration timeout,
               const std::function<bool()>& done, const std::function<bool()>& is_cancelled,
               const std::function<Error()>& late);
  // I/O thread only.
  void run();
  void take_commands();
  void greet(Time time);
  void receive();
  Status handle_greeting(std::span<const std::byte> frame);
  Status handle(const Payload& message);
  Result<Tunnel*> find(uint32_t channel);
  void carry();
  void watch(Time time);
  void wait();
  void lose(Error why);

  // Constant after dial().
  const std::string who_;
  const std::string public_key_;
  const AgentGreeting own_;
  const Duration dead_after_;
  const int event_;

  mutable std::mutex mutex_;  // guards the members below
  mutable std::condition_variable changed_;
  Phase phase_ = Phase::kDialing;
  AgentGreeting theirs_;
  FrameDialer::Try try_ = FrameDialer::Try::kPending;
  std::optional<RunPrepared> prepared_;
  std::optional<Error> fault_;
  std::optional<std::string> leaving_;
  std::deque<Payload> commands_;
  std::map<uint32_t, std::unique_ptr<Tunnel>> opened_;  // not yet moved to the I/O thread's map
  std::map<uint32_t, RemoteState> workers_;
  uint32_t num_channels_ = 0;
  bool is_stopping_ = false;

  // Used by the I/O thread only.
  std::unique_ptr<FrameDialer> dialer_;
  PeerOutbox outbox_;
  std::map<uint32_t, std::unique_ptr<Tunnel>> tunnels_;
  uint32_t newest_channel_ = 0;  // the highest channel number so far
  bool has_greeted_ = false;
  bool is_lost_ = false;
  Time next_greeting_;

  std::thread thread_;
};

/// A process that an agent started.
class RemoteWorker final : public WorkerProcess {
 public:
  RemoteWorker(Client& client, uint32_t channel, int64_t pid, ProcessId process,
               std::unique_ptr<ControlChannel> control)
      : WorkerProcess(process), client_(client), channel_(channel), pid_(pid) {
    control_ = std::move(control);
  }
  ~RemoteWorker() override {
    control_->close();
    if (poll()) return;
    kill();
    // Without an answer the agent is lost or about to be lost; the next start asks it.
    (void)wait(kReapMax);
  }
  pid_t pid() const override { return static_cast<pid_t>(pid_); }
  std::optional<ProcessExit> poll() override { return client_.exit_of(channel_); }
  Result<ProcessExit> wait(Duration timeout) override {
    return client_.wait_for_exit(channel_, timeout);
  }
  void kill() override {
    if (!poll()) client_.kill(channel_);
  }
  std::string last_words(size_t bytes_max) const override {
    return client_.last_words(channel_, bytes_max);
  }

 private:
  Client& client_;
  const uint32_t channel_;
  const int64_t pid_;
};

Client::~Client() {
  if (thread_.joinable()) {
    {
      std::unique_lock lock(mutex_);
      if (phase_ == Phase::kServed && !fault_) {
        phase_ = Phase::kLeaving;
        commands_.push_back(Payload::of(LeaveRun{"its end"}));
        wake();
        (void)await(
            lock, kLeaveMax, [this] { return phase_ == Phase::kLeft; }, {},
            [] { return error(Code::kDeadline, "no answer"); });
      }
      is_stopping_ = true;
    }
    wake();
    thread_.join();
  }
  ::close(event_);
}

Status Client::dial(const AgentAddress& address) {
  ASSIGN_OR_RETURN(
      dialer_, FrameDialer::open("tcp://" + address.address, address.keys, kAgentFrameBytesMax));
  thread_ = std::thread([this] { run(); });
  return ok();
}

void Client::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_, &one, sizeof one);
}

void Client::command(Payload message, std::unique_ptr<Tunnel> tunnel, uint32_t channel) {
  {
    const std::lock_guard lock(mutex_);
    if (tunnel != nullptr) opened_.emplace(channel, std::move(tunnel));
    commands_.push_back(std::move(message));
  }
  wake();
}

Status Client::await(std::unique_lock<std::mutex>& lock, Duration timeout,
                     const std::function<bool()>& done, const std::function<bool()>& is_cancelled,
                     const std::function<Error()>& late) {
  const Time give_up = steady_now() + timeout;
  while (!done()) {
    if (fault_) return *fault_;
    if (is_cancelled && is_cancelled()) return error(Code::kCancelled, "interrupted");
    if (steady_now() >= give_up) return late();
    changed_.wait_for(lock, std::chrono::nanoseconds(kClientTick.to_nanoseconds()));
  }
  return ok();
}

Status Client::wait_for_greeting(Duration timeout, bool is_patient,
                                 const std::function<bool()>& is_cancelled) {
  std::unique_lock lock(mutex_);
  const Time grace_ends = steady_now() + kGrace;
  const auto is_done = [&] {
    using Try = FrameDialer::Try;
    if (phase_ != Phase::kDialing || try_ == Try::kNotAllowed) return true;
    return !is_patient && steady_now() >= grace_ends &&
           (try_ == Try::kNobody || try_ == Try::kHandshake);
  };
  RETURN_IF_ERROR(await(lock, timeout, is_done, is_cancelled,
                        [this] { return unreachable(who_, public_key_, try_); }));
  if (phase_ == Phase::kDialing) return unreachable(who_, public_key_, try_);
  return check_greeting(theirs_, own_, who_);
}

uint64_t Client::challenge() const {
  const std::lock_guard lock(mutex_);
  return theirs_.challenge;
}

Status Client::prepare(PrepareRun order, Duration timeout,
                       const std::function<bool()>& is_cancelled) {
  command(Payload::of(std::move(order)));
  std::unique_lock lock(mutex_);
  RETURN_IF_ERROR(await(
      lock, timeout, [this] { return prepared_.has_value(); }, is_cancelled,
      [&] {
        return error(Code::kDeadline, "{} has not prepared the run within {}", who_,
                     to_string(timeout));
      }));
  if (!prepared_->fault.text.empty()) return to_error(prepared_->fault).while_doing(who_);
  return ok();
}

Result<std::unique_ptr<WorkerProcess>> Client::launch(const LaunchOptions& options,
                                                      std::shared_ptr<ControlInbox> inbox) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0)
    return error(Code::kIo, "no socketpair for a worker: {}", std::strerror(errno));
  ASSIGN_OR_RETURN(auto control, ControlChannel::open(sockets[0], options.process, std::move(inbox),
                                                      options.control));
  LaunchWorker order;
  {
    const std::lock_guard lock(mutex_);
    order.channel = ++num_channels_;
    workers_[order.channel];
  }
  const uint32_t channel = order.channel;
  order.arguments = options.arguments;
  for (const auto& [name, value] : options.environment)
    order.environment.push_back(name + "=" + value);
  order.log_file = options.log_file.string();
  command(Payload::of(std::move(order)), std::make_unique<Tunnel>(sockets[1]), channel);
  std::unique_lock lock(mutex_);
  RETURN_IF_ERROR(await(
      lock, kLaunchMax, [&] { return workers_[channel].launched.has_value(); }, {},
      [&] {
        return error(Code::kDeadline, "{} has not started a process within {}", who_,
                     to_string(kLaunchMax));
      }));
  const WorkerLaunched& launched = *workers_[channel].launched;
  if (!launched.fault.text.empty()) return to_error(launched.fault).while_doing(who_);
  return std::unique_ptr<WorkerProcess>(std::make_unique<RemoteWorker>(
      *this, channel, launched.pid, options.process, std::move(control)));
}

std::optional<Error> Client::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

std::optional<std::string> Client::leaving() const {
  const std::lock_guard lock(mutex_);
  return leaving_;
}

std::optional<ProcessExit> Client::exit_of(uint32_t channel) const {
  const std::lock_guard lock(mutex_);
  const auto& exited = workers_.at(channel).exited;
  if (!exited) return std::nullopt;
  return ProcessExit{exited->code, exited->signal, exited->lack_of_memory};
}

Result<ProcessExit> Client::wait_for_exit(uint32_t channel, Duration timeout) {
  std::unique_lock lock(mutex_);
  RETURN_IF_ERROR(await(
      lock, timeout, [&] { return workers_.at(channel).exited.has_value(); }, {},
      [&] {
        return error(Code::kDeadline, "{} has not seen a process end within {}", who_,
                     to_string(timeout));
      }));
  const auto& exited = *workers_.at(channel).exited;
  return ProcessExit{exited.code, exited.signal, exited.lack_of_memory};
}

std::string Client::last_words(uint32_t channel, size_t bytes_max) const {
  const std::lock_guard lock(mutex_);
  const auto& exited = workers_.at(channel).exited;
  if (!exited) return {};
  const std::string& words = exited->last_words;
  return words.size() <= bytes_max ? words : words.substr(words.size() - bytes_max);
}

void Client::run() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (is_stopping_) break;
    }
    take_commands();
    const Time time = steady_now();
    if (!is_lost_) greet(time);
    receive();
    if (!is_lost_) carry();
    if (!is_lost_) watch(time);
    if (is_lost_) tunnels_.clear();
    outbox_.flush([this](std::span<const std::byte> frame) { return dialer_->send(frame); });
    wait();
  }
  tunnels_.clear();
  dialer_.reset();
}

void Client::take_commands() {
  std::deque<Payload> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    for (auto& [channel, tunnel] : opened_) {
      newest_channel_ = std::max(newest_channel_, channel);
      tunnels_.emplace(channel, std::move(tunnel));
    }
    opened_.clear();
  }
  if (is_lost_) return;
  for (const Payload& command : commands)
    if (const Status put = outbox_.put(command); !put.ok()) return lose(put.error());
}

void Client::greet(Time time) {
  if (has_greeted_ || time < next_greeting_) return;
  next_greeting_ = time + (dialer_->send(encode_greeting(own_)) ? kGreetEvery : kClientRetry);
}

void Client::receive() {
  std::vector<std::byte> frame;
  for (int i = 0; i < kClientFramesPerTurn && dialer_->receive(frame); ++i) {
    if (is_lost_) continue;
    if (is_greeting(frame)) {
      if (const Status greeted = handle_greeting(frame); !greeted.ok()) lose(greeted.error());
      continue;
    }
    const auto message = outbox_.decode(frame);
    const Status handled = message.ok() ? handle(*message) : Status(message.error());
    if (!handled.ok()) lose(handled.error());
  }
  const std::lock_guard lock(mutex_);
  if (try_ == dialer_->newest_try()) return;
  try_ = dialer_->newest_try();
  changed_.notify_all();
}

Status Client::handle_greeting(std::span<const std::byte> frame) {
  if (has_greeted_) return ok();  // a repeated greeting
  ASSIGN_OR_RETURN(auto greeting, decode_greeting(frame));
  has_greeted_ = true;
  const std::lock_guard lock(mutex_);
  theirs_ = std::move(greeting);
  phase_ = Phase::kGreeted;
  changed_.notify_all();
  return ok();
}

Result<Tunnel*> Client::find(uint32_t channel) {
  const auto found = tunnels_.find(channel);
  if (found != tunnels_.end()) return found->second.get();
  // The channel has ended already.
  if (channel <= newest_channel_) return static_cast<Tunnel*>(nullptr);
  return error(Code::kCorrupt, "channel {} was never opened", channel);
}

Status Client::handle(const Payload& message) {
  if (const auto* bytes = as_if<TunnelBytes>(message)) {
    ASSIGN_OR_RETURN(Tunnel * tunnel, find(bytes->channel));
    return tunnel == nullptr ? ok() : tunnel->arrived(bytes->bytes);
  }
  if (const auto* credit = as_if<TunnelCredit>(message)) {
    ASSIGN_OR_RETURN(Tunnel * tunnel, find(credit->channel));
    return tunnel == nullptr ? ok() : tunnel->granted(credit->granted);
  }
  if (const auto* end = as_if<TunnelEnded>(message)) {
    ASSIGN_OR_RETURN(Tunnel * tunnel, find(end->channel));
    return tunnel == nullptr ? ok() : tunnel->peer_ended();
  }
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
  if (const auto* prepared = as_if<RunPrepared>(message)) {
    prepared_ = *prepared;
    if (prepared->fault.text.empty()) phase_ = Phase::kServed;
  } else if (const auto* launched = as_if<WorkerLaunched>(message)) {
    if (!workers_.contains(launched->channel)) return error(Code::kCorrupt, "an unknown worker");
    if (!launched->fault.text.empty()) tunnels_.erase(launched->channel);
    workers_[launched->channel].launched = *launched;
  } else if (const auto* exited = as_if<WorkerExited>(message)) {
    if (!workers_.contains(exited->channel)) return error(Code::kCorrupt, "an unknown worker");
    workers_[exited->channel].exited = *exited;
  } else if (const auto* leaving = as_if<AgentLeaving>(message)) {
    leaving_ = leaving->why;
  } else if (const auto* dropped = as_if<RunDropped>(message)) {
    RETURN_IF_ERROR(outbox_.put(Payload::of(LeaveRun{"heard"})));
    if (phase_ != Phase::kLeaving)
      return error(Code::kUnavailable, "it has ended its part of the run: {}", dropped->why);
    phase_ = Phase::kLeft;
  } else if (as_if<AgentBeat>(message) == nullptr) {
    return error(Code::kCorrupt, "'{}' out of turn", message.type->name);
  }
  return ok();
}

void Client::carry() {
  const auto send = [this](Payload message) {
    if (const Status put = outbox_.put(message); !put.ok()) lose(put.error());
  };
  for (auto& [channel, tunnel] : tunnels_)
    tunnel->carry(
        channel, kClientPiecesPerTurn, [this] { return outbox_.has_room(); }, send);
  std::erase_if(tunnels_, [](const auto& each) { return each.second->is_over(); });
}

void Client::watch(Time time) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kServed) return;
  }
  if (outbox_.is_silent(time, dead_after_))
    return lose(error(Code::kDeadline, "it has sent nothing for {}", to_string(dead_after_)));
  if (outbox_.is_beat_due(time, beat_every(dead_after_)))
    (void)outbox_.put(Payload::of(AgentBeat{static_cast<uint32_t>(tunnels_.size())}));
}

void Client::wait() {
  std::vector<pollfd> descriptors = {{event_, POLLIN, 0}};
  for (const auto& [channel, tunnel] : tunnels_)
    if (const short events = tunnel->poll_events(outbox_.has_room()); events != 0)
      descriptors.push_back({tunnel->fd(), events, 0});
  const bool is_greeting_due = !has_greeted_ && next_greeting_ <= steady_now() + kClientRetry;
  const bool is_waiting = !is_lost_ && (!outbox_.empty() || is_greeting_due);
  dialer_->wait(descriptors, is_waiting ? kClientRetry : kClientTick);
  uint64_t count = 0;
  [[maybe_unused]] const auto num_read = ::read(event_, &count, sizeof count);
}

/// Sets the fault first, so that a thread which sees a channel end can read the reason.
void Client::lose(Error why) {
  if (std::exchange(is_lost_, true)) return;
  {
    const std::lock_guard lock(mutex_);
    fault_ = error(why.code(), "{}: {}", who_, why.message());
    changed_.notify_all();
  }
}

}  // namespace

Result<std::unique_ptr<AgentClient>> AgentClient::open(const AgentAddress& address,
                                                       const AgentGreeting& own,
                                                       Duration dead_after) {
  auto client = std::make_unique<Client>(address, own, dead_after);
  if (Status dialed = client->dial(address); !dialed.ok())
    return std::move(dialed).error().while_doing(fmt::format("host '{}'", address.name));
  return std::unique_ptr<AgentClient>(std::move(client));
}

}  // namespace primerl
