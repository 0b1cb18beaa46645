#include "runtime/outside/verifiers/server_pool.h"

#include <algorithm>
#include <utility>

namespace primerl {
namespace {

constexpr Duration kFirstWait = Duration::milliseconds(100);

/// 100 ms, 200 ms, ... up to about 6 s.
Duration wait_after(int num_fruitless) {
  return kFirstWait * (int64_t{1} << std::min(num_fruitless, 6));
}

ServerLinkOptions link_options(const OutsidePool& pool, int64_t number) {
  ServerLinkOptions options;
  options.name = fmt::format("{}, server {}", pool.name, number);
  options.protocol = verifiers_dialect(pool.verifiers.protocol);
  options.policy.is_training = pool.verifiers.client != "eval";
  if (!pool.verifiers.renderer.empty())
    if (auto renderer = parse_json(pool.verifiers.renderer, "renderer"); renderer.ok())
      options.policy.renderer = *renderer;
  options.policy.renderer_model = pool.verifiers.renderer_model;
  options.concurrency = pool.verifiers.concurrency;
  options.answer_bytes_max = pool.answer_bytes_max;
  options.run_timeout = pool.run_timeout;
  options.start_timeout = pool.start_timeout;
  options.health_timeout = pool.verifiers.health_timeout;
  // Several requests must fit into the time, so that one lost answer is no silence.
  options.health_every = std::min(
      options.health_every, Duration::nanoseconds(options.health_timeout.to_nanoseconds() / 4));
  return options;
}

/// The call's "call"; empty if the body has none.
std::string kind_of(const OutsideCall& call) {
  const auto body = parse_json(call.body, "the call");
  if (!body.ok()) return "";
  const auto kind = body->get_string("call");
  return kind.ok() ? *kind : "";
}

}  // namespace

ServerPool::ServerPool(const OutsidePool& pool, DealerSockets& sockets, ServerProbe::MakeId make_id,
                       ServerLink::OnAnswer on_answer, ServerLink::Log log)
    : pool_(pool), on_answer_(std::move(on_answer)), log_(std::move(log)) {
  const int64_t num_servers = starts_servers() ? pool_.num_workers : 1;
  for (int64_t i = 0; i < num_servers; ++i)
    links_.push_back(std::make_unique<ServerLink>(
        link_options(pool_, i), sockets, make_id,
        [this](OutsideAnswer answer) { on_run_answer(std::move(answer)); }, log_));
  if (pool_.command.empty()) return;
  ServerProcesses::Hooks hooks;
  hooks.on_start = [this](size_t process, const std::string& address, Time now) {
    links_.at(process)->open(address, now);
  };
  hooks.on_end = [this](size_t process, const std::string& reason) {
    if (links_.at(process)->is_open()) links_.at(process)->close("the server " + reason);
  };
  processes_.emplace(pool_, on_answer_, log_, std::move(hooks));
}

void ServerPool::on_run_answer(OutsideAnswer answer) {
  if (answer.end == OutsideEnd::kDone) {
    num_fruitless_ = 0;
    if (processes_) processes_->note_success();
  }
  on_answer_(std::move(answer));
}

Status ServerPool::start_missing(Time now) {
  if (fault_) return *fault_;
  if (processes_) RETURN_IF_ERROR(processes_->start_missing(now));
  if (starts_servers()) return ok();
  if (num_fruitless_ >= kFruitlessStartsMax)
    return error(Code::kUnavailable,
                 "{}: the connection to '{}' broke {} times in a row without a good run; the last "
                 "time: {}",
                 pool_.name, pool_.verifiers.address, num_fruitless_, last_end_);
  if (!links_.front()->is_open() && now >= next_open_)
    links_.front()->open(pool_.verifiers.address, now);
  return ok();
}

void ServerPool::ask(OutsideCall call, Time now) {
  const std::string kind = kind_of(call);
  if (kind != "run") {
    if (kind == "server") {
      waiting_calls_.push_back(std::move(call));
      return answer_waiting();
    }
    if (!processes_)
      return on_answer_({call.id, OutsideEnd::kFailed, "no process here gives tasks"});
    return processes_->ask(std::move(call), now);
  }
  // Its salt was used before: turns of both attempts would look the same.
  if (call.attempt > 0)
    return on_answer_({call.id, OutsideEnd::kLost, "the run was open when the program ended"});
  waiting_.push_back(std::move(call));
  dispatch(now);
}

void ServerPool::forget(uint64_t session) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const OutsideCall& call) { return call.session == session; });
  if (found != waiting_.end()) {
    const uint64_t id = found->id;
    waiting_.erase(found);
    return on_answer_({id, OutsideEnd::kFailed, "cancelled"});
  }
  for (const auto& link : links_)
    if (link->cancel(session)) return;
}

void ServerPool::add_polls(std::vector<pollfd>& polls) const {
  if (processes_) processes_->add_polls(polls);
}

void ServerPool::turn(Time now) {
  if (processes_) processes_->turn(now);
  turn_links(now);
  answer_waiting();
  dispatch(now);
}

void ServerPool::turn_links(Time now) {
  for (size_t i = 0; i < links_.size(); ++i) {
    ServerLink& link = *links_[i];
    link.turn(now);
    if (!link.fault()) continue;
    const Error why = *link.fault();
    log_(fmt::format("{} at {} is given up: {}", link.name(), link.address(), why.message()));
    // Another start helps a server that is silent, but not one of an unknown dialect.
    const bool may_try_again =
        why.code() == Code::kUnavailable || (why.code() == Code::kDeadline && starts_servers());
    if (!may_try_again) fault_ = Error(why).while_doing(pool_.name);
    if (starts_servers()) {
      processes_->restart(i, why.text(), now);  // closes the link
    } else {
      link.close(fmt::format("the server at {}: {}", pool_.verifiers.address, why.message()));
      last_end_ = why.message();
      next_open_ = now + wait_after(num_fruitless_++);
    }
  }
}

ServerLink* ServerPool::least_busy() {
  ServerLink* best = nullptr;
  for (const auto& link : links_)
    if (link->has_space() && (best == nullptr || link->num_runs() < best->num_runs()))
      best = link.get();
  return best;
}

void ServerPool::dispatch(Time now) {
  while (!waiting_.empty()) {
    ServerLink* const link = least_busy();
    if (link == nullptr) return;
    OutsideCall call = std::move(waiting_.front());
    waiting_.pop_front();
    link->run(std::move(call), now);
  }
}

void ServerPool::answer_waiting() {
  const auto link = std::find_if(links_.begin(), links_.end(),
                                 [](const auto& each) { return each->found().has_value(); });
  if (link == links_.end()) return;
  for (; !waiting_calls_.empty(); waiting_calls_.pop_front())
    on_answer_(answer_to(waiting_calls_.front(), **link));
}

OutsideAnswer ServerPool::answer_to(const OutsideCall& call, const ServerLink& link) {
  const Json answer = Json::object()
                          .set("dialect", to_string(link.found()->dialect))
                          .set("address", link.address());
  return {call.id, OutsideEnd::kDone, answer.dump()};
}

std::optional<Time> ServerPool::next_deadline() const {
  if (fault_) return Time();  // start_missing() reports it
  std::optional<Time> next;
  const auto add = [&next](Time at) { next = next ? std::min(*next, at) : at; };
  if (processes_)
    if (const auto at = processes_->next_deadline()) add(*at);
  for (const auto& link : links_) {
    if (link->fault()) add(Time());  // a run could not be sent: turn() gives the link up
    if (const auto at = link->next_deadline()) add(*at);
    if (!starts_servers() && !link->is_open()) add(next_open_);
  }
  return next;
}

void ServerPool::close_inputs() {
  if (processes_) processes_->close_inputs();
}

bool ServerPool::have_all_ended() { return !processes_ || processes_->have_all_ended(); }

std::string ServerPool::describe() const {
  std::vector<std::string> parts;
  uint64_t num_late = 0;
  for (const auto& link : links_) {
    num_late += link->counts().late;
    parts.push_back(!link->is_open() ? "no server"
                    : !link->found()
                        ? fmt::format("no answer yet from {}", link->address())
                        : fmt::format("{} at {}, {} runs", to_string(link->found()->dialect),
                                      link->address(), link->num_runs()));
  }
  return fmt::format("{}: {}; {} runs wait, {} late answers", pool_.name, fmt::join(parts, ", "),
                     waiting_.size(), num_late);
}

}  // namespace primerl
