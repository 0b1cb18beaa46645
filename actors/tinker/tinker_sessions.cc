// Sessions, models and samplers of clients: their names, tenants and ends.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "actors/tinker/tinker.h"
#include "graph/tenancies.h"
#include "kernels/weights/adapter.h"

namespace primerl {

using namespace tinker;  // NOLINT: its names are those of the wire

namespace {

constexpr size_t kEndedSessionsMax = 4096;
constexpr size_t kLeftMax = 1024;
constexpr std::string_view kMlpTargets[] = {"gate_proj", "up_proj", "down_proj", "fc1", "fc2"};

bool is_mlp(std::string_view target) {
  return std::ranges::find(kMlpTargets, target) != std::end(kMlpTargets);
}

/// 0: no name of a session.
uint64_t session_number(const std::string& name) {
  constexpr std::string_view kPrefix = "session-";
  uint64_t number = 0;
  if (!name.starts_with(kPrefix)) return 0;
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kPrefix.size(), end, number);
  return read.ec == std::errc{} && read.ptr == end ? number : 0;
}

Error no_such(std::string_view what, const std::string& name) {
  return error(Code::kNotFound, "no {} '{}'", what, name.substr(0, kNameBytesMax));
}

}  // namespace

Status Tinker::check_key(const Client& client) const {
  if (client.tenant.empty()) return ok();
  for (const TenantSlot slot : services().tenants())
    if (may_use(client, slot)) return ok();
  if (std::ranges::find(left_, client.tenant) != left_.end())
    return error(Code::kNotFound, "tenant '{}' of this key has left the run", client.tenant);
  return error(Code::kUnavailable, "tenant '{}' of this key is not here yet, or has left",
               client.tenant)
      .note("`primerl-graph tenant ls` shows its state");
}

size_t Tinker::num_clients() const {
  return static_cast<size_t>(std::ranges::count_if(
      services().tenants(), [this](TenantSlot slot) { return services().tenant(slot).is_client; }));
}

tinker::TrainedParts::TrainedParts(const std::vector<std::string>& targets) {
  for (const std::string& target : targets) {
    unembed |= target == kHeadTarget;
    mlp |= target == kAllLinear || is_mlp(target);
    attention |= target == kAllLinear || (target != kHeadTarget && !is_mlp(target));
  }
}

Result<TenantSlot> Tinker::tenant_of(const Client& client, const std::string& wanted) const {
  std::vector<std::string> names;
  TenantSlot found, last;
  for (const TenantSlot slot : services().tenants()) {
    const Tenant& tenant = services().tenant(slot);
    if (!tenant.is_client || !may_use(client, slot)) continue;
    names.push_back(tenant.name);
    last = slot;
    if (tenant.name == wanted) found = slot;
  }
  if (!found.is_none()) return found;
  if (names.size() == 1) return last;
  if (names.empty())
    return error(Code::kInvalid, "no client trains tenant '{}'", client.tenant)
        .note("write 'client = true' in its table of the graph file");
  return error(Code::kInvalid, "{} tenants are trained by clients", names.size())
      .note(
          fmt::format("name one of them as the project: ServiceClient(project_id=\"{}\"); or give "
                      "the listener a 'keys_file' with a tenant for each key",
                      fmt::join(names, "\" or \"")));
}

Result<Session*> Tinker::find_session(const std::string& name, const Client& client) {
  const auto found = sessions_.find(name);
  if (found != sessions_.end() && may_use(client, found->second.tenant)) {
    found->second.seen = services().now();
    return &found->second;
  }
  const auto ended = ended_sessions_.find(session_number(name));
  if (ended != ended_sessions_.end() && may_use(client, ended->second))
    return error(Code::kCancelled, "session '{}' has ended", name)
        .note(fmt::format("a session without a request for {} ends",
                          to_string(options_.session_timeout)));
  return no_such("session", name);
}

void Tinker::touch(const std::string& session) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) found->second.seen = services().now();
}

std::string Tinker::session_of(uint64_t request) const {
  if (const auto job = jobs_.find(request); job != jobs_.end()) {
    const auto model = models_.find(job->second.model);
    return model == models_.end() ? job->second.session : model->second.session;
  }
  const auto sample = samples_.find(request);
  if (sample == samples_.end()) return {};
  const auto sampler = samplers_.find(sample->second.sampler);
  return sampler == samplers_.end() ? std::string() : sampler->second.session;
}

Result<Model*> Tinker::find_model(const std::string& name, const Client& client) {
  const auto found = models_.find(name);
  if (found == models_.end() || !may_use(client, found->second.tenant))
    return no_such("model", name);
  touch(found->second.session);
  return &found->second;
}

Result<Sampler*> Tinker::find_sampler(const std::string& name, const Client& client) {
  const auto found = samplers_.find(name);
  if (found == samplers_.end() || !may_use(client, found->second.tenant))
    return no_such("sampler", name)
        .note(fmt::format("a sampler ends with its session and with its weights, of which a tenant "
                          "keeps {}",
                          options_.snapshots_max));
  touch(found->second.session);
  return &found->second;
}

Result<std::string> Tinker::create_session(const Client& client) {
  ASSIGN_OR_RETURN(const CreateSession wanted, read_create_session(client.body));
  ASSIGN_OR_RETURN(const TenantSlot tenant, tenant_of(client, wanted.project));
  const auto num_open = std::ranges::count_if(
      sessions_, [&](const auto& each) { return each.second.tenant == tenant; });
  if (num_open >= options_.sessions_max)
    return error(Code::kExhausted, "tenant '{}' has {} open sessions, at most {} may be",
                 services().tenant(tenant).name, num_open, options_.sessions_max);
  const std::string name = fmt::format("session-{}", next_session_++);
  sessions_.emplace(name, Session{tenant, services().now()});
  wake_at(services().now() + options_.session_timeout);
  return session_answer(name);
}

Result<std::string> Tinker::heartbeat(const Client& client) {
  ASSIGN_OR_RETURN(const std::string name, read_one_name(client.body, "session_id"));
  RETURN_IF_ERROR(find_session(name, client));
  return empty_answer();
}

Result<std::string> Tinker::finish_session(const std::string& name, const Client& client) {
  ASSIGN_OR_RETURN(const Session* const found, find_session(name, client));
  (void)found;
  end_session(name);
  return empty_answer();
}

Status Tinker::on_tenant(TenantSlot slot, TenantChange::Kind kind) {
  num_asked_ = 0;
  if (kind == TenantChange::Kind::kPause)
    paused_.insert(slot);
  else
    paused_.erase(slot);
  if (kind == TenantChange::Kind::kLeave) drop_tenant(slot);
  return ok();
}

/// Its open requests fail, and a later tenant of the slot finds none of its names.
void Tinker::drop_tenant(TenantSlot slot) {
  const std::string label = tenancy_name(services().tenant(slot));
  const Error left = error(Code::kCancelled, "tenant '{}' has left the run", label);
  std::vector<uint64_t> samples, jobs;
  for (const auto& [number, sample] : samples_)
    if (sample.tenant == slot) samples.push_back(number);
  for (const uint64_t number : samples) fail_sample(number, left);
  for (const auto& [name, model] : models_)
    if (model.tenant == slot) (void)order_.drop(name);
  for (const auto& [number, job] : jobs_)
    if (job.tenant == slot) jobs.push_back(number);
  for (const uint64_t number : jobs) fail_job(number, left);
  std::vector<std::string> sessions;
  for (const auto& [name, session] : sessions_)
    if (session.tenant == slot) sessions.push_back(name);
  for (const std::string& name : sessions) end_session(name);
  refuse_base(slot, left);
  left_.push_back(label);
  if (left_.size() > kLeftMax) left_.pop_front();
  tenants_.erase(slot);
  answers_.drop(slot);
  std::erase_if(ended_sessions_, [slot](const auto& each) { return each.second == slot; });
  std::erase_if(saved_, [slot](const auto& each) { return each.second.tenant == slot; });
  std::erase_if(requests_, [slot](const auto& each) { return each.first.first == slot; });
}

void Tinker::end_session(const std::string& name) {
  const auto ended = sessions_.extract(name);
  std::vector<std::string> models, samplers;
  for (const auto& [model, state] : models_)
    if (state.session == name) models.push_back(model);
  for (const auto& [sampler, state] : samplers_)
    if (state.session == name) samplers.push_back(sampler);
  for (const std::string& model : models) close_model(model);
  for (const std::string& sampler : samplers) close_sampler(sampler);
  (void)order_.drop(name + "/models");
  ended_sessions_.emplace(session_number(name), ended.mapped().tenant);
  if (ended_sessions_.size() > kEndedSessionsMax) ended_sessions_.erase(ended_sessions_.begin());
}

void Tinker::expire_sessions() {
  std::vector<std::string> ended;
  for (const auto& [name, session] : sessions_)
    if (session.seen + options_.session_timeout <= services().now()) ended.push_back(name);
  for (const std::string& name : ended) {
    services().log(LogLevel::kInfo, fmt::format("{} ends: no request for {}", name,
                                                to_string(options_.session_timeout)));
    end_session(name);
  }
}

/// The trainer ends the request that it has; the next model begins with a reset.
void Tinker::close_model(const std::string& name) {
  const auto closed = models_.extract(name);
  TenantState& tenant = tenants_[closed.mapped().tenant];
  tenant.model.clear();
  std::vector<uint64_t> left = order_.drop(name);
  for (const uint64_t number : tenant.queue)
    if (number != tenant.running && jobs_.at(number).model == name) left.push_back(number);
  for (const uint64_t number : left) {
    fail(number, error(Code::kCancelled, "model '{}' was closed", name));
    end_job(number);
  }
}

void Tinker::close_sampler(const std::string& name) {
  std::vector<uint64_t> open;
  for (const auto& [number, sample] : samples_)
    if (sample.sampler == name) open.push_back(number);
  for (const uint64_t number : open)
    fail_sample(number, error(Code::kCancelled, "sampler '{}' was closed", name));
  (void)order_.drop(name);
  samplers_.erase(name);
}

Status Tinker::check_base_model(const Tenant& tenant, const std::string& base_model) const {
  std::vector<std::string> names = tenant.served_as;
  if (!tenant.base_model.empty()) names.push_back(tenant.base_model);
  if (std::ranges::find(names, base_model) != names.end()) return ok();
  return error(Code::kInvalid, "'base_model' is '{}', but this tenant trains another model",
               base_model)
      .note(fmt::format("base models: {}", fmt::join(names, ", ")));
}

Status Tinker::check_model(const Tenant& tenant, const CreateModel& wanted) const {
  RETURN_IF_ERROR(check_base_model(tenant, wanted.base_model));
  if (wanted.rank != tenant.adapter.rank)
    return error(Code::kInvalid, "'rank' is {}, but the adapter of tenant '{}' has rank {}",
                 wanted.rank, tenant.name, tenant.adapter.rank)
        .note(fmt::format("send rank {}, or change 'adapter.rank' in the graph file",
                          tenant.adapter.rank));
  const TrainedParts trained(tenant.adapter.targets);
  if (wanted.trains_attention == trained.attention && wanted.trains_mlp == trained.mlp &&
      wanted.trains_unembed == trained.unembed)
    return ok();
  return error(Code::kInvalid,
               "the adapter of tenant '{}' has other parts than 'lora_config' asks for",
               tenant.name)
      .note(fmt::format("send train_attn = {}, train_mlp = {}, train_unembed = {}, or change "
                        "'adapter.targets' in the graph file",
                        trained.attention, trained.mlp, trained.unembed));
}

Result<std::string> Tinker::create_model(const Client& client) {
  ASSIGN_OR_RETURN(const CreateModel wanted, read_create_model(client.body));
  ASSIGN_OR_RETURN(const Session* const session, find_session(wanted.session, client));
  Job job;
  job.kind = JobKind::kCreate;
  job.tenant = session->tenant;
  job.session = wanted.session;
  job.model = model_name(wanted.session, wanted.model_seq);
  job.base_model = wanted.base_model;
  job.makes_model = true;
  const Status fits = check_model(services().tenant(session->tenant), wanted);
  if (!fits.ok())
    job.refused = ClientFault{static_cast<uint8_t>(Code::kInvalid), fits.error().text()};
  else if (wanted.seed)
    services().log(LogLevel::kWarning,
                   fmt::format("{}: the seed of the run draws the first adapter, so 'seed' = {} "
                               "changes nothing",
                               job.model, *wanted.seed));
  return offer_unordered(std::move(job), wanted.session + "/models", wanted.model_seq, client);
}

/// The SDK fetches the answer of a future; older ones read the member.
Result<std::string> Tinker::unload_model(const Client& client) {
  ASSIGN_OR_RETURN(const std::string name, read_one_name(client.body, "model_id"));
  ASSIGN_OR_RETURN(const Model* const model, find_model(name, client));
  RETURN_IF_ERROR(check_futures(model->tenant));
  const uint64_t number = next_request_++;
  answers_.open(number, model->tenant);
  close_model(name);
  complete(number, model_answer(name));
  return Json::object().set("request_id", request_name(number)).set("model_id", name).dump();
}

std::string Tinker::tokenizer_of_clients() const {
  if (!options_.tokenizer.empty()) return options_.tokenizer;
  const auto& source = tokenizer_->chat_source();
  if (source == nullptr || source->file.empty()) return {};
  std::error_code missing;
  const auto file = std::filesystem::absolute(source->file, missing);
  return file.parent_path().lexically_normal().string();
}

Result<std::string> Tinker::get_info(const Client& client) {
  ASSIGN_OR_RETURN(const std::string name, read_one_name(client.body, "model_id"));
  ASSIGN_OR_RETURN(const Model* const model, find_model(name, client));
  const Tenant& tenant = services().tenant(model->tenant);
  ModelInfo info;
  info.model = name;
  info.base_model = model->base_model;
  info.arch = tenant.base_model;
  info.tokenizer = tokenizer_of_clients();
  if (info.tokenizer.empty()) info.tokenizer = model->base_model;
  info.rank = static_cast<int32_t>(tenant.adapter.rank);
  return info_answer(info);
}

std::string Tinker::capabilities(const Client& client) const {
  std::vector<ServedModel> models;
  std::vector<ServedClient> clients;
  const auto add = [&](const std::string& name, const Tenant& tenant) {
    const bool is_there = std::ranges::find(models, name, &ServedModel::name) != models.end();
    if (!is_there && !name.empty()) models.push_back({name, tenant.seq_len});
  };
  for (const TenantSlot slot : services().tenants()) {
    const Tenant& tenant = services().tenant(slot);
    if (!tenant.is_client || !may_use(client, slot)) continue;
    for (const std::string& name : tenant.served_as) add(name, tenant);
    add(tenant.base_model, tenant);
    const auto state = tenants_.find(slot);
    clients.push_back({tenancy_name(tenant), state == tenants_.end() ? "" : state->second.model,
                       tenant.adapter.rank, snapshots_max(slot),
                       inflight_limit(tenant, options_.max_inflight)});
  }
  return capabilities_answer(models, clients);
}

Status Tinker::add_sampler(const std::string& name, Sampler sampler) {
  const TenantSlot tenant = sampler.tenant;
  const auto num_there = std::ranges::count_if(
      samplers_, [&](const auto& each) { return each.second.tenant == tenant; });
  if (num_there >= options_.samplers_max) {
    const std::string* oldest = nullptr;
    for (const auto& [other, state] : samplers_) {
      const bool is_open = std::ranges::any_of(
          samples_, [&](const auto& each) { return each.second.sampler == other; });
      if (state.tenant != tenant || is_open) continue;
      if (oldest == nullptr || state.used < samplers_.at(*oldest).used) oldest = &other;
    }
    if (oldest == nullptr)
      return error(Code::kExhausted, "all {} samplers of the tenant have open samples", num_there);
    close_sampler(std::string(*oldest));
  }
  sampler.used = ++num_used_;
  samplers_.insert_or_assign(name, std::move(sampler));
  return ok();
}

Status Tinker::create_sampler(uint64_t call, const Client& client) {
  ASSIGN_OR_RETURN(const CreateSampler wanted, read_create_sampler(client.body));
  ASSIGN_OR_RETURN(const Session* const session, find_session(wanted.session, client));
  const Tenant& tenant = services().tenant(session->tenant);
  if (!wanted.base_model.empty()) RETURN_IF_ERROR(check_base_model(tenant, wanted.base_model));
  if (!wanted.from) return create_base_sampler(call, wanted, tenant.slot, client);
  ASSIGN_OR_RETURN(std::string body, sampler_of_path(wanted, tenant));
  reply(call, 200, std::move(body), client.request_id);
  return ok();
}

Result<std::string> Tinker::sampler_of_path(const CreateSampler& wanted, const Tenant& tenant) {
  const std::string name = sampler_name(wanted.session, wanted.sampler_seq);
  const std::string path = to_path(*wanted.from);
  if (!wanted.from->is_for_sampling && saved_.contains(path) &&
      saved_.at(path).tenant == tenant.slot)
    return error(Code::kInvalid, "'{}' has weights for training", path)
        .note("save weights for a sampler");
  TenantState& state = tenants_[tenant.slot];
  const auto snapshot = std::ranges::find_if(
      state.snapshots, [&](const auto& each) { return each.second.path == path; });
  if (snapshot == state.snapshots.end())
    return no_such("weights", path)
        .note(fmt::format("a tenant keeps {} weights for samplers", options_.snapshots_max));
  if (const auto found = samplers_.find(name); found != samplers_.end()) {
    if (found->second.path == path) return sampler_answer(name);  // a repeat
    return error(Code::kExists, "sampler '{}' has other weights", name);
  }
  Sampler sampler;
  sampler.tenant = tenant.slot;
  sampler.session = wanted.session;
  sampler.base_model = wanted.base_model.empty() ? tenant.base_model : wanted.base_model;
  sampler.path = path;
  sampler.adapter = snapshot->first;
  sampler.salt = fmt::format("{}:snapshot", tenancy_name(tenant));
  snapshot->second.used = ++num_used_;
  RETURN_IF_ERROR(add_sampler(name, std::move(sampler)));
  return sampler_answer(name);
}

/// A copy of a client in another program numbers its requests apart from the first.
Result<std::string> Tinker::join_sampler(const Client& client) {
  ASSIGN_OR_RETURN(const std::string name, read_one_name(client.body, "sampling_session_id"));
  ASSIGN_OR_RETURN(Sampler* const sampler, find_sampler(name, client));
  return joined_answer(sampler->num_clients++);
}

Result<std::string> Tinker::get_sampler(const std::string& name, const Client& client) {
  ASSIGN_OR_RETURN(const Sampler* const found, find_sampler(name, client));
  return sampler_info_answer(name, found->base_model, found->path);
}

}  // namespace primerl
