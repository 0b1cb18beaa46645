// Runs: rollouts that the environment's server plays whole (docs/design/verifiers.md).
#include <algorithm>
#include <utility>

#include "actors/env/env.h"
#include "actors/env/run_calls.h"

namespace primerl {

Status Env::on_run(const Run& run) {
  num_asked_ = 0;
  if (is_draining_) return ok();
  ASSIGN_OR_RETURN(const Source* const source, source_of({.environment = run.environment}));
  if (!drives_rollouts(*source))
    return error(Code::kInvalid, "a run came, but the environment '{}' does not drive rollouts",
                 source->tenant->environment_label());
  if (run.num_members < 1) return error(Code::kInvalid, "a run of {} members", run.num_members);
  const auto is_same = [&](const auto& each) { return each.second.name == run.name; };
  if (std::ranges::any_of(runs_, is_same))
    return error(Code::kInvalid, "the run {}.{}.{} came twice", run.name.ordinal, run.name.attempt,
                 run.name.member);
  const auto pool = static_cast<uint32_t>(source->use.environment);
  OutsideCall call;
  call.pool = pool;
  call.session = next_call();
  call.is_whole = false;
  call.body = run_body(run, services().tenant(tenant_).name, pools_.spec.pools[pool]);
  const uint64_t session = call.session;
  RETURN_IF_ERROR(ask({Asked::Kind::kRun, session}, std::move(call)));
  runs_[session] = {run.name, run.num_members, services().delivery().ref.step, run.environment};
  return ok();
}

void Env::refuse_run(const Run& run, const Error& error) {
  RunAnswered ended;
  ended.name = run.name;
  ended.fault = error.text();
  send_run_answered(std::move(ended), services().delivery().ref.step);
}

Status Env::on_cancel_runs(const CancelRuns& cancel) {
  num_asked_ = 0;
  if (is_draining_) return ok();
  // A cancelled run has its answer from outside, as any other.
  for (const auto& [session, run] : runs_)
    if (std::ranges::find(cancel.names, run.name) != cancel.names.end())
      outside_->forget(static_cast<uint32_t>(sources_[run.environment].use.environment), session);
  return ok();
}

void Env::on_run_answer(uint64_t session, const OutsideAnswer& answer) {
  const auto found = runs_.find(session);
  if (found == runs_.end()) return;
  const Driven run = found->second;
  runs_.erase(found);
  RunAnswered ended;
  ended.name = run.name;
  if (answer.end == OutsideEnd::kDone) {
    auto members = read_run(answer.body, run.num_members);
    if (members.ok())
      ended.members = std::move(*members);
    else
      ended.fault = members.error().text();
  } else {
    ended.is_lost = answer.end == OutsideEnd::kLost;
    ended.fault = answer.body.empty() ? "the run failed without an error" : answer.body;
  }
  if (!ended.fault.empty()) services().count(ended.is_lost ? "runs_lost" : "run_faults", 1);
  send_run_answered(std::move(ended), run.cause);
}

void Env::send_run_answered(RunAnswered ended, uint64_t cause) {
  // Many short branches, or many scores of many members.
  if (const size_t bytes = body_bytes_max(ended); bytes > kMessageBytesMax) {
    ended.members.clear();
    ended.fault = fmt::format("its results have {} bytes besides tokens, at most {} are allowed",
                              bytes, kMessageBytesMax);
  }
  run_answered_.send(std::move(ended), for_tenant(tenant_).answering({services().self(), cause}));
}

}  // namespace primerl
