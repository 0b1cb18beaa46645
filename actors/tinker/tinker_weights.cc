// Weights of models: what may be saved, snapshots for samplers, and what is live.
#include <algorithm>
#include <utility>

#include "actors/tinker/tinker.h"
#include "graph/tenancies.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

using namespace tinker;  // NOLINT: its names are those of the wire

Time tinker::expiry(Time now, int64_t ttl_seconds) {
  // A time that the clock cannot have is never.
  constexpr int64_t kSecondsMax = int64_t{1} << 32;
  return ttl_seconds == 0 || ttl_seconds > kSecondsMax ? kNever
                                                       : now + Duration::seconds(ttl_seconds);
}

bool Tinker::waits_for_session(const Job& job) const {
  if (!job.makes_model) return false;
  const auto open = models_.find(tenants_.at(job.tenant).model);
  if (open == models_.end() || open->second.session == job.session) return false;
  return sessions_.at(open->second.session).seen <= job.since;
}

Result<bool> Tinker::prepare(Job& job) {
  TenantState& tenant = tenants_[job.tenant];
  if (job.makes_model && !tenant.model.empty())
    return error(Code::kInvalid, "tenant '{}' serves one model at a time, '{}' is open",
                 services().tenant(job.tenant).name, tenant.model)
        .note(fmt::format("end its session (ServiceClient.close) or unload it, then create a model "
                          "again; the session of a client that has gone ends {} after its last "
                          "request. For two models at once, add a second tenant",
                          to_string(options_.session_timeout)));
  if (job.makes_model && !sessions_.contains(job.session))
    return error(Code::kCancelled, "session '{}' has ended", job.session);
  const std::string path = to_path(job.saved);
  if (job.kind == JobKind::kLoad) {
    const auto found = saved_.find(path);
    if (found == saved_.end()) return error(Code::kNotFound, "no weights '{}'", path);
    // Their time may end before the load is sent. The trainer removes them after it.
    job.folder = found->second.folder;
  }
  if (job.kind == JobKind::kSave) {
    const bool is_there = saved_.contains(path);
    if (is_there && !job.overwrites)
      return error(Code::kExists, "the weights '{}' are there already", path)
          .note("send 'overwrite', or another 'path'");
  }
  return job.kind == JobKind::kSnapshot ? prepare_snapshot(job) : Result<bool>(true);
}

int64_t Tinker::snapshots_max(TenantSlot tenant) const {
  const int64_t own = services().tenant(tenant).snapshots;
  return own > 0 ? std::min(own, options_.snapshots_max) : options_.snapshots_max;
}

bool Tinker::is_snapshot_in_use(TenantSlot tenant, AdapterId adapter) const {
  return std::ranges::any_of(samples_, [&](const auto& each) {
    return each.second.tenant == tenant && each.second.adapter == adapter;
  });
}

/// Makes space for one more snapshot: the one that was unused longest goes.
Result<bool> Tinker::prepare_snapshot(const Job& job) {
  const TenantState& tenant = tenants_[job.tenant];
  if (!job.saved.name.empty()) {
    ASSIGN_OR_RETURN(const bool is_free, free_path(job.tenant, to_path(job.saved)));
    if (!is_free) return false;
  }
  const auto num_there = std::ranges::count_if(
      tenant.snapshots, [](const auto& each) { return !each.second.is_base; });
  if (num_there < snapshots_max(job.tenant)) return true;
  AdapterId oldest;
  uint64_t used = 0;
  for (const auto& [adapter, snapshot] : tenant.snapshots) {
    if (snapshot.is_base || is_snapshot_in_use(job.tenant, adapter)) continue;
    if (!oldest.is_none() && snapshot.used >= used) continue;
    oldest = adapter;
    used = snapshot.used;
  }
  if (oldest.is_none())
    return error(Code::kExhausted, "all {} weights for samplers of tenant '{}' have open samples",
                 num_there, services().tenant(job.tenant).name)
        .note(
            "wait for the samples, or raise 'snapshots' of the tenant and of the limits, and "
            "'snapshots_max' of the tinker node");
  drop_snapshot(job.tenant, oldest);
  return false;
}

Result<bool> Tinker::free_path(TenantSlot tenant, const std::string& path) {
  for (const auto& [adapter, snapshot] : tenants_[tenant].snapshots) {
    if (snapshot.path != path) continue;
    if (is_snapshot_in_use(tenant, adapter))
      return error(Code::kExists, "the weights '{}' have open samples", path)
          .note("send another 'path'");
    drop_snapshot(tenant, adapter);
    return false;
  }
  return true;
}

/// Its samplers end, and the trainer is told before the next job.
void Tinker::drop_snapshot(TenantSlot tenant, AdapterId adapter) {
  forget_snapshot(tenant, adapter);
  std::vector<std::string> closed;
  for (const auto& [name, sampler] : samplers_)
    if (sampler.tenant == tenant && sampler.adapter == adapter) closed.push_back(name);
  for (const std::string& name : closed) close_sampler(name);
  add_drop_job(tenant, adapter);
}

void Tinker::forget_snapshot(TenantSlot tenant, AdapterId adapter) {
  tenants_[tenant].snapshots.erase(adapter);
  tenants_[tenant].live_snapshots.erase(adapter);
}

void Tinker::add_drop_job(TenantSlot tenant, AdapterId adapter) {
  services().count("snapshots_dropped", 1);
  Job job;
  job.kind = JobKind::kDropSnapshot;
  job.tenant = tenant;
  job.adapter = adapter;
  add_own_job(std::move(job));
}

void Tinker::drop_saved(const std::string& path) {
  const auto dropped = saved_.extract(path);
  Job job;
  job.kind = JobKind::kDropSaved;
  job.tenant = dropped.mapped().tenant;
  job.folder = dropped.mapped().folder;
  add_own_job(std::move(job));
}

/// The time of the weights that these replace may have ended while the trainer wrote these.
void Tinker::keep_saved(const Saved& saved) {
  std::vector<uint64_t> late;
  for (const uint64_t number : tenants_[saved.tenant].queue)
    if (const Job& job = jobs_.at(number);
        job.kind == JobKind::kDropSaved && job.folder == saved.folder)
      late.push_back(number);
  for (const uint64_t number : late) end_job(number);
}

void Tinker::expire_saved() {
  std::vector<std::string> paths;
  for (const auto& [path, saved] : saved_)
    if (saved.expires <= services().now()) paths.push_back(path);
  for (const std::string& path : paths) drop_saved(path);
  std::vector<std::pair<TenantSlot, AdapterId>> snapshots;
  for (const auto& [slot, tenant] : tenants_)
    for (const auto& [adapter, snapshot] : tenant.snapshots)
      if (snapshot.expires <= services().now()) snapshots.emplace_back(slot, adapter);
  for (const auto& [slot, adapter] : snapshots) drop_snapshot(slot, adapter);
}

void Tinker::open_model(uint64_t number, const Job& job) {
  if (!sessions_.contains(job.session))
    return fail(number, error(Code::kCancelled, "session '{}' has ended", job.session));
  models_.emplace(job.model, Model{job.tenant, job.session, job.base_model});
  tenants_[job.tenant].model = job.model;
  complete(number, job.kind == JobKind::kLoad ? loaded_answer(job.saved, job.model)
                                              : model_answer(job.model));
}

Status Tinker::on_weights_done(const WeightsDone& done) {
  Job* const job = answered_job(done.request, done.fault);
  if (job == nullptr) {
    drop_unknown(done);
    return ok();
  }
  TenantState& tenant = tenants_[job->tenant];
  const bool is_published = has_own_key(job->kind) || job->kind == JobKind::kPublish;
  if (!is_published) tenant.num_updates = done.version.value;
  const bool closes_gradients = job->kind == JobKind::kCreate || job->kind == JobKind::kLoad;
  if (closes_gradients) tenant.ages = {};
  if (job->kind == JobKind::kLoad && job->makes_model && !job->is_reset) {
    job->is_reset = true;  // the load itself is sent next
    return ok();
  }
  if (is_published) {
    job->waits_for_live = true;
    job->adapter = done.adapter;
    job->version = done.version;
    job->deadline = services().now() + options_.live_timeout;
    wake_at(job->deadline);
    job->update = tenant.num_updates;
    if (job->kind == JobKind::kPublish) tenant.published[done.version] = job->update;
    if (tenant.published.size() > kPublishedMax) tenant.published.erase(tenant.published.begin());
    finish_if_live(job->tenant);
    return ok();
  }
  if (job->makes_model) {
    open_model(done.request, *job);
  } else if (job->kind == JobKind::kLoad) {
    complete(done.request, loaded_answer(job->saved, job->model));
  } else if (job->kind == JobKind::kSave) {
    const Time expires = expiry(services().now(), job->ttl_seconds);
    wake_at(expires);
    const Saved saved{job->tenant, folder_name(job->saved), services().now(), expires};
    keep_saved(saved);
    saved_.insert_or_assign(to_path(job->saved), saved);
    complete(done.request, saved_answer(job->saved));
  }
  end_job(done.request);
  return ok();
}

/// A snapshot whose request was late is used by no sampler.
void Tinker::drop_unknown(const WeightsDone& done) {
  const TenantSlot slot = services().delivery().tenant;
  if (done.fault.is_set() || done.adapter.is_none()) return;
  if (!WeightsKey{slot, done.adapter}.is_snapshot()) return;
  const TenantState& tenant = tenants_[slot];
  const bool is_running = tenant.running != 0 && jobs_.at(tenant.running).adapter == done.adapter;
  if (!is_running && !tenant.snapshots.contains(done.adapter)) drop_snapshot(slot, done.adapter);
}

Status Tinker::on_policy(const PolicyLive& live) {
  num_asked_ = 0;
  const TenantSlot slot = services().delivery().tenant;
  TenantState& tenant = tenants_[slot];
  const auto take = [&](AdapterId adapter, PolicyVersion version) {
    if (adapter.is_none() || adapter == moving_key(slot)) {
      tenant.live = std::max(tenant.live, version);
      return;
    }
    // It may come before the trainer's answer. A dropped snapshot is not kept.
    const bool is_expected = tenant.running != 0 && has_own_key(jobs_.at(tenant.running).kind);
    if (is_expected || tenant.snapshots.contains(adapter)) tenant.live_snapshots[adapter] = version;
  };
  take(live.adapter, live.version);
  // A newer message replaces one that was not read: it has all other keys too.
  for (const AdapterVersion& other : live.others) take(other.adapter, other.version);
  finish_if_live(slot);
  return ok();
}

void Tinker::finish_if_live(TenantSlot slot) {
  TenantState& tenant = tenants_[slot];
  if (tenant.running == 0) return;
  const uint64_t number = tenant.running;
  Job& job = jobs_.at(number);
  if (!job.waits_for_live) return;
  PolicyVersion live = tenant.live;
  if (has_own_key(job.kind)) {
    const auto found = tenant.live_snapshots.find(job.adapter);
    live = found == tenant.live_snapshots.end() ? PolicyVersion() : found->second;
  }
  if (live.is_none() || live < job.version) return;
  finish_published(number, job);
  end_job(number);
}

void Tinker::finish_published(uint64_t number, Job& job) {
  if (job.kind == JobKind::kBase) return finish_base(job.tenant, job.adapter, job.version);
  const Tenant& tenant = services().tenant(job.tenant);
  TenantState& state = tenants_[job.tenant];
  const std::string path = job.saved.name.empty() ? "" : to_path(job.saved);
  if (job.kind == JobKind::kSnapshot) {
    const Time expires = expiry(services().now(), job.ttl_seconds);
    wake_at(expires);
    state.snapshots.insert_or_assign(job.adapter, Snapshot{job.version, path, ++num_used_, false,
                                                           job.update, services().now(), expires});
    // A late message may have named dropped ones.
    std::erase_if(state.live_snapshots,
                  [&state](const auto& each) { return !state.snapshots.contains(each.first); });
  }
  if (!path.empty()) return complete(number, saved_answer(job.saved));
  const std::string name = sampler_name(job.session, job.sampler_seq);
  if (!sessions_.contains(job.session))
    return fail(number, error(Code::kCancelled, "session '{}' has ended", job.session));
  if (samplers_.contains(name))
    return fail(number, error(Code::kExists, "sampler '{}' is there already", name));
  Sampler sampler;
  sampler.tenant = job.tenant;
  sampler.session = job.session;
  sampler.base_model = job.base_model;
  if (job.kind == JobKind::kSnapshot) {
    sampler.adapter = job.adapter;
    sampler.salt = fmt::format("{}:snapshot", tenancy_name(tenant));
  } else {
    // A fresh namespace of KV blocks: none of an earlier version is read.
    sampler.salt = fmt::format("{}:{}", tenancy_name(tenant), name);
  }
  if (const Status added = add_sampler(name, std::move(sampler)); !added.ok())
    return fail(number, added.error());
  complete(number, sampler_answer(name));
}

}  // namespace primerl
