#include "runtime/query/request_way.h"

#include <algorithm>

#include "runtime/query/step_text.h"

namespace primerl {
namespace {

RequestMessage message_named(std::string_view name) {
  static constexpr std::pair<std::string_view, RequestMessage> kNames[] = {
      {"GenerateRequest", RequestMessage::kRequest}, {"PrefillDone", RequestMessage::kPrefilled},
      {"Completion", RequestMessage::kCompletion},   {"Action", RequestMessage::kAction},
      {"Observation", RequestMessage::kObservation},
  };
  for (const auto& [known, message] : kNames)
    if (known == name) return message;
  return RequestMessage::kOther;
}

std::optional<int64_t> number_in(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  if (value == nullptr || !value->is_integer()) return std::nullopt;
  const auto number = json.get_int(key);
  return number.ok() ? std::optional(*number) : std::nullopt;
}

void keep(std::optional<int64_t>& known, const std::optional<int64_t>& more) {
  if (!known) known = more;
}

RequestEnd end_in(const Json& completion) {
  RequestEnd end;
  end.reason = number_in(completion, "end");
  end.num_new_tokens = number_in(completion, "tokens");
  const Json* spans = completion.find("spans");
  if (spans == nullptr || !spans->is_array()) return end;
  for (const Json& span : spans->as_array())
    if (const auto version = number_in(span, "version")) end.versions.push_back(*version);
  return end;
}

}  // namespace

void RequestFacts::learn(const RequestFacts& more) {
  keep(request, more.request);
  keep(session, more.session);
  keep(attempt, more.attempt);
  keep(num_prompt_tokens, more.num_prompt_tokens);
  keep(num_cached_tokens, more.num_cached_tokens);
}

RequestPaths::RequestPaths(const Trace& trace) : trace_(trace) {
  for (const auto& type : trace.catalog().types) {
    messages_.push_back(message_named(type.name));
    auto& entry = schemas_.emplace_back();
    if (messages_.back() == RequestMessage::kOther) continue;
    if (auto schema = read_schema(type.schema); schema.ok()) entry = std::move(schema).value();
  }
}

RequestMessage RequestPaths::message_of(const TraceStep& step) const {
  if (step.kind != StepKind::kMessage || step.type >= messages_.size())
    return RequestMessage::kOther;
  return messages_[step.type];
}

std::optional<TraceStep> RequestPaths::cause_of(const TraceStep& step) const {
  if (step.cause.is_none()) return std::nullopt;
  const uint32_t group = trace_.catalog().instances[step.cause.instance.index()].group;
  auto cause = trace_.step(GroupId(group), step.cause.step);
  const bool is_another =
      cause && !cause->instance.is_none() && cause->instance != step.cause.instance;
  return is_another ? std::nullopt : cause;
}

std::vector<TraceStep> RequestPaths::path_to(const TraceStep& step) const {
  const RequestMessage message = message_of(step);
  if (message != RequestMessage::kRequest && message != RequestMessage::kPrefilled) return {};
  std::vector<TraceStep> way{step};
  while (way.size() < kRequestHopsMax) {
    const auto before = cause_of(way.back());
    if (!before || message_of(*before) != RequestMessage::kRequest) break;
    way.push_back(*before);
  }
  std::ranges::reverse(way);
  return way;
}

std::optional<TraceStep> RequestPaths::sender_of(const TraceStep& step) const {
  const auto& catalog = trace_.catalog();
  const uint32_t sender = catalog.links[step.link.index()].sender;
  return trace_.step(GroupId(catalog.instances[sender].group), step.sender_step);
}

bool RequestPaths::has_sender(const TraceStep& step) const { return sender_of(step).has_value(); }

Time RequestPaths::sent_at(const TraceStep& step) const {
  const auto sender = sender_of(step);
  return sender ? std::min(sender->began + sender->duration, step.began) : step.began;
}

std::optional<Json> RequestPaths::outline_of(const TraceStep& step) const {
  if (!schemas_[step.type]) return std::nullopt;
  const auto stored = trace_.payload(key_of(step));
  if (!stored.ok() || stored->type != step.type) return std::nullopt;
  auto outline = body_outline(*schemas_[step.type], stored->body, stored->blobs);
  return outline.ok() ? std::optional(std::move(outline).value()) : std::nullopt;
}

RequestFacts RequestPaths::facts_of(const TraceStep& step, RequestEnd* end) const {
  RequestFacts facts;
  const auto outline = outline_of(step);
  if (!outline) return facts;
  facts.request = number_in(*outline, "request");
  facts.session = number_in(*outline, "session");
  facts.attempt = number_in(*outline, "attempt");
  facts.num_prompt_tokens = number_in(*outline, "num_prompt_tokens");
  facts.num_cached_tokens = number_in(*outline, "num_cached_tokens");
  if (message_of(step) == RequestMessage::kRequest)
    if (const auto following = number_in(*outline, "prompt_tokens")) {
      const Json* known = outline->find("known");
      facts.num_prompt_tokens =
          *following + (known == nullptr ? 0 : number_in(*known, "num_tokens").value_or(0));
    }
  if (end != nullptr) *end = end_in(*outline);
  return facts;
}

bool RequestPaths::is_forwarding(InstanceId instance) const {
  return std::ranges::any_of(trace_.catalog().links, [&](const auto& link) {
    return link.sender == instance.value && messages_[link.type] == RequestMessage::kRequest;
  });
}

LinkId RequestPaths::asking_link(InstanceId asker) const {
  const auto& links = trace_.catalog().links;
  LinkId found;
  for (uint32_t link = 0; link < links.size(); ++link) {
    if (links[link].sender != asker.value) continue;
    if (messages_[links[link].type] != RequestMessage::kRequest) continue;
    if (!found.is_none()) return {};
    found = LinkId(link);
  }
  return found;
}

}  // namespace primerl
