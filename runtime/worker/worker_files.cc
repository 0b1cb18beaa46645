#include "runtime/worker/worker_files.h"

#include <algorithm>

#include "graph/tenancies.h"
#include "kernels/train/learner.h"
#include "runtime/store/run_folder.h"

namespace primerl {
namespace {

std::vector<std::string> planned_names(const Plan& plan) {
  std::vector<std::string> names;
  for (const Tenant& tenant : plan.tenants) names.push_back(tenancy_name(tenant));
  return names;
}

Error no_folder(TenantSlot tenant) {
  return error(Code::kNotFound, "tenant slot {} is free: it has no checkpoint", tenant.value);
}

}  // namespace

bool runs_rollout(const Plan& plan, ProcessId process) {
  return std::ranges::any_of(plan.instances, [&](const PlanInstance& one) {
    return plan.node(one.node).contract->name == "rollout" &&
           plan.group(one.group).process == process;
  });
}

WorkerFiles::WorkerFiles(const Plan& plan, std::filesystem::path run_folder,
                         const std::string& process, const std::vector<ResumePoint>& begun_from,
                         std::function<void(TenantSlot, int64_t)> on_checkpoint,
                         std::function<void(const Error&)> on_fault,
                         std::function<void(TenantSlot, int64_t)> on_begin)
    : run_folder_(std::move(run_folder)),
      on_checkpoint_(std::move(on_checkpoint)),
      on_fault_(std::move(on_fault)),
      on_begin_(std::move(on_begin)),
      layout_tenants_(plan.layout_tenants()),
      planned_(planned_names(plan)),
      steps_(step_lines_file(run_folder_ / "logs", process)) {
  for (const auto& tenant : plan.tenants) checkpoints_.push_back(make_store(tenant));
  checkpoints_.resize(plan.num_slots());
  for (const auto& group : plan.groups) {
    const TenantSlot tenant = plan.instance(group.instances.front()).tenant;
    const auto is_learner = [&plan](int32_t resource) {
      return plan.resources[static_cast<size_t>(resource)].kind == Learner::kResourceKind;
    };
    groups_.push_back({tenant.is_none() ? TenantSlot(0) : tenant,
                       std::ranges::any_of(group.resources, is_learner)});
  }
  for (size_t slot = 0; slot < begun_from.size() && slot < plan.tenants.size(); ++slot)
    checkpoints_[slot]->checkpoints.keep(begun_from[slot].step);
}

std::shared_ptr<WorkerFiles::Store> WorkerFiles::make_store(const Tenant& tenant) const {
  const std::string name = tenancy_name(tenant);
  return std::make_shared<Store>(
      CheckpointStore(system_files(), checkpoints_folder(run_folder_, name, layout_tenants_),
                      tenant.name,
                      KeptCheckpoints{.last = tenant.keep_last,
                                      .interval = tenant.checkpoint_every,
                                      .every = tenant.keep_every,
                                      .best = tenant.keep_best}),
      ClientFolders(system_files(), clients_folder(run_folder_, name)));
}

std::shared_ptr<WorkerFiles::Store> WorkerFiles::store_of(TenantSlot tenant) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return checkpoints_[tenant.index()];
}

/// Groups that follow a record are at different steps, so each changes only what it writes itself.
bool WorkerFiles::begin_tenant(const Tenant& tenant) {
  const GroupId here = ActorGroup::running_here();
  if (here.is_none()) return false;
  const Group& group = groups_[here.index()];
  const std::lock_guard<std::mutex> lock(mutex_);
  joined_[{here, tenant.slot}] = tenancy_name(tenant);
  if (!group.has_learner) return false;
  auto store = make_store(tenant);
  // The record of this start cannot be followed without it.
  if (tenant.begins_at > 0) store->checkpoints.keep(tenant.begins_at);
  if (is_following_) {
    // Files of an earlier start are not written again.
    auto found =
        find_checkpoints(checkpoints_folder(run_folder_, tenancy_name(tenant), layout_tenants_),
                         CheckpointDepth::kContents);
    if (found.newest) store->newest = std::move(*found.newest);
    store->last_step = store->newest.step;
  }
  checkpoints_[tenant.slot.index()] = std::move(store);
  return true;
}

std::string WorkerFiles::label(TenantSlot slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto joined = joined_.find({ActorGroup::running_here(), slot});
  if (joined != joined_.end()) return joined->second;
  return slot.index() < planned_.size() ? planned_[slot.index()] : "";
}

void WorkerFiles::end_tenant(const Tenant& tenant) {
  const std::string name = tenancy_name(tenant);
  remove_again(&name);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& file :
       {rollouts_file_name(name, layout_tenants_), evaluations_file_name(name, layout_tenants_)}) {
    lines_.erase(file);
    writers_.erase(file);
  }
}

Status WorkerFiles::append_line(std::string_view file, std::string_view line) {
  const std::string name = name_of(file);
  return kept(append(name, line));
}

Status WorkerFiles::append_step(const StepLine& line) {
  RETURN_IF_ERROR(fault());
  return kept(steps_.append(line));
}

std::string WorkerFiles::name_of(std::string_view file) {
  const GroupId here = ActorGroup::running_here();
  if (here.is_none()) return std::string(file);
  const std::string tenant = label(groups_[here.index()].slot);
  if (file == "rollouts.jsonl") return rollouts_file_name(tenant, layout_tenants_);
  if (file == "evaluations.jsonl") return evaluations_file_name(tenant, layout_tenants_);
  return std::string(file);
}

void WorkerFiles::follow(std::vector<std::pair<std::string, uint64_t>> bytes_before,
                         std::vector<ResumePoint> newest) {
  removed_ = removed_tenants(run_folder_);
  for (const RemovedTenant& each : removed_)
    for (std::string& file : line_files_of(each, layout_tenants_))
      removed_lines_.insert(std::move(file));
  std::erase_if(bytes_before,
                [this](const auto& each) { return removed_lines_.contains(each.first); });
  bytes_before_ = std::move(bytes_before);
  for (const auto& [file, bytes] : bytes_before_) writers_.try_emplace(file, GroupId());
  for (size_t slot = 0; slot < newest.size() && checkpoints_[slot] != nullptr; ++slot) {
    checkpoints_[slot]->newest = std::move(newest[slot]);
    checkpoints_[slot]->last_step = checkpoints_[slot]->newest.step;
  }
  is_following_ = true;
}

Status WorkerFiles::resume(std::span<const TenantSlot> trained) {
  for (const TenantSlot tenant : trained) {
    // A checkpoint of the record that is still being written has its name only when it is complete.
    const auto store = store_of(tenant);
    if (store == nullptr) continue;  // the slot is free
    const std::lock_guard<std::mutex> lock(store->mutex);
    store->checkpoints.remove_after(store->last_step);
  }
  remove_again(nullptr);
  const std::lock_guard<std::mutex> lock(mutex_);
  is_following_ = false;
  for (const auto& [file, bytes] : bytes_before_)
    if (followed_.find(file) == followed_.end()) {
      ASSIGN_OR_RETURN(followed_[file], FollowedLines::open(run_folder_ / file, bytes));
    }
  for (auto& [file, lines] : followed_) RETURN_IF_ERROR(lines->cut());
  followed_.clear();
  return ok();
}

/// Only the process of the learner writes them. What cannot be removed only uses space.
void WorkerFiles::remove_again(const std::string* name) {
  if (!std::ranges::any_of(groups_, &Group::has_learner)) return;
  for (const RemovedTenant& each : removed_) {
    if (name != nullptr && *name != each.name) continue;
    for (const auto& folder : folders_of(run_folder_, each, layout_tenants_))
      (void)system_files().remove_all(folder);
  }
}

/// Call with mutex_ held.
Result<bool> WorkerFiles::was_there(std::string_view file, std::string_view line) {
  if (!is_following_) return false;
  auto found = followed_.find(file);
  if (found == followed_.end()) {
    uint64_t begin = 0;
    for (const auto& [name, bytes] : bytes_before_)
      if (name == file) begin = bytes;
    ASSIGN_OR_RETURN(auto opened, FollowedLines::open(run_folder_ / file, begin));
    found = followed_.emplace(std::string(file), std::move(opened)).first;
  }
  return found->second->take(line);
}

std::vector<std::pair<std::string, uint64_t>> WorkerFiles::sizes(GroupId writer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::pair<std::string, uint64_t>> sizes;
  for (const auto& [file, of] : writers_) {
    if (!writer.is_none() && of != writer) continue;
    std::error_code none;
    const auto size = std::filesystem::file_size(run_folder_ / file, none);
    if (!none) sizes.emplace_back(file, size);
  }
  return sizes;
}

bool WorkerFiles::shares_files() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return shares_files_;
}

Status WorkerFiles::append(const std::string& file, std::string_view line) {
  if (removed_lines_.contains(file)) return ok();
  const std::lock_guard<std::mutex> lock(mutex_);
  auto writer = writers_.find(file);
  if (writer == writers_.end()) writer = writers_.emplace(file, GroupId()).first;
  if (writer->second.is_none()) writer->second = ActorGroup::running_here();
  if (writer->second != ActorGroup::running_here() || writer->second.is_none())
    shares_files_ = true;
  ASSIGN_OR_RETURN(const bool is_there, was_there(file, line));
  if (is_there) return ok();
  if (!fault_.ok()) return fault_;
  auto found = lines_.find(file);
  if (found == lines_.end()) {
    const auto path = run_folder_ / file;
    std::error_code fault;
    std::filesystem::create_directories(path.parent_path(), fault);
    if (fault)
      return error(Code::kIo, "making '{}': {}", path.parent_path().string(), fault.message());
    ASSIGN_OR_RETURN(auto opened, LineFile::open(path));
    found = lines_.emplace(file, std::move(opened)).first;
  }
  return found->second->append(line);
}

Result<std::filesystem::path> WorkerFiles::begin_checkpoint(TenantSlot tenant, int64_t step) {
  const auto store = store_of(tenant);
  if (store == nullptr) return no_folder(tenant);
  // The recorded start or an earlier one wrote it.
  if (const ResumePoint& newest = store->newest; !newest.folder.empty() && step <= newest.step) {
    if (step == newest.step) return newest.folder;
    return newest.folder.parent_path() / fmt::format("step_{}", step);
  }
  RETURN_IF_ERROR(checkpoint_fault(step));
  auto begun = [&] {
    const std::lock_guard<std::mutex> lock(store->mutex);
    return store->checkpoints.begin(step);
  }();
  if (!begun.ok()) return kept(begun.error()).error();
  if (on_begin_ != nullptr) on_begin_(tenant, step);
  return begun;
}

Status WorkerFiles::commit_checkpoint(TenantSlot tenant, int64_t step, const Json& manifest) {
  const auto store = store_of(tenant);
  if (store == nullptr || (!store->newest.folder.empty() && step <= store->newest.step))
    return ok();
  RETURN_IF_ERROR(checkpoint_fault(step));
  {
    const std::lock_guard<std::mutex> lock(store->mutex);
    RETURN_IF_ERROR(kept(store->checkpoints.commit(step, manifest)));
    store->last_step = step;
  }
  if (on_checkpoint_) on_checkpoint_(tenant, step);
  return ok();
}

Result<std::filesystem::path> WorkerFiles::begin_client_folder(TenantSlot tenant,
                                                               std::string_view path) {
  const auto store = store_of(tenant);
  if (store == nullptr) return no_folder(tenant);
  return store->clients.begin(path);
}

Status WorkerFiles::commit_client_folder(TenantSlot tenant, std::string_view path,
                                         bool weights_only) {
  const auto store = store_of(tenant);
  if (store == nullptr) return no_folder(tenant);
  return store->clients.commit(path, weights_only);
}

Result<std::filesystem::path> WorkerFiles::client_folder(TenantSlot tenant, std::string_view path) {
  const auto store = store_of(tenant);
  if (store == nullptr) return no_folder(tenant);
  return store->clients.folder(path);
}

Status WorkerFiles::remove_client_folder(TenantSlot tenant, std::string_view path) {
  {
    // The recorded run removed it, and may have made a newer one with the same path.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_following_) return ok();
  }
  const auto store = store_of(tenant);
  if (store == nullptr) return no_folder(tenant);
  return store->clients.remove(path);
}

Status WorkerFiles::fault() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

Status WorkerFiles::checkpoint_fault(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fault_.ok()) return ok();
  return error(fault_.error().code(),
               "checkpoint {} is not written, because an earlier write of the run failed", step);
}

/// Keeps and reports the first error. Returns `written`.
Status WorkerFiles::kept(Status written) {
  if (written.ok()) return written;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!fault_.ok()) return written;
    fault_ = written;
  }
  on_fault_(written.error());
  return written;
}

}  // namespace primerl
