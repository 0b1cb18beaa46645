#include "runtime/query/request_spans.h"

#include <algorithm>
#include <tuple>

#include "runtime/trace/read/summary.h"

namespace primerl {
namespace {

/// Copy of kernels/engine/finish.h, which this folder may not include; a test compares both.
constexpr std::string_view kReasons[] = {"stop",        "length",          "cancelled", "refused",
                                         "engine_lost", "unknown_session", "failed"};
constexpr size_t kUnmatchedMax = 4096;
constexpr std::string_view kNotRecorded = "not in the record";

std::string reason_text(const std::optional<int64_t>& reason) {
  if (!reason) return "not stored";
  if (*reason < 0 || *reason >= std::ssize(kReasons)) return fmt::format("{}", *reason);
  return std::string(kReasons[*reason]);
}

}  // namespace

RequestSpans::RequestSpans(const Trace& trace, const Options& options,
                           std::function<void(const std::string&)> add)
    : trace_(trace),
      catalog_(trace.catalog()),
      options_(options),
      add_(std::move(add)),
      ways_(trace),
      last_(Time::from_nanoseconds(catalog_.zero_ns)) {}

void RequestSpans::see(const TraceStep& step) {
  last_ = std::max(last_, step.began);
  switch (ways_.message_of(step)) {
    case RequestMessage::kOther:
      return;
    case RequestMessage::kRequest:
    case RequestMessage::kPrefilled:
      return see_on_its_way(step);
    case RequestMessage::kCompletion:
      return see_answer(step);
    case RequestMessage::kAction:
      return see_action(step);
    case RequestMessage::kObservation:
      return see_observation(step);
  }
}

/// Order of visit().
bool RequestSpans::is_before(const TraceStep& a, const TraceStep& b) const {
  return std::tuple(a.began, a.group, a.step) < std::tuple(b.began, b.group, b.step);
}

void RequestSpans::see_on_its_way(const TraceStep& step) {
  const auto way = ways_.path_to(step);
  Open* const open = open_for(step, way.front());
  if (open == nullptr) return;
  if (way.size() > open->way.size()) open->way = way;
  learn(*open, ways_.facts_of(step));
}

/// Null when the request was answered before.
RequestSpans::Open* RequestSpans::open_for(const TraceStep& step, const TraceStep& entry) {
  const StepKey key{entry.group, entry.step};
  const bool is_entry = key == StepKey(step.group, step.step);
  if (answered_early_.contains(key)) {
    if (is_entry) answered_early_.erase(key);
    return nullptr;
  }
  if (const auto found = open_.find(key); found != open_.end()) return &found->second;
  const bool is_old = entry.began < options_.from;
  const bool is_new = is_entry || is_old || is_before(step, entry);
  if (!is_new || answered_old_.contains(key)) return nullptr;
  make_room();
  Open& open = open_[key];
  open.way = {entry};
  open.order = num_opened_++;
  open_order_[open.order] = key;
  return &open;
}

void RequestSpans::make_room() {
  while (open_.size() >= options_.requests_max) {
    const auto oldest = open_.find(open_order_.begin()->second);
    write(oldest->second, {.at = last_, .reason = unanswered()});
    close(oldest);
  }
}

void RequestSpans::close(OpenRequests::iterator found) {
  const auto& [key, open] = *found;
  const auto forget = [&](std::map<Named, StepKey>& names, const std::optional<int64_t>& name) {
    if (!name) return;
    const auto named = names.find({open.way.front().tenant.value, *name});
    if (named != names.end() && named->second == key) names.erase(named);
  };
  forget(by_request_, open.facts.request);
  forget(by_session_, open.facts.session);
  open_order_.erase(open.order);
  open_.erase(found);
}

void RequestSpans::learn(Open& open, const RequestFacts& facts) {
  const TraceStep& entry = open.way.front();
  const StepKey key{entry.group, entry.step};
  const uint32_t tenant = entry.tenant.value;
  const bool had_session = open.facts.session.has_value();
  open.facts.learn(facts);
  if (open.facts.request) {
    by_request_[{tenant, *open.facts.request}] = key;
    learn_number(entry, *open.facts.request);
  }
  if (had_session || !open.facts.session) return;
  const auto [other, is_first] = by_session_.try_emplace({tenant, *open.facts.session}, key);
  if (is_first || other->second == key) return;
  Open& before = open_.at(other->second);
  if (!before.facts.attempt || !open.facts.attempt) return;
  if (*before.facts.attempt < *open.facts.attempt) before.asked_again = ways_.sent_at(entry);
  other->second = key;
}

void RequestSpans::learn_number(const TraceStep& entry, int64_t request) {
  const uint64_t offset = static_cast<uint64_t>(request) - entry.sequence;
  Numbers& numbers =
      numbers_.try_emplace(entry.link, Numbers{entry.incarnation, offset}).first->second;
  if (numbers.incarnation != entry.incarnation)
    numbers = {entry.incarnation, offset};
  else if (numbers.offset != offset)
    numbers.is_certain = false;
}

/// The request's number, from its position on its link; none when the link's requests are not
/// numbered in order.
std::optional<int64_t> RequestSpans::number_of(const TraceStep& entry) const {
  const auto numbers = numbers_.find(entry.link);
  if (numbers == numbers_.end() || !numbers->second.is_certain ||
      numbers->second.incarnation != entry.incarnation)
    return std::nullopt;
  const InstanceId asker(catalog_.links[entry.link.index()].sender);
  if (ways_.asking_link(asker) != entry.link) return std::nullopt;
  return static_cast<int64_t>(entry.sequence + numbers->second.offset);
}

void RequestSpans::see_answer(const TraceStep& completion) {
  RequestEnd end;
  const RequestFacts facts = ways_.facts_of(completion, &end);
  const auto way = answered_path(completion, facts);
  if (!way.empty()) return answer(completion, way, facts, end);
  if (unmatched_.size() < kUnmatchedMax) unmatched_.push_back(completion);
}

/// Whether the path may belong to this request: false if a known number differs.
bool RequestSpans::is_of(const std::vector<TraceStep>& way,
                         const std::optional<int64_t>& request) const {
  if (ways_.message_of(way.front()) != RequestMessage::kRequest) return false;
  if (!request) return true;
  const auto numbered = number_of(way.front());
  const auto stored = ways_.facts_of(way.back()).request;
  return numbered.value_or(*request) == *request && stored.value_or(*request) == *request;
}

/// Empty when the request is not known yet. An engine that ended a request by itself may name
/// another cause; then only the number identifies the request.
std::vector<TraceStep> RequestSpans::answered_path(const TraceStep& completion,
                                                   const RequestFacts& facts) {
  if (const auto cause = ways_.cause_of(completion)) {
    auto way = ways_.path_to(*cause);
    if (!way.empty() && is_of(way, facts.request)) return way;
  }
  if (!facts.request) return {};
  const auto named = by_request_.find({completion.tenant.value, *facts.request});
  if (named != by_request_.end()) return {open_.at(named->second).way.front()};
  const auto entry = entry_of_number(completion, *facts.request);
  return entry ? std::vector{*entry} : std::vector<TraceStep>();
}

std::optional<TraceStep> RequestSpans::entry_of_number(const TraceStep& completion,
                                                       int64_t request) const {
  const auto& link = catalog_.links[completion.link.index()];
  const auto numbers = numbers_.find(ways_.asking_link(InstanceId(link.target)));
  if (numbers == numbers_.end() || !numbers->second.is_certain) return std::nullopt;
  const uint64_t sequence = static_cast<uint64_t>(request) - numbers->second.offset;
  return trace_.delivered_step({numbers->first, numbers->second.incarnation, sequence});
}

void RequestSpans::answer(const TraceStep& completion, const std::vector<TraceStep>& way,
                          const RequestFacts& facts, const RequestEnd& end) {
  const TraceStep& entry = way.front();
  const StepKey key{entry.group, entry.step};
  Open answered;
  if (const auto found = open_.find(key); found != open_.end()) {
    answered = found->second;
    close(found);
  } else if (is_before(completion, entry)) {
    if (!answered_early_.insert(key).second) return;
  } else if (entry.began >= options_.from) {
    return;  // a router that did not know of the answer gave another one
  } else if (!answered_old_.insert(key).second) {
    return;
  }
  for (size_t hop = answered.way.size(); hop < way.size(); ++hop)
    answered.facts.learn(ways_.facts_of(way[hop]));
  if (way.size() > answered.way.size()) answered.way = way;
  answered.facts.learn(facts);
  if (answered.facts.request) learn_number(entry, *answered.facts.request);
  write(answered, {&completion, completion.began, reason_text(end.reason), end});
}

void RequestSpans::finish() {
  for (const TraceStep& completion : std::exchange(unmatched_, {})) {
    RequestEnd end;
    const RequestFacts facts = ways_.facts_of(completion, &end);
    const auto way = answered_path(completion, facts);
    if (!way.empty()) answer(completion, way, facts, end);
  }
  while (!open_order_.empty()) {
    const auto oldest = open_.find(open_order_.begin()->second);
    const auto& again = oldest->second.asked_again;
    write(oldest->second,
          {.at = again.value_or(last_), .reason = again ? "asked again" : unanswered()});
    close(oldest);
  }
  while (!rollouts_.empty()) end_rollout(rollouts_.begin());
}

std::string RequestSpans::unanswered() const {
  const bool is_cut = options_.to.to_nanoseconds() < trace_.summary().last_ns;
  return std::string(is_cut ? "not in the range" : kNotRecorded);
}

}  // namespace primerl
