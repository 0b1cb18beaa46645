#include "runtime/outside/verifiers/server_link.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "runtime/outside/verifiers/episode.h"

namespace primerl {
namespace {

constexpr size_t kReasonBytesMax = 2048;
constexpr size_t kCancelsMax = 4096;  // without an answer; more are sent, but not remembered
constexpr int kMessagesPerTurn = 256;
constexpr int64_t kHealthBytesMax = int64_t{1} << 20;

std::string cut(std::string text) {
  text.resize(std::min(text.size(), kReasonBytesMax));
  return text;
}

/// A connection must carry one answer that is too long, so that only its run fails.
int64_t frame_bytes_max(int64_t answer_bytes_max) { return 2 * answer_bytes_max + kHealthBytesMax; }

}  // namespace

ServerLink::ServerLink(ServerLinkOptions options, DealerSockets& sockets,
                       ServerProbe::MakeId make_id, OnAnswer on_answer, Log log)
    : options_(std::move(options)),
      sockets_(sockets),
      make_id_(std::move(make_id)),
      on_answer_(std::move(on_answer)),
      log_(std::move(log)) {}

ServerLink::~ServerLink() {
  for (auto* socket : {&probe_socket_, &run_socket_, &health_socket_}) close_socket(*socket);
}

void ServerLink::open_socket(std::optional<uint64_t>& socket) {
  close_socket(socket);
  auto opened = sockets_.open(address_, frame_bytes_max(options_.answer_bytes_max));
  if (!opened.ok()) return fail(std::move(opened).error());
  socket = *opened;
}

void ServerLink::close_socket(std::optional<uint64_t>& socket) {
  if (socket) sockets_.close(*socket);
  socket.reset();
}

void ServerLink::open(const std::string& address, Time now) {
  CHECK(!is_open(), "a link is opened twice");
  address_ = address;
  ProbeOptions options;
  options.address = address;
  options.pinned = options_.protocol;
  options.answer_timeout = options_.probe_timeout;
  options.start_timeout = options_.start_timeout;
  probe_.emplace(std::move(options), make_id_, now);
}

void ServerLink::close(const std::string& reason) {
  for (auto* socket : {&probe_socket_, &run_socket_, &health_socket_}) close_socket(*socket);
  address_.clear();
  probe_.reset();
  found_.reset();
  fault_.reset();
  is_ready_ = false;
  cancels_.clear();
  while (!runs_.empty()) answer(runs_.begin(), OutsideEnd::kLost, reason);
}

void ServerLink::fail(Error why) {
  if (!fault_) fault_ = std::move(why);
  is_ready_ = false;
}

void ServerLink::run(OutsideCall call, Time now) {
  CHECK(has_space(), "a link without space gets a run");
  Run run;
  const auto fail_call = [&](const Error& why) {
    on_answer_({call.id, OutsideEnd::kFailed, cut(why.text())});
  };
  const auto body = parse_json(call.body, "the call");
  if (!body.ok()) return fail_call(body.error());
  const auto members = members_of(*body);
  if (!members.ok()) return fail_call(members.error());
  run.members = *members;
  run.limit = options_.run_timeout;
  run.limits = options_.answer_limits;
  if (const Json* const limit = body->find("deadline_ms"); limit != nullptr) {
    if (!limit->is_integer() || limit->as_int() < 1)
      return fail_call(error(Code::kInvalid, "'deadline_ms' is not a number above 0"));
    // A day more than any run_timeout keeps the product in range.
    run.limit = std::min(run.limit, Duration::from_seconds(limit->as_double() * 1e-3));
  }
  const std::string id = make_id_();
  const auto frames = run_request(found_->dialect, id, *body, options_.policy);
  if (!frames.ok()) return fail_call(frames.error());
  if (!sockets_.send(*run_socket_, *frames)) {
    on_answer_({call.id, OutsideEnd::kLost, "the connection to the server broke"});
    return fail(error(Code::kUnavailable, "the connection broke"));
  }
  run.deadline = now + run.limit;
  deadlines_.emplace(run.deadline, id);
  id_of_session_[call.session] = id;
  run.call = std::move(call);
  run.call.body.clear();
  runs_.emplace(id, std::move(run));
}

bool ServerLink::cancel(uint64_t session) {
  const auto found = id_of_session_.find(session);
  if (found == id_of_session_.end()) return false;
  const std::string id = found->second;
  send_cancel(id);
  answer(runs_.find(id), OutsideEnd::kFailed, "cancelled");
  return true;
}

void ServerLink::send_cancel(const std::string& id) {
  std::string own_id = make_id_();
  const auto frames = cancel_request(found_->dialect, own_id, id);
  if (!frames) {
    ++counts_.abandoned;
    return;
  }
  (void)sockets_.send(*run_socket_, *frames);
  if (found_->dialect != VerifiersDialect::kW0 && cancels_.size() < kCancelsMax)
    cancels_.insert(std::move(own_id));
}

void ServerLink::answer(Runs::iterator run, OutsideEnd end, std::string body) {
  OutsideAnswer answer{run->second.call.id, end, std::move(body)};
  deadlines_.erase({run->second.deadline, run->first});
  id_of_session_.erase(run->second.call.session);
  runs_.erase(run);
  on_answer_(std::move(answer));
}

void ServerLink::turn(Time now) {
  if (!is_open() || fault_) return;
  if (probe_) turn_probe(now);
  if (run_socket_ && !fault_) turn_runs(now);
  if (health_socket_ && !fault_) turn_health(now);
}

void ServerLink::turn_probe(Time now) {
  ServerProbe& probe = *probe_;
  while (!probe.result() && !fault_) {
    if (probe.wants_socket()) {
      open_socket(probe_socket_);
      if (fault_) return;
      probe.on_opened();
    }
    bool has_news = false;
    while (const auto event = sockets_.next_event(*probe_socket_)) {
      has_news = true;
      if (*event == DealerSockets::Event::kConnected)
        probe.on_connected(now);
      else
        probe.on_disconnected();
      if (probe.wants_socket()) break;
    }
    if (probe.wants_socket()) continue;
    if (const auto frames = probe.request())
      if (!sockets_.send(*probe_socket_, *frames)) probe.on_disconnected();
    if (probe.wants_socket()) continue;
    while (const auto frames = sockets_.receive(*probe_socket_)) {
      has_news = true;
      probe.on_frames(*frames, now);
      if (probe.result() || probe.wants_socket()) break;
    }
    probe.on_time(now);
    if (!probe.result() && !has_news && !probe.wants_socket()) return;
  }
  if (fault_) return;
  close_socket(probe_socket_);
  const Result<FoundServer> result = *probe.result();
  probe_.reset();
  if (!result.ok()) return fail(result.error());
  found_ = *result;
  log_(fmt::format("{} at {} speaks {}", options_.name, address_, to_string(found_->dialect)));
  note_heard(now);
  next_health_ = now + options_.health_every;
  open_socket(run_socket_);
  open_socket(health_socket_);
}

void ServerLink::turn_runs(Time now) {
  // Events may arrive before messages that were sent earlier: what has arrived is read first.
  bool is_broken = false;
  while (const auto event = sockets_.next_event(*run_socket_)) {
    is_broken = *event == DealerSockets::Event::kDisconnected;
    if (is_broken) break;
    is_ready_ = true;
  }
  for (int i = 0; is_broken || i < kMessagesPerTurn; ++i) {
    const auto frames = sockets_.receive(*run_socket_);
    if (!frames) break;
    note_heard(now);
    on_run_frames(*frames);
  }
  if (is_broken) return fail(error(Code::kUnavailable, "the connection broke"));
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto run = runs_.find(deadlines_.begin()->second);
    send_cancel(run->first);
    const Duration limit = run->second.limit;
    answer(run, OutsideEnd::kFailed, fmt::format("it did not end within {}", to_string(limit)));
  }
}

void ServerLink::on_run_frames(const Frames& frames) {
  const auto run = frames.empty() ? runs_.end() : runs_.find(frames.front());
  if (run == runs_.end()) {
    if (!frames.empty() && cancels_.erase(frames.front()) > 0) return;
    const bool has_form = read_server_frame(found_->dialect, frames).ok();
    ++(has_form ? counts_.late : counts_.malformed);
    if (!has_form && counts_.malformed == 1)
      log_(
          fmt::format("{} sent a message of {} frames that belongs to no run; further ones are "
                      "counted",
                      options_.name, frames.size()));
    return;
  }
  auto read = read_run_frames(frames, run->second);
  if (!read.ok()) {
    if (read.error().code() != Code::kCancelled) send_cancel(run->first);
    return answer(run, OutsideEnd::kFailed, cut(read.error().text()));
  }
  if (*read) answer(run, OutsideEnd::kDone, (*read)->dump());
}

/// The answer; none: the server sends more. kCancelled: the server says that the run has failed, so
/// nothing of it is left there.
Result<std::optional<Json>> ServerLink::read_run_frames(const Frames& frames, Run& run) {
  for (const std::string& frame : frames) run.num_bytes += static_cast<int64_t>(frame.size());
  if (run.num_bytes > options_.answer_bytes_max)
    return error(Code::kExhausted, "its answer is longer than {} bytes", options_.answer_bytes_max);
  ASSIGN_OR_RETURN(const ServerFrame frame, read_server_frame(found_->dialect, frames));
  ASSIGN_OR_RETURN(Json payload, read_msgpack_part(frame.payload, run.limits));
  if (frame.is_delta) {
    RETURN_IF_ERROR(run.assembly.add(payload));
    return std::optional<Json>();
  }
  ASSIGN_OR_RETURN(const auto failure, failure_of(payload));
  if (failure) return error(Code::kCancelled, "the server says: {}", *failure);
  if (found_->dialect == VerifiersDialect::kW2) {
    ASSIGN_OR_RETURN(payload, run.assembly.finish(payload));
  }
  ASSIGN_OR_RETURN(Json answer, run_answer(found_->dialect, payload, run.members));
  return std::optional<Json>(std::move(answer));
}

void ServerLink::note_heard(Time now) {
  last_heard_ = now;
  is_asked_ = false;
}

void ServerLink::turn_health(Time now) {
  while (sockets_.next_event(*health_socket_)) {
  }
  while (const auto frames = sockets_.receive(*health_socket_)) {
    note_heard(now);
    on_health_frames(*frames);
    if (fault_) return;
  }
  // A server that was not asked is not silent: this thread stood still.
  if (!is_asked_ && now - last_heard_ >= options_.health_timeout) last_heard_ = now;
  if (now >= next_health_) {
    (void)sockets_.send(*health_socket_, health_request(found_->dialect, make_id_()));
    next_health_ = now + options_.health_every;
    is_asked_ = true;
  }
  if (now - last_heard_ >= options_.health_timeout)
    fail(error(Code::kUnavailable, "it was silent for {}", to_string(options_.health_timeout)));
}

void ServerLink::on_health_frames(const Frames& frames) {
  const auto frame = read_server_frame(found_->dialect, frames);
  if (!frame.ok()) return;
  const auto reply = read_msgpack(frame->payload);
  if (!reply.ok()) return;
  const auto failure = failure_of(*reply);
  if (failure.ok() && *failure)
    fail(error(Code::kUnavailable, "it says that it cannot work: {}", cut(**failure)));
}

std::optional<Time> ServerLink::next_deadline() const {
  if (!is_open() || fault_) return std::nullopt;
  if (probe_) return probe_->next_deadline();
  Time next = std::min(next_health_, last_heard_ + options_.health_timeout);
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  return next;
}

}  // namespace primerl
