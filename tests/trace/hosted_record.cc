#include "tests/trace/hosted_record.h"

#include <gtest/gtest.h>

namespace primerl::story {
namespace {

TraceCatalog hosted_catalog() {
  TraceCatalog catalog = story_catalog();
  catalog.tenants = {"main", "slot-1"};
  for (auto& instance : catalog.instances) instance.tenant = UINT32_MAX;
  catalog.instances[kRollout].tenant = kFree.value;
  TraceCatalog::TraceLink& link = catalog.links[kGroupLink];
  link.record = "input";
  link.type = kLiveConnection;  // the type of a Live, which has a version
  return catalog;
}

}  // namespace

HostedRecord::HostedRecord(const std::filesystem::path& folder)
    : folder_(folder), catalog_(hosted_catalog()) {
  SegmentWriterOptions options;
  options.folder = folder / "trace";
  options.catalog = catalog_.to_json().dump();
  options.segment_bytes = kStorySegmentBytes;
  options.run_id = 7;
  writer_ = SegmentWriter::open(options).value();
  recorder_ = std::make_unique<Recorder>(catalog_, *writer_);
  for (uint32_t group = 0; group < 3; ++group) recorder_->on_start(GroupId(group), Time());
}

uint64_t HostedRecord::record(StepRecord step) {
  step.began = Time::from_nanoseconds(++now_us_ * 1000);
  step.ended = step.began;
  step.step = ++steps_[step.group.index()];
  recorder_->on_step(step);
  return step.step;
}

uint64_t HostedRecord::change(uint32_t group, TenantChange change, const Error* error) {
  StepRecord step;
  step.kind = StepKind::kTenant;
  step.group = GroupId(group);
  step.tenant_change = &change;
  step.error = error;
  return record(step);
}

uint64_t HostedRecord::work(uint32_t group) {
  StepRecord step;
  step.kind = StepKind::kWork;
  step.group = GroupId(group);
  return record(step);
}

uint64_t HostedRecord::handle(TenantSlot tenant, int64_t version) {
  Envelope message;
  message.payload = Payload::of(Live{PolicyVersion(version)});
  message.tenant = tenant;
  message.incarnation = 1;
  message.sequence = ++sequence_;
  message.sent_at = Time::from_nanoseconds(now_us_ * 1000 + 1);
  StepRecord step;
  step.group = GroupId(kTrainer);
  step.instance = InstanceId(kTrainer);
  step.message = &message;
  step.link = LinkId(kGroupLink);
  return record(step);
}

std::shared_ptr<const Trace> HostedRecord::close() {
  EXPECT_TRUE(writer_->close().ok());
  return open_trace(folder_);
}

TenantChange HostedRecord::join(const std::string& name, uint32_t tenancy,
                                const std::string& values) const {
  return {TenantChange::Kind::kJoin, kFree, tenancy, name,
          fmt::format("[tenant.{}]\nmax_steps = 10\n{}", name, values)};
}

TenantChange HostedRecord::leave(const std::string& name, uint32_t tenancy) const {
  return {TenantChange::Kind::kLeave, kFree, tenancy, name, ""};
}

}  // namespace primerl::story
