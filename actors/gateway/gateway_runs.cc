// Requests of runs: rollouts that their environment drives (docs/design/verifiers.md).
#include <utility>

#include "actors/gateway/gateway.h"
#include "actors/messages/rollout.h"
#include "kernels/engine/block_hash.h"

namespace primerl {
namespace {

/// The learner assumes that tokens are sampled as the tenant says.
void use_sampling_of(const TenantSampling& tenant, SamplingParams& sampling) {
  sampling.temperature = tenant.temperature;
  sampling.top_k = static_cast<int32_t>(tenant.top_k);
  sampling.top_p = tenant.top_p;
  sampling.min_p = tenant.min_p;
  const SamplingParams neutral;
  sampling.min_tokens = neutral.min_tokens;
  sampling.logit_bias = neutral.logit_bias;
  sampling.repetition_penalty = neutral.repetition_penalty;
  sampling.frequency_penalty = neutral.frequency_penalty;
  sampling.presence_penalty = neutral.presence_penalty;
}

/// Most tokens that the turn of a request can add to its run.
int64_t tokens_max_of(const GenerateRequest& request) {
  return request.num_prompt_tokens() + request.sampling.max_tokens;
}

}  // namespace

Status Gateway::begin_turn(const RunSalt& run, bool is_seeded_here, Generation& generation) {
  const TenantSlot slot = generation.tenant;
  const Tenant& tenant = services().tenant(slot);
  GenerateRequest& request = generation.request;
  if (run.tenant != tenant.name)
    return error(Code::kInvalid, "'cache_salt' names a rollout of '{}', but the model is '{}'",
                 run.tenant, tenant.name);
  if (run.seal != seal_of(run, seal_key(slot)))
    return error(Code::kInvalid,
                 "'cache_salt' names a rollout, but its seal '{}' is not the one of this name",
                 run.seal)
        .note("use the whole salt that the environment was given for this rollout");
  if (!has_rollouts(slot))
    return error(Code::kInvalid, "'cache_salt' names a rollout, but no environment drives rollouts")
        .note("a salt without '|' is only a salt");
  RunTurns& runs = tenants_[slot].runs;
  const Tenant& own = tenant_of_run(slot, run.name.ordinal);
  RETURN_IF_ERROR(runs.begin(run.name, tokens_max_of(request), own.turns_max * run.num_members));
  generation.run = TurnOf{run.name, run.version};
  const MemberName& name = run.name;
  const auto number = static_cast<uint64_t>(runs.num_begun(name));
  // A run that begins again gets the same seeds.
  if (is_seeded_here)
    request.seed = services()
                       .random(slot, "turn of a run", mix(mix(name.ordinal, name.member), number))
                       .next();
  if (request.session == 0)
    request.session =
        stable_hash(fmt::format("{}.{}.{}", name.ordinal, name.attempt, name.member), 8) |
        (uint64_t{1} << 63);
  if (is_evaluation(name.ordinal)) return ok();
  const SamplingParams wanted = request.sampling;
  use_sampling_of(own.sampling, request.sampling);
  if (wanted != request.sampling)
    warn_of({"other sampling than that of the tenant, in requests that train"});
  return ok();
}

void Gateway::send_turn(Generation& generation, const Completion& completion) {
  if (!generation.run) return;
  const MemberName name = generation.run->name;
  generation.run.reset();
  const GenerateRequest& request = generation.request;
  MemberTurn turn = tenants_[generation.tenant].runs.add(name, tokens_max_of(request),
                                                         request.prompt_tokens, completion.tokens);
  turn.logprobs = completion.logprobs;
  turn.spans = completion.spans;
  turn.kept = completion.kept;
  services().count("turns_of_runs", 1);
  turn_.send(std::move(turn), send_options(generation.tenant));
}

void Gateway::end_turn(const Generation& generation) {
  if (generation.run)
    tenants_[generation.tenant].runs.end(generation.run->name, tokens_max_of(generation.request));
}

const Tenant& Gateway::tenant_of_run(TenantSlot slot, uint64_t ordinal) const {
  const Tenant& tenant = services().tenant(slot);
  const auto mix = mixes_.find(slot);
  if (mix == mixes_.end()) return tenant;
  if (!is_evaluation(ordinal)) return tenant.in_environment(mix->second.at(ordinal).environment);
  // A forged name may say that there are evaluations.
  if (tenant.eval.rows <= 0) return tenant;
  return tenant.in_environment(evaluation_row_of(tenant, ordinal).environment);
}

uint64_t Gateway::seal_key(TenantSlot slot) const {
  return services().random(slot, "names of runs", 0).next();
}

Status Gateway::on_member_closed(const MemberClosed& closed) {
  num_asked_ = 0;
  const TenantSlot slot = services().delivery().tenant;
  for (const MemberName& name : closed.names) {
    std::vector<uint64_t> running;
    for (const auto& [number, generation] : generations_)
      if (generation.tenant == slot && generation.run && generation.run->name == name)
        running.push_back(number);
    for (const uint64_t number : running) {
      const std::vector<Client> clients = generations_.at(number).clients;
      abandon(number);
      const std::string body = http_error_body(410, "the rollout has ended");
      for (const Client& client : clients) reply(client.request, 410, body, client.request_id);
    }
    turn_.send(tenants_[slot].runs.close(name), send_options(slot));
  }
  return ok();
}

/// The call has an answer once the listener's address differs from the one known here: at the
/// start, and after the run was resumed.
Status Gateway::ask_address() {
  bool is_wanted = false;
  for (const auto& [slot, tenant] : tenants_) is_wanted |= !address_.targets(slot).empty();
  if (!is_wanted || is_address_asked_) return ok();
  is_address_asked_ = true;
  return ask(AskedKind::kAddress, address_call(base_url_));
}

Status Gateway::on_address(const std::string& answer) {
  is_address_asked_ = false;
  ASSIGN_OR_RETURN(base_url_, read_address(answer));
  for (const auto& [slot, tenant] : tenants_)
    if (!address_.targets(slot).empty())
      address_.send({base_url_, seal_key(slot)}, send_options(slot));
  return ok();
}

}  // namespace primerl
