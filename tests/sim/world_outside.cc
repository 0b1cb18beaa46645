#include "tests/sim/world_outside.h"

#include <fstream>
#include <utility>

#include "graph/base/json.h"
#include "graph/base/random.h"
#include "runtime/outside/scripted_outside.h"
#include "tests/sim/demo_run.h"
#include "tests/sim/world_clients.h"

namespace primerl::sim {
namespace {

// Each later turn prints the length of the first message and whether there are tools, so these
// matter there too.
constexpr std::string_view kTemplate =
    "{% if tools %}{{ tools | tojson }}<eos>{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}assistant:{{ m.content }}<eos>"
    "{% else %}{{ m | tojson }}{% if tools %}T{% endif %}{{ messages[0] | tojson | length "
    "}}<eos>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

constexpr std::string_view kToolMessage =
    R"({"role":"tool","content":"t","name":"f","tool_call_id":"c1"})";
constexpr std::string_view kCallMessage =
    R"({"role":"assistant","content":null,"reasoning":"r",)"
    R"("tool_calls":[{"id":"c2","type":"function","function":{"name":"f","arguments":{"x":1}}}]})";
constexpr std::string_view kTextCallMessage =
    R"({"role":"assistant","content":"s",)"
    R"("tool_calls":[{"id":"c","type":"function","function":{"name":"g","arguments":"{}"}}]})";
constexpr std::string_view kPartsMessage =
    R"({"role":"user","name":"n","content":[{"type":"text","text":"p"}]})";
constexpr std::string_view kUserMessage = R"({"role":"user","content":"u"})";
constexpr std::string_view kTools = R"([{"name":"f"}])";

OutsidePool pool_without_workers(const void*) { return {}; }

Json json_of(std::string_view text) { return parse_json(std::string(text), "a message").value(); }

/// Changes some answers of the scripted outside.
class TroubledOutside final : public Outside {
 public:
  TroubledOutside(std::shared_ptr<Outside> outside, const WorldSpec& spec)
      : outside_(std::move(outside)), spec_(spec) {}

  Status ask(OutsideCall call) override { return outside_->ask(std::move(call)); }
  void forget(uint32_t pool, uint64_t session) override { outside_->forget(pool, session); }
  std::vector<OutsideAnswer> receive_answers() override {
    auto answers = outside_->receive_answers();
    for (OutsideAnswer& answer : answers) {
      if (answer.end != OutsideEnd::kDone) continue;
      change(answer, mix(mix(spec_.number, answer.id), stable_hash(answer.body)));
    }
    if (outside_->has_work() || !answers.empty())
      cost_ += Duration::microseconds(
          static_cast<int64_t>(mix(spec_.number, ++num_looks_) % spec_.outside_look_us));
    return answers;
  }
  void stop() override { outside_->stop(); }
  void set_wake(std::function<void()> wake) override { outside_->set_wake(std::move(wake)); }
  bool has_work() const override { return outside_->has_work(); }
  Duration take_cost() override { return std::exchange(cost_, {}); }

 private:
  void change(OutsideAnswer& answer, uint64_t draw) const {
    Json json = json_of(answer.body);
    if (json.find("prompt") != nullptr) {
      if (!spec_.has_chat) return;
      const std::string_view firsts[] = {kUserMessage, kToolMessage, kCallMessage, kTextCallMessage,
                                         kPartsMessage};
      Json messages = Json::array();
      messages.push_back(json_of(firsts[draw % 5]));
      if (draw % 5 != 0) messages.push_back(json_of(kUserMessage));
      json.set("messages", std::move(messages));
      if (draw % 3 == 0) json.set("tools", json_of(kTools));
    } else if (json.find("done") == nullptr) {
      // Its weighted sum is not finite.
      if (spec_.has_faulty_answers && draw % 3 == 0) json.set("reward", 1e308);
    } else if (json.find("reward") == nullptr) {
      // A fresh worker observes "!" again.
      if (draw % 4 == 0) json.set("text", "!!");
      if (spec_.has_chat && draw % 4 == 1) {
        Json messages = Json::array();
        messages.push_back(json_of(draw % 3 == 0 ? kToolMessage : kPartsMessage));
        json.set("messages", std::move(messages));
      }
    }
    answer.body = json.dump();
  }

  const std::shared_ptr<Outside> outside_;
  const WorldSpec spec_;
  uint64_t num_looks_ = 0;
  Duration cost_;
};

}  // namespace

void add_outside(Catalog& catalog) {
  EnvironmentContract environment;
  environment.name = "outside";
  environment.doc = "for tests";
  environment.outside = &pool_without_workers;
  catalog.environments.push_back(std::move(environment));
  RewardContract reward;
  reward.name = "outside";
  reward.doc = "for tests";
  reward.outside = &pool_without_workers;
  catalog.rewards.push_back(std::move(reward));
}

std::string outside_lines(const WorldSpec& spec, RandomStream& random) {
  std::string lines = fmt::format("environment = {{ name = \"{}\" }}\n",
                                  spec.asks_environment ? "outside" : "copy");
  if (spec.num_outside_rewards > 0 || spec.num_judges > 0) {
    lines += "reward = [" + judge_entries(spec, random);
    for (uint64_t i = 0; i < spec.num_outside_rewards; ++i)
      lines += fmt::format("{{ name = \"outside\", weight = {} }}, ", 2 + random.below(5));
    // A reward of the process reads a real environment.
    if (spec.asks_environment) lines += "{ name = \"length\", free = 4, most = 30, weight = -1 }";
    lines += "]\n";
  }
  if (spec.has_chat) lines += "chat = { prompts = \"user\" }\n";
  return lines;
}

std::shared_ptr<Outside> make_troubled_outside(const WorldSpec& spec) {
  ScriptedOutsideOptions options;
  options.delay_max = spec.outside_delay_max;
  options.fault_every = spec.outside_fault_every;
  options.lose_every = spec.outside_lose_every;
  return std::make_unique<TroubledOutside>(make_scripted_outside(options), spec);
}

std::filesystem::path chat_folder() {
  static const std::filesystem::path folder = [] {
    const auto made = scratch_folder() / "chat_model";
    std::filesystem::copy(std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/base", made);
    std::ofstream(made / "chat_template.jinja") << kTemplate;
    return made;
  }();
  return folder;
}

}  // namespace primerl::sim
