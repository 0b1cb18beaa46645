#include "runtime/worker/worker_remake.h"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "actors/trainer/trainer.h"
#include "graph/base/files.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/devices.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/signals.h"
#include "runtime/replay/remade_checkpoint.h"
#include "runtime/store/checkpoint.h"
#include "runtime/transport/control_channel.h"

namespace primerl {
namespace {

struct RemakeArguments {
  std::string run;
  std::string tenant;
  int64_t step = 0;
  std::string out;  // the `checkpoints/` folder of the tenant in the new run
  int64_t control = -1;
};

/// The part of the manifest about the trainer, from its saved state.
Result<Json> checkpoint_state(const Remake& remake, const SavedFields& saved) {
  const Contract& contract = remake.plan->contract_of(remake.trainer);
  if (contract.name != Trainer::contract().name)
    return error(Code::kInvalid,
                 "its actor '{}' trains: only checkpoints of the actor '{}' can be made again",
                 contract.name, Trainer::contract().name);
  Trainer trainer({});
  RETURN_IF_ERROR(restore_actor(contract, saved, trainer));
  Json state = trainer.checkpoint_state(remake.plan->tenants[remake.tenant.index()]);
  ASSIGN_OR_RETURN(const int64_t step, state.get_int("step"));
  CHECK(step == remake.step, "the trainer stopped after another step");
  return state;
}

Status make_checkpoint(const RemakeArguments& arguments, const Remake& remake) {
  const ProcessId process = remake.plan->group(remake.group).process;
  RETURN_IF_ERROR(check_devices(*remake.plan, process, &why_no_torch_on));
  // The run that begins with this checkpoint removes old checkpoints itself.
  CheckpointStore store(system_files(), arguments.out, arguments.tenant, {.last = 0});
  return play_to_checkpoint(remake, resource_factory(),
                            [&](Learner& learner, const SavedFields& trainer) -> Status {
                              ASSIGN_OR_RETURN(const Json state, checkpoint_state(remake, trainer));
                              ASSIGN_OR_RETURN(const auto folder, store.begin(remake.step));
                              RETURN_IF_ERROR(learner.save(remake.tenant, folder));
                              return store.commit(remake.step, state);
                            });
}

/// Plans, sends hello, and plays.
Status remake_checkpoint(const RemakeArguments& arguments, ControlChannel& control) {
  ASSIGN_OR_RETURN(const TrainingRecord record, TrainingRecord::open(arguments.run));
  ASSIGN_OR_RETURN(const Remake remake, record.remake(arguments.tenant, arguments.step));
  WorkerHello hello;
  hello.graph_hash = remake.plan->graph_hash;
  hello.types_hash = WireTypes(remake.plan->catalog->messages).hash();
  hello.process = remake.plan->process(remake.plan->group(remake.group).process).name;
  hello.pid = ::getpid();
  RETURN_IF_ERROR(control.send(std::move(hello)));
  return make_checkpoint(arguments, remake);
}

int run_remake(const RemakeArguments& arguments) {
  leave_ending_to_launcher();
  outlive_readers(), report_file_limits();
  auto inbox = std::make_shared<ControlInbox>();
  auto control = open_inherited_control(static_cast<int>(arguments.control), inbox);
  if (!control.ok()) return fail(control.error(), kExitBadCommandLine);
  const Status made = remake_checkpoint(arguments, **control);
  RunEnded ended;
  ended.end = static_cast<uint8_t>(made.ok() ? RunEnd::kFinished : RunEnd::kFailed);
  if (!made.ok()) {
    ended.code = static_cast<uint8_t>(made.error().code());
    ended.text = made.error().text();
  }
  (void)(*control)->send(std::move(ended));
  (*control)->close();
  if (made.ok()) return kExitDone;
  if (made.error().code() == Code::kDeadline) std::_Exit(kExitFailed);  // its thread is lost
  return kExitFailed;
}

}  // namespace

Command remake_command() {
  auto arguments = std::make_shared<RemakeArguments>();
  return {
      "remake", "makes a checkpoint of a recorded run again, for `primerl-graph run --fork`",
      "primerl-worker remake --run runs/a --tenant main --step 15 --out runs/b/checkpoints "
      "--control 3",
      [arguments](Arguments& flags) {
        flags.text(arguments->run, "--run", "DIR", "the recorded run");
        flags.text(arguments->tenant, "--tenant", "NAME", "whose checkpoint");
        flags.integer(arguments->step, "--step", "N", "after which training step", 1, INT64_MAX);
        flags.text(arguments->out, "--out", "DIR", "the folder of checkpoints to write it to");
        flags.integer(arguments->control, "--control", "FD", "the control channel", 0, INT32_MAX);
      },
      [arguments] { return run_remake(*arguments); }};
}

}  // namespace primerl
