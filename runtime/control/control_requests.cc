#include "runtime/control/control_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/control/upload_folders.h"
#include "runtime/control/upload_rules.h"

namespace primerl {
namespace {

constexpr std::string_view kLookId = "http/look";

std::string text_of(const Json& json, std::string_view key) {
  const auto text = json.get_string(key);
  return text.ok() ? *text : "";
}

uint32_t number_of(const Json& tenant) {
  const auto number = tenant.get_int("number");
  return number.ok() ? static_cast<uint32_t>(*number) : 0;
}

bool is_of(const TokenHolder& who, const std::string& name, uint32_t tenancy) {
  return who.is_operator() || (who.tenant == name && who.tenancy == tenancy);
}

/// The same for a tenant that is not there and for one that is another's.
ControlFault no_tenant(const std::string& name) {
  return {404, fmt::format("there is no tenant '{}'", name), "path", "a tenant of the token",
          "GET /v1/tenants lists them"};
}

Json verb_of(std::string_view verb, const std::string& name) {
  return Json::object().set("tenant_verb", verb).set("name", name);
}

}  // namespace

void ControlRequests::note(const Open& open, int32_t status, const std::string& result) {
  const std::string method = open.route == nullptr ? "" : open.route->method;
  setup_.audit({setup_.wall_time(), open.who.who(), method, open.path, status,
                result.substr(0, result.find('\n'))});
}

/// Refusals are in the audit log, except of requests that change nothing and find nothing.
void ControlRequests::refuse(const Open& open, const ControlFault& fault) {
  setup_.reply(open.request, {fault.status, fault.json(), fault.retry_after});
  const bool is_read = open.route != nullptr && open.route->method == "GET";
  if (!is_read || fault.status == 403 || fault.status == 429) note(open, fault.status, fault.error);
}

void ControlRequests::handle(uint64_t request, const ClientRequest& from, const TokenHolder& who,
                             Time now) {
  RoutedRequest routed = route_request(from.method, from.path, from.query);
  Open open{request, who, routed.route, from.path};
  if (const int32_t wait = rate_.take(who.who(), now); wait > 0) {
    const ControlFault fault{429,
                             fmt::format("the {} has made more than {} requests within a minute",
                                         who.who(), RequestRate::kRequestsPerMinute),
                             "token",
                             fmt::format("{} a minute", RequestRate::kRequestsPerMinute),
                             fmt::format("wait {} s", wait),
                             wait};
    if (!rate_.refuses_again(who.who())) return refuse(open, fault);
    // A flood must not push older lines out of the audit log.
    return setup_.reply(request, {fault.status, fault.json(), fault.retry_after});
  }
  if (routed.fault) return refuse(open, *routed.fault);
  if (!who.is_operator() && !routed.route->is_for_tenants)
    return refuse(open, {403, "this is for the operator", "token", "the operator's token",
                         "ask the operator"});
  if (!who.is_operator() && !routed.name.empty() && routed.name != who.tenant)
    return refuse(open, no_tenant(routed.name));
  if (routed.route->verb != ControlVerb::kStore && from.body.size() > kUploadBytesMax)
    return refuse(open, {413, fmt::format("the body has {} bytes", from.body.size()), "body",
                         fmt::format("at most {} bytes", kUploadBytesMax),
                         "only data files may be larger: PUT /v1/uploads/TENANT/FILE"});
  Json content = verb_of("show", routed.name);
  switch (routed.route->verb) {
    case ControlVerb::kOpenApi:
      return setup_.reply(request, {200, openapi_document()});
    case ControlVerb::kAdd:
      return add(std::move(open), from);
    case ControlVerb::kStore:
      return store(open, routed, from.body);
    case ControlVerb::kDiscard:
      return discard(open, routed.name);
    case ControlVerb::kEvents:
      return poll(open, routed, now);
    case ControlVerb::kList:
      content.set("tenant_verb", "ls");
      break;
    case ControlVerb::kShow:
      break;
    case ControlVerb::kPause:
      content.set("tenant_verb", "pause");
      break;
    case ControlVerb::kResume:
      content.set("tenant_verb", "resume");
      break;
    case ControlVerb::kSet: {
      ValuesBody body = read_values(from.body);
      if (body.fault) return refuse(open, *body.fault);
      // A tenant's share is a part of what the others have.
      if (!who.is_operator() && body.values.find("share") != nullptr)
        return refuse(
            open, {403, "'share' is for the operator", "body", "other values", "ask the operator"});
      content.set("tenant_verb", "set").set("values", std::move(body.values));
      break;
    }
    case ControlVerb::kRemove:
      content.set("tenant_verb", "remove")
          .set("files", routed.has("purge")              ? "purge"
                        : routed.has("keep_checkpoints") ? "keep_checkpoints"
                                                         : "keep");
      break;
  }
  // The next tenant of this name is another one.
  if (!who.is_operator()) content.set("number", who.tenancy);
  ask(std::move(open), std::move(content));
}

void ControlRequests::ask(Open open, Json content) {
  const std::string id = fmt::format("http/{}", next_ask_++);
  open_.emplace(id, std::move(open));
  asks_.push_back({id, std::move(content)});
}

void ControlRequests::add(Open open, const ClientRequest& from) {
  const UploadBody body = read_upload(from.content_type, from.body);
  if (body.fault) return refuse(open, *body.fault);
  CHECK(catalog_ != nullptr, "a request came before the graph");
  std::string tenant;
  std::vector<std::string> waiting;
  const auto uploaded = [&](const std::string& name) {
    tenant = name;
    waiting = waiting_data(setup_.run_folder, name);
    return waiting;
  };
  if (const auto fault = check_upload(body.text, *catalog_, uploaded)) return refuse(open, *fault);
  // As a whole text: the purge of a tenant finds only a folder that its table names.
  const bool has_data = std::ranges::any_of(waiting, [&](const auto& name) {
    return body.text.find(fmt::format("\"{}\"", name)) != std::string::npos ||
           body.text.find(fmt::format("'{}'", name)) != std::string::npos;
  });
  if (has_data) open.with_data_of = tenant;
  const auto file = has_data ? claim_data(setup_.run_folder, tenant, body.text)
                             : write_upload(setup_.run_folder, body.text);
  if (!file.ok())
    return refuse(open, {500, file.error().message(), "run", "a run folder that can be written",
                         "see the message"});
  open.upload = *file;
  ask(std::move(open), Json::object().set("tenant_verb", "add").set("file", file->string()));
}

void ControlRequests::store(const Open& open, const RoutedRequest& routed,
                            const std::string& bytes) {
  if (const auto fault = store_data(setup_.run_folder, routed.name, routed.file, bytes))
    return refuse(open, *fault);
  setup_.reply(open.request,
               {200, Json::object()
                         .set("tenant", routed.name)
                         .set("file", routed.file)
                         .set("bytes", static_cast<int64_t>(bytes.size()))
                         .set("files", Json::list(waiting_data(setup_.run_folder, routed.name)))});
  note(open, 200, fmt::format("{} bytes", bytes.size()));
}

void ControlRequests::discard(const Open& open, const std::string& tenant) {
  if (!discard_data(setup_.run_folder, tenant))
    return refuse(open, {404, fmt::format("no file waits for '{}'", tenant), "path",
                         "a tenant with uploaded files", "files of a tenant that was added stay"});
  setup_.reply(open.request, {200, Json::object().set("tenant", tenant)});
  note(open, 200, "done");
}

/// The part of an answer that the client gets.
Json ControlRequests::answered(const Open& open, const Json& answer) const {
  Json body = answer;
  if (open.route->verb == ControlVerb::kList && !open.who.is_operator()) {
    Json own = Json::array();
    const Json* const all = answer.find("tenants");
    if (all != nullptr && all->is_array())
      for (const Json& tenant : all->as_array())
        if (is_of(open.who, text_of(tenant, "name"), number_of(tenant))) own.push_back(tenant);
    return Json::object().set("tenants", std::move(own));
  }
  if (open.route->verb != ControlVerb::kAdd) return body;
  const Json* const tenant = answer.find("tenant");
  if (tenant == nullptr) return body;
  const auto token = setup_.new_token({text_of(*tenant, "name"), number_of(*tenant)});
  if (token.ok()) return std::move(body.set("token", *token));
  return std::move(body.set("token", Json()).set("token_error", token.error().message()));
}

bool ControlRequests::answer(const std::string& id, const Json& answer, Time now) {
  if (id == kLookId) {
    see(answer, now);
    return true;
  }
  const auto found = open_.find(id);
  if (found == open_.end()) return false;
  const Open open = std::move(found->second);
  open_.erase(found);
  auto fault = fault_of_answer(answer);
  if (!open.with_data_of.empty() && fault)
    return_data(setup_.run_folder, open.upload, open.with_data_of);
  else if (!open.upload.empty())
    remove_upload(open.upload);
  if (fault) {
    // Names of other tenants are not for a tenant.
    if (fault->status == 404 && !open.who.is_operator()) fault = no_tenant(open.who.tenant);
    refuse(open, *fault);
    return true;
  }
  setup_.reply(open.request, {200, answered(open, answer)});
  if (open.route->method == "GET") return true;
  const Json* const tenant = answer.find("tenant");
  note(open, 200,
       tenant == nullptr
           ? "done"
           : fmt::format("{} is {}", text_of(*tenant, "name"), text_of(*tenant, "state")));
  return true;
}

void ControlRequests::closed(uint64_t request) {
  std::erase_if(polls_, [request](const Poll& each) { return each.request == request; });
}

void ControlRequests::poll(const Open& open, const RoutedRequest& routed, Time now) {
  const auto is_same = [&](const Poll& each) { return each.who == open.who; };
  const auto num_own = static_cast<size_t>(std::ranges::count_if(polls_, is_same));
  if (polls_.size() >= kPollsMax || num_own >= kPollsOfHolderMax)
    return refuse(open, {429, "too many requests for events wait already", "token",
                         fmt::format("{} for one token, {} together", kPollsOfHolderMax, kPollsMax),
                         "wait for their replies"});
  const auto after = routed.query.find("after");
  Poll poll;
  poll.request = open.request;
  poll.who = open.who;
  poll.name = routed.name;
  poll.after = after == routed.query.end() ? 0 : after->second;
  poll.is_stream = after == routed.query.end() || routed.has("stream");
  poll.until = now + (poll.is_stream ? kStreamMax : kPollMax);
  poll.heard = now;
  polls_.push_back(std::move(poll));
  watch_until_ = now + kWatchFor;
  next_look_ = now;
}

void ControlRequests::tick(Time now) {
  end_polls([&](Poll& each) {
    return each.is_stream ? keep_alive(each, now) : now >= each.until && reply_events(each, true);
  });
  if (std::ranges::any_of(polls_, &Poll::is_stream)) watch_until_ = now + kWatchFor;
  if (now >= watch_until_) {
    watched_.clear();
    return;
  }
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  asks_.push_back({std::string(kLookId), Json::object().set("tenant_verb", "ls")});
}

void ControlRequests::see_tenant(const Json& tenant) {
  const std::string name = text_of(tenant, "name");
  Watched& watched = watched_[name];
  if (watched.tenancy != number_of(tenant)) watched = Watched{number_of(tenant)};
  Json event = Json::object();
  for (const char* key : {"name", "state", "why", "step", "max_steps", "reward", "staleness"})
    if (const Json* const value = tenant.find(key); value != nullptr) event.set(key, *value);
  std::string text = event.dump();
  if (text == watched.newest) return;
  watched.newest = std::move(text);
  event.set("n", ++watched.num_events).set("time", setup_.wall_time());
  watched.events.push_back(std::move(event));
  if (watched.events.size() > kEventsMax) watched.events.pop_front();
}

/// Looks at the list of all tenants, and replies to requests that wait for something new.
void ControlRequests::see(const Json& answer, Time now) {
  const Json* const all = answer.find("tenants");
  if (all == nullptr || !all->is_array()) return;
  std::vector<std::string> names;
  for (const Json& tenant : all->as_array()) {
    names.push_back(text_of(tenant, "name"));
    see_tenant(tenant);
  }
  std::erase_if(watched_, [&](const auto& each) {
    return std::ranges::find(names, each.first) == names.end();
  });
  end_polls([this, now](Poll& each) {
    return each.is_stream ? stream_events(each, now) : reply_events(each, false);
  });
}

/// Forgets the requests for which `has_ended` is true.
void ControlRequests::end_polls(const std::function<bool(Poll&)>& has_ended) {
  for (auto each = polls_.begin(); each != polls_.end();)
    each = has_ended(*each) ? polls_.erase(each) : std::next(each);
}

/// True: the stream has ended.
bool ControlRequests::keep_alive(Poll& stream, Time now) {
  if (!stream.has_begun) {
    if (now < stream.heard + kPollMax) return false;
    return reply_events(stream, true);  // the run has not answered a single look
  }
  if (now >= stream.until) {
    setup_.stream(stream.request, ": ask again\n\n", true);
    return true;
  }
  if (now < stream.heard + kHeartbeatEvery) return false;
  stream.heard = now;
  setup_.stream(stream.request, ": the tenant is as before\n\n", false);
  return false;
}

/// Sends the events that the client does not have. True: the stream has ended.
bool ControlRequests::stream_events(Poll& stream, Time now) {
  const auto found = watched_.find(stream.name);
  const bool is_there = found != watched_.end() &&
                        is_of(stream.who, stream.name, found->second.tenancy) &&
                        (!stream.has_begun || found->second.tenancy == stream.tenancy);
  if (!is_there && !stream.has_begun) return reply_events(stream, false);
  if (!is_there) {
    const Json left = Json::object().set("name", stream.name).set("state", "removed");
    setup_.stream(stream.request, fmt::format("data: {}\n\n", left.dump()), true);
    return true;
  }
  const Watched& watched = found->second;
  stream.tenancy = watched.tenancy;
  if (stream.after > watched.num_events) stream.after = 0;
  std::string text;
  const uint64_t first = watched.num_events - watched.events.size() + 1;
  for (size_t i = 0; i < watched.events.size(); ++i) {
    if (first + i <= stream.after) continue;
    const std::string event =
        fmt::format("id: {}\ndata: {}\n\n", first + i, watched.events[i].dump());
    // The listener closes a client for which more waits. The others come with the next look.
    if (!text.empty() && text.size() + event.size() > kPartBytesMax) break;
    text += event;
    stream.after = first + i;
  }
  if (text.empty() && stream.has_begun) return false;
  if (text.empty()) text = ": nothing is newer\n\n";
  stream.has_begun = true;
  stream.heard = now;
  setup_.stream(stream.request, text, false);
  return false;
}

/// False: there is nothing new, and the request waits on.
bool ControlRequests::reply_events(const Poll& poll, bool is_late) {
  const auto found = watched_.find(poll.name);
  const bool is_there =
      found != watched_.end() && is_of(poll.who, poll.name, found->second.tenancy);
  if (!is_there) {
    // A look at the list replies at once to who waits for a tenant that is not there.
    const ControlFault fault = is_late ? ControlFault{503, "the run has not answered", "run",
                                                      "a run that trains", "ask again"}
                                       : no_tenant(poll.name);
    setup_.reply(poll.request, {fault.status, fault.json()});
    return true;
  }
  const Watched& watched = found->second;
  // A larger number is of an earlier start, whose events are gone.
  const uint64_t after = poll.after > watched.num_events ? 0 : poll.after;
  if (after == watched.num_events && !is_late) return false;
  Json events = Json::array();
  const uint64_t first = watched.num_events - watched.events.size() + 1;
  for (size_t i = 0; i < watched.events.size(); ++i)
    if (first + i > after) events.push_back(watched.events[i]);
  setup_.reply(
      poll.request,
      {200, Json::object().set("events", std::move(events)).set("next", watched.num_events)});
  return true;
}

}  // namespace primerl
