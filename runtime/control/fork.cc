#include "runtime/control/fork.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "graph/base/counted.h"
#include "graph/base/files.h"
#include "graph/base/real_clock.h"
#include "graph/tenancies.h"
#include "runtime/control/launch.h"
#include "runtime/control/stop_signals.h"
#include "runtime/program/programs.h"
#include "runtime/replay/forked_graph.h"
#include "runtime/replay/remade_checkpoint.h"
#include "runtime/wire/wire_message.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

/// How often a waiting launcher looks for Ctrl-C.
constexpr Duration kRemakeTick = Duration::milliseconds(100);
/// Longest time from the last message of a worker to its exit.
constexpr Duration kRemakeExitMax = Duration::seconds(10);

/// Time limit of a worker that takes `num_steps` training steps. A step may last as long as in a
/// replay. Loading and saving may each last as long as a step.
Duration remake_max(int64_t num_steps) {
  constexpr int64_t kLoadAndSave = 2;
  return ReplayOptions().step_max * (num_steps + kLoadAndSave);
}

fs::path source_folder(const ResumeChoice& choice, const Plan& plan, const Tenant& tenant) {
  Tenant then = tenant;
  if (const auto joined = choice.fork_tenancies.find(tenant.name);
      joined != choice.fork_tenancies.end())
    then.tenancy = joined->second;
  return checkpoints_folder(choice.fork_of, tenancy_name(then), plan.layout_tenants());
}

/// Writes the graph of the fork into a file of its own, because the other run is not changed.
Status make_graph_file(const std::string& text, ResumeChoice& choice) {
  std::string pattern = (fs::temp_directory_path() / "primerl-fork-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    return error(Code::kUnavailable, "a folder for the graph of the fork cannot be made in '{}'",
                 fs::temp_directory_path().string());
  choice.made_graph_file =
      std::shared_ptr<const fs::path>(new fs::path(pattern), [](const fs::path* folder) {
        std::error_code ignored;
        fs::remove_all(*folder, ignored);
        delete folder;
      });
  choice.graph_file = fs::path(pattern) / "graph.resolved.toml";
  return system_files().write_file(choice.graph_file, text);
}

/// Why a tenant has no checkpoint of the step.
struct Lack {
  TenantSlot tenant;
  std::optional<int64_t> last_step;  // of the record, which ends before the step
  Error why;
};

/// Adds notes that name the checkpoints that can be forked.
Error with_forkable(Error error, const Plan& plan, const ResumeChoice& choice) {
  bool has_any = false;
  for (const Tenant& tenant : plan.tenants) {
    const auto steps = complete_steps(source_folder(choice, plan, tenant));
    if (steps.empty()) continue;
    has_any = true;
    (void)std::move(error).note(
        fmt::format("{} can be forked at its checkpoints: steps {}",
                    plan.tenants.size() == 1 ? "it" : fmt::format("tenant '{}'", tenant.name),
                    fmt::join(steps, ", ")));
  }
  return std::move(error).note(
      has_any ? "tenant.NAME.keep_every = K keeps every K-th checkpoint, beside keep_last"
              : "it has no complete checkpoint: tenant.NAME.checkpoint_every makes them");
}

/// The error when no tenant can begin at the step.
Error no_fork_step(const Plan& plan, const ResumeChoice& choice, std::vector<Lack> lacks) {
  const bool is_reachable_from_outside =
      std::ranges::all_of(lacks, [](const Lack& lack) { return lack.last_step.has_value(); });
  int64_t last = 0;
  for (const Lack& lack : lacks) last = std::max(last, lack.last_step.value_or(0));
  if (is_reachable_from_outside && last == 0)
    return error(Code::kInvalid, "--fork: '{}' has taken no training step yet",
                 choice.fork_of.string());
  if (is_reachable_from_outside)
    return error(Code::kInvalid, "--fork: step {} is beyond '{}', which has taken {} step{}",
                 choice.fork_step, choice.fork_of.string(), last, last == 1 ? "" : "s")
        .note(last == 1 ? "step 1 can be forked"
                        : fmt::format("steps 1 to {} can be forked", last));
  const Lack& first =
      *std::ranges::find_if(lacks, [](const Lack& lack) { return !lack.last_step.has_value(); });
  Error none = error(Code::kNotFound,
                     "--fork: '{}' has no checkpoint of step {}, and it cannot be made again: {}",
                     choice.fork_of.string(), choice.fork_step, first.why.message());
  for (const auto& note : first.why.notes()) (void)std::move(none).note(note);
  return with_forkable(std::move(none), plan, choice);
}

/// Looks for a way to make the checkpoint of one tenant again.
Result<Remake> find_remake(const Result<TrainingRecord>& record, const Tenant& tenant, int64_t step,
                           std::optional<int64_t>& last_step) {
  if (!record.ok()) return record.error();
  if (!record->has(tenant.name))
    return error(Code::kNotFound, "its record has no tenant '{}'", tenant.name);
  ASSIGN_OR_RETURN(const int64_t last, record->last_step(tenant.name));
  if (step > last) {
    last_step = last;
    return error(Code::kNotFound, "its record ends after step {}", last);
  }
  return record->remake(tenant.name, step);
}

/// Lets a tenant that cannot begin at the step begin earlier: at `older`, or at its first step.
void begin_earlier(const Lack& lack, const Tenant& tenant, std::optional<ResumePoint> older,
                   ResumeChoice& choice) {
  const std::string why =
      lack.last_step ? fmt::format("has taken {}", counted(*lack.last_step, "step"))
                     : fmt::format("has no checkpoint of step {}, and it cannot be made again ({})",
                                   choice.fork_step, lack.why.message());
  if (!older) {
    choice.notes.push_back(fmt::format(
        "tenant '{}' {}, and has no older checkpoint: it starts from its own beginning, with a "
        "fresh adapter and step 1",
        tenant.name, why));
    return;
  }
  choice.notes.push_back(fmt::format("tenant '{}' {}: it begins from its checkpoint of step {}",
                                     tenant.name, why, older->step));
  choice.points[tenant.slot.index()] = *std::move(older);
}

LaunchOptions remake_launch(const Remake& remake, const Tenant& tenant, const fs::path& source,
                            const fs::path& out) {
  const PlanProcess& placed = remake.plan->process(remake.plan->group(remake.group).process);
  LaunchOptions options;
  options.arguments = {"remake",
                       "--run",
                       source.string(),
                       "--tenant",
                       tenant.name,
                       "--step",
                       fmt::format("{}", remake.step),
                       "--out",
                       out.string()};
  options.environment = process_environment(placed);
  options.process = ProcessId(0);
  return options;
}

/// How the worker ended: what it reported, or its exit.
Status remake_end(WorkerProcess& worker, const std::optional<RunEnded>& ended) {
  const auto exit = worker.wait(kRemakeExitMax);
  if (ended && !ended->text.empty()) return Error(static_cast<Code>(ended->code), ended->text);
  if (ended) return ok();
  Error died = error(Code::kUnavailable, "its worker {}",
                     exit.ok() ? exit->text() : "closed its control channel");
  const std::string words = worker.last_words();
  return words.empty() ? std::move(died) : std::move(died).note("its last words:\n" + words);
}

/// Waits until the worker has made the checkpoint; when this returns, the worker has ended or is
/// killed with `worker`.
Status await_remake(WorkerProcess& worker, ControlInbox& inbox, const Remake& remake) {
  ExpectedHello expected;
  expected.graph_hash = remake.plan->graph_hash;
  expected.types_hash = WireTypes(remake.plan->catalog->messages).hash();
  expected.process = remake.plan->process(remake.plan->group(remake.group).process).name;
  const Duration limit = remake_max(remake.step - remake.from_step);
  const Time deadline = steady_now() + limit;
  std::optional<RunEnded> ended;
  while (true) {
    if (SignalCounter::count() > 0) return error(Code::kCancelled, "interrupted");
    const auto event = inbox.take(kRemakeTick);
    if (!event && steady_now() < deadline) continue;
    if (!event)
      return error(Code::kDeadline, "its worker has not ended within {}", to_string(limit));
    if (event->is_closed()) return remake_end(worker, ended);
    if (const auto* hello = as_if<WorkerHello>(event->message))
      RETURN_IF_ERROR(check_hello(*hello, expected));
    if (const auto* end = as_if<RunEnded>(event->message)) ended = *end;
  }
}

Result<ResumePoint> make_checkpoint(const Remake& remake, const Tenant& tenant,
                                    const fs::path& source, const fs::path& out,
                                    const fs::path& log_file) {
  LaunchOptions options = remake_launch(remake, tenant, source, out);
  ASSIGN_OR_RETURN(options.program, worker_program());
  options.log_file = log_file;
  auto inbox = std::make_shared<ControlInbox>();
  ASSIGN_OR_RETURN(auto worker, WorkerProcess::launch(options, inbox));
  RETURN_IF_ERROR(await_remake(*worker, *inbox, remake));
  return read_checkpoint(out / fmt::format("step_{}", remake.step), CheckpointDepth::kSizes);
}

}  // namespace

Result<ResumeChoice> read_fork(const std::string& fork) {
  constexpr std::string_view kStep = "@step=";
  ResumeChoice choice;
  const size_t at = fork.rfind(kStep);
  const char* const end = fork.data() + fork.size();
  const char* const digits = at == std::string::npos ? end : fork.data() + at + kStep.size();
  const auto [stop, fault] = std::from_chars(digits, end, choice.fork_step);
  if (at == std::string::npos || fault != std::errc() || stop != end || choice.fork_step < 1)
    return error(Code::kInvalid, "--fork: '{}' names no step of a run", fork)
        .note("write it as in --fork runs/latest@step=40");
  std::error_code missing;
  choice.fork_of = fs::canonical(fork.substr(0, at), missing);
  if (missing || !fs::exists(choice.fork_of / "run.json", missing))
    return error(Code::kNotFound, "--fork: '{}' is no run folder", fork.substr(0, at));
  choice.graph_file = choice.fork_of / "graph.resolved.toml";
  auto forked = forked_graph(choice.fork_of, choice.fork_step);
  if (!forked.ok()) return Error(forked.error()).while_doing("--fork");
  choice.fork_tenancies = std::move(forked->tenancies);
  choice.notes = std::move(forked->notes);
  if (!forked->text.empty()) RETURN_IF_ERROR(make_graph_file(forked->text, choice));
  return choice;
}

Status choose_fork_points(const Plan& plan, ResumeChoice& choice) {
  const int64_t step = choice.fork_step;
  choice.points.resize(plan.tenants.size());
  choice.remakes.resize(plan.tenants.size());
  std::optional<Result<TrainingRecord>> record;
  std::vector<std::optional<ResumePoint>> older(plan.tenants.size());
  std::vector<Lack> lacks;
  for (const Tenant& tenant : plan.tenants) {
    const size_t slot = tenant.slot.index();
    auto found =
        find_checkpoints(source_folder(choice, plan, tenant), CheckpointDepth::kContents, step);
    for (auto& note : found.ignored) choice.notes.push_back(std::move(note));
    if (found.newest && found.newest->step == step) {
      choice.points[slot] = *std::move(found.newest);
      continue;
    }
    older[slot] = std::move(found.newest);
    if (!record) record = TrainingRecord::open(choice.fork_of);
    std::optional<int64_t> last_step;
    auto remake = find_remake(*record, tenant, step, last_step);
    if (!remake.ok()) {
      lacks.push_back({tenant.slot, last_step, remake.error()});
      continue;
    }
    choice.notes.push_back(remake->text());
    choice.points[slot].step = step;
    choice.remakes[slot] = std::make_shared<const Remake>(std::move(remake).value());
  }
  if (lacks.size() == plan.tenants.size()) return no_fork_step(plan, choice, std::move(lacks));
  for (const Lack& lack : lacks)
    begin_earlier(lack, plan.tenants[lack.tenant.index()], std::move(older[lack.tenant.index()]),
                  choice);
  return ok();
}

Status make_fork_checkpoints(const Plan& plan, const RunFolder& folder, ResumeChoice& choice) {
  for (size_t slot = 0; slot < choice.remakes.size(); ++slot) {
    if (choice.remakes[slot] == nullptr) continue;
    const auto remake = std::exchange(choice.remakes[slot], nullptr);
    const Tenant& tenant = plan.tenants[slot];
    const fs::path out =
        checkpoints_folder(folder.path(), tenancy_name(tenant), plan.layout_tenants());
    auto made = make_checkpoint(
        *remake, tenant, choice.fork_of, out,
        folder.logs_folder() / fmt::format("remake-{}.stderr", folder_name(tenant.name)));
    if (!made.ok() && made.error().code() == Code::kCancelled) return made.error();
    if (!made.ok())
      return with_forkable(std::move(made).error().while_doing(fmt::format(
                               "--fork: re-making the checkpoint of step {}", remake->step)),
                           plan, choice);
    choice.points[slot] = std::move(made).value();
    choice.notes.push_back(fmt::format("it begins after step {} of another run, '{}'",
                                       choice.fork_step, choice.fork_of.string()));
  }
  return ok();
}

}  // namespace primerl
