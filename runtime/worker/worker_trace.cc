#include "runtime/worker/worker_trace.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <ctime>

#include "graph/base/counted.h"
#include "graph/base/files.h"
#include "graph/base/real_clock.h"
#include "graph/tenancies.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/program/command_line.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/store/line_file.h"
#include "runtime/store/run_folder.h"
#include "runtime/trace/record/ring_requests.h"

namespace primerl {
namespace {

// The trace to write before the process dies of a failed CHECK or a signal. Null: there is none, or
// a thread is writing it already.
std::atomic<SegmentWriter*> ring{nullptr};
std::atomic<bool> is_dumping{false};

constexpr int kDeadlySignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

void dump_ring(std::string_view) {
  SegmentWriter* writer = ring.exchange(nullptr);
  if (writer == nullptr) return;
  is_dumping = true;
  (void)writer->dump();
  is_dumping = false;
}

void dump_ring_and_die(int signal) {
  if (SegmentWriter* writer = ring.exchange(nullptr)) {
    is_dumping = true;
    writer->dump_in_handler();
    is_dumping = false;
  }
  // Waits for the dump of another thread, because the death of this thread would interrupt it.
  const timespec tenth{0, 100'000'000};
  for (int i = 0; i < 100 && is_dumping; ++i) ::nanosleep(&tenth, nullptr);
  ::raise(signal);  // its default action runs when this handler returns
}

void dump_ring_before_death(SegmentWriter& writer) {
  ring = &writer;
  set_check_observer(&dump_ring);
  struct sigaction action {};
  action.sa_handler = &dump_ring_and_die;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_ONSTACK);
  for (const int signal : kDeadlySignals) ::sigaddset(&action.sa_mask, signal);
  for (const int signal : kDeadlySignals) ::sigaction(signal, &action, nullptr);
}

Result<uint64_t> run_id_of(const std::filesystem::path& run_folder) {
  const auto file = run_folder / "run.json";
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const Json facts, parse_json(text, file.string()));
  ASSIGN_OR_RETURN(const std::string digits, facts.get_string("run_id"));
  uint64_t id = 0;
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, id, 16);
  if (read.ec != std::errc() || read.ptr != end)
    return error(Code::kCorrupt, "'run_id' of '{}' is '{}', not 16 hexadecimal digits",
                 file.string(), digits);
  return id;
}

/// Sizes of the files whose lines the actors write.
std::vector<std::pair<std::string, uint64_t>> sizes_of_line_files(
    const Plan& plan, const std::filesystem::path& run_folder) {
  // A process that is restarted alone finds the file in use; the process that writes it removes the
  // incomplete last line of a crash.
  std::vector<std::pair<std::string, uint64_t>> sizes;
  for (const Tenant& tenant : plan.tenants) {
    for (const std::string& name :
         {rollouts_file_name(tenancy_name(tenant), plan.layout_tenants()),
          evaluations_file_name(tenancy_name(tenant), plan.layout_tenants())})
      if (const auto size = complete_line_bytes(run_folder / name); size.ok())
        sizes.emplace_back(name, *size);
  }
  return sizes;
}

TraceCatalog catalog_of(const WorkerTrace::Setup& setup, uint64_t run_id) {
  TraceCatalog catalog = make_trace_catalog(*setup.plan, *make_wiring(*setup.plan));
  catalog.program_version = program_text(*setup.plan->catalog);
  catalog.run_id = run_id;
  catalog.resumed_from = setup.resumed_from;
  catalog.recovers = setup.recovers;
  catalog.bytes_before =
      setup.bytes_before ? *setup.bytes_before : sizes_of_line_files(*setup.plan, setup.run_folder);
  // began_ns is steady-clock time: these two values map it to wall-clock time.
  catalog.zero_ns = setup.zero ? setup.zero->first : steady_now().to_nanoseconds();
  catalog.wall_zero_seconds = setup.zero ? setup.zero->second : wall_seconds();
  return catalog;
}

SegmentWriterOptions options_of(const WorkerTrace::Setup& setup, const TraceCatalog& catalog) {
  const TraceSettings& trace = setup.plan->trace;
  SegmentWriterOptions options;
  options.folder = setup.run_folder / "trace";
  options.process = setup.plan->processes[setup.process.index()].name;
  options.process_index = setup.process.value;
  options.incarnation = setup.incarnation;
  options.run_id = catalog.run_id;
  options.catalog = catalog.to_json().dump();
  options.level = trace.level == "power"  ? TraceLevel::kPower
                  : trace.level == "ring" ? TraceLevel::kRing
                                          : TraceLevel::kProcess;
  options.full = trace.full == "gap" ? TraceFull::kGap : TraceFull::kBlock;
  options.segment_bytes = static_cast<uint64_t>(trace.segment_bytes);
  options.trace_bytes_max = static_cast<uint64_t>(trace.bytes_max);
  // Every process may keep an equal share, but at least two segments.
  if (const size_t processes = setup.plan->processes.size(); processes > 1)
    options.trace_bytes_max = std::max(options.trace_bytes_max / processes,
                                       2 * static_cast<uint64_t>(trace.segment_bytes));
  options.ring_bytes = static_cast<uint64_t>(trace.ring_bytes);
  options.sync_every = trace.sync_every;
  options.packs = trace.pack;
  return options;
}

}  // namespace

namespace {

/// Without checkpoints before its end, nothing is kept for a resumed run; the size of the record is
/// still bounded.
bool has_checkpoints(const Plan& plan) {
  return std::all_of(plan.tenants.begin(), plan.tenants.end(),
                     [](const Tenant& tenant) { return tenant.checkpoint_every > 0; });
}

}  // namespace

Result<std::unique_ptr<WorkerTrace>> WorkerTrace::open(const Setup& setup) {
  const Plan& plan = *setup.plan;
  if (!plan.trace.is_on()) return std::unique_ptr<WorkerTrace>();
  ASSIGN_OR_RETURN(const uint64_t run_id, run_id_of(setup.run_folder));
  const TraceCatalog catalog = catalog_of(setup, run_id);
  SegmentWriterOptions options = options_of(setup, catalog);
  const bool makes_cuts = has_checkpoints(plan) && options.level != TraceLevel::kRing;
  auto keep_from = std::make_shared<std::atomic<uint64_t>>(makes_cuts ? 1 : UINT64_MAX);
  options.keep_from = [keep_from] { return keep_from->load(); };
  auto writer = SegmentWriter::open(options);
  if (!writer.ok())
    return std::move(writer)
        .error()
        .while_doing("opening the trace")
        .note("run without one: --set trace.level=off");
  auto trace = std::unique_ptr<WorkerTrace>(
      new WorkerTrace(std::move(keep_from), std::move(writer).value(), catalog));
  trace->makes_cuts_ = makes_cuts;
  CutHead& head = trace->cut_head_;
  head.run_id = run_id;
  head.program_version = catalog.program_version;
  head.state_hash = state_hash(plan);
  head.process = options.process;
  head.incarnation = setup.incarnation;
  if (options.level == TraceLevel::kRing) RETURN_IF_ERROR(trace->become_ring(options));
  return trace;
}

WorkerTrace::WorkerTrace(std::shared_ptr<std::atomic<uint64_t>> keep_from,
                         std::unique_ptr<SegmentWriter> writer, const TraceCatalog& catalog)
    : keep_from_(std::move(keep_from)),
      writer_(std::move(writer)),
      recorder_(std::make_unique<Recorder>(catalog, *writer_)) {}

WorkerTrace::~WorkerTrace() { ring = nullptr; }

Status WorkerTrace::become_ring(const SegmentWriterOptions& options) {
  is_ring_ = true;
  ASSIGN_OR_RETURN(requests_, RingRequests::open(*writer_, options.folder, options.process,
                                                 options.incarnation));
  dump_ring_before_death(*writer_);
  return ok();
}

ResourceFactory WorkerTrace::recording(ResourceFactory make) {
  return recording_factory(std::move(make), *recorder_);
}

uint64_t WorkerTrace::segment() const { return writer_->segment_number(); }

Status WorkerTrace::fault() const {
  Status fault = writer_->fault();
  if (fault.ok()) return fault;
  return std::move(fault).error().while_doing("recording the run");
}

Status WorkerTrace::close(bool run_failed) {
  requests_.reset();
  Status fault = writer_->fault();
  Status closed = writer_->close();
  Status dumped = is_ring_ && run_failed ? writer_->dump() : ok();
  for (Status* status : {&fault, &closed, &dumped})
    if (!status->ok()) return std::move(*status).error().while_doing("closing the trace");
  return ok();
}

void WorkerTrace::leave(bool run_failed) {
  requests_.reset();
  if (!is_ring_ || run_failed) (void)writer_->dump();
}

std::vector<std::string> WorkerTrace::warnings() const {
  std::vector<std::string> warnings;
  if (const uint64_t lost = writer_->num_lost(); lost > 0)
    warnings.push_back(fmt::format(
        "the trace is incomplete: it lacks {}, because the disk was too slow or refused "
        "writes (trace.full = \"gap\")",
        counted(lost, "record")));
  if (const uint64_t unstored = recorder_->num_unstored(); unstored > 0)
    warnings.push_back(fmt::format("the trace lacks {} above the limit of a message",
                                   counted(unstored, "message")));
  return warnings;
}

}  // namespace primerl
