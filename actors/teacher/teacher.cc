#include "actors/teacher/teacher.h"

#include <algorithm>
#include <utility>

#include "actors/common/group_bytes.h"
#include "graph/tenancies.h"
#include "kernels/train/objective.h"
#include "kernels/train/packing.h"
#include "kernels/train/top_k.h"

namespace primerl {
namespace {

std::string fault_of_temperature(const TeacherOptions&, const Tenant& tenant) {
  if (!tenant.teacher.is_there() || tenant.sampling.temperature == 1) return {};
  return fmt::format("is {}: the teacher's log-probabilities are those of temperature 1",
                     tenant.sampling.temperature);
}

/// A policy that keeps some tokens is renormalised over them, and the teacher is not.
std::string fault_of_sampling(const TeacherOptions&, const Tenant& tenant) {
  const TenantSampling& sampling = tenant.sampling;
  if (!tenant.teacher.is_there()) return {};
  if (sampling.top_k != 0)
    return fmt::format("has top_k = {}: the teacher's log-probabilities are over all tokens",
                       sampling.top_k);
  if (sampling.top_p != 1)
    return fmt::format("has top_p = {}: the teacher's log-probabilities are over all tokens",
                       sampling.top_p);
  if (sampling.min_p != 0)
    return fmt::format("has min_p = {}: the teacher's log-probabilities are over all tokens",
                       sampling.min_p);
  return {};
}

Amount cancels_of_drain() {
  return {[](const void* options, std::span<const Tenant>) {
            return num_cancels(static_cast<const TeacherOptions*>(options)->requests_max);
          },
          "requests_max / 64 + 1"};
}

/// Whether the arrays of a member can be cut into samples; the trainer refuses the others.
bool has_samples(const Trajectory& member) {
  if (member.sampled.size() != member.tokens.size()) return false;
  int64_t last = 0;
  for (const int32_t begin : member.sample_begins) {
    if (begin <= last || std::cmp_greater_equal(begin, member.tokens.size())) return false;
    last = begin;
  }
  return true;
}

std::string fault_of_top_k(const TeacherOptions&, const Tenant& tenant) {
  const ObjectiveSpec* const spec = find_objective(tenant.objective);
  if (tenant.teacher.top_k == 0 || (spec != nullptr && spec->rule == ObjectiveRule::kTopK))
    return {};
  return fmt::format("has no effect: '{}' does not read the likeliest tokens", tenant.objective);
}

/// The likeliest tokens of the tokens [begin, end) of a member, one sample. The engine has a row
/// for each but the first, the member one for each sampled token.
Status add_top(Trajectory& member, size_t begin, size_t end, const Completion& answer, size_t k) {
  const size_t wanted = (end - begin - 1) * k;
  if (answer.prompt_top_tokens.size() != wanted || answer.prompt_top_logprobs.size() != wanted)
    return error(Code::kInvalid, "the engine gave {} likeliest tokens of {}",
                 answer.prompt_top_tokens.size(), wanted);
  const auto is_sampled = [&](size_t i) { return member.sampled[i] == 1; };
  TrainSample sample;  // of the rows that are written, as the trainer will check them
  size_t row = 0;      // of the member
  for (size_t i = 0; i < begin; ++i) row += is_sampled(i) ? 1 : 0;
  const size_t first_row = row;
  sample.loss_mask.assign(member.sampled.begin() + std::ptrdiff_t(begin),
                          member.sampled.begin() + std::ptrdiff_t(end));
  const auto append = [&](const auto& from, size_t at, auto& to) {
    if (at == 0)
      to.resize(to.size() + k);  // nothing is before the first token; its row is not read
    else
      to.insert(to.end(), from.begin() + std::ptrdiff_t((at - 1) * k),
                from.begin() + std::ptrdiff_t(at * k));
  };
  for (size_t i = begin; i < end; ++i) {
    if (!is_sampled(i)) continue;
    append(answer.prompt_top_tokens, i - begin, sample.top_tokens);
    append(answer.prompt_top_logprobs, i - begin, sample.top_logprobs);
  }
  RETURN_IF_ERROR(check_top_k(sample));
  std::ranges::copy(sample.top_tokens, member.top_tokens.begin() + std::ptrdiff_t(first_row * k));
  std::ranges::copy(sample.top_logprobs,
                    member.top_logprobs.begin() + std::ptrdiff_t(first_row * k));
  return ok();
}

}  // namespace

Status add_reference(Trajectory& member, size_t sample, const Completion& answer, int64_t top_k) {
  const auto [begin, end] = member.sample(sample);
  const std::vector<float>& logprobs = answer.prompt_logprobs;
  if (logprobs.size() + 1 != end - begin)
    return error(Code::kInvalid, "the engine gave {} log-probabilities for {} tokens",
                 logprobs.size(), end - begin);
  for (size_t i = begin + 1; i < end; ++i)
    if (const float logprob = logprobs[i - begin - 1];
        member.sampled[i] != 0 && !(logprob >= kLogprobMin && logprob <= kLogprobMax))
      return error(Code::kInvalid, "the log-probability of token {} is {}, not in [{}, {}]", i,
                   logprob, kLogprobMin, kLogprobMax);
  if (top_k > 0) RETURN_IF_ERROR(add_top(member, begin, end, answer, static_cast<size_t>(top_k)));
  for (size_t i = begin + 1; i < end; ++i)
    if (member.sampled[i] != 0) member.reference[i] = logprobs[i - begin - 1];
  return ok();
}

Contract Teacher::contract() {
  using O = TeacherOptions;
  return ContractOf<Teacher, O>(std::string(kTeacherActor),
                                "asks a frozen model how likely the tokens of each group are")
      .uses<Tokenizer>("tokenizer", &O::model, "the teacher's model")
      .option("requests_max", &O::requests_max, between(1, 1 << 16) | unit("requests"),
              "requests to its engine at once")
      .option("groups_max", &O::groups_max, between(1, 1 << 16) | unit("groups"),
              "groups here at once; further ones wait on the edge")
      .option("attempts_max", &O::attempts_max, count_from(0),
              "engine losses or failures that one sample survives")
      .in("group", &Teacher::on_group, "all members of one group have ended")
      .in("completion", &Teacher::on_completion, "the one answer to a request",
          at_most(&O::requests_max, "requests_max"))
      .timer("deadline", &Teacher::on_deadline, "a sample ran out of time")
      .timer("send", &Teacher::on_send, "a sample that waits can be sent")
      .out("generate", &Teacher::generate_, "a sample to score")
      .out("scored", &Teacher::scored_, "the group with its log-probabilities",
           message_bytes(group_bytes(GroupKind::kSampled)))
      .out("cancel", &Teacher::cancel_, "cancelled requests", burst(cancels_of_drain()),
           at_most(&O::requests_max, "requests_max"))
      .demands("sampling.temperature", &fault_of_temperature, "write temperature = 1.0")
      .demands("sampling", &fault_of_sampling, "leave out top_k, top_p and min_p")
      .demands("teacher.top_k", &fault_of_top_k, "write loss = { kind = \"gkd\" }, or leave it out")
      .teaches()
      .for_loops()
      .single()
      .one_tenant()
      .state([](auto& f) {
        f("asked", &Teacher::asked_)("questions", &Teacher::questions_)("next_asked",
                                                                        &Teacher::next_asked_);
        EngineAsker::asker_fields(f);
      });
}

Status Teacher::start(Resources&) {
  tenant_ = services().tenants().front();
  begin_requests(services().tenant(tenant_));
  return ok();
}

Status Teacher::on_group(const TrajectoryGroup& group) {
  const auto& delivery = services().delivery();
  Asked asked{group, delivery.ref.step, delivery.origin};
  asked.group.is_cancelled |= is_draining_;
  if (is_draining_ || !tenant().teacher.is_there() || is_evaluation(group.ordinal)) {
    send(std::move(asked));
    return ok();
  }
  const uint64_t number = next_asked_++;
  asked_.emplace(number, std::move(asked));
  const size_t num_members = group.members.size();
  for (size_t i = 0; i < num_members; ++i) ask_for(number, static_cast<uint32_t>(i));
  if (const auto found = asked_.find(number); found->second.num_open == 0) {
    send(std::move(found->second));
    asked_.erase(found);
    return ok();
  }
  send_next();
  arm_deadline();
  update_flow();
  return ok();
}

void Teacher::ask_for(uint64_t asked, uint32_t index) {
  Asked& of = asked_.at(asked);
  Trajectory& member = of.group.members[index];
  if (member.is_failed || !has_samples(member)) return;
  member.reference.assign(member.tokens.size(), 0.0F);
  const auto top = static_cast<size_t>(tenant().teacher.top_k) *
                   static_cast<size_t>(std::ranges::count(member.sampled, uint8_t{1}));
  member.top_tokens.assign(top, 0);
  member.top_logprobs.assign(top, 0.0F);
  for (size_t i = 0; i < member.num_samples(); ++i) {
    const auto [begin, end] = member.sample(i);
    if (end - begin < 2) continue;  // the first token of a sample has no log-probability
    questions_[ask(tenant().teacher.timeout)] = {asked, index, static_cast<uint32_t>(i)};
    ++of.num_open;
    services().count("teacher_samples", 1);
  }
}

Result<GenerateRequest> Teacher::request_of(uint64_t number) {
  const Question& question = questions_.at(number);
  const Trajectory& member = asked_.at(question.asked).group.members[question.member];
  const auto [begin, end] = member.sample(question.sample);
  GenerateRequest request;
  request.prompt_tokens.assign(member.tokens.begin() + std::ptrdiff_t(begin),
                               member.tokens.begin() + std::ptrdiff_t(end));
  request.salt = tenancy_salt("teacher", services().tenant(tenant_));
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 1;
  request.sampling.prompt_logprobs = true;
  request.sampling.num_prompt_top_logprobs = static_cast<int32_t>(tenant().teacher.top_k);
  return request;
}

void Teacher::on_answer(uint64_t number, const Completion& completion) {
  const Question& question = questions_.at(number);
  Trajectory& member = asked_.at(question.asked).group.members[question.member];
  const Status added = add_reference(member, question.sample, completion, tenant().teacher.top_k);
  if (!added.ok()) return on_fault(number, added.error().text());
  end(number);
}

void Teacher::on_fault(uint64_t number, std::string fault) {
  const Question& question = questions_.at(number);
  Trajectory& member = asked_.at(question.asked).group.members[question.member];
  if (member.fault.empty()) {
    member.fault = clipped_fault("the teacher: " + std::move(fault));
    services().count("teacher_members_failed", 1);
  }
  end(number);
}

std::string Teacher::late_text(uint64_t) const {
  return fmt::format("no log-probabilities within {}", to_string(tenant().teacher.timeout));
}

void Teacher::end(uint64_t number) {
  const uint64_t of = questions_.at(number).asked;
  questions_.erase(number);
  forget(number);
  const auto found = asked_.find(of);
  if (--found->second.num_open > 0) return;
  Asked asked = std::move(found->second);
  asked_.erase(found);
  send(std::move(asked));
  update_flow();
}

void Teacher::send(Asked asked) {
  const Status fits = check_group_bytes(asked.group);
  for (Trajectory& member : asked.group.members) {
    if (!fits.ok() && member.fault.empty())
      member.fault = clipped_fault("the teacher: " + fits.error().text());
    if (member.fault.empty()) continue;
    member.reference.clear();
    member.top_tokens.clear();
    member.top_logprobs.clear();
  }
  scored_.send(
      std::move(asked.group),
      for_tenant(tenant_).answering({services().self(), asked.cause}).to_origin_of(asked.origin));
}

void Teacher::update_flow() {
  if (std::cmp_greater_equal(asked_.size(), options_.groups_max))
    services().pause("group");
  else
    services().resume("group");
}

/// The trainer ends cancelled groups as such, so a resumed run opens them again.
Status Teacher::drain() {
  is_draining_ = true;
  questions_.clear();
  drop_all();
  for (auto& [number, asked] : std::exchange(asked_, {})) {
    asked.group.is_cancelled = true;
    send(std::move(asked));
  }
  update_flow();
  return ok();
}

}  // namespace primerl
