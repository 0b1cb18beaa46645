/// HostedRecord: the record of a run whose tenants come and go, step by step. It has the graph of a
/// story: slot 0 is `main`, of the graph's file; slot 1 is free, and `rollout` is its actor. The
/// trainer is shared, so it handles messages of both slots.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "graph/tenant_change.h"
#include "runtime/trace/record/recorder.h"
#include "tests/trace/story.h"

namespace primerl::story {

inline constexpr TenantSlot kFree{1};

class HostedRecord {
 public:
  /// Writes into `folder`/trace.
  explicit HostedRecord(const std::filesystem::path& folder);

  /// A step of the group that makes the change, or fails; its number.
  uint64_t change(uint32_t group, TenantChange change, const Error* error = nullptr);
  /// The trainer handles a message of the slot with this version; the number of the step.
  uint64_t handle(TenantSlot tenant, int64_t version = 0);
  /// A work call of the group; its number.
  uint64_t work(uint32_t group);
  /// A frame as it is; for damage.
  SegmentWriter& writer() { return *writer_; }
  const TraceCatalog& catalog() const { return catalog_; }
  /// Ends the record and reads it.
  std::shared_ptr<const Trace> close();

  TenantChange join(const std::string& name, uint32_t tenancy,
                    const std::string& values = "") const;
  TenantChange leave(const std::string& name, uint32_t tenancy) const;

 private:
  uint64_t record(StepRecord step);

  const std::filesystem::path folder_;
  TraceCatalog catalog_;
  std::unique_ptr<SegmentWriter> writer_;
  std::unique_ptr<Recorder> recorder_;
  uint64_t steps_[3] = {};
  uint64_t sequence_ = 0;
  int64_t now_us_ = 0;
};

}  // namespace primerl::story
