#include "actors/judge/judge.h"

#include <algorithm>
#include <cmath>

#include "actors/common/tenant_chat.h"
#include "graph/base/terminal_text.h"
#include "graph/tenancies.h"

namespace primerl {
namespace {

/// Added to the logits of "yes" and "no", so that no other token is sampled. Both get the same, so
/// their ratio stays that of the model.
constexpr double kYesNoBias = kLogitBiasMax;

Amount of_tenants(int64_t (*value)(const Tenant& tenant), std::string text) {
  return {[value](const void*, std::span<const Tenant> tenants) {
            int64_t most = 1;
            for (const Tenant& tenant : tenants) most = std::max(most, value(tenant));
            return most;
          },
          std::move(text)};
}

Amount requests_in_flight() {
  return of_tenants([](const Tenant& tenant) { return tenant.inflight_max; }, "max_inflight");
}

Amount scores_in_flight() {
  return of_tenants([](const Tenant& tenant) { return tenant.inflight_max * num_judges(tenant); },
                    "max_inflight * judges of a tenant");
}

Amount cancels_of_drain() {
  return of_tenants([](const Tenant& tenant) { return num_cancels(tenant.inflight_max); },
                    "max_inflight / 64 + 1");
}

Result<int32_t> token_of(const Tokenizer& tokenizer, std::string_view option,
                         const std::string& text) {
  ASSIGN_OR_RETURN(const auto ids, tokenizer.encode_text(text));
  if (ids.size() == 1) return ids.front();
  return error(Code::kInvalid, "'{}' is '{}', which is {} tokens of the judge, not one", option,
               shown_text(text, 40), ids.size())
      .note("choose a word that the judge's tokenizer has as one token");
}

/// A score for rehearsals. A greedy scripted engine writes one answer for all requests, and groups
/// whose rewards are equal do not train, so the score follows from the request.
double scripted_score(const Completion& completion) {
  return static_cast<double>(mix(completion.request, 0) % 1001) / 1000;
}

}  // namespace

Result<JudgeReader> make_judge_reader(const TenantReward& reward, const Tenant& tenant,
                                      const Tokenizer& tokenizer) {
  JudgeReader reader;
  reader.options = judge_options_of(reward);
  const auto& source = tokenizer.chat_source();
  const bool has_template =
      source != nullptr && (!source->templates.empty() || !source->fault.empty());
  if (has_template) {
    Tenant judge;
    judge.name = tenant.name;
    judge.chat.kwargs = reader.options.kwargs;
    judge.chat.date = tenant.chat.date;
    ASSIGN_OR_RETURN(reader.chat, chat_format_of(judge, tokenizer));
  }
  if (!reader.is_yes_no() || source == nullptr) return reader;
  ASSIGN_OR_RETURN(reader.yes, token_of(tokenizer, "yes", reader.options.yes));
  ASSIGN_OR_RETURN(reader.no, token_of(tokenizer, "no", reader.options.no));
  if (reader.yes == reader.no)
    return error(Code::kInvalid, "'yes' and 'no' are the same token {} of the judge", reader.yes);
  return reader;
}

Contract Judge::contract() {
  using O = JudgeNodeOptions;
  return ContractOf<Judge, O>(std::string(kJudgeActor), "asks a frozen model to score answers")
      .uses<Tokenizer>("tokenizer", &O::model, "the judge's model, whose chat template it uses")
      .option("attempts_max", &O::attempts_max, count_from(0),
              "engine losses or failures that one question survives")
      .in("question", &Judge::on_question, "an answer to score",
          refuse_with(&Judge::refuse_question))
      .in("completion", &Judge::on_completion, "the one answer to a request",
          at_most(requests_in_flight()))
      .timer("deadline", &Judge::on_deadline, "a question ran out of time")
      .timer("send", &Judge::on_send, "a question that waits can be sent")
      .out("generate", &Judge::generate_, "a prompt to continue")
      .out("score", &Judge::score_, "the one answer to a question", addressed(), burst(2),
           at_most(scores_in_flight()))
      .out("cancel", &Judge::cancel_, "cancelled requests", burst(cancels_of_drain()),
           at_most(requests_in_flight()))
      .for_loops()
      .single()
      .one_tenant()
      .state([](auto& f) {
        f("asked", &Judge::asked_);
        EngineAsker::asker_fields(f);
      });
}

Status Judge::start(Resources& resources) {
  tokenizer_ = &resources.get<Tokenizer>("tokenizer");
  // A rehearsal's tokenizer has no folder.
  is_scripted_ = tokenizer_->chat_source() == nullptr;
  tenant_ = services().tenants().front();
  begin_requests(services().tenant(tenant_));
  const auto& rewards = tenant().rewards;
  for (uint32_t i = 0; i < rewards.size(); ++i) {
    if (!is_judge(rewards[i])) continue;
    auto reader = make_judge_reader(rewards[i], tenant(), *tokenizer_);
    if (!reader.ok())
      return std::move(reader).error().while_doing(fmt::format("reward '{}'", rewards[i].label));
    readers_.emplace(i, *std::move(reader));
  }
  return ok();
}

size_t Judge::requests_max() const {
  return static_cast<size_t>(std::max<int64_t>(tenant().inflight_max, 1));
}

Status Judge::on_question(const JudgeQuestion& question) {
  if (is_draining_) return ok();
  const auto reader = readers_.find(question.reward);
  if (reader == readers_.end())
    return error(Code::kInvalid, "reward {} of tenant '{}' is no judge", question.reward,
                 tenant().name);
  asked_[ask(reader->second.options.timeout)] = {question, services().delivery().sender};
  services().count("judge_questions", 1);
  send_next();
  arm_deadline();
  return ok();
}

void Judge::refuse_question(const JudgeQuestion& question, const Error& error) {
  score_.send({.question = question.question, .score = 0, .fault = error.text()},
              to(services().delivery().sender).for_tenant(tenant_));
}

Result<GenerateRequest> Judge::request_of(uint64_t number) {
  const JudgeQuestion& question = asked_.at(number).question;
  const JudgeReader& reader = reader_of(number);
  GenerateRequest request;
  if (reader.chat) {
    RETURN_IF_ERROR(check_messages(question.messages));
    ASSIGN_OR_RETURN(request.prompt_tokens, reader.chat->prompt(question.messages, nullptr));
  } else {
    std::string text;
    for (const ChatMessage& message : question.messages)
      text += (text.empty() ? "" : "\n\n") + text_of(message);
    ASSIGN_OR_RETURN(request.prompt_tokens, encode_start(*tokenizer_, text));
  }
  // One for all questions: a rubric's KV blocks are computed once.
  request.salt = tenancy_salt("judge", services().tenant(tenant_));
  request.seed = services().random(tenant_, "judge", question.question).next();
  request.sampling.temperature = reader.options.temperature;
  request.sampling.max_tokens = static_cast<int32_t>(reader.options.max_tokens);
  if (reader.chat && reader.chat->end_id() >= 0)
    request.sampling.stop_ids = {reader.chat->end_id()};
  if (reader.is_yes_no()) {
    request.sampling.max_tokens = 1;
    request.sampling.temperature = 1;
  }
  // A scripted engine has no logits.
  if (reader.is_yes_no() && !is_scripted_)
    request.sampling.logit_bias = {{std::min(reader.yes, reader.no), kYesNoBias},
                                   {std::max(reader.yes, reader.no), kYesNoBias}};
  return request;
}

void Judge::on_answer(uint64_t question, const Completion& completion) {
  const JudgeReader& reader = reader_of(question);
  const Result<double> read_score = read(reader, completion);
  if (read_score.ok()) return score(question, *read_score, "");
  services().count("judge_answers_unparsed", 1);
  if (reader.options.unparsed == "zero") return score(question, 0, "");
  score(question, 0, read_score.error().text());
}

void Judge::on_fault(uint64_t question, std::string fault) { score(question, 0, std::move(fault)); }

std::string Judge::late_text(uint64_t question) const {
  return fmt::format("no score within {}", to_string(reader_of(question).options.timeout));
}

Result<double> Judge::read(const JudgeReader& reader, const Completion& completion) const {
  if (completion.tokens.empty() || completion.tokens.size() != completion.logprobs.size())
    return error(Code::kInvalid, "the engine gave {} tokens and {} log-probabilities",
                 completion.tokens.size(), completion.logprobs.size());
  if (is_scripted_) return scripted_score(completion);
  if (reader.is_yes_no()) {
    const int32_t token = completion.tokens.front();
    const double probability = std::exp(static_cast<double>(completion.logprobs.front()));
    if (token == reader.yes) return std::clamp(probability, 0.0, 1.0);
    if (token == reader.no) return std::clamp(1 - probability, 0.0, 1.0);
    return error(Code::kInvalid, "the judge's token {} is neither 'yes' nor 'no'", token);
  }
  if (completion.end == FinishReason::kLength)
    return error(Code::kInvalid, "the judge's answer was cut at max_tokens {}",
                 reader.options.max_tokens);
  if (reader.chat)
    return judge_rating(reader.options, text_of(reader.chat->parse(completion.tokens).message));
  ASSIGN_OR_RETURN(const std::string text, tokenizer_->decode(completion.tokens));
  return judge_rating(reader.options, text);
}

void Judge::score(uint64_t question, double score, std::string fault) {
  const Asked asked = std::move(asked_.at(question));
  const uint64_t cause = cause_of(question);
  asked_.erase(question);
  forget(question);
  if (!fault.empty()) {
    services().count("judge_faults", 1);
    fault = "the judge: " + fault;
  }
  score_.send({.question = asked.question.question, .score = score, .fault = std::move(fault)},
              to(asked.asker)
                  .for_tenant(tenant_)
                  .answering({services().self(), cause})
                  .to_origin_of(asked.asker));
}

/// An environment that has gone reads no score; Rollout sends its actions to another one.
Status Judge::on_peer(const PeerEvent& event) {
  if (event.kind == PeerEvent::Kind::kDown) {
    std::vector<uint64_t> dropped;
    for (const auto& [question, asked] : asked_)
      if (asked.asker == event.instance) dropped.push_back(question);
    for (const uint64_t question : dropped) asked_.erase(question);
    drop(dropped);
  }
  return EngineAsker::on_peer(event);
}

Status Judge::drain() {
  is_draining_ = true;
  asked_.clear();
  drop_all();
  return ok();
}

}  // namespace primerl
