// The requests of clients: accepting, routes, tenants, replies.
#include <algorithm>
#include <utility>

#include "actors/common/client_key.h"
#include "actors/gateway/gateway.h"
#include "actors/gateway/program_version.h"
#include "graph/base/file_digest.h"
#include "kernels/engine/block_hash.h"

namespace primerl {
namespace {

// Requests that the listener may hand over before the next work call.
constexpr int64_t kAcceptsOpen = 256;
// Calls of one step are numbered from its own number.
constexpr int kStepCallBits = 16;
constexpr size_t kWarnedMax = 64;
constexpr size_t kFormatsMax = 64;

/// Sessions of clients have the highest bit, trajectories of Rollout do not.
uint64_t session_number(const std::string& session) {
  return stable_hash(session, 7) | (uint64_t{1} << 63);
}

bool is_post(std::string_view path) {
  return path == "/inference/v1/generate" || path == "/v1/chat/completions" || path == "/tokenize";
}
bool is_get(std::string_view path) {
  return path == "/v1/models" || path == "/version" || path == "/health" || path == "/liveness";
}

}  // namespace

Status Gateway::ask(AskedKind kind, std::string body) {
  OutsideCall call;
  call.id = (services().delivery().ref.step << kStepCallBits) + num_asked_++;
  call.body = std::move(body);
  const uint64_t id = call.id;
  RETURN_IF_ERROR(listener_->ask(std::move(call)));
  asked_.emplace(id, kind);
  return ok();
}

Status Gateway::keep_calls_open() {
  for (; num_accepts_ < kAcceptsOpen; ++num_accepts_)
    RETURN_IF_ERROR(ask(AskedKind::kAccept, accept_call()));
  for (; num_closed_ < 1; ++num_closed_) RETURN_IF_ERROR(ask(AskedKind::kClosed, closed_call()));
  return ask_address();
}

Status Gateway::receive_answers() {
  for (const OutsideAnswer& answer : listener_->receive_answers()) {
    const auto found = asked_.find(answer.id);
    if (found == asked_.end()) continue;
    const AskedKind kind = found->second;
    asked_.erase(found);
    if (kind == AskedKind::kReply) {
      const auto sent = read_sent(answer.body);
      if (!sent.ok() || !*sent) services().count("replies_lost", 1);
    } else if (kind == AskedKind::kClosed) {
      --num_closed_;
      ASSIGN_OR_RETURN(const auto closed, read_closed(answer.body));
      on_closed(closed);
    } else if (kind == AskedKind::kAddress) {
      RETURN_IF_ERROR(on_address(answer.body));
    } else {
      --num_accepts_;
      ASSIGN_OR_RETURN(const ClientRequest client, read_client_request(answer.body));
      RETURN_IF_ERROR(on_request(answer.id, client));
    }
  }
  return ok();
}

Status Gateway::on_request(uint64_t request, const ClientRequest& client) {
  services().count("client_requests", 1);
  Status done;
  if (client.method == "POST" && client.path == "/inference/v1/generate") {
    done = generate(client, request);
  } else if (client.method == "POST" && client.path == "/v1/chat/completions") {
    done = chat(client, request);
  } else {
    auto body = reply_at_once(client);
    if (body.ok())
      reply(request, 200, *std::move(body), client.request_id);
    else
      done = std::move(body).error();
  }
  if (done.ok()) return ok();
  const bool is_wrong_method = done.error().code() == Code::kNotFound &&
                               (is_post(client.path) || is_get(client.path)) &&
                               (client.method == "POST") != is_post(client.path);
  const int32_t status = is_wrong_method ? 405 : status_of(done.error());
  reply(request, status, http_error_body(status, done.error().text()), client.request_id);
  return ok();
}

Result<std::string> Gateway::reply_at_once(const ClientRequest& client) {
  const bool is_read = client.method == "GET" || client.method == "HEAD";
  if (client.method == "POST" && client.path == "/tokenize") return tokenize(client);
  if (is_read && client.path == "/v1/models") return models(client);
  if (is_read && client.path == "/version") return version();
  if (is_read && (client.path == "/health" || client.path == "/liveness")) return health();
  return error(Code::kNotFound, "there is no '{} {}'", client.method, client.path)
      .note(
          "POST /inference/v1/generate, /v1/chat/completions, /tokenize; GET /v1/models, "
          "/version, /health");
}

void Gateway::on_closed(const std::vector<uint64_t>& requests) {
  for (const uint64_t request : requests) {
    const auto found = clients_.find(request);
    if (found == clients_.end()) continue;  // its reply was on the way
    const uint64_t number = found->second;
    auto& clients = generations_.at(number).clients;
    std::erase_if(clients, [request](const Client& each) { return each.request == request; });
    clients_.erase(found);
    services().count("clients_gone", 1);
    if (clients.empty()) abandon(number);
  }
}

std::vector<TenantSlot> Gateway::tenants_served_as(const std::string& model,
                                                   const ClientRequest& client) const {
  std::vector<TenantSlot> found;
  for (const TenantSlot slot : services().tenants()) {
    const Tenant& tenant = services().tenant(slot);
    if (!may_use(client, tenant)) continue;
    if (std::ranges::find(tenant.served_as, model) != tenant.served_as.end()) found.push_back(slot);
  }
  return found;
}

Result<TenantSlot> Gateway::tenant_of(const std::string& model, const ClientRequest& client) const {
  std::vector<std::string> names;
  TenantSlot found, last;
  for (const TenantSlot slot : services().tenants()) {
    const std::string& name = services().tenant(slot).name;
    if (!may_use(client, services().tenant(slot))) continue;
    names.push_back(name);
    last = slot;
    if (name == model) found = slot;
  }
  if (!found.is_none()) return found;
  if (model.empty() && names.size() == 1) return last;
  const auto trainers = tenants_served_as(model, client);
  if (trainers.size() == 1) return trainers.front();
  if (trainers.size() > 1)
    return error(Code::kInvalid, "the model '{}' is trained by {} tenants", model, trainers.size())
        .note(fmt::format("name one of them: {}", fmt::join(names, ", ")));
  const std::string valid = fmt::format("{}", fmt::join(names, ", "));
  if (model.empty())
    return error(Code::kInvalid, "the body names no 'model'").note("models are: " + valid);
  return error(Code::kNotFound, "the model '{}' does not exist", model)
      .note("models are: " + valid);
}

Result<Gateway::Generation> Gateway::generation_of(GenerateCall call, TenantSlot slot,
                                                   const ClientRequest& client) {
  const Tenant& tenant = services().tenant(slot);
  if (const auto num_waiting = std::ssize(tenants_[slot].waiting);
      num_waiting > 0 && num_waiting + call.num_samples > options_.max_waiting)
    return error(Code::kExhausted, "{} requests of '{}' wait already", num_waiting, tenant.name);
  if (call.num_samples > options_.max_waiting)
    return error(Code::kInvalid, "'n' is {}: at most {} requests of a tenant wait",
                 call.num_samples, options_.max_waiting);
  std::optional<RunSalt> run;
  ASSIGN_OR_RETURN(run, read_run_salt(call.salt));
  if (run) call.salt = run->salt;
  const int64_t seq_len = run ? tenant_of_run(slot, run->name.ordinal).seq_len : tenant.seq_len;
  const auto num_prompt = static_cast<int64_t>(call.prompt.size());
  if (num_prompt >= seq_len)
    return error(Code::kInvalid,
                 "This model's maximum context length is {} tokens, and the prompt has {}: shorten "
                 "it",
                 seq_len, num_prompt);
  if (const Status checked = check_salt(call.salt); !checked.ok())
    return Error(checked.error()).while_doing("'cache_salt'");
  warn_of(call.ignored);
  Generation generation;
  generation.tenant = slot;
  GenerateRequest& request = generation.request;
  request.session = client.session.empty() ? 0 : session_number(client.session);
  request.salt = std::move(call.salt);
  request.prompt_tokens = std::move(call.prompt);
  request.seed =
      call.seed ? *call.seed : services().random(slot, "gateway", next_generation_).next();
  request.sampling = std::move(call.sampling);
  request.engine = client.engine;
  generation.chat.has_token_ids = call.wants_token_ids;
  generation.chat.has_compact_logprobs = call.wants_compact_logprobs;
  generation.chat.created = client.received;
  generation.others.resize(static_cast<size_t>(call.num_samples) - 1);
  const int64_t most = seq_len - num_prompt;
  const int64_t wanted = call.has_max_tokens ? int64_t{request.sampling.max_tokens} : most;
  request.sampling.max_tokens = static_cast<int32_t>(std::min(wanted, most));
  if (run) {
    if (call.num_samples > 1)
      return error(Code::kInvalid, "'n' is {}, but a request of a rollout has n = 1",
                   call.num_samples);
    RETURN_IF_ERROR(begin_turn(*run, !call.seed, generation));
  }
  return generation;
}

/// A repeat joins the generation that runs already.
template <class Make>
Status Gateway::open(const ClientRequest& client, uint64_t request, const Make& make) {
  std::string join_key;
  if (!client.session.empty()) {
    join_key = text_sha256(fmt::format("{}\n{}\n{}\n{}\n{}", client.path, client.tenant,
                                       client.session, client.engine, client.body));
    if (const auto running = joinable_.find(join_key); running != joinable_.end()) {
      services().count("requests_joined", 1);
      generations_.at(running->second).clients.push_back({request, client.request_id});
      clients_[request] = running->second;
      return ok();
    }
  }
  ASSIGN_OR_RETURN(Generation generation, make());
  generation.join_key = std::move(join_key);
  add(std::move(generation), client, request);
  return ok();
}

Status Gateway::generate(const ClientRequest& client, uint64_t request) {
  return open(client, request, [&]() -> Result<Generation> {
    ASSIGN_OR_RETURN(GenerateCall call, read_generate_call(client.body));
    ASSIGN_OR_RETURN(const TenantSlot slot, tenant_of(call.model, client));
    return generation_of(std::move(call), slot, client);
  });
}

Status Gateway::chat(const ClientRequest& client, uint64_t request) {
  return open(client, request, [&]() -> Result<Generation> {
    ASSIGN_OR_RETURN(ChatCall call, read_chat_call(client.body));
    ASSIGN_OR_RETURN(const TenantSlot slot, tenant_of(call.generate.model, client));
    const std::string kwargs = call.template_kwargs ? call.template_kwargs->dump() : "";
    ASSIGN_OR_RETURN(const chat::ChatFormat* format, format_of(slot, kwargs));
    ASSIGN_OR_RETURN(call.generate.prompt,
                     format->prompt(call.messages, call.tools ? &*call.tools : nullptr));
    add_turn_end(*format, call.generate.sampling);
    ASSIGN_OR_RETURN(Generation generation, generation_of(std::move(call.generate), slot, client));
    generation.chat.is_chat = true;
    generation.chat.has_logprobs = call.wants_logprobs;
    generation.chat.template_kwargs = kwargs;
    return generation;
  });
}

void Gateway::warn_of(const std::vector<std::string>& ignored) {
  for (const std::string& key : ignored) {
    if (warned_.size() >= kWarnedMax || !warned_.insert(key.substr(0, 64)).second) continue;
    services().log(LogLevel::kWarning,
                   fmt::format("clients send '{}', which has no effect here", key.substr(0, 64)));
  }
}

Result<const chat::ChatFormat*> Gateway::format_of(TenantSlot slot, const std::string& kwargs) {
  const auto found = formats_.find({slot, kwargs});
  if (found != formats_.end()) return &found->second;
  Tenant tenant = services().tenant(slot);
  if (!kwargs.empty()) {
    Json merged = Json::object();
    if (!tenant.chat.kwargs.empty()) {
      ASSIGN_OR_RETURN(merged, parse_json(tenant.chat.kwargs, "'chat.kwargs'"));
    }
    ASSIGN_OR_RETURN(const Json added, parse_json(kwargs, "'chat_template_kwargs'"));
    for (const auto& [key, value] : added.as_object()) merged.set(key, value);
    tenant.chat.kwargs = merged.dump();
  }
  auto format = chat_format_of(tenant, *tokenizer_);
  // A model without a template is no missing page.
  if (!format.ok()) return error(Code::kInvalid, "{}", format.error().text());
  // Clients may send any values, so those that were made are bounded.
  if (formats_.size() >= kFormatsMax) formats_.clear();
  return &formats_.emplace(std::pair(slot, kwargs), std::move(*format)).first->second;
}

Result<std::string> Gateway::tokenize(const ClientRequest& client) {
  ASSIGN_OR_RETURN(const TokenizeCall call, read_tokenize_call(client.body));
  ASSIGN_OR_RETURN(const TenantSlot slot, tenant_of(call.model, client));
  std::vector<int32_t> tokens;
  if (call.messages.empty()) {
    ASSIGN_OR_RETURN(tokens, call.adds_special_tokens ? encode_start(*tokenizer_, call.prompt)
                                                      : tokenizer_->encode_text(call.prompt));
  } else {
    const std::string kwargs = call.template_kwargs ? call.template_kwargs->dump() : "";
    ASSIGN_OR_RETURN(const chat::ChatFormat* format, format_of(slot, kwargs));
    ASSIGN_OR_RETURN(const auto rendered,
                     format->render(call.messages, call.tools ? &*call.tools : nullptr,
                                    call.adds_generation_prompt));
    ASSIGN_OR_RETURN(tokens, format->encode(rendered));
  }
  Json json = Json::object();
  json.set("count", static_cast<int64_t>(tokens.size()))
      .set("max_model_len", services().tenant(slot).seq_len)
      .set("tokens", Json::list(tokens));
  if (!call.wants_texts) return json.dump();
  Json texts = Json::array();
  for (const int32_t token : tokens) {
    ASSIGN_OR_RETURN(std::string text, tokenizer_->decode({token}, false));
    texts.push_back(std::move(text));
  }
  return json.set("token_strs", std::move(texts)).dump();
}

std::string Gateway::models(const ClientRequest& client) const {
  Json list = Json::array();
  const auto add = [&list](const std::string& id, const Tenant& tenant) {
    list.push_back(Json::object()
                       .set("id", id)
                       .set("object", "model")
                       .set("created", 0)
                       .set("owned_by", "primerl-graph")
                       .set("max_model_len", tenant.seq_len));
  };
  for (const TenantSlot slot : services().tenants()) {
    const Tenant& tenant = services().tenant(slot);
    if (!may_use(client, tenant)) continue;
    add(tenant.name, tenant);
    for (const std::string& name : tenant.served_as)
      if (tenants_served_as(name, client).size() == 1) add(name, tenant);
  }
  return Json::object().set("object", "list").set("data", std::move(list)).dump();
}

std::string Gateway::version() { return Json::object().set("version", program_version()).dump(); }

/// Ready once the weights of a tenant are live.
Result<std::string> Gateway::health() const {
  for (const auto& [slot, tenant] : tenants_)
    if (!tenant.live.is_none()) return Json::object().set("status", "ok").dump();
  return error(Code::kUnavailable, "no engine has weights yet");
}

void Gateway::reply(uint64_t request, int32_t status, std::string body, std::string request_id) {
  ClientReply made;
  made.request = request;
  made.status = status;
  made.request_id = std::move(request_id);
  made.body = std::move(body);
  if (const Status asked = ask(AskedKind::kReply, reply_call(made)); !asked.ok())
    services().count("replies_lost", 1);
}

}  // namespace primerl
