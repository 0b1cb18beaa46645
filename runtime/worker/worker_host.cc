#include "runtime/worker/worker_host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>

#include "graph/base/files.h"
#include "graph/base/real_clock.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/devices.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/signals.h"
#include "runtime/replay/follow_file.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/store/run_folder.h"
#include "runtime/trace/record/ring_requests.h"
#include "runtime/wire/timeouts.h"
#include "runtime/wire/wire_message.h"
#include "runtime/worker/hosted_tenants.h"
#include "runtime/worker/lost_device.h"
#include "runtime/worker/metered_engine.h"
#include "runtime/worker/run_member.h"
#include "runtime/worker/weight_streams.h"
#include "runtime/worker/worker_connections.h"
#include "runtime/worker/worker_cuts.h"
#include "runtime/worker/worker_plugins.h"
#include "runtime/worker/worker_services.h"
#include "runtime/worker/worker_trace.h"
#include "runtime/worker/writing_learner.h"

namespace primerl {
namespace {

constexpr Duration kTick = Duration::milliseconds(50);
constexpr Duration kStartTick = Duration::milliseconds(5);  // until the run starts
constexpr Duration kStartMax = Duration::seconds(120);      // from hello to the first order

struct HostArguments {
  std::string run;
  std::string process;
  std::vector<std::string> resume;  // checkpoint folders, in order of tenant slots
  std::string recover;              // FollowFile of the record to follow first; empty: none
  int64_t incarnation = 1;
  int64_t control = -1;
  PeerKeyFiles peer_keys;
  std::string socket_folder;  // folder of the run's sockets; empty for a run of one process
};

Result<std::vector<ResumePoint>> read_points(const std::vector<std::string>& checkpoints) {
  std::vector<ResumePoint> points;
  for (const auto& checkpoint : checkpoints) {
    ResumePoint& point = points.emplace_back();
    if (checkpoint == kNoCheckpoint) continue;
    // The control plane has checked every byte of it.
    ASSIGN_OR_RETURN(point, read_checkpoint(checkpoint, CheckpointDepth::kSizes));
  }
  return points;
}

RunEnded ended_by(RunEnd end, const Error& why) {
  RunEnded message;
  message.end = static_cast<uint8_t>(end);
  message.code = static_cast<uint8_t>(why.code());
  message.text = why.text();
  return message;
}

RunEnded to_message(const RunOutcome& outcome) {
  RunEnded message;
  if (!outcome.status.ok()) message = ended_by(outcome.end, outcome.status.error());
  message.end = static_cast<uint8_t>(outcome.end);
  if (outcome.end == RunEnd::kStalled) message.stall = outcome.stall.text();
  message.edges = outcome.ledger;
  return message;
}

int exit_code_of(const RunEnded& ended) {
  const auto end = static_cast<RunEnd>(ended.end);
  return end == RunEnd::kFailed || end == RunEnd::kStalled ? kExitFailed : kExitDone;
}

/// One process from hello to RunEnded.
class WorkerHost {
 public:
  WorkerHost(const HostArguments& arguments, std::shared_ptr<const Plan> plan, ProcessId process,
             std::unique_ptr<ControlChannel> control, std::shared_ptr<ControlInbox> inbox)
      : arguments_(arguments),
        plan_(std::move(plan)),
        process_(process),
        control_(std::move(control)),
        inbox_(std::move(inbox)) {}

  /// Also opens the connections, if there are other processes.
  Status say_hello();
  /// Waits for the first order. False when the control plane does not start the run.
  bool wait_for_start();
  RunEnded run();
  void close(RunEnded ended) {
    (void)control_->send(std::move(ended));
    control_->close();
  }

 private:
  RunEnded execute(WorkerServices& process_services, const std::vector<ResumePoint>& newest);
  Status open_record(WorkerTrace::Setup& recording, std::vector<ResumePoint>& begun_from);
  Status prepare_cuts(WorkerServices& services, const WorkerTrace::Setup& recording,
                      const std::vector<ResumePoint>& newest);
  RunEnded lead(RunMember& member);
  void note_fault(const Error& fault);
  bool has_fault();
  void obey(const ControlEvent& event, RunMember& member);
  void stop(RunMember& member);
  void send_heartbeat(const RunMember& member);

  const HostArguments& arguments_;
  const std::shared_ptr<const Plan> plan_;
  const ProcessId process_;
  const std::unique_ptr<ControlChannel> control_;
  const std::shared_ptr<ControlInbox> inbox_;

  // The thread of any actor group may report a disk fault, and the connections' thread may report
  // its own. So these members are made before both and destroyed after them.
  std::mutex fault_mutex_;
  std::optional<Error> fault_;

  const std::shared_ptr<EngineMetrics> engines_ = std::make_shared<EngineMetrics>();
  std::optional<ControlEvent> first_;   // the first order
  std::optional<RecordPrefix> record_;  // the record of the last start, to be followed
  RunCuts followed_cuts_;               // of record_; empty: it is followed from step 1
  std::optional<CutHead> base_;         // this process's cut
  std::vector<int64_t> begun_steps_;    // steps that its tenants had made when it began
  std::unique_ptr<WorkerTrace> trace_;  // null without recording
  std::unique_ptr<Recovery> recovery_;  // notifies trace_'s observer
  std::unique_ptr<Log> log_;
  std::unique_ptr<WorkerCuts> cuts_;  // null if no cuts are made
  std::atomic<RunMember*> member_{nullptr};
  WeightStreams weight_streams_;
  std::unique_ptr<PeerConnections> connections_;  // null for a run of one process
};

Status WorkerHost::say_hello() {
  WorkerHello hello;
  hello.graph_hash = plan_->graph_hash;
  hello.types_hash = WireTypes(plan_->catalog->messages).hash();
  hello.process = arguments_.process;
  hello.incarnation = static_cast<uint32_t>(arguments_.incarnation);
  hello.pid = ::getpid();
  if (plan_->processes.size() > 1) {
    connections_ = std::make_unique<PeerConnections>(
        connection_events([this](Payload message) { (void)control_->send(std::move(message)); },
                          [this](const Error& fault) { note_fault(fault); },
                          [this](const std::string& what) {
                            control_->report(LogLine{static_cast<uint8_t>(LogLevel::kWarning),
                                                     arguments_.process, what});
                          }));
    connections_->carry_streams(&weight_streams_);
    RETURN_IF_ERROR(open_connections(*connections_, *plan_, process_, arguments_.socket_folder,
                                     arguments_.peer_keys, hello));
  }
  return control_->send(std::move(hello));
}

bool WorkerHost::wait_for_start() {
  first_ = inbox_->take(kStartMax);
  return first_ && !first_->is_closed();
}

RunEnded WorkerHost::run() {
  const std::filesystem::path folder(arguments_.run);
  auto points = read_points(arguments_.resume);
  if (!points.ok()) return ended_by(RunEnd::kFailed, points.error());
  LogOptions log_options;
  log_options.stderr_level = LogLevel::kError;  // the end of stderr is shown after a crash
  auto log = Log::open(folder / "logs" / (folder_name(arguments_.process) + ".jsonl"), log_options);
  if (!log.ok()) return ended_by(RunEnd::kFailed, log.error());
  log_ = std::move(log).value();
  WorkerTrace::Setup recording{
      plan_, process_, static_cast<uint32_t>(arguments_.incarnation), folder, arguments_.resume, {},
      {},    {}};
  std::vector<ResumePoint> begun_from = *points;  // the checkpoints from which the actors resume
  if (!arguments_.recover.empty())
    if (const Status opened = open_record(recording, begun_from); !opened.ok())
      return ended_by(RunEnd::kFailed, opened.error());
  auto trace = WorkerTrace::open(recording);
  if (!trace.ok()) return ended_by(RunEnd::kFailed, trace.error());
  trace_ = std::move(trace).value();
  WorkerServices process_services(
      *plan_, folder, arguments_.process, *log_, *control_, std::move(begun_from),
      [this](TenantSlot tenant, int64_t step) {
        if (cuts_ != nullptr) cuts_->checkpoint_committed(tenant, step);
      },
      [this](const Error& fault) { note_fault(fault); },
      [this](TenantSlot tenant, int64_t step) {
        if (cuts_ != nullptr) cuts_->checkpoint_begun(tenant, step);
      });
  if (record_) {
    std::vector<ResumePoint> newest = *points;
    newest.resize(plan_->tenants.size());
    std::vector<std::pair<std::string, uint64_t>> bytes_before;
    if (base_)
      bytes_before = base_->line_files;
    else if (runs_rollout(*plan_, process_))
      bytes_before = *recording.bytes_before;
    process_services.follow(std::move(bytes_before), newest, base_.has_value());
    recovery_ = std::make_unique<Recovery>(plan_, std::move(*record_),
                                           trace_ == nullptr ? nullptr : &trace_->observer(),
                                           process_, followed_cuts_);
  }
  const Status prepared = prepare_cuts(process_services, recording, *points);
  if (!prepared.ok()) return ended_by(RunEnd::kFailed, prepared.error());
  RunEnded ended = execute(process_services, *points);
  cuts_.reset();  // its thread uses the services
  if (trace_ == nullptr) return ended;
  const bool has_failed = exit_code_of(ended) != kExitDone;
  const Status closed = trace_->close(has_failed);
  for (const auto& warning : trace_->warnings())
    process_services.log(LogLevel::kWarning, "trace", warning);
  if (closed.ok() || has_failed) return ended;
  auto edges = std::move(ended.edges);
  ended = ended_by(RunEnd::kFailed, closed.error());
  ended.edges = std::move(edges);
  return ended;
}

/// Opens the record to follow, and the checkpoints from which its start began, because this start
/// first repeats that one.
Status WorkerHost::open_record(WorkerTrace::Setup& recording,
                               std::vector<ResumePoint>& begun_from) {
  ASSIGN_OR_RETURN(const FollowFile follow, read_follow_file(arguments_.recover, *plan_));
  ASSIGN_OR_RETURN(begun_from, read_points(follow.resumed_from));
  recording.resumed_from = follow.resumed_from;
  recording.recovers = follow.record.filename().string();
  recording.bytes_before = follow.bytes_before;
  recording.zero = {follow.zero_ns, follow.wall_zero_seconds};
  begun_steps_.assign(plan_->tenants.size(), 0);
  for (size_t slot = 0; slot < begun_from.size(); ++slot)
    begun_steps_[slot] = begun_from[slot].step;
  // An absent process starts fresh, although its new trace is marked as a recovery.
  if (follow.is_absent(process_)) return ok();
  ASSIGN_OR_RETURN(FollowedRecord followed, open_followed(*plan_, follow, process_));
  record_ = std::move(followed.prefix);
  followed_cuts_ = std::move(followed.cuts);
  base_ = std::move(followed.base);
  if (base_) recording.bytes_before = base_->line_files;
  return ok();
}

/// Adds the cut from which this start resumed to its own record, and prepares its own cuts.
Status WorkerHost::prepare_cuts(WorkerServices& services, const WorkerTrace::Setup& recording,
                                const std::vector<ResumePoint>& newest) {
  if (trace_ == nullptr || !trace_->makes_cuts()) return ok();
  WorkerCuts::Setup setup;
  setup.plan = plan_;
  setup.process = process_;
  setup.run_folder = recording.run_folder;
  setup.folder = recording.run_folder / "trace";
  setup.head = trace_->cut_head();
  if (base_) {
    ASSIGN_OR_RETURN(CutFile base, read_cut(cut_path(recovery_->trace().folder(), *base_)));
    base.head.process = arguments_.process;
    base.head.incarnation = setup.head.incarnation;
    base.head.number = 0;
    base.head.segment = 1;
    RETURN_IF_ERROR(write_cut(setup.folder, base.head, base.cut));
  }
  setup.begun_steps = begun_steps_;
  setup.begun_steps.resize(plan_->num_slots());
  for (const ResumePoint& point : newest) setup.newest_steps.push_back(point.step);
  if (begun_steps_.empty())
    for (size_t slot = 0; slot < newest.size(); ++slot) setup.begun_steps[slot] = newest[slot].step;
  setup.segment = [this] { return trace_->segment(); };
  setup.keep = [this](uint64_t segment) { trace_->keep_from(segment); };
  setup.line_files = [&services](GroupId group) { return services.worker_files().sizes(group); };
  // A trace that has failed lacks steps of the cut; the fault is noted only at the next tick.
  setup.is_useless = [&] {
    return has_fault() || !trace_->fault().ok() || services.worker_files().shares_files();
  };
  setup.warn = [&services](const std::string& what) {
    services.log(LogLevel::kWarning, "trace", what);
  };
  setup.request = [this](WaitingCuts::Request request) {
    if (RunMember* member = member_) member->request_checkpoint(request.tenant, request.step);
  };
  cuts_ = std::make_unique<WorkerCuts>(std::move(setup), [this](uint64_t number) {
    if (RunMember* member = member_) member->cut(number);
  });
  return ok();
}

void WorkerHost::note_fault(const Error& fault) {
  const std::lock_guard<std::mutex> lock(fault_mutex_);
  if (!fault_) fault_ = fault;
}

RunEnded WorkerHost::execute(WorkerServices& process_services,
                             const std::vector<ResumePoint>& newest) {
  CafExecutorSetup setup;
  setup.plan = plan_;
  setup.process = process_;
  setup.incarnation = static_cast<uint32_t>(arguments_.incarnation);
  setup.process_services = &process_services;
  auto backends = backend_setup(arguments_.run, [&process_services](std::string_view line) {
    process_services.log(LogLevel::kWarning, "weights", line);
  });
  if (!backends.ok()) return ended_by(RunEnd::kFailed, backends.error());
  backends->process = process_;
  backends->log_outside = [&process_services](std::string_view line) {
    process_services.log(LogLevel::kWarning, "outside", line);
  };
  if (connections_ != nullptr) {
    backends->streams_have_news = [this] { connections_->streams_ready(); };
    backends->join_streams = [this](uint32_t stream, std::vector<ProcessId> peers,
                                    std::shared_ptr<StreamChannel> channel) {
      weight_streams_.add(stream, std::move(peers), std::move(channel));
      connections_->streams_ready();
    };
  }
  auto factory = resource_factory(std::move(backends).value());
  factory = device_watching_factory(std::move(factory), end_of_process(*plan_, *log_));
  factory = writing_factory(std::move(factory), [this](TenantSlot tenant) {
    if (cuts_ != nullptr) cuts_->gradients_discarded(tenant);
  });
  setup.factory = metering_factory(std::move(factory), engines_, arguments_.run);
  if (trace_ != nullptr) setup.observer = &trace_->observer();
  if (recovery_ != nullptr) {
    std::vector<RecoveryPoint> from(plan_->tenants.size());
    for (size_t slot = 0; slot < newest.size(); ++slot)
      from[slot] = {newest[slot].folder, newest[slot].step - begun_steps_[slot]};
    setup.step_source = recovery_.get();
    setup.observer = recovery_.get();
    setup.factory = recovery_factory(std::move(setup.factory), *recovery_, std::move(from));
    setup.on_live = [this, &process_services] {
      // If a file differs from the record the run ends: then it is not recovered.
      if (has_fault()) return;
      const Status live = process_services.resume(tenants_trained_by(*plan_, process_));
      if (!live.ok()) return note_fault(live.error());
      control_->report(RunRecovered{recovery_->num_steps(), recovery_->num_messages_compared()});
    };
  }
  if (trace_ != nullptr) setup.factory = trace_->recording(std::move(setup.factory));
  setup.cuts = cuts_.get();
  host_tenants(*plan_, setup, process_services, cuts_.get());
  RunMember member(std::move(setup), connections_.get(),
                   [this](Payload message) { (void)control_->send(std::move(message)); });
  member_ = &member;
  RunEnded ended = lead(member);
  member_ = nullptr;
  if (member.has_lost_threads()) {
    // A stuck handler or load may still use objects that destructors would free. So it reports the
    // end and then exits at once.
    const int code = exit_code_of(ended);
    if (trace_ != nullptr) trace_->leave(code != kExitDone);
    close(std::move(ended));
    log_.reset();
    std::_Exit(code);
  }
  return ended;
}

RunEnded WorkerHost::lead(RunMember& member) {
  Time next_heartbeat = steady_now();
  std::optional<ControlEvent> event = std::move(first_);
  while (!member.outcome()) {
    if (event && event->is_closed() && !member.has_begun())
      return ended_by(RunEnd::kInterrupted, error(Code::kCancelled, "no run was started"));
    if (event) obey(*event, member);
    member.poll(steady_now());
    if (steady_now() >= next_heartbeat) {
      send_heartbeat(member);
      next_heartbeat = steady_now() + beat_every(plan_->settings.dead_after);
    }
    if (trace_ != nullptr)
      if (const Status recorded = trace_->fault(); !recorded.ok()) note_fault(recorded.error());
    if (has_fault()) {
      stop(member);
      if (!member.has_begun()) break;
    }
    if (!member.outcome()) event = inbox_->take(member.is_running() ? kTick : kStartTick);
  }
  RunEnded message;
  if (member.outcome()) message = to_message(*member.outcome());
  const std::lock_guard<std::mutex> lock(fault_mutex_);
  if (fault_) {  // reported once, instead of its effects
    const auto edges = std::move(message.edges);
    message = ended_by(RunEnd::kFailed, *fault_);
    message.edges = edges;
  }
  return message;
}

void WorkerHost::obey(const ControlEvent& event, RunMember& member) {
  if (event.is_closed() || as_if<StopRun>(event.message) != nullptr) return stop(member);
  const bool is_live = recovery_ == nullptr || recovery_->is_live();
  if (as_if<DrainRun>(event.message) != nullptr && cuts_ != nullptr && is_live &&
      member.is_running())
    cuts_->before_drain();
  if (const Status obeyed = member.obey(event.message); !obeyed.ok()) note_fault(obeyed.error());
}

/// A group that waits for space on a full disk could not end.
void WorkerHost::stop(RunMember& member) {
  if (trace_ != nullptr) trace_->stop_waiting();
  member.stop();
}

bool WorkerHost::has_fault() {
  const std::lock_guard<std::mutex> lock(fault_mutex_);
  return fault_.has_value();
}

void WorkerHost::send_heartbeat(const RunMember& member) {
  Heartbeat beat = member.heartbeat();
  const bool is_live = recovery_ == nullptr || recovery_->is_live();
  if (cuts_ != nullptr && is_live && member.is_running()) cuts_->tick(steady_now(), beat.num_steps);
  beat.engines = engines_->reports();
  beat.engine_uses = engines_->uses();
  fit(beat);
  beat.num_dropped_reports = control_->num_dropped_reports();
  (void)control_->send(std::move(beat));
}

ProcessId find_process(const Plan& plan, const std::string& name) {
  for (size_t i = 0; i < plan.processes.size(); ++i)
    if (plan.processes[i].name == name) return ProcessId(static_cast<uint32_t>(i));
  return ProcessId::none();
}

int run_host(const HostArguments& arguments) {
  leave_ending_to_launcher();
  outlive_readers(), report_file_limits();
  if (const Status same = check_plugins(arguments.run); !same.ok())
    return fail(same.error(), kExitBadConfiguration);
  const std::string graph = arguments.run + "/graph.resolved.toml";
  const CheckedGraph checked = load_graph(graph, {}, full_catalog());
  if (checked.plan == nullptr) {
    complain_text(render(checked.diagnostics, checked.sources));
    return kExitBadConfiguration;
  }
  const ProcessId process = find_process(*checked.plan, arguments.process);
  if (process.is_none())
    return fail(
        error(Code::kNotFound, "'{}' places nothing in a process '{}'", graph, arguments.process),
        kExitBadConfiguration);
  take_dump_signals();
  if (const Status pinned = pin_to_cpus(checked.plan->process(process).cpus); !pinned.ok())
    return fail(pinned.error(), kExitBadConfiguration);
  if (const Status usable = check_devices(*checked.plan, process, &why_no_torch_on); !usable.ok())
    return fail(usable.error(), kExitBadConfiguration);
  auto inbox = std::make_shared<ControlInbox>();
  auto control = open_inherited_control(static_cast<int>(arguments.control), inbox);
  if (!control.ok()) return fail(control.error(), kExitBadCommandLine);
  WorkerHost host(arguments, checked.plan, process, std::move(control).value(), inbox);
  if (const Status said = host.say_hello(); !said.ok()) return fail(said.error(), kExitFailed);
  if (!host.wait_for_start()) return kExitFailed;
  RunEnded ended = host.run();
  const int code = exit_code_of(ended);
  host.close(std::move(ended));
  return code;
}

}  // namespace

Command host_command() {
  auto arguments = std::make_shared<HostArguments>();
  return {"host", "runs one process of a graph",
          "primerl-worker host --run runs/latest --process main --incarnation 1 --control 3",
          [arguments](Arguments& flags) {
            flags.text(arguments->run, "--run", "DIR", "the run folder");
            flags.text(arguments->process, "--process", "NAME", "which process of the plan");
            flags.integer(arguments->incarnation, "--incarnation", "N",
                          "incarnation of this process", 0, INT32_MAX);
            flags.integer(arguments->control, "--control", "FD", "the control channel", 0,
                          INT32_MAX);
            flags.text(arguments->socket_folder, "--links", "DIR",
                       "where sockets to the run's other processes are");
            flags.text(arguments->peer_keys.keys, "--keys", "FILE", "the keys of its connections");
            flags.text(arguments->peer_keys.allow, "--allow", "FILE", "whose keys they let in");
            flags.text(arguments->peer_keys.listen, "--listen", "ADDRESS", "of connections by tcp");
            flags.texts(arguments->resume, "--resume", "DIR",
                        "the checkpoint of each tenant, in order");
            flags.text(arguments->recover, "--recover", "FILE",
                       "the record of a start that was cut off, to be followed first");
          },
          [arguments] { return run_host(*arguments); }};
}

}  // namespace primerl
