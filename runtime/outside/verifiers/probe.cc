#include "runtime/outside/verifiers/probe.h"

#include <algorithm>
#include <utility>

#include "runtime/outside/verifiers/msgpack_json.h"

namespace primerl {
namespace {

constexpr int kSilencesMax = 3;
constexpr std::string_view kLegacyId = "health";

bool knows_methods(const std::optional<VerifiersDialect>& pinned) {
  return !pinned || *pinned == VerifiersDialect::kW1a || *pinned == VerifiersDialect::kW1b;
}

}  // namespace

ServerProbe::ServerProbe(ProbeOptions options, MakeId make_id, Time now)
    : options_(std::move(options)), make_id_(std::move(make_id)), started_(now) {
  go_to(Stage::kHealth);
}

void ServerProbe::go_to(Stage stage) {
  const bool is_legacy = options_.pinned == VerifiersDialect::kW0;
  stage_ = is_legacy ? Stage::kLegacy : stage;
  has_socket_ = false;
  has_answered_ = false;
  asked_.reset();
  request_.reset();
}

Frames ServerProbe::make_request() {
  id_ = stage_ == Stage::kLegacy ? std::string(kLegacyId) : make_id_();
  switch (stage_) {
    case Stage::kHealth:
      return health_request(VerifiersDialect::kW1c, id_);
    case Stage::kInfo:
      return empty_request("info", id_);
    case Stage::kRun:
      return empty_request("run", id_);
    case Stage::kLegacy:
      break;
  }
  return health_request(VerifiersDialect::kW0, id_);
}

void ServerProbe::on_connected(Time now) {
  if (result_ || !has_socket_ || asked_) return;
  asked_ = now;
  request_ = make_request();
}

void ServerProbe::on_disconnected() {
  if (result_) return;
  num_silences_ = 0;
  go_to(Stage::kHealth);
}

std::optional<Frames> ServerProbe::request() { return std::exchange(request_, std::nullopt); }

void ServerProbe::on_frames(const Frames& frames, Time now) {
  if (result_ || !asked_ || frames.empty() || frames.front() != id_) return;
  if (stage_ == Stage::kHealth) {
    on_health(frames);
  } else if (stage_ == Stage::kLegacy) {
    on_legacy(frames);
  } else if (const auto reply = read_reply(frames)) {
    stage_ == Stage::kInfo ? on_info(*reply) : on_run(*reply);
  }
  on_time(now);
}

/// The payload of an answer of two frames; none: it has another form, and the probe has failed.
std::optional<Json> ServerProbe::read_reply(const Frames& frames) {
  if (frames.size() == 2) {
    auto reply = read_msgpack(frames[1]);
    if (reply.ok() && failure_of(*reply).ok()) return std::move(*reply);
  }
  finish(error(Code::kInvalid,
               "the server at '{}' answers with {} frames in a form that no known "
               "dialect has",
               options_.address, frames.size())
             .note("known: w0, w1a, w1b, w1c, w2 (verifiers 0.1 to 0.4)"));
  return std::nullopt;
}

void ServerProbe::on_health(const Frames& frames) {
  const bool is_streamed = frames.size() == 3;
  if (is_streamed && frames[1] != "reply") {
    (void)read_reply(frames);
    return;
  }
  const auto reply = is_streamed ? read_reply({frames[0], frames[2]}) : read_reply(frames);
  if (!reply) return;
  if (const auto failure = *failure_of(*reply)) {
    last_fault_ = *failure;  // a pool without workers; asked again at the next deadline
    has_answered_ = true;
    return;
  }
  num_silences_ = 0;
  const bool wants_stream = options_.pinned == VerifiersDialect::kW2;
  if (options_.pinned && is_streamed != wants_stream)
    return finish(error(Code::kInvalid, "the server at '{}' speaks {}, not {}", options_.address,
                        is_streamed ? "w2" : "w1a, w1b or w1c", to_string(*options_.pinned))
                      .note("remove `protocol`, or set it to the server's dialect"));
  if (is_streamed) return finish(VerifiersDialect::kW2);
  if (!knows_methods(options_.pinned)) return finish(*options_.pinned);
  go_to(Stage::kInfo);
}

void ServerProbe::on_legacy(const Frames& frames) {
  const auto reply = read_reply(frames);
  if (!reply) return;
  if (const auto failure = *failure_of(*reply))
    last_fault_ = *failure;
  else
    finish(VerifiersDialect::kW0);
}

void ServerProbe::on_info(const Json& reply) {
  if (const auto failure = *failure_of(reply)) {
    if (is_unknown_method(*failure) && !options_.pinned) return finish(VerifiersDialect::kW1c);
    return finish(error(Code::kInvalid, "the server at '{}' cannot describe its tasks: {}",
                        options_.address, *failure));
  }
  if (const Json* const count = reply.find("num_tasks"); count != nullptr && count->is_integer())
    found_.num_tasks = count->as_int();
  if (found_.num_tasks && *found_.num_tasks < 1)
    return finish(error(Code::kInvalid, "the server at '{}' has {} tasks", options_.address,
                        *found_.num_tasks));
  if (options_.pinned) return finish(*options_.pinned);
  go_to(Stage::kRun);
}

void ServerProbe::on_run(const Json& reply) {
  const auto failure = *failure_of(reply);
  finish(failure && is_unknown_method(*failure) ? VerifiersDialect::kW1a : VerifiersDialect::kW1b);
}

void ServerProbe::finish(VerifiersDialect dialect) {
  found_.dialect = dialect;
  result_ = found_;
}

void ServerProbe::on_silence() {
  if (stage_ == Stage::kLegacy) {
    num_silences_ = 0;
    return go_to(Stage::kHealth);
  }
  if (has_answered_) num_silences_ = -1;  // it is not silent, only not ready
  // With a pinned dialect a silent server is waited for: another dialect is not tried.
  const bool may_be_legacy = ++num_silences_ >= kSilencesMax && !options_.pinned;
  go_to(may_be_legacy ? Stage::kLegacy : Stage::kHealth);
}

void ServerProbe::on_time(Time now) {
  if (result_) return;
  if (now - started_ >= options_.start_timeout) {
    Error late = error(Code::kDeadline, "the server at '{}' did not answer within {}",
                       options_.address, to_string(options_.start_timeout));
    return finish(std::move(late).note(
        last_fault_.empty() ? asked_ ? "it accepts connections, but is silent in every dialect"
                                     : "nothing listens there"
                            : "its last answer: " + last_fault_));
  }
  // A worker that answers the others may still load its environment.
  const bool has_short_wait = stage_ == Stage::kHealth || stage_ == Stage::kLegacy;
  if (asked_ && has_short_wait && now - *asked_ >= options_.answer_timeout) on_silence();
}

std::optional<Time> ServerProbe::next_deadline() const {
  if (result_) return std::nullopt;
  const Time last = started_ + options_.start_timeout;
  const bool has_short_wait = stage_ == Stage::kHealth || stage_ == Stage::kLegacy;
  return asked_ && has_short_wait ? std::min(last, *asked_ + options_.answer_timeout) : last;
}

}  // namespace primerl
