#include "tests/replay/replay_run.h"

#include "actors/messages/catalog.h"
#include "runtime/backends/backends.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/trace/record/recorder.h"
#include "tests/sim/no_host.h"

namespace primerl::sim {
namespace {

namespace fs = std::filesystem;

class TamperingWriter final : public SegmentWriter {
 public:
  TamperingWriter(SegmentWriter& writer, const Tamper& tamper) : writer_(writer), tamper_(tamper) {}
  bool append(std::span<std::byte> head, std::span<const std::byte> tail) override {
    std::vector<std::byte> changed(tail.begin(), tail.end());
    if (tamper_ != nullptr && !tamper_(head, changed)) return true;
    return writer_.append(head, changed);
  }
  bool lose(std::span<const std::byte> head, Error why) override {
    return writer_.lose(head, std::move(why));
  }
  Result<std::array<std::byte, 32>> store(std::span<const std::byte> bytes) override {
    return writer_.store(bytes);
  }
  Status dump() override { return writer_.dump(); }
  Status close() override { return writer_.close(); }
  Status fault() const override { return writer_.fault(); }
  uint64_t num_lost() const override { return writer_.num_lost(); }
  uint64_t segment_number() const override { return writer_.segment_number(); }

 private:
  SegmentWriter& writer_;
  const Tamper& tamper_;
};

}  // namespace

VirtualRecord::VirtualRecord(const Plan& plan, const fs::path& folder, uint64_t run_id)
    : catalog_(make_trace_catalog(plan, *make_wiring(plan))) {
  fs::remove_all(folder);
  catalog_.is_virtual = true;
  catalog_.run_id = run_id;
  SegmentWriterOptions options;
  options.folder = folder;
  options.run_id = run_id;
  options.catalog = catalog_.to_json().dump();
  options.segment_bytes = uint64_t{2} << 20;
  options.packs = false;
  auto writer = SegmentWriter::open(options);
  CHECK(writer.ok(), writer.error().text());
  writer_ = std::move(writer).value();
}

void VirtualRecord::close() {
  const Status closed = writer_->close();
  CHECK(closed.ok(), closed.error().text());
}

fs::path record_demo(const DemoCase& demo, DemoResult& result, const Tamper& tamper) {
  const fs::path folder = scratch_folder() / "trace";
  const auto plan = demo_plan(demo);
  CHECK(plan != nullptr, "the demo's graph is not valid");
  VirtualRecord record(*plan, folder, demo.seed);
  TamperingWriter tampering(record.writer(), tamper);
  Recorder recorder(record.catalog(), tampering);
  DemoHooks hooks;
  hooks.observer = &recorder;
  hooks.factory = recording_factory(resource_factory(), recorder);
  result = run_demo(demo, hooks);
  record.close();
  return folder;
}

GroupId host_of(const Plan& plan, std::string_view node) {
  for (const auto& instance : plan.instances)
    if (plan.node(instance.node).name == node) return instance.group;
  CHECK(false, "the demo has no such node");
  return {};
}

Result<ReplayReport> replay_demo(const DemoCase& demo, const fs::path& folder,
                                 const ReplayChoice& choice) {
  NoHost process_services;
  ReplaySetup setup;
  setup.plan = choice.plan != nullptr ? choice.plan : demo_plan(demo);
  ASSIGN_OR_RETURN(setup.trace, Trace::open(folder));
  use_resources(setup, resource_factory(), choice.depth);
  setup.process_services = &process_services;
  setup.options.num_threads = choice.num_threads;
  setup.options.is_real.assign(setup.plan->groups.size(), choice.real_nodes.empty());
  for (const auto& node : choice.real_nodes)
    setup.options.is_real[host_of(*setup.plan, node).index()] = true;
  close_over(*setup.plan, *setup.trace, choice.depth == ReplayDepth::kFull,
             std::vector<bool>(setup.plan->groups.size(), false), setup.options.is_real);
  ASSIGN_OR_RETURN(const auto replay, Replay::make(std::move(setup)));
  return replay->run();
}

Result<ReplayReport> replay_from_cuts(std::shared_ptr<const Plan> plan,
                                      std::shared_ptr<const Trace> trace, const RunCuts& cuts) {
  NoHost process_services;
  ReplaySetup setup;
  setup.plan = std::move(plan);
  setup.trace = std::move(trace);
  use_resources(setup, resource_factory(), ReplayDepth::kControl);
  setup.process_services = &process_services;
  setup.cuts = cuts;
  ASSIGN_OR_RETURN(const auto replay, Replay::make(std::move(setup)));
  return replay->run();
}

}  // namespace primerl::sim
