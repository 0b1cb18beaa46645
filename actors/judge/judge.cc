#include "actors/judge/judge.h"

#include <algorithm>
#include <cmath>

#include "actors/common/tenant_chat.h"
#include "graph/base/terminal_text.h"

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
  return of_tenants(
      [](const Tenant& tenant) { return tenant.inflight_max / kCancelRequestsMax + 1; },
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
      .single()
      .one_tenant()
      .state([](auto& f) {
        using J = Judge;
        f("asked", &J::asked_)("waiting", &J::waiting_)("requests", &J::requests_)(
            "cancelled", &J::cancelled_)("deadlines", &J::deadlines_)("answered", &J::answered_)(
            "routers", &J::routers_)("armed", &J::armed_)("next_arrival", &J::next_arrival_)(
            "next_request", &J::next_request_)("is_draining", &J::is_draining_);
      });
}

Status Judge::start(Resources& resources) {
  tokenizer_ = &resources.get<Tokenizer>("tokenizer");
  // A rehearsal's tokenizer has no folder.
  is_scripted_ = tokenizer_->chat_source() == nullptr;
  tenant_ = services().tenants().front();
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
  const uint64_t arrival = next_arrival_++;
  Asked& asked = asked_[arrival];
  asked.question = question;
  asked.asker = services().delivery().sender;
  asked.cause = services().delivery().ref.step;
  asked.deadline = services().now() + reader->second.options.timeout;
  deadlines_.insert({asked.deadline, arrival});
  waiting_.push_back(arrival);
  services().count("judge_questions", 1);
  send_next();
  arm_deadline();
  return ok();
}

void Judge::refuse_question(const JudgeQuestion& question, const Error& error) {
  score_.send({.question = question.question, .score = 0, .fault = error.text()},
              to(services().delivery().sender).for_tenant(tenant_));
}

void Judge::send_next() {
  while (!waiting_.empty() && !asked_.contains(waiting_.front())) waiting_.pop_front();
  if (waiting_.empty() || requests_.size() + cancelled_.size() >= requests_max()) return;
  const uint64_t arrival = waiting_.front();
  waiting_.pop_front();
  if (const Status sent = send_request(arrival); !sent.ok())
    answer(arrival, 0, "the question: " + sent.error().text());
  if (!waiting_.empty()) services().set_timer("send", Duration());
}

Status Judge::on_send() {
  send_next();
  return ok();
}

Status Judge::send_request(uint64_t arrival) {
  const Asked& asked = asked_.at(arrival);
  const JudgeReader& reader = readers_.at(asked.question.reward);
  GenerateRequest request;
  if (reader.chat) {
    RETURN_IF_ERROR(check_messages(asked.question.messages));
    ASSIGN_OR_RETURN(request.prompt_tokens, reader.chat->prompt(asked.question.messages, nullptr));
  } else {
    std::string text;
    for (const ChatMessage& message : asked.question.messages)
      text += (text.empty() ? "" : "\n\n") + text_of(message);
    ASSIGN_OR_RETURN(request.prompt_tokens, encode_start(*tokenizer_, text));
  }
  request.request = next_request_++;
  request.session = request.request;
  request.attempt = asked.attempt;
  request.salt = "judge";  // one for all questions: a rubric's KV blocks are computed once
  request.seed = services().random(tenant_, "judge", asked.question.question).next();
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
  request.time_left = std::max(asked.deadline - services().now(), Duration());
  request.answered = std::exchange(answered_, {});
  for (const InstanceId router : generate_.targets(tenant_)) routers_.insert(router);
  requests_[request.request] = arrival;
  generate_.send(std::move(request), for_tenant(tenant_)
                                         .answering({services().self(), asked.cause})
                                         .to_origin_of(services().self()));
  return ok();
}

Status Judge::on_completion(const Completion& completion) {
  answered_.push_back(completion.request);
  const auto found = requests_.find(completion.request);
  if (found == requests_.end()) {
    if (cancelled_.erase(completion.request) == 0) services().count("completions_unknown", 1);
  } else {
    const uint64_t arrival = found->second;
    requests_.erase(found);
    switch (completion.end) {
      case FinishReason::kStop:
      case FinishReason::kLength:
        on_tokens(arrival, completion);
        break;
      case FinishReason::kEngineLost:
      case FinishReason::kFailed:
        ask_again(arrival, completion.detail);
        break;
      case FinishReason::kUnknownSession:
      case FinishReason::kRefused:
      case FinishReason::kCancelled:
        answer(arrival, 0, fmt::format("{}: {}", to_string(completion.end), completion.detail));
        break;
    }
  }
  send_next();
  arm_deadline();
  return ok();
}

void Judge::on_tokens(uint64_t arrival, const Completion& completion) {
  const JudgeReader& reader = readers_.at(asked_.at(arrival).question.reward);
  const Result<double> score = read(reader, completion);
  if (score.ok()) return answer(arrival, *score, "");
  services().count("judge_answers_unparsed", 1);
  if (reader.options.unparsed == "zero") return answer(arrival, 0, "");
  answer(arrival, 0, score.error().text());
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

void Judge::ask_again(uint64_t arrival, const std::string& reason) {
  Asked& asked = asked_.at(arrival);
  if (++asked.attempt > options_.attempts_max)
    return answer(arrival, 0,
                  fmt::format("its engine was lost or failed {} times: {}", asked.attempt, reason));
  services().count("requests_reissued", 1);
  waiting_.push_front(arrival);
}

void Judge::answer(uint64_t arrival, double score, std::string fault) {
  const Asked asked = std::move(asked_.at(arrival));
  asked_.erase(arrival);
  deadlines_.erase({asked.deadline, arrival});
  if (!fault.empty()) {
    services().count("judge_faults", 1);
    fault = "the judge: " + fault;
  }
  score_.send({.question = asked.question.question, .score = score, .fault = std::move(fault)},
              to(asked.asker)
                  .for_tenant(tenant_)
                  .answering({services().self(), asked.cause})
                  .to_origin_of(asked.asker));
}

void Judge::cancel(std::vector<uint64_t> requests) {
  for (const uint64_t request : requests) {
    requests_.erase(request);
    cancelled_.insert(request);
  }
  for (size_t begin = 0; begin < requests.size(); begin += kCancelRequestsMax) {
    const size_t end = std::min(requests.size(), begin + kCancelRequestsMax);
    Cancel cancel;
    cancel.requests.assign(requests.begin() + static_cast<std::ptrdiff_t>(begin),
                           requests.begin() + static_cast<std::ptrdiff_t>(end));
    cancel_.send(std::move(cancel), for_tenant(tenant_).to_origin_of(services().self()));
  }
}

void Judge::arm_deadline() {
  if (deadlines_.empty()) return;
  const Time first = deadlines_.begin()->first;
  // If the timer is early, it finds nothing and is set again.
  if (armed_ && *armed_ <= first) return;
  armed_ = first;
  services().set_timer("deadline", std::max(first - services().now(), Duration()));
}

/// One question per timer event, so the number of messages is bounded; the timer then fires at once
/// for the next one.
Status Judge::on_deadline() {
  armed_.reset();
  if (!deadlines_.empty() && deadlines_.begin()->first <= services().now()) {
    const uint64_t arrival = deadlines_.begin()->second;
    for (const auto& [request, of] : requests_)
      if (of == arrival) {
        cancel({request});
        break;
      }
    const auto& reader = readers_.at(asked_.at(arrival).question.reward);
    answer(arrival, 0, fmt::format("no score within {}", to_string(reader.options.timeout)));
  }
  arm_deadline();
  return ok();
}

Status Judge::on_peer(const PeerEvent& event) {
  if (event.kind != PeerEvent::Kind::kDown) return ok();
  // An environment that has gone reads no score; Rollout sends its actions to another one.
  std::vector<uint64_t> dropped, requests;
  for (const auto& [arrival, asked] : asked_)
    if (asked.asker == event.instance) dropped.push_back(arrival);
  for (const auto& [request, arrival] : requests_)
    if (std::ranges::binary_search(dropped, arrival)) requests.push_back(request);
  for (const uint64_t arrival : dropped) {
    deadlines_.erase({asked_.at(arrival).deadline, arrival});
    asked_.erase(arrival);
  }
  cancel(std::move(requests));
  // The router's state is gone, so no open request will be answered.
  if (routers_.contains(event.instance)) {
    cancelled_.clear();
    answered_.clear();
    std::vector<uint64_t> lost;
    for (const auto& [request, arrival] : requests_) lost.push_back(arrival);
    requests_.clear();
    for (auto arrival = lost.rbegin(); arrival != lost.rend(); ++arrival) {
      ++asked_.at(*arrival).attempt;
      waiting_.push_front(*arrival);
    }
  }
  if (!waiting_.empty()) services().set_timer("send", Duration());
  arm_deadline();
  return ok();
}

Status Judge::drain() {
  is_draining_ = true;
  asked_.clear();
  waiting_.clear();
  deadlines_.clear();
  std::vector<uint64_t> open;
  for (const auto& [request, arrival] : requests_) open.push_back(request);
  cancel(std::move(open));
  return ok();
}

}  // namespace primerl
