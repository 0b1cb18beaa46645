// The REST interface: what a client has on this server, and the end of its saved weights.
#include <algorithm>
#include <utility>

#include "actors/tinker/listings.h"
#include "actors/tinker/tinker.h"

namespace primerl {

using namespace tinker;  // NOLINT: its names are those of the wire

namespace {

/// A time of the actor's clock as the wall clock of a request that came `now`.
int64_t wall_time(Time time, Time now, int64_t received) {
  constexpr int64_t kSecond = 1'000'000'000;
  return received + (time - now).to_nanoseconds() / kSecond;
}

std::optional<int64_t> wall_expiry(Time expires, Time now, int64_t received) {
  if (expires == kNever) return std::nullopt;
  return wall_time(expires, now, received);
}

Error no_weights(const std::string& path) {
  return error(Code::kNotFound, "no weights '{}'", path.substr(0, kNameBytesMax));
}

}  // namespace

std::string Tinker::base_model_of(TenantSlot slot) const {
  const Tenant& tenant = services().tenant(slot);
  return tenant.served_as.empty() ? tenant.base_model : tenant.served_as.front();
}

/// The newest first.
std::vector<std::pair<TenantSlot, ListedWeights>> Tinker::list_weights(const Client& client) const {
  const Time now = services().now();
  std::vector<std::pair<TenantSlot, ListedWeights>> all;
  const auto add = [&](TenantSlot slot, const std::string& path, Time made, Time expires) {
    if (path.empty() || !may_use(client, slot)) return;
    const auto saved = read_path(path);
    CHECK(saved.ok(), "saved weights have a path that is not one");
    all.emplace_back(slot, ListedWeights{*saved, wall_time(made, now, client.received),
                                         wall_expiry(expires, now, client.received)});
  };
  for (const auto& [path, saved] : saved_) add(saved.tenant, path, saved.made, saved.expires);
  for (const auto& [slot, tenant] : tenants_)
    for (const auto& [adapter, snapshot] : tenant.snapshots)
      add(slot, snapshot.path, snapshot.made, snapshot.expires);
  std::ranges::stable_sort(all, std::greater(), [](const auto& each) { return each.second.made; });
  return all;
}

/// Open models, and closed ones that have saved weights.
std::vector<ListedModel> Tinker::list_models(const Client& client) const {
  std::map<std::string, ListedModel> models;
  const auto add = [&](TenantSlot slot, const std::string& name) -> ListedModel& {
    ListedModel& model = models[name];
    const Tenant& tenant = services().tenant(slot);
    model.name = name;
    model.tenant = tenant.name;
    model.rank = static_cast<int32_t>(tenant.adapter.rank);
    if (model.base_model.empty()) model.base_model = base_model_of(slot);
    return model;
  };
  for (auto& [slot, weights] : list_weights(client)) {
    ListedModel& model = add(slot, weights.saved.model);
    model.last_request = std::max(model.last_request, weights.made);
    model.weights.push_back(std::move(weights));
  }
  for (const auto& [name, open] : models_) {
    if (!may_use(client, open.tenant)) continue;
    ListedModel& model = add(open.tenant, name);
    model.base_model = open.base_model;
    model.last_request =
        wall_time(sessions_.at(open.session).seen, services().now(), client.received);
  }
  std::vector<ListedModel> all;
  for (auto& [name, model] : models) all.push_back(std::move(model));
  std::ranges::stable_sort(all, std::greater(), &ListedModel::last_request);
  return all;
}

std::string Tinker::models_of_client(const Client& client) const {
  return models_listed(list_models(client));
}

Result<std::string> Tinker::model_of_client(const std::string& name, const Client& client) const {
  const auto models = list_models(client);
  const auto found = std::ranges::find(models, name, &ListedModel::name);
  if (found == models.end())
    return error(Code::kNotFound, "no model '{}'", name.substr(0, kNameBytesMax))
        .note("a model is listed while it is open or has saved weights");
  return model_listed(*found);
}

Result<std::string> Tinker::weights_of_model(const std::string& name, const Client& client) const {
  const auto models = list_models(client);
  const auto found = std::ranges::find(models, name, &ListedModel::name);
  if (found == models.end())
    return error(Code::kNotFound, "no model '{}'", name.substr(0, kNameBytesMax));
  return weights_listed(found->weights);
}

std::string Tinker::weights_of_client(const Client& client) const {
  std::vector<ListedWeights> all;
  for (auto& [slot, weights] : list_weights(client)) all.push_back(std::move(weights));
  return weights_listed(all);
}

Result<std::string> Tinker::weights_info(const Client& client) const {
  ASSIGN_OR_RETURN(const std::string path, read_one_name(client.body, "tinker_path"));
  for (const auto& [slot, weights] : list_weights(client)) {
    if (to_path(weights.saved) != path) continue;
    const Tenant& tenant = services().tenant(slot);
    const TrainedParts trained(tenant.adapter.targets);
    return weights_info_answer({base_model_of(slot), static_cast<int32_t>(tenant.adapter.rank),
                                trained.unembed, trained.mlp, trained.attention});
  }
  return no_weights(path);
}

std::string Tinker::sessions_of_client(const Client& client) const {
  std::vector<std::string> names;
  for (const auto& [name, session] : sessions_)
    if (may_use(client, session.tenant)) names.push_back(name);
  return sessions_listed(names);
}

/// It does not extend the session: a person looks, and its client may be gone.
Result<std::string> Tinker::session_of_client(const std::string& name, const Client& client) const {
  const auto found = sessions_.find(name);
  if (found == sessions_.end() || !may_use(client, found->second.tenant))
    return error(Code::kNotFound, "no session '{}'", name.substr(0, kNameBytesMax));
  std::vector<std::string> models, samplers;
  for (const auto& [model, state] : models_)
    if (state.session == name) models.push_back(model);
  for (const auto& [sampler, state] : samplers_)
    if (state.session == name) samplers.push_back(sampler);
  return session_listed(models, samplers);
}

Result<std::string> Tinker::delete_weights(const std::string& path, const Client& client) {
  if (const auto saved = saved_.find(path); saved != saved_.end()) {
    if (!may_use(client, saved->second.tenant)) return no_weights(path);
    drop_saved(path);
    return empty_answer();
  }
  for (const auto& [slot, tenant] : tenants_) {
    if (!may_use(client, slot)) continue;
    const auto has_path = [&](const auto& each) { return each.second.path == path; };
    if (std::ranges::none_of(tenant.snapshots, has_path)) continue;
    RETURN_IF_ERROR(free_path(slot, path));
    return empty_answer();
  }
  return no_weights(path);
}

Result<std::string> Tinker::expire_weights(const std::string& path, const Client& client) {
  ASSIGN_OR_RETURN(const ExpireWeights wanted, read_expire_weights(client.body));
  const Time expires = expiry(services().now(), wanted.ttl_seconds.value_or(0));
  bool is_there = false;
  if (const auto saved = saved_.find(path);
      saved != saved_.end() && may_use(client, saved->second.tenant)) {
    saved->second.expires = expires;
    is_there = true;
  }
  for (auto& [slot, tenant] : tenants_)
    for (auto& [adapter, snapshot] : tenant.snapshots) {
      if (snapshot.path != path || !may_use(client, slot)) continue;
      snapshot.expires = expires;
      is_there = true;
    }
  if (!is_there) return no_weights(path);
  wake_at(expires);
  return empty_answer();
}

}  // namespace primerl
