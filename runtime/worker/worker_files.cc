#include "runtime/worker/worker_files.h"

#include "graph/tenancies.h"
#include "runtime/store/run_folder.h"

namespace primerl {

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
      steps_(step_lines_file(run_folder_ / "logs", process)) {
  for (const auto& tenant : plan.tenants)
    checkpoints_.push_back(std::make_unique<Store>(CheckpointStore(
        system_files(),
        checkpoints_folder(run_folder_, tenancy_name(tenant), plan.layout_tenants()), tenant.name,
        KeptCheckpoints{.last = tenant.keep_last,
                        .interval = tenant.checkpoint_every,
                        .every = tenant.keep_every,
                        .best = tenant.keep_best})));
  for (const auto& tenant : plan.tenants)
    clients_.emplace_back(system_files(), run_folder_ / "clients" / tenancy_name(tenant));
  for (const auto& group : plan.groups) {
    const TenantSlot tenant = plan.instance(group.instances.front()).tenant;
    tenants_.push_back(tenancy_name(plan.in_slot(tenant.is_none() ? TenantSlot(0) : tenant)));
  }
  for (size_t slot = 0; slot < begun_from.size() && slot < checkpoints_.size(); ++slot)
    checkpoints_[slot]->checkpoints.keep(begun_from[slot].step);
}

Status WorkerFiles::append_line(std::string_view file, std::string_view line) {
  return kept(append(name_of(file), line));
}

Status WorkerFiles::append_step(const StepLine& line) {
  RETURN_IF_ERROR(fault());
  return kept(steps_.append(line));
}

std::string WorkerFiles::name_of(std::string_view file) const {
  const GroupId here = ActorGroup::running_here();
  if (here.is_none()) return std::string(file);
  const std::string& tenant = tenants_[here.index()];
  if (file == "rollouts.jsonl") return rollouts_file_name(tenant, layout_tenants_);
  if (file == "evaluations.jsonl") return evaluations_file_name(tenant, layout_tenants_);
  return std::string(file);
}

void WorkerFiles::follow(std::vector<std::pair<std::string, uint64_t>> bytes_before,
                         std::vector<ResumePoint> newest) {
  bytes_before_ = std::move(bytes_before);
  for (const auto& [file, bytes] : bytes_before_) writers_.try_emplace(file, GroupId());
  newest_ = std::move(newest);
  for (size_t slot = 0; slot < newest_.size(); ++slot)
    checkpoints_[slot]->last_step = newest_[slot].step;
  is_following_ = true;
}

Status WorkerFiles::resume(std::span<const TenantSlot> trained) {
  for (const TenantSlot tenant : trained) {
    // A checkpoint of the record that is still being written has its name only when it is complete.
    Store& store = *checkpoints_[tenant.index()];
    const std::lock_guard<std::mutex> lock(store.mutex);
    store.checkpoints.remove_after(store.last_step);
  }
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

/// The newest checkpoint, if `step` is not newer than it: the recorded start or an earlier one
/// wrote it.
const ResumePoint* WorkerFiles::written_before(TenantSlot tenant, int64_t step) const {
  if (tenant.index() >= newest_.size() || step > newest_[tenant.index()].step) return nullptr;
  return &newest_[tenant.index()];
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
  if (const auto* newest = written_before(tenant, step)) {
    if (step == newest->step) return newest->folder;
    return newest->folder.parent_path() / fmt::format("step_{}", step);
  }
  RETURN_IF_ERROR(checkpoint_fault(step));
  auto begun = [&] {
    Store& store = *checkpoints_[tenant.index()];
    const std::lock_guard<std::mutex> lock(store.mutex);
    return store.checkpoints.begin(step);
  }();
  if (!begun.ok()) return kept(begun.error()).error();
  if (on_begin_ != nullptr) on_begin_(tenant, step);
  return begun;
}

Status WorkerFiles::commit_checkpoint(TenantSlot tenant, int64_t step, const Json& manifest) {
  if (written_before(tenant, step) != nullptr) return ok();
  RETURN_IF_ERROR(checkpoint_fault(step));
  {
    Store& store = *checkpoints_[tenant.index()];
    const std::lock_guard<std::mutex> lock(store.mutex);
    RETURN_IF_ERROR(kept(store.checkpoints.commit(step, manifest)));
    store.last_step = step;
  }
  if (on_checkpoint_) on_checkpoint_(tenant, step);
  return ok();
}

Result<std::filesystem::path> WorkerFiles::begin_client_folder(TenantSlot tenant,
                                                               std::string_view path) {
  return clients_[tenant.index()].begin(path);
}

Status WorkerFiles::commit_client_folder(TenantSlot tenant, std::string_view path,
                                         bool weights_only) {
  return clients_[tenant.index()].commit(path, weights_only);
}

Result<std::filesystem::path> WorkerFiles::client_folder(TenantSlot tenant, std::string_view path) {
  return clients_[tenant.index()].folder(path);
}

Status WorkerFiles::remove_client_folder(TenantSlot tenant, std::string_view path) {
  {
    // The recorded run removed it, and may have made a newer one with the same path.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_following_) return ok();
  }
  return clients_[tenant.index()].remove(path);
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
