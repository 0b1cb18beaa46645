#include "runtime/outside/scripted_outside.h"

#include <algorithm>

#include "graph/base/file_digest.h"
#include "graph/base/json.h"
#include "graph/base/random.h"

namespace primerl {
namespace {

struct Waiting {
  uint64_t due = 0;
  OutsideCall call;
};

bool is_one_of(uint64_t every, uint64_t draw) { return every > 0 && draw % every == 0; }

Json step_answer(const Json& body, uint64_t draw) {
  const auto ordinal = static_cast<uint64_t>(*body.get_int("ordinal"));
  const auto num_actions = body.find("actions")->as_array().size();
  const auto turn = static_cast<uint64_t>(*body.get_int("first_turn")) + num_actions;
  Json answer = Json::object();
  const bool is_done = turn > ordinal % 2;
  answer.set("done", is_done).set("text", is_done ? "" : "!");
  if (is_done) answer.set("reward", static_cast<double>(draw % 1000) / 1000).set("answer", "a");
  Json played = Json::array();
  for (size_t i = 0; i + 1 < num_actions; ++i) played.push_back(text_sha256("!"));
  return answer.set("played", std::move(played));
}

class ScriptedOutside final : public Outside {
 public:
  explicit ScriptedOutside(ScriptedOutsideOptions options) : options_(options) {}

  Status ask(OutsideCall call) override {
    if (is_stopped_) return ok();
    if (waiting_.size() >= kOutsideCallsMax)
      return error(Code::kExhausted, "{} calls wait for an answer from outside already",
                   waiting_.size());
    const uint64_t draw = stable_hash(call.body);
    waiting_.push_back({num_takes_ + 1 + draw % (options_.delay_max + 1), std::move(call)});
    return ok();
  }
  void forget(uint32_t, uint64_t) override {}
  std::vector<OutsideAnswer> receive_answers() override {
    ++num_takes_;
    std::vector<OutsideAnswer> answers;
    for (auto each = waiting_.begin();
         each != waiting_.end() && answers.size() < kOutsideAnswersMax;) {
      if (each->due > num_takes_) {
        ++each;
        continue;
      }
      answers.push_back(answer_to(each->call));
      each = waiting_.erase(each);
    }
    return answers;
  }
  void stop() override {
    is_stopped_ = true;
    waiting_.clear();
  }
  void set_wake(std::function<void()>) override {}
  bool has_work() const override { return !waiting_.empty(); }

 private:
  OutsideAnswer answer_to(const OutsideCall& call) const {
    const uint64_t draw = stable_hash(call.body, 1);
    if (is_one_of(options_.fault_every, draw))
      return {call.id, OutsideEnd::kFailed, "a planned fault"};
    if (!call.is_whole && is_one_of(options_.lose_every, draw / 7))
      return {call.id, OutsideEnd::kNeedsHistory, ""};
    const auto body = parse_json(call.body, "a scripted call");
    CHECK(body.ok(), "a call without a JSON object");
    const std::string kind = *body->get_string("call");
    if (kind == "step") return {call.id, OutsideEnd::kDone, step_answer(*body, draw).dump()};
    Json answer = Json::object();
    if (kind == "task")
      answer.set("prompt", fmt::format("{}?", *body->get_int("ordinal") % 10));
    else
      answer.set("reward", static_cast<double>(draw % 1000) / 1000);
    return {call.id, OutsideEnd::kDone, answer.dump()};
  }

  const ScriptedOutsideOptions options_;
  std::vector<Waiting> waiting_;  // in the order in which they were asked
  uint64_t num_takes_ = 0;
  bool is_stopped_ = false;
};

}  // namespace

std::shared_ptr<Outside> make_scripted_outside(ScriptedOutsideOptions options) {
  return std::make_unique<ScriptedOutside>(options);
}

}  // namespace primerl
