#include "tests/graph/test_catalog.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "graph/base/json.h"
#include "tests/graph/test_notes.h"

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;

struct NoOptions {};
struct EnvOptions {
  int64_t tasks_ahead = 4;
};
struct RolloutOptions {
  int64_t max_inflight = 64;
  std::string model;
};
struct RouterOptions {
  std::string policy = "sticky_least_loaded";
  int64_t sessions_max = 1024;
};
struct EngineUserOptions {
  std::string engine, weights;
};
struct TrainerOptions {
  std::string learner, weights;
};
struct BroadcasterOptions {
  Duration applied_max = Duration::seconds(60);
};
struct CounterOptions {
  bool flag = false;
  int32_t count = 8;
  double share = 0.5;
  std::string color = "red";
  Duration wait = Duration::milliseconds(250);
  std::vector<std::string> tags;
  std::string file;
};

Contract env_contract() {
  using A = Quiet<EnvOptions>;
  return ContractOf<A, EnvOptions>("env", "gives tasks and judges answers")
      .option("tasks_ahead", &EnvOptions::tasks_ahead, between(1, 64) | unit("tasks"),
              "tasks given before the first is taken")
      .in("action", &A::take<Action>, "what the policy answered", at_most(64))
      .out("task", &A::task, "a task to solve", recorded(), work_burst(1))
      .out("observation", &A::observation, "what came of an action", recorded())
      .one_tenant()
      .for_loops()
      .source()
      .own_thread()
      .stateless();
}

Amount eight_a_token() {
  return {[](const void*, std::span<const Tenant> tenants) {
            int64_t most = 0;
            for (const auto& tenant : tenants)
              most = std::max(most, tenant.group_size * tenant.seq_len * 8);
            return most;
          },
          "group_size * seq_len * 8 bytes"};
}

Contract rollout_contract() {
  using A = Quiet<RolloutOptions>;
  return ContractOf<A, RolloutOptions>("rollout", "makes trajectories out of tasks")
      .option("max_inflight", &RolloutOptions::max_inflight,
              at_least(1) | unit("rollouts") | also_named("max_inflight_requests"), "in flight")
      .uses<FakeTokenizer>("tokenizer", &RolloutOptions::model, "whose tokenizer")
      .in("task", &A::take<Task>, "a task to open a group for")
      .in("completion", &A::take<Completion>, "an answer",
          at_most(&RolloutOptions::max_inflight, "max_inflight"))
      .in("ended", &A::take<GroupEnded>, "how a group ended", at_most(16))
      .in("observation", &A::take<Observation>, "what the environment said", at_most(64))
      .in("policy", &A::take<PolicyLive>, "the live version", latest_wins())
      .out("generate", &A::generate, "a prompt to continue",
           burst(tenant_max(&Tenant::group_size, "largest group_size")))
      .out("group", &A::group, "a finished group", recorded(), message_bytes(eight_a_token()))
      .out("cancel", &A::cancel, "stop a request", optional_port(), at_most(64))
      .out("action", &A::action, "an answer to judge", at_most(64))
      .timer("deadline", &A::tick, "the oldest request is due")
      .for_loops()
      .single()
      .stateless();
}

Contract router_contract() {
  using A = Quiet<RouterOptions>;
  return ContractOf<A, RouterOptions>("router", "chooses an engine for each request")
      .option("policy", &RouterOptions::policy,
              one_of({"round_robin", "random", "sticky_least_loaded"}), "how an engine is chosen")
      .option("sessions_max", &RouterOptions::sessions_max, between(1, 65536) | unit("sessions"),
              "sessions remembered")
      .in("generate", &A::take<GenerateRequest>, "a prompt to continue")
      .in("cancel", &A::take<Cancel>, "stop a request", optional_port())
      .in("load", &A::take<EngineLoad>, "an engine's running totals", latest_wins())
      .out("prefill", &A::generate, "to the chosen engine", addressed())
      .out("refused", &A::refused, "no engine takes it", to_origin(), at_most(64))
      .out("abort", &A::cancel, "stop a request", optional_port(), broadcast(), at_most(64))
      .restartable()
      .stateless();
}

Contract prefill_contract() {
  using A = Quiet<EngineUserOptions>;
  return ContractOf<A, EngineUserOptions>("prefill", "computes prompts")
      .uses<CatalogEngine>("engine", &EngineUserOptions::engine, "which engine")
      .uses<CatalogWeights>("weights", &EngineUserOptions::weights, "where new weights come from")
      .in("request", &A::take<GenerateRequest>, "a prompt")
      .in("abort", &A::take<Cancel>, "stop a request", optional_port())
      .in("update", &A::take<PolicyUpdate>, "new weights", latest_wins())
      .out("done", &A::done, "its KV is there", recorded(), work_burst(16), handles_of("engine"))
      .out("refused", &A::refused, "it does not fit", recorded(), to_origin(), at_most(64))
      .out("load", &A::load, "running totals", recorded())
      .out("applied", &A::applied, "weights are in use", recorded(), at_most(2))
      .works()
      .stateless();
}

Contract decode_contract() {
  using A = Quiet<EngineUserOptions>;
  return ContractOf<A, EngineUserOptions>("decode", "generates tokens")
      .uses<CatalogEngine>("engine", &EngineUserOptions::engine, "which engine")
      .uses<CatalogWeights>("weights", &EngineUserOptions::weights, "where new weights come from")
      .in("request", &A::take<PrefillDone>, "a computed prompt", handles_of("engine"))
      .in("abort", &A::take<Cancel>, "stop a request", optional_port())
      .in("update", &A::take<PolicyUpdate>, "new weights", latest_wins())
      .out("completion", &A::completion, "an answer", recorded(), to_origin())
      .out("load", &A::load, "running totals", recorded())
      .out("applied", &A::applied, "weights are in use", recorded(), at_most(2))
      .works()
      .stateless();
}

Contract trainer_contract() {
  using A = Quiet<TrainerOptions>;
  return ContractOf<A, TrainerOptions>("trainer", "makes new versions out of groups")
      .uses<CatalogLearner>("learner", &TrainerOptions::learner, "which learner")
      .uses<CatalogWeights>("weights", &TrainerOptions::weights, "where new weights go")
      .in("group", &A::take<TrajectoryGroup>, "a finished group")
      .in("pass", &A::take<PassRequest>, "a pass of a client", optional_port())
      .in("update", &A::take<PassRequest>, "an update of a client", optional_port())
      .in("weights_request", &A::take<PassRequest>, "weights for a client", optional_port())
      .out("passed", &A::passed, "a pass is done", optional_port(), at_most(1))
      .out("updated", &A::passed, "an update is done", optional_port(), at_most(1))
      .out("weights_done", &A::passed, "weights are there", optional_port(), at_most(1))
      .out("weights", &A::weights, "a version is published", recorded(), work_burst(1))
      .out("ended", &A::ended, "how a group ended", recorded())
      .demands(
          "group_size",
          [](const TrainerOptions&, const Tenant& tenant) {
            return std::string(tenant.group_size < 2 ? "is 1: it has no advantage" : "");
          },
          "write group_size = 2 or more")
      .single()
      .works()
      .stateless();
}

Contract broadcaster_contract() {
  using A = Quiet<BroadcasterOptions>;
  return ContractOf<A, BroadcasterOptions>("broadcaster", "decides when engines take weights")
      .option("applied_max", &BroadcasterOptions::applied_max, above(0),
              "an engine without answer is set aside")
      .in("weights", &A::take<WeightsReady>, "a version is published")
      .in("applied", &A::take<PolicyApplied>, "weights are in use")
      .out("update", &A::update, "take these weights", broadcast())
      .out("live", &A::live, "every engine has it", broadcast())
      .single()
      .stateless();
}

struct TinkerOptions {
  std::string listener, model;
};

Contract tinker_contract() {
  using A = Quiet<TinkerOptions>;
  return ContractOf<A, TinkerOptions>("tinker", "serves clients")
      .uses<FakeOutside>("listener", &TinkerOptions::listener, "which listener")
      .uses<FakeTokenizer>("tokenizer", &TinkerOptions::model, "whose tokenizer")
      .in("completion", &A::take<Completion>, "an answer", at_most(64))
      .in("policy", &A::take<PolicyLive>, "the live version", latest_wins())
      .in("passed", &A::take<PassDone>, "a pass is done", at_most(1))
      .in("updated", &A::take<PassDone>, "an update is done", at_most(1))
      .in("weights_done", &A::take<PassDone>, "weights are there", at_most(1))
      .out("generate", &A::generate, "a prompt to continue")
      .out("cancel", &A::cancel, "stop a request", at_most(64))
      .out("pass", &A::pass, "data of a client")
      .out("update", &A::pass, "a step of a client")
      .out("weights", &A::pass, "weights for a client")
      .single()
      .stateless();
}

Contract counter_contract() {
  using A = Quiet<CounterOptions>;
  using C = CounterOptions;
  return ContractOf<A, C>("counter", "has an option of every kind")
      .option("flag", &C::flag, any(), "a switch")
      .option("count", &C::count, between(1, 8), "a number from 1 to 8")
      .option("share", &C::share, above_up_to(0, 1), "a share")
      .option("color", &C::color, one_of({"red", "green"}), "a color")
      .option("wait", &C::wait, between(0.001, 60), "a while")
      .option("tags", &C::tags, any(), "words")
      .option("file", &C::file, refers_to("file"), "words from a file")
      .in("task", &A::take<Task>, "anything", optional_port())
      .in("again", &A::take<Task>, "without a number", optional_port())
      .out("task", &A::task, "anything", optional_port())
      .out("group", &A::group, "a group", optional_port())
      .stateless();
}

struct ScorerOptions {
  std::string learner;
};

Contract relay_contract() {
  using A = Quiet<NoOptions>;
  return ContractOf<A, NoOptions>("relay", "hands on what it gets")
      .in("done", &A::take<PrefillDone>, "a computed prompt")
      .out("done", &A::done, "the same")
      .stateless();
}

Contract mesh_contract() {
  using A = Quiet<NoOptions>;
  return ContractOf<A, NoOptions>("mesh", "one of many")
      .in("in", &A::take<Task>, "anything", at_most(8))
      .out("out", &A::task, "the same", broadcast())
      .stateless();
}

Contract scorer_contract() {
  using A = Quiet<ScorerOptions>;
  return ContractOf<A, ScorerOptions>("scorer", "looks at a learner")
      .uses<CatalogLearner>("learner", &ScorerOptions::learner, "which learner")
      .one_tenant()
      .stateless();
}

struct ResourceNumbers {
  int64_t kv_blocks = 512, max_sequence_tokens = 0, adapter_slots = 0;
  std::string products = "dtype";
};
struct LossNumbers {
  std::string kind = "dppo";
};
struct OptimizerNumbers {
  std::string kind = "adamw";
  double lr = 1e-6;
};
struct LearnerNumbers {
  LossNumbers loss;
  OptimizerNumbers optimizer;
  std::string products = "dtype";
};
struct LetterOptions {
  int64_t length_min = 1, length_max = 8;
  std::string words, letters_dir;
};

MemoryPart base_beside(std::span<const Tenant> tenants) {
  const bool is_base = !tenants.empty() && tenants.front().adapter.is_there();
  return is_base ? MemoryPart{"base weights", 3e6, Sharing::kModel} : MemoryPart{"weights", 3e6};
}

ResourceContract engine(const std::string& backend, bool needs_model) {
  ResourceContract contract;
  contract.kind = "engine";
  contract.backend = backend;
  contract.doc = "generates tokens";
  contract.options = OptionsOf<ResourceNumbers>()
                         .field("kv_blocks", &ResourceNumbers::kv_blocks,
                                between(1, 1 << 20) | unit("blocks"), "blocks of KV memory")
                         .field("max_sequence_tokens", &ResourceNumbers::max_sequence_tokens,
                                at_least(0) | unit("tokens"), "longest prompt and completion")
                         .field("adapter_slots", &ResourceNumbers::adapter_slots, any(), "slots")
                         .field("products", &ResourceNumbers::products, any(), "numbers")
                         .take();
  contract.needs_model = needs_model;
  contract.computes = true;
  contract.sequence_limit = [](const void* options, const ModelFacts*) {
    const auto blocks = static_cast<const ResourceNumbers*>(options)->kv_blocks;
    return ResourceContract::SequenceLimit{blocks * 16, "kv_blocks"};
  };
  if (needs_model)
    contract.memory = [](const void* options, const std::string&,
                         std::span<const Tenant> tenants) -> Result<std::vector<MemoryPart>> {
      const auto blocks = static_cast<const ResourceNumbers*>(options)->kv_blocks;
      const MemoryPart kv{fmt::format("{} KV blocks", blocks), static_cast<double>(4096 * blocks)};
      return std::vector{base_beside(tenants), kv};
    };
  return contract;
}

ResourceContract learner(const std::string& backend, bool needs_model) {
  ResourceContract contract;
  contract.kind = "learner";
  contract.backend = backend;
  contract.doc = "trains";
  auto loss =
      OptionsOf<LossNumbers>()
          .field("kind", &LossNumbers::kind, one_of({"dppo", "cross_entropy"}), "which loss")
          .take();
  auto optimizer = OptionsOf<OptimizerNumbers>()
                       .field("kind", &OptimizerNumbers::kind, one_of({"adamw"}), "which optimizer")
                       .field("lr", &OptimizerNumbers::lr, above(0), "learning rate")
                       .take();
  contract.options =
      OptionsOf<LearnerNumbers>()
          .field("products", &LearnerNumbers::products, any(), "numbers")
          .table("loss", &LearnerNumbers::loss, std::move(loss), "the loss")
          .table("optimizer", &LearnerNumbers::optimizer, std::move(optimizer), "the optimizer")
          .take();
  contract.needs_model = needs_model;
  contract.computes = true;
  contract.one_per_graph = true;
  if (needs_model)
    contract.memory = [](const void*, const std::string&,
                         std::span<const Tenant> tenants) -> Result<std::vector<MemoryPart>> {
      std::vector<MemoryPart> parts = {base_beside(tenants)};
      for (const Tenant& tenant : tenants)
        if (const auto rank = static_cast<double>(tenant.adapter.rank); rank > 0)
          parts.push_back({fmt::format("adapter of tenant '{}'", tenant.name), 1000 * rank});
      return parts;
    };
  return contract;
}

ResourceContract weight_channel(const std::string& backend) {
  ResourceContract contract;
  contract.kind = "weight_channel";
  contract.backend = backend;
  contract.doc = "moves weights";
  contract.options = OptionsOf<NoOptions>().take();
  return contract;
}

struct ListenerOptions {
  std::string listen, key_prefix;
  bool tenant_tokens = false;
};

ResourceContract listener() {
  ResourceContract contract;
  contract.kind = "outside";
  contract.backend = "http";
  contract.doc = "listens";
  contract.options = OptionsOf<ListenerOptions>()
                         .field("listen", &ListenerOptions::listen, any(), "where")
                         .field("key_prefix", &ListenerOptions::key_prefix, any(), "of keys")
                         .field("tenant_tokens", &ListenerOptions::tenant_tokens, any(), "whose")
                         .take();
  return contract;
}

Status validate_letters(const void* bound) {
  const auto& options = *static_cast<const LetterOptions*>(bound);
  if (options.length_min <= options.length_max) return ok();
  return error(Code::kInvalid, "'length_min' {} is above 'length_max' {}", options.length_min,
               options.length_max);
}

Result<ModelFacts> read_facts(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  if (!file) return error(Code::kNotFound, "it has no config.json");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSIGN_OR_RETURN(const auto json, parse_json(text, "config.json"));
  ASSIGN_OR_RETURN(const auto limit, json.get_int("max_position_embeddings"));
  ModelFacts facts{"qwen3", limit, 64};
  if (const auto layers = json.get_int("num_hidden_layers"); layers.ok())
    facts.shape.emplace_back("num_hidden_layers", *layers);
  if (json.find("mup") != nullptr) facts.unknown_keys = "'mup' of config.json is not known";
  return facts;
}

std::vector<PluginFault> add_plugins(const std::vector<std::string>& files, Catalog& catalog) {
  std::vector<PluginFault> faults;
  for (size_t i = 0; i < files.size(); ++i) {
    if (fs::path(files[i]).filename() != "echo.so") {
      faults.push_back({i, error(Code::kNotFound, "the file does not exist")
                               .note(fmt::format("looked for '{}'", files[i]))});
      continue;
    }
    EnvironmentContract echo;
    echo.name = "echo";
    echo.doc = "say the word again";
    echo.options = OptionsOf<NoOptions>().take();
    catalog.environments.push_back(echo);
    catalog.plugins.push_back({"echo", "1", files[i], 7});
  }
  return faults;
}

Catalog make_catalog() {
  Catalog catalog;
  catalog.actors = {env_contract(),         rollout_contract(), router_contract(),
                    prefill_contract(),     decode_contract(),  trainer_contract(),
                    broadcaster_contract(), counter_contract(), relay_contract(),
                    scorer_contract(),      mesh_contract(),    tinker_contract()};
  catalog.messages = {&message_type<Task>(), &message_type<GenerateRequest>()};
  catalog.resources = {engine("torch", true),    engine("scripted", false),
                       learner("torch", true),   learner("scripted", false),
                       weight_channel("memory"), weight_channel("shm"),
                       weight_channel("stream"), listener()};
  using O = LetterOptions;
  EnvironmentContract letters;
  letters.name = "reverse_text";
  letters.doc = "reverse the letters";
  letters.options =
      OptionsOf<O>()
          .field("length_min", &O::length_min, between(1, 64) | unit("letters"), "shortest text")
          .field("length_max", &O::length_max, between(1, 64) | unit("letters"), "longest text")
          .field("words", &O::words, refers_to("file"), "words to use")
          .field("letters_dir", &O::letters_dir, refers_to("folder"), "letters to use")
          .take();
  letters.validate = validate_letters;
  catalog.environments = {letters, letters, letters};
  catalog.environments[1].name = "copy";
  catalog.environments[1].rows = [](const void*) { return EnvironmentContract::Rows{20, 5}; };
  catalog.environments[2].name = "driven";
  catalog.environments[2].drives_rollouts = true;
  catalog.rewards = {
      {"half", "half of what the environment gives",
       OptionsOf<O>().field("table", &O::words, refers_to("file"), "of what").take()}};
  catalog.add_plugins = add_plugins;
  catalog.model_facts = read_facts;
  return catalog;
}

}  // namespace

const Catalog& test_catalog() {
  static const Catalog catalog = make_catalog();
  return catalog;
}
std::string graph_text(const std::string& name) {
  std::ifstream file(std::string(PRIMERL_SOURCE_DIR) + "/tests/graph/" + name);
  CHECK(file.good(), name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Folder::Folder() {
  path_ = (fs::temp_directory_path() / "primerl-graph-XXXXXX").string();
  CHECK(mkdtemp(path_.data()) != nullptr, "no temporary folder can be made");
  for (const char* name : {"/model", "/odd_model"}) fs::create_directory(path_ + name);
  write("model/config.json", R"({"max_position_embeddings": 256})");
  write("odd_model/config.json", R"({"max_position_embeddings": 256, "mup": true})");
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, const std::string& text) const {
  std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  return path_ + "/" + name;
}

CheckedGraph load_text(const std::string& text, Overrides overrides) {
  const Folder folder;
  overrides.cores = 2;
  return load_graph_text(text, "graph.toml", folder.path(), overrides, test_catalog());
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  CHECK(at != std::string::npos, "the text to replace is not in the graph");
  return text.replace(at, from.size(), to);
}

}  // namespace primerl::testing
