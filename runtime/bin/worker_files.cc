#include "runtime/bin/worker_files.h"

#include "runtime/store/run_folder.h"

namespace primerl {

WorkerFiles::WorkerFiles(const Plan& plan, std::filesystem::path run_folder, WorkerTrace* trace,
                         std::function<void(const Error&)> on_fault)
    : run_folder_(std::move(run_folder)), trace_(trace), on_fault_(std::move(on_fault)) {
  for (const auto& tenant : plan.tenants)
    checkpoints_.push_back(std::make_unique<CheckpointStore>(
        system_files(), checkpoints_folder(run_folder_, tenant.name, plan.tenants.size()),
        tenant.name, tenant.keep_last));
}

Status WorkerFiles::append_line(std::string_view file, std::string_view line) {
  Status appended = append(file, line);
  if (!appended.ok()) tell(appended.error());
  return appended;
}

Status WorkerFiles::append(std::string_view file, std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = lines_.find(file);
  if (found == lines_.end()) {
    ASSIGN_OR_RETURN(auto opened, LineFile::open(run_folder_ / file));
    found = lines_.emplace(std::string(file), std::move(opened)).first;
  }
  return found->second->append(line);
}

Result<std::filesystem::path> WorkerFiles::begin_checkpoint(TenantSlot tenant, int64_t step) {
  if (trace_ != nullptr) trace_->checkpoint_begun(tenant);
  auto begun = checkpoints_[tenant.index()]->begin(step);
  if (!begun.ok()) tell(begun.error());
  return begun;
}

Status WorkerFiles::commit_checkpoint(TenantSlot tenant, int64_t step, const Json& manifest) {
  Status committed = checkpoints_[tenant.index()]->commit(step, manifest);
  if (!committed.ok())
    tell(committed.error());
  else if (trace_ != nullptr)
    trace_->checkpoint_committed(tenant);
  return committed;
}

void WorkerFiles::tell(const Error& fault) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(has_told_, true)) return;
  }
  on_fault_(fault);
}

}  // namespace primerl
