#include "runtime/outside/scripted_runs.h"

#include <algorithm>
#include <utility>

#include "graph/base/json.h"
#include "graph/base/random.h"

namespace primerl {
namespace {

constexpr int32_t kPromptTokens = 4;
constexpr uint64_t kTurnsMax = 3;
constexpr int32_t kIdsMax = 10;  // every model has these

bool is_fated(uint64_t every, uint64_t draw) { return every > 0 && draw % every == 0; }

/// One conversation: what was read and sampled.
struct Conversation {
  std::vector<int32_t> tokens;
  std::vector<std::pair<int32_t, int32_t>> sampled;
};

/// The conduct of a member of a run, from the hash of its call.
struct MemberPlan {
  uint64_t num_turns = 1;
  bool has_other_agent = false;  // which asks one turn
  bool asks_twice = false;       // the first reply is dropped
  bool rewrites = false;         // the first answer is changed before the second turn
  bool has_branches = true;
  bool trains = true;
};

MemberPlan plan_of(uint64_t draw, bool has_branches) {
  MemberPlan plan;
  plan.num_turns = 1 + draw % kTurnsMax;
  plan.has_other_agent = draw / 3 % 4 == 0;
  plan.asks_twice = draw / 12 % 5 == 0;
  plan.rewrites = draw / 60 % 6 == 0;
  plan.has_branches = has_branches || draw / 360 % 4 != 0;
  plan.trains = draw / 1440 % 9 != 0;
  return plan;
}

std::vector<int32_t> ids_of(uint64_t draw, int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(mix(draw, static_cast<uint64_t>(i)) % kIdsMax));
  return ids;
}

Json branch_json(const Conversation& conversation, bool trains) {
  Json sampled = Json::array();
  if (trains)
    for (const auto& [first, last] : conversation.sampled)
      sampled.push_back(Json::list(std::vector<int32_t>{first, last}));
  return Json::object()
      .set("tokens", Json::list(conversation.tokens))
      .set("sampled", std::move(sampled));
}

/// The token ids of a reply; an error if it has none.
Result<std::vector<int32_t>> ids_of_reply(const ClientReply& reply, bool& is_cut) {
  if (reply.status != 200)
    return error(Code::kInvalid, "status {}: {}", reply.status, reply.body.substr(0, 200));
  ASSIGN_OR_RETURN(const Json json, parse_json(reply.body, "a reply"));
  const Json* choices = json.find("choices");
  if (choices == nullptr || !choices->is_array() || choices->as_array().empty())
    return error(Code::kInvalid, "the reply has no 'choices'");
  const Json& choice = choices->as_array().front();
  const Json* ids = choice.find("token_ids");
  if (ids == nullptr || !ids->is_array()) return error(Code::kInvalid, "it has no 'token_ids'");
  const Json* reason = choice.find("finish_reason");
  is_cut = reason != nullptr && reason->is_string() && reason->as_string() == "length";
  std::vector<int32_t> tokens;
  for (const Json& each : ids->as_array()) tokens.push_back(static_cast<int32_t>(each.as_int()));
  return tokens;
}

/// One run: its members play one after the other.
class ScriptedRun {
 public:
  ScriptedRun(Json body, const ScriptedRunsOptions& options)
      : body_(std::move(body)), options_(options) {
    draw_ = stable_hash(body_.find("data")->dump());
    salt_ = *body_.get_string("salt");
    fate_ = stable_hash(salt_, 3);
    num_members_ = *body_.get_int("members");
    begin_member();
  }

  ClientRequest request() {
    Json sampling = Json::object();
    sampling.set("max_tokens", *body_.find("sampling")->get_int("max_tokens"));
    Json body = Json::object();
    body.set("model", *body_.get_string("model"))
        .set("token_ids", Json::list(is_other_ ? other_.tokens : main_.tokens))
        .set("cache_salt", salt_)
        .set("sampling_params", std::move(sampling));
    ClientRequest request;
    request.method = "POST";
    request.path = "/inference/v1/generate";
    request.body = body.dump();
    return request;
  }

  /// The end of the run; none: it makes another request.
  std::optional<OutsideAnswer> on_reply(const ClientReply& reply) {
    ++num_replies_;
    if (is_fated(options_.lose_every, fate_ / 11))
      return OutsideAnswer{0, OutsideEnd::kLost, "its server was made to die"};
    if (is_fated(options_.fault_every, fate_))
      return OutsideAnswer{0, OutsideEnd::kFailed, "a planned fault of a run"};
    bool is_cut = false;
    const auto ids = ids_of_reply(reply, is_cut);
    if (!ids.ok()) return on_fault(reply, ids.error());
    if (plan_.asks_twice && num_replies_ == 1) return std::nullopt;
    Conversation& conversation = is_other_ ? other_ : main_;
    const auto begin = static_cast<int32_t>(conversation.tokens.size());
    conversation.tokens.insert(conversation.tokens.end(), ids->begin(), ids->end());
    conversation.sampled.emplace_back(begin, static_cast<int32_t>(conversation.tokens.size()));
    is_cut_ |= is_cut;
    return next();
  }

  bool hangs() const { return is_fated(options_.hang_every, fate_ / 7); }

  // The request that has no reply.
  uint64_t ticket = 0;
  uint64_t call = 0;

 private:
  void begin_member() {
    const uint64_t draw = mix(draw_, static_cast<uint64_t>(results_.as_array().size()));
    plan_ = plan_of(draw, num_members_ > 1);
    main_ = {};
    other_ = {};
    main_.tokens = ids_of(draw, kPromptTokens);
    other_.tokens = ids_of(draw + 1, kPromptTokens + 1);
    num_turns_ = 0;
    num_replies_ = 0;
    is_other_ = is_cut_ = false;
  }

  std::optional<OutsideAnswer> next() {
    if (is_other_) return end_member("done", "");
    if (++num_turns_ < plan_.num_turns) {
      if (plan_.rewrites && num_turns_ == 1)
        main_.tokens.back() = (main_.tokens.back() + 1) % kIdsMax;
      const auto observed = ids_of(draw_ + num_turns_, 2);
      main_.tokens.insert(main_.tokens.end(), observed.begin(), observed.end());
      return std::nullopt;
    }
    is_other_ = plan_.has_other_agent;
    return is_other_ ? std::nullopt : end_member("done", "");
  }

  /// An over-long prompt ends the member as truncated, as it does in verifiers.
  std::optional<OutsideAnswer> on_fault(const ClientReply& reply, const Error& error) {
    if (reply.status != 400 || reply.body.find("maximum context length") == std::string::npos ||
        main_.sampled.empty())
      return end_member("failed", error.text());
    is_cut_ = true;
    return end_member("done", "");
  }

  std::optional<OutsideAnswer> end_member(std::string_view end, std::string fault) {
    Json branches = Json::array();
    if (plan_.has_branches) {
      branches.push_back(branch_json(main_, plan_.trains));
      if (!other_.sampled.empty()) branches.push_back(branch_json(other_, plan_.trains));
    }
    const uint64_t draw = stable_hash(branch_json(main_, true).dump());
    Json metrics = Json::object();
    metrics.set("num_turns", static_cast<int64_t>(num_turns_));
    Json scores = Json::object();
    scores.set("correct", static_cast<double>(draw % 2));
    results_.push_back(Json::object()
                           .set("end", end)
                           .set("error", std::move(fault))
                           .set("reward", static_cast<double>(draw % 1000) / 1000)
                           .set("scores", std::move(scores))
                           .set("metrics", std::move(metrics))
                           .set("is_truncated", is_cut_)
                           .set("stop_condition", is_cut_ ? "length" : "done")
                           .set("num_tool_calls", static_cast<int64_t>(num_turns_))
                           .set("branches", std::move(branches)));
    if (std::ssize(results_.as_array()) < num_members_) {
      begin_member();
      return std::nullopt;
    }
    if (is_fated(options_.wrong_every, fate_ / 13)) results_.push_back(Json::object());
    return OutsideAnswer{0, OutsideEnd::kDone,
                         Json::object().set("members", std::move(results_)).dump()};
  }

  const Json body_;
  const ScriptedRunsOptions options_;
  uint64_t draw_ = 0;  // the same for a run that is repeated
  uint64_t fate_ = 0;  // differs
  std::string salt_;
  int64_t num_members_ = 1;
  Json results_ = Json::array();
  // About the member that plays.
  MemberPlan plan_;
  Conversation main_, other_;
  uint64_t num_turns_ = 0, num_replies_ = 0;
  bool is_other_ = false, is_cut_ = false;
};

class ScriptedRuns final : public Outside {
 public:
  ScriptedRuns(OutsideSpec spec, std::shared_ptr<Outside> others,
               std::shared_ptr<ScriptedRequests> requests, ScriptedRunsOptions options)
      : spec_(std::move(spec)),
        others_(std::move(others)),
        requests_(std::move(requests)),
        options_(options) {}
  ~ScriptedRuns() override { leave_all(); }

  Status ask(OutsideCall call) override {
    if (is_stopped_) return ok();
    const bool is_run_pool = call.pool < spec_.pools.size() &&
                             spec_.pools[call.pool].kind == OutsidePoolKind::kVerifiers;
    if (!is_run_pool) return others_->ask(std::move(call));
    auto body = parse_json(call.body, "a scripted call");
    CHECK(body.ok() && body->is_object(), "a call without a JSON object");
    if (*body->get_string("call") == "task") {
      answers_.push_back({call.id, OutsideEnd::kDone, task_answer(*body)});
    } else if (call.attempt > 0) {
      answers_.push_back({call.id, OutsideEnd::kLost, "its server died with the run before"});
    } else {
      ScriptedRun& run =
          runs_.emplace(call.session, ScriptedRun(std::move(*body), options_)).first->second;
      run.call = call.id;
      send(call.session, run);
    }
    return ok();
  }
  void forget(uint32_t pool, uint64_t session) override {
    const auto run = runs_.find(session);
    if (run == runs_.end()) return others_->forget(pool, session);
    answers_.push_back({run->second.call, OutsideEnd::kFailed, "cancelled"});
    requests_->leave(run->second.ticket);
    runs_.erase(run);
  }
  std::vector<OutsideAnswer> receive_answers() override {
    std::vector<OutsideAnswer> received = others_->receive_answers();
    for (; !answers_.empty() && received.size() < kOutsideAnswersMax; answers_.pop_front())
      received.push_back(std::move(answers_.front()));
    return received;
  }
  void stop() override {
    is_stopped_ = true;
    leave_all();
    answers_.clear();
    others_->stop();
  }
  void set_wake(std::function<void()> wake) override {
    wake_ = wake;
    others_->set_wake(std::move(wake));
  }
  bool has_work() const override { return !answers_.empty() || others_->has_work(); }

 private:
  std::string task_answer(const Json& body) const {
    Json data = Json::object();
    data.set("task_idx", *body.get_int("ordinal")).set("seed", *body.get_int("seed"));
    return Json::object()
        .set("data", std::move(data))
        .set("prompt", fmt::format("{}?", *body.get_int("ordinal") % 10))
        .set("scores_groups", options_.scores_groups)
        .dump();
  }

  void send(uint64_t session, ScriptedRun& run) {
    if (run.hangs()) return;
    run.ticket = requests_->add(run.request(), [this, session](const ClientReply& reply) {
      const auto found = runs_.find(session);
      if (found == runs_.end()) return;
      auto end = found->second.on_reply(reply);
      if (!end) return send(session, found->second);
      end->id = found->second.call;
      answers_.push_back(std::move(*end));
      runs_.erase(found);
      if (wake_) wake_();
    });
  }

  void leave_all() {
    for (const auto& [session, run] : runs_) requests_->leave(run.ticket);
    runs_.clear();
  }

  const OutsideSpec spec_;
  const std::shared_ptr<Outside> others_;
  const std::shared_ptr<ScriptedRequests> requests_;
  const ScriptedRunsOptions options_;
  std::map<uint64_t, ScriptedRun> runs_;  // by session
  std::deque<OutsideAnswer> answers_;
  std::function<void()> wake_;
  bool is_stopped_ = false;
};

}  // namespace

uint64_t ScriptedRequests::add(ClientRequest request, OnReply on_reply) {
  const uint64_t ticket = next_++;
  waiting_.push_back({ticket, std::move(request)});
  open_.emplace(ticket, std::move(on_reply));
  if (wake_) wake_();
  return ticket;
}

void ScriptedRequests::leave(uint64_t ticket) {
  if (open_.erase(ticket) == 0) return;
  const auto waits = std::ranges::find(waiting_, ticket, &Accepted::ticket);
  if (waits != waiting_.end())
    waiting_.erase(waits);
  else
    gone_.push_back(ticket);
}

std::optional<ScriptedRequests::Accepted> ScriptedRequests::accept() {
  if (waiting_.empty()) return std::nullopt;
  Accepted accepted = std::move(waiting_.front());
  waiting_.pop_front();
  return accepted;
}

bool ScriptedRequests::reply(uint64_t ticket, const ClientReply& reply) {
  const auto found = open_.find(ticket);
  if (found == open_.end()) return false;
  const OnReply on_reply = std::move(found->second);
  open_.erase(found);
  on_reply(reply);
  return true;
}

std::shared_ptr<Outside> make_scripted_runs(OutsideSpec spec, std::shared_ptr<Outside> others,
                                            std::shared_ptr<ScriptedRequests> requests,
                                            ScriptedRunsOptions options) {
  return std::make_shared<ScriptedRuns>(std::move(spec), std::move(others), std::move(requests),
                                        options);
}

}  // namespace primerl
