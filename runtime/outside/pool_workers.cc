#include "runtime/outside/pool_workers.h"

#include <algorithm>

namespace primerl {
namespace {

constexpr Duration kFirstWait = Duration::milliseconds(20);
constexpr int kEndPolls = 50;  // of 1 ms
constexpr size_t kShownBytesMax = 200;
constexpr size_t kReasonBytesMax = 1024;

/// 20 ms, 40 ms, ... up to about 1 s.
Duration wait_after(int num_fruitless) {
  return kFirstWait * (int64_t{1} << std::min(num_fruitless, 6));
}

std::string shown(std::string_view line) {
  return fmt::format("'{}'{}", line.substr(0, kShownBytesMax),
                     line.size() > kShownBytesMax ? "..." : "");
}

}  // namespace

Status PoolWorkers::start_missing(Time now) {
  workers_.resize(static_cast<size_t>(pool_.num_workers));
  if (num_fruitless_ >= (has_had_hello_ ? kFruitlessStartsMax : kFirstStartsMax))
    return error(Code::kUnavailable,
                 "{}: {} workers in a row ended without an answer; the last one {}", pool_.name,
                 num_fruitless_, last_end_);
  if (now < next_start_) return ok();
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i] != nullptr) continue;
    auto started = PipedProcess::start(pool_.command, {fmt::format("PRIMERL_WORKER={}", i)});
    if (!started.ok()) return std::move(started).error().while_doing(pool_.name);
    workers_[i] = std::make_unique<WorkerPipe>(fmt::format("{}, worker {}", pool_.name, i),
                                               std::move(*started), now);
  }
  return ok();
}

void PoolWorkers::ask(OutsideCall call, Time now) {
  route_call(std::move(call));
  dispatch(now);
}

void PoolWorkers::route_call(OutsideCall call) {
  if (call.session == 0) return waiting_.push_back(std::move(call));
  const auto found = sessions_.find(call.session);
  if (found != sessions_.end()) return found->second->waiting.push_back(std::move(call));
  if (call.is_whole) return waiting_.push_back(std::move(call));
  answer({call.id, OutsideEnd::kNeedsHistory, ""});
}

void PoolWorkers::forget(uint64_t session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  if (found->second->is_ready())
    found->second->send_line(
        Json::object().set("call", "end").set("trajectory", session - 1).dump());
  sessions_.erase(found);
}

WorkerPipe* PoolWorkers::least_busy() const {
  WorkerPipe* best = nullptr;
  for (const auto& worker : workers_)
    if (worker != nullptr && worker->has_space() &&
        (best == nullptr || worker->num_sent() < best->num_sent()))
      best = worker.get();
  return best;
}

void PoolWorkers::dispatch(Time now) {
  for (const auto& worker : workers_)
    while (worker != nullptr && worker->has_space() && !worker->waiting.empty()) {
      worker->send(std::move(worker->waiting.front()), now);
      worker->waiting.pop_front();
    }
  while (!waiting_.empty()) {
    WorkerPipe* const worker = least_busy();
    if (worker == nullptr) break;
    OutsideCall call = std::move(waiting_.front());
    waiting_.pop_front();
    if (call.is_replay && !worker->hello().can_replay) {
      answer({call.id, OutsideEnd::kFailed,
              "the worker with the state of this trajectory has ended, and the first line of its "
              "successor says \"replay\": false"});
      continue;
    }
    if (call.session != 0) sessions_[call.session] = worker;
    worker->send(std::move(call), now);
  }
  for (const auto& worker : workers_)
    if (worker != nullptr) worker->write_more();
}

void PoolWorkers::add_polls(std::vector<pollfd>& polls) const {
  for (const auto& worker : workers_)
    if (worker != nullptr) worker->add_polls(polls);
}

void PoolWorkers::turn(Time now) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i] == nullptr) continue;
    WorkerPipe& worker = *workers_[i];
    for (const std::string& line : worker.read_log())
      log_(fmt::format("{}: {}", worker.name(), line));
    auto lines = worker.read_lines(static_cast<size_t>(pool_.answer_bytes_max));
    if (!lines.ok()) {
      end(i, "was killed: " + lines.error().message(), now);
      continue;
    }
    Status read = ok();
    for (const std::string& line : *lines)
      if (read.ok()) read = read_line(i, line, now);
    if (!read.ok()) {
      end(i, "was killed: " + read.error().message(), now);
    } else if (worker.is_gone()) {
      // A process closes its output shortly before it has ended, and then says how.
      for (int poll = 0; poll < kEndPolls && !worker.process().has_ended(); ++poll)
        ::poll(nullptr, 0, 1);
      worker.process().kill();
      for (const std::string& line : worker.read_log())
        log_(fmt::format("{}: {}", worker.name(), line));
      end(i, worker.process().end_text(), now);
    } else if (const auto late = worker.late_call(now, pool_.call_timeout)) {
      answer({*late, OutsideEnd::kFailed,
              fmt::format("{} did not answer within {}", worker.name(),
                          to_string(pool_.call_timeout))});
      (void)worker.remove(*late, now);
      end(i, fmt::format("was killed: it did not answer within {}", to_string(pool_.call_timeout)),
          now);
    } else if (!worker.is_ready() && now - worker.started() >= pool_.start_timeout) {
      end(i,
          fmt::format("was killed: it wrote no first line within {}",
                      to_string(pool_.start_timeout)),
          now);
    }
  }
  dispatch(now);
}

Status PoolWorkers::read_first_line(size_t index, const Json& line, Time now) {
  auto hello = read_hello(line);
  if (!hello.ok()) return std::move(hello).error().while_doing("its first line");
  if (hooks_.on_hello)
    if (Status accepted = hooks_.on_hello(index, line, now); !accepted.ok())
      return std::move(accepted).error().while_doing("its first line");
  workers_[index]->set_hello(*hello, now);
  has_had_hello_ = true;
  return ok();
}

Status PoolWorkers::read_line(size_t index, const std::string& line, Time now) {
  WorkerPipe& worker = *workers_[index];
  const auto json = parse_json(line, "");
  if (!json.ok() || !json->is_object())
    return error(Code::kInvalid, "it wrote {}, which is not a JSON object{}", shown(line),
                 json.ok() ? "" : json.error().message());
  if (!worker.is_ready()) return read_first_line(index, *json, now);
  ASSIGN_OR_RETURN(const int64_t id, json->get_int("id"));
  if (!worker.remove(static_cast<uint64_t>(id), now)) {
    log_(fmt::format("{}: an answer to call {}, which it does not have", worker.name(), id));
    return ok();
  }
  // An owner that speaks to the workers itself says what was of use.
  if (hooks_.on_end == nullptr) num_fruitless_ = 0;
  if (const Json* fault = json->find("error"); fault != nullptr && !fault->is_null()) {
    const std::string text = fault->is_string() ? fault->as_string() : fault->dump();
    answer({static_cast<uint64_t>(id), OutsideEnd::kFailed, text.substr(0, kReasonBytesMax)});
    return ok();
  }
  answer({static_cast<uint64_t>(id), OutsideEnd::kDone, line});
  return ok();
}

void PoolWorkers::answer(OutsideAnswer answer) {
  attempts_.erase(answer.id);
  on_answer_(std::move(answer));
}

void PoolWorkers::end(size_t index, const std::string& reason, Time now) {
  const auto worker = std::move(workers_[index]);
  worker->process().kill();
  last_end_ = reason;
  if (!worker->last_log().empty()) last_end_ += "; its last line: " + worker->last_log();
  log_(fmt::format("{} {}", worker->name(), last_end_));
  next_start_ = now + wait_after(num_fruitless_++);
  if (hooks_.on_end && worker->is_ready()) hooks_.on_end(index, last_end_);
  std::erase_if(sessions_, [&](const auto& each) { return each.second == worker.get(); });
  // A worker that takes calls in order has begun the first of them only: the others cost nothing.
  const bool is_in_order = worker->is_ready() && worker->hello().in_order;
  bool was_begun = true;
  for (OutsideCall& call : worker->remove_all()) {
    ask_again(std::move(call), was_begun, last_end_);
    was_begun = !is_in_order;
  }
  for (OutsideCall& call : worker->waiting) route_call(std::move(call));
}

void PoolWorkers::ask_again(OutsideCall call, bool was_begun, const std::string& reason) {
  if (!call.is_whole) return route_call(std::move(call));
  const uint32_t num_asked = was_begun ? ++attempts_[call.id] : attempts_[call.id];
  if (num_asked >= kOutsideAttemptsMax)
    return answer({call.id, OutsideEnd::kLost,
                   fmt::format("its worker ended {} times: {}", num_asked, reason)});
  ++call.attempt;
  waiting_.push_front(std::move(call));
}

std::optional<Time> PoolWorkers::next_deadline() const {
  std::optional<Time> next;
  const auto add = [&next](Time at) { next = next ? std::min(*next, at) : at; };
  for (const auto& worker : workers_) {
    if (worker == nullptr) {
      add(next_start_);
    } else if (const auto at = worker->next_deadline(pool_.call_timeout, pool_.start_timeout)) {
      add(*at);
    }
  }
  return next;
}

void PoolWorkers::close_inputs() {
  for (const auto& worker : workers_)
    if (worker != nullptr) worker->process().close_input();
}

bool PoolWorkers::have_all_ended() {
  return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
    return worker == nullptr || worker->process().has_ended();
  });
}

bool PoolWorkers::are_all_ready() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker != nullptr && worker->is_ready(); });
}

}  // namespace primerl
