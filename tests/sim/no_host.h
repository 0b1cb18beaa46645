/// The host of a run that keeps nothing: no metrics, no log, no lines; checkpoints go to one
/// temporary folder. A test that needs some of it overrides that part.
#pragma once

#include "graph/base/services.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {

class NoHost : public ProcessServices, public RunFiles {
 public:
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot, int64_t, const MetricValues&) override {}
  void log(LogLevel, std::string_view, std::string_view) override {}
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }
  Status append_line(std::string_view, std::string_view) override { return ok(); }
  Result<std::filesystem::path> begin_checkpoint(TenantSlot, int64_t) override {
    return scratch_folder();
  }
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override { return ok(); }
};

}  // namespace primerl::sim
