#include "runtime/cli/prime_rl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "graph/options.h"
#include "runtime/cli/prime_rl_curriculum.h"
#include "runtime/cli/prime_rl_environments.h"
#include "runtime/cli/prime_rl_text.h"
#include "runtime/cli/prime_rl_values.h"

namespace primerl {
namespace {

constexpr std::string_view kFirstEnvironment = "orchestrator.train.env[0].";
constexpr std::string_view kStandIn = "copy";   // the environment in place of an unknown one
constexpr int64_t kBlockTokens = 16;            // the engine's block_size
constexpr int64_t kFullSequences = 16;          // of seq_len, that the KV cache has space for
constexpr int64_t kSeqLenDefault = 2048;        // of prime-rl and of a tenant
constexpr int64_t kMicroBatchTokens = 16384;    // below 8,192, launches last longer than GEMMs
constexpr int64_t kReplicasMax = 64;            // engines of one machine
constexpr int64_t kGibberishDefault = 100'000;  // of prime-rl's token_id_threshold
constexpr int64_t kWindowDefault = 3000;        // of its window of repetition

class Importer {
 public:
  Importer(const PrimeRlOptions& options, Diagnostics& diagnostics)
      : options_(options), diagnostics_(diagnostics) {}

  PrimeRlImport run(const Table& root) {
    const std::vector<Leaf> leaves = leaves_of(root);
    note_filters(leaves);
    count_environments(leaves);
    for (const Leaf& leaf : leaves) judge(leaf);
    if (!diagnostics_.has_errors()) result_.graph = write();
    return std::move(result_);
  }

 private:
  void add(const Leaf& leaf, KeyFate fate, std::string text) {
    result_.keys.push_back({leaf.key, leaf.position, fate, std::move(text)});
  }

  void judge(const Leaf& leaf) {
    const std::string key = own_spelling(leaf.key);
    const KeyRule* rule = find_key_rule(key);
    const bool is_exact = rule != nullptr && !rule->key.ends_with(".*");
    if (rule == nullptr || (!is_exact && rule->fate == KeyFate::kNotSupported)) {
      std::string reason(rule == nullptr ? "not a key of prime-rl that is known here" : rule->text);
      if (const std::string near = nearest_key(key); !near.empty())
        reason += fmt::format("; did you mean '{}'?", near);
      return add(leaf, KeyFate::kNotSupported, std::move(reason));
    }
    // A whole table is a value where the file leaves it empty.
    const bool is_table = leaf.value->is_table();
    if (!is_table && !has_key_type(*leaf.value, rule->type)) {
      diagnostics_.error("G021", leaf.value->span, "'{}' must be {}, not {}", leaf.key,
                         type_text(rule->type), leaf.value->kind());
      return;
    }
    if (rule->text == "tenant.main.filters" ||
        (key.starts_with("orchestrator.filters[") && counting_filters_.contains(item_of(leaf.key))))
      return judge_filter(leaf, key);
    if (auto fate = fate_of_curriculum(key, *leaf.value))
      return add(leaf, fate->first, std::move(fate->second));
    if (rule->text == "tenant.main.environments" && environments_.size() < 2)
      return add(leaf, KeyFate::kNotNeeded, "a tenant with one environment needs none");
    if (key.ends_with("].group_size") && !key.starts_with(kFirstEnvironment))
      return add(leaf, KeyFate::kNotSupported, "the groups of a tenant have one size");
    if (rule->fate == KeyFate::kNotSupported && !rule->off.empty() &&
        toml_of(*leaf.value) == rule->off)
      return add(leaf, KeyFate::kNotNeeded, "the value that this program has");
    if (rule->fate != KeyFate::kTaken) return add(leaf, rule->fate, std::string(rule->text));
    use_value(leaf, key, *rule);
  }

  static bool is_default_loss(const Value& type) {
    return type.as_string() == "default" || type.as_string() == "dppo";
  }

  static std::string item_of(const std::string& key) { return key.substr(0, key.find(']') + 1); }

  /// Filters are items {type, enforce}, in any order of their keys.
  void note_filters(const std::vector<Leaf>& leaves) {
    for (const Leaf& leaf : leaves) {
      if (leaf.key.ends_with("].type") && leaf.value->is_string())
        filter_types_[item_of(leaf.key)] = leaf.value->as_string();
      if (leaf.key.ends_with("].enforce") && leaf.value->is_bool() && !leaf.value->as_bool())
        counting_filters_.insert(item_of(leaf.key));
    }
  }

  void judge_filter(const Leaf& leaf, const std::string& key) {
    const std::string item = item_of(leaf.key);
    const std::string& type = filter_types_[item];
    if (type == "zero_advantage") {
      if (leaf.value->is_bool()) values_["orchestrator.filters"] = leaf.value;
      return add(leaf, KeyFate::kTaken, "tenant.main.filters.zero_advantage");
    }
    if (counting_filters_.contains(item))
      return add(leaf, KeyFate::kNotNeeded, "a filter that only counts");
    // prime-rl drops ids above its threshold, and a row as long as its window.
    const bool is_gibberish = type == "gibberish";
    if (!is_gibberish && type != "repetition")
      return add(leaf, KeyFate::kNotSupported,
                 "filters are zero_advantage, repetition, gibberish and truncated");
    int64_t& number = is_gibberish ? gibberish_from_ : repetition_max_;
    if (number == 0) number = is_gibberish ? kGibberishDefault + 1 : kWindowDefault - 1;
    if (leaf.value->is_integer() && key.ends_with(is_gibberish ? "token_id_threshold" : "window"))
      number = std::max<int64_t>(1, leaf.value->as_integer() + (is_gibberish ? 1 : -1));
    add(leaf, KeyFate::kTaken,
        fmt::format("tenant.main.filters.{}", is_gibberish ? "gibberish_from" : "repetition_max"));
  }

  /// The items of `env`, in their order, with the names that they have.
  void count_environments(const std::vector<Leaf>& leaves) {
    for (const Leaf& leaf : leaves) {
      const std::string key = own_spelling(leaf.key);
      if (!key.starts_with("orchestrator.train.env[")) continue;
      const std::string item = item_of(key);
      if (std::ranges::find(environments_, item) == environments_.end())
        environments_.push_back(item);
    }
  }

  void use_value(const Leaf& leaf, const std::string& key, const KeyRule& rule) {
    if (key == "model.name" && !values_.contains(key)) {
      values_[key] = leaf.value;
    } else if (key == "model.name") {
      if (toml_of(*values_[key]) != toml_of(*leaf.value))
        return add(leaf, KeyFate::kNotSupported, "engine and learner have one model");
    } else if (rule.text == "tenant.main.environment") {
      return use_environment(leaf);
    } else if (key == "trainer.loss.type" && !is_default_loss(*leaf.value) &&
               leaf.value->as_string() != "ipo") {
      return add(leaf, KeyFate::kNotSupported,
                 "prime-rl's losses here are dppo (its default) and ipo; write others into a "
                 "plugin");
    } else if (key == "deployment.num_train_gpus" && leaf.value->as_integer() > 1) {
      return add(leaf, KeyFate::kNotSupported, "a learner computes on one device, cuda:0");
    } else if (key == "inference.parallel.dp" && values_.contains("deployment.num_infer_gpus")) {
      return add(leaf, KeyFate::kNotNeeded, "num_infer_gpus is the number of engines");
    } else {
      // A key of one part wins over the shared one, as in prime-rl.
      const bool is_shared = leaf.key == key;
      if (is_shared && of_part_.contains(key)) {
        note_lost(leaf.key, *leaf.value, *values_[key]);
      } else {
        if (const Value* before = find(key)) note_lost(key, *before, *leaf.value);
        values_[key] = leaf.value;
      }
      if (!is_shared) of_part_.insert(key);
    }
    add(leaf, KeyFate::kTaken, std::string(rule.text));
  }

  /// Two keys of the file mean one option; the other value wins.
  void note_lost(const std::string& key, const Value& lost, const Value& used) {
    if (lost.is_table() || used.is_table() || toml_of(lost) == toml_of(used)) return;
    result_.notes.push_back(fmt::format("'{}' is stated twice: {} is used in place of {}", key,
                                        toml_of(used), toml_of(lost)));
  }

  /// Writes down that the graph has another value than the file.
  void note_change(const std::string& key, const std::string& used, const std::string& reason) {
    const Value* value = find(key);
    if (value == nullptr || toml_of(*value) == used) return;
    result_.notes.push_back(fmt::format("'{}' is {}: the graph has {}, because {}", key,
                                        toml_of(*value), used, reason));
  }

  void use_environment(const Leaf& leaf) {
    const std::string id = leaf.value->as_string();
    const std::string name = environment_name(id);
    const std::string item = item_of(own_spelling(leaf.key));
    own_names_[item] = name;
    const bool is_known =
        std::ranges::find(options_.environments, name) != options_.environments.end();
    if (options_.environment.empty() && is_known) {
      names_[item] = environment_ = name;
      return add(leaf, KeyFate::kTaken, "tenant.main.environment");
    }
    environment_ = options_.environment.empty() ? std::string(kStandIn) : options_.environment;
    names_[item] = environment_;
    replaced_environment_ = id;
    result_.notes.push_back(fmt::format(
        "environment '{}' of prime-rl is not in this program: the graph has '{}' in its "
        "place",
        id, environment_));
    add(leaf, KeyFate::kNotSupported,
        fmt::format("no environment of this name: '{}' is used in its place", environment_));
  }

  const Value* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found != values_.end() && !found->second->is_table() ? found->second : nullptr;
  }
  bool has(const std::string& key) const { return values_.contains(key); }
  int64_t integer(const std::string& key, int64_t otherwise) const {
    const Value* value = find(key);
    return value != nullptr ? value->as_integer() : otherwise;
  }
  /// Writes the value of a key, if the file has it.
  void copy(const std::string& key, std::string_view table, std::string_view option) {
    if (const Value* value = find(key)) graph_.set(table, option, toml_of(*value));
  }

  void write_graph_table() {
    for (const char* key : {"wandb.name", "run.name", "monitors.wandb.name"})
      if (const Value* name = find(key)) {
        const std::string used = detail::toml_text(file_name(name->as_string()));
        note_change(key, used, "the name becomes part of a folder's name");
        graph_.set("graph", "name", used);
      }
    copy("inference.seed", "graph", "seed");
  }

  void write_tenant() {
    constexpr std::string_view kTenant = "tenant.main";
    if (environments_.size() > 1)
      write_environments(kTenant);
    else
      graph_.set(kTenant, "environment", fmt::format("{{ name = \"{}\" }}", environment()),
                 replaced_environment_.empty()
                     ? ""
                     : fmt::format("in place of prime-rl's '{}'", replaced_environment_));
    copy("orchestrator.group_size", kTenant, "group_size");
    if (const Value* own = find(std::string(kFirstEnvironment) + "group_size"))
      note_change("orchestrator.group_size", toml_of(*own), "the environment states its own");
    copy(std::string(kFirstEnvironment) + "group_size", kTenant, "group_size");
    copy("orchestrator.batch_size", kTenant, "batch_size");
    copy("orchestrator.max_off_policy_steps", kTenant, "max_off_policy_steps");
    copy("max_steps", kTenant, "max_steps");
    if (find("max_steps") == nullptr)
      result_.notes.push_back("the file has no max_steps: the graph ends after 100");
    graph_.set(kTenant, "seq_len", std::to_string(seq_len()));
    copy("ckpt.interval", kTenant, "checkpoint_every");
    copy("ckpt.keep_last", kTenant, "keep_last");
    write_keep_every(kTenant);
    if (const std::string timeout = timeout_of("orchestrator.train.env[0]");
        !timeout.empty() && environments_.size() < 2)
      graph_.set(kTenant, "rollout_timeout", detail::toml_text(timeout));
    write_sampling(kTenant);
    copy("orchestrator.filters", kTenant, "filters.zero_advantage");
    if (gibberish_from_ > 0)
      graph_.set(kTenant, "filters.gibberish_from", std::to_string(gibberish_from_));
    if (repetition_max_ > 0)
      graph_.set(kTenant, "filters.repetition_max", std::to_string(repetition_max_));
    write_adapter(kTenant);
    const bool is_one = environments_.size() == 1;
    write_curriculum(values_, is_one ? environments_.front() : "", graph_, result_.notes);
  }

  std::string timeout_of(const std::string& item) const {
    for (const char* key : {".timeout.rollout", ".timeout"})
      if (const Value* timeout = find(item + key)) return fmt::format("{}s", timeout->as_number());
    return {};
  }

  void write_environments(std::string_view tenant) {
    std::vector<ImportedEnvironment> all;
    std::vector<double> ratios;
    for (const std::string& item : environments_) {
      ImportedEnvironment& each = all.emplace_back();
      const Value* name = find(item + ".name");
      each.environment = names_.contains(item) ? names_[item] : environment();
      each.name = name != nullptr ? file_name(name->as_string()) : own_names_[item];
      if (each.name.empty()) each.name = fmt::format("environment_{}", all.size());
      each.timeout = timeout_of(item);
      each.curriculum = curriculum_text(values_, item, result_.notes);
      for (const auto& [key, option] : {std::pair{"temperature", "temperature"},
                                        std::pair{"max_completion_tokens", "max_tokens"}})
        if (const Value* value = find(fmt::format("{}.sampling.{}", item, key)))
          each.sampling +=
              fmt::format("{}{} = {}", each.sampling.empty() ? "" : ", ", option, toml_of(*value));
      const Value* ratio = find(item + ".ratio");
      ratios.push_back(ratio != nullptr && ratio->as_number() > 0 ? ratio->as_number() : 0);
    }
    bool is_exact = true;
    std::vector<int64_t> weights(all.size(), 1);
    if (std::ranges::find(ratios, 0.0) == ratios.end())
      weights = weights_of_ratios(ratios, is_exact);
    else
      result_.notes.push_back(
          "an environment has no 'ratio': prime-rl then draws by the sizes of "
          "data sets, the graph draws all alike");
    if (!is_exact)
      result_.notes.push_back("the ratios of environments are rounded: weights are from 1 to 1000");
    graph_.set(tenant, "environments", environments_text(all, weights));
  }

  /// prime-rl counts steps, the graph counts checkpoints.
  void write_keep_every(std::string_view tenant) {
    const Value* kept = find("ckpt.keep_interval");
    if (kept == nullptr) return;
    const int64_t interval = std::max<int64_t>(1, integer("ckpt.interval", 1));
    const int64_t every = std::max<int64_t>(1, kept->as_integer() / interval);
    if (every * interval != kept->as_integer())
      result_.notes.push_back(fmt::format(
          "'ckpt.keep_interval' is {}: the graph keeps every checkpoint number {} for ever, which "
          "is every {} steps",
          kept->as_integer(), every, every * interval));
    graph_.set(tenant, "keep_every", std::to_string(every));
  }

  void write_sampling(std::string_view tenant) {
    for (const std::string& prefix :
         {std::string("orchestrator.train."), std::string(kFirstEnvironment)}) {
      if (prefix == kFirstEnvironment && environments_.size() > 1) continue;
      for (const char* option : {"temperature", "top_p", "min_p"})
        copy(prefix + "sampling." + option, tenant, fmt::format("sampling.{}", option));
      // -1 is prime-rl's word for all tokens.
      if (const Value* top_k = find(prefix + "sampling.top_k")) {
        const std::string used = std::to_string(std::max<int64_t>(0, top_k->as_integer()));
        if (top_k->as_integer() != -1)
          note_change(prefix + "sampling.top_k", used, "0 is the word for all tokens here");
        graph_.set(tenant, "sampling.top_k", used);
      }
      copy(prefix + "sampling.max_completion_tokens", tenant, "sampling.max_tokens");
      if (find(prefix + "sampling.max_completion_tokens") != nullptr) has_max_tokens_ = true;
    }
    // Without a limit, prime-rl samples until the sequence is full.
    if (!has_max_tokens_) graph_.set(tenant, "sampling.max_tokens", std::to_string(seq_len()));
  }

  void write_adapter(std::string_view tenant) {
    const std::string lora = "trainer.model.lora";
    bool is_there = has(lora);
    for (const char* option : {".rank", ".alpha", ".dropout", ".target_modules"})
      is_there = is_there || has(lora + option);
    if (!is_there) return;
    // prime-rl's defaults: rank 16, alpha 32.
    graph_.set(tenant, "adapter.rank", std::to_string(integer(lora + ".rank", 16)));
    const Value* alpha = find(lora + ".alpha");
    graph_.set(tenant, "adapter.alpha", alpha != nullptr ? toml_of(*alpha) : "32");
    copy(lora + ".dropout", tenant, "adapter.dropout");
    copy(lora + ".target_modules", tenant, "adapter.targets");
  }

  void write_resources() {
    constexpr std::string_view kEngine = "resource.engine", kLearner = "resource.learner";
    const int64_t length = std::max(seq_len(), integer("inference.model.max_model_len", 0));
    note_change("inference.model.max_model_len", std::to_string(length),
                "a trajectory has up to seq_len tokens");
    graph_.set(kEngine, "numerics", "\"fast\"");
    copy("inference.model.dtype", kEngine, "dtype");
    graph_.set(kEngine, "max_sequence_tokens", std::to_string(length));
    graph_.set(kEngine, "kv_blocks",
               std::to_string(kFullSequences * ((length + kBlockTokens - 1) / kBlockTokens)),
               fmt::format("{} sequences of full length", kFullSequences));
    copy("inference.enable_prefix_caching", kEngine, "prefix_cache");
    graph_.set(kLearner, "numerics", "\"fast\"");
    const std::string micro_batch =
        std::to_string(std::max(integer("trainer.model.seq_len", kMicroBatchTokens), seq_len()));
    note_change("trainer.model.seq_len", micro_batch,
                "a micro-batch has at least one trajectory of seq_len tokens");
    graph_.set(kLearner, "micro_batch_tokens", micro_batch);
    write_recompute(kLearner);
    if (const Value* fp8 = find("trainer.model.fp8"); fp8 != nullptr && fp8->as_bool())
      graph_.set(kLearner, "products", "\"fp8\"");
    const std::pair<const char*, const char*> options[] = {
        {"trainer.loss.dppo_mask_low", "loss.clip_low"},
        {"trainer.loss.dppo_mask_high", "loss.clip_high"},
        {"trainer.loss.adv_tau", "loss.advantage_weight"},
        {"trainer.loss.kl_tau", "loss.kl_weight"},
        {"trainer.optim.type", "optimizer.kind"},
        {"trainer.optim.lr", "optimizer.lr"},
        {"trainer.optim.weight_decay", "optimizer.weight_decay"},
        {"trainer.optim.betas1", "optimizer.beta1"},
        {"trainer.optim.betas2", "optimizer.beta2"},
        {"trainer.optim.mu", "optimizer.momentum"},
        {"trainer.optim.momentum", "optimizer.momentum"},
        {"trainer.optim.nesterov", "optimizer.nesterov"},
        {"trainer.optim.max_norm", "optimizer.max_norm"},
        {"trainer.scheduler.type", "schedule.kind"},
        {"trainer.scheduler.warmup_steps", "schedule.warmup_steps"},
        {"trainer.scheduler.decay_steps", "schedule.decay_steps"},
        {"trainer.scheduler.min_lr", "schedule.min_lr"}};
    if (const Value* loss = find("trainer.loss.type"); loss != nullptr && !is_default_loss(*loss))
      graph_.set(kLearner, "loss.kind", toml_of(*loss));
    for (const auto& [key, option] : options) copy(key, kLearner, option);
  }

  void write_recompute(std::string_view learner) {
    if (!has("trainer.model.ac") && !has("trainer.model.ac.mode")) return;
    const Value* mode = find("trainer.model.ac.mode");
    const bool is_selective = mode != nullptr && mode->as_string() == "selective";
    if (mode != nullptr && !is_selective)
      note_change("trainer.model.ac.mode", "\"full\"", "prime-rl knows full and selective");
    graph_.set(learner, "recompute", is_selective ? "\"keep_attention\"" : "\"full\"");
  }

  void write_rollout() {
    const int64_t batch = integer("orchestrator.batch_size", 64);
    const int64_t group = integer("orchestrator.group_size", 8);
    double inflight = static_cast<double>(batch);
    if (const Value* factor = find("orchestrator.oversampling_factor"))
      inflight = std::floor(inflight * factor->as_number());
    const std::string limit_key = "orchestrator.max_inflight_rollouts";
    if (const Value* limit = find(limit_key)) {
      if (has("orchestrator.oversampling_factor"))
        result_.notes.push_back(
            fmt::format("'orchestrator.oversampling_factor' is not used: '{}' says how many "
                        "rollouts are in flight",
                        limit_key));
      inflight = static_cast<double>(limit->as_integer());
    }
    const std::string used = fmt::format("{:.0f}", std::max(inflight, static_cast<double>(group)));
    note_change(limit_key, used, "a group opens as a whole");
    graph_.set("node.rollout", "max_inflight", used);
  }

  void write_places() {
    const int64_t engines = std::clamp<int64_t>(
        integer("deployment.num_infer_gpus", integer("inference.parallel.dp", 1)), 1, kReplicasMax);
    for (const std::string key : {"deployment.num_infer_gpus", "inference.parallel.dp"})
      if (key != "inference.parallel.dp" || !has("deployment.num_infer_gpus"))
        note_change(key, std::to_string(engines),
                    fmt::format("a place has 1 to {} engines", kReplicasMax));
    std::vector<std::string> devices;
    for (int64_t engine = 0; engine < engines; ++engine)
      devices.push_back(fmt::format("\"cuda:{}\"", engine + 1));
    graph_.set("place", "driver", "{ nodes = [\"env\", \"rollout\", \"router\"] }");
    graph_.set("place", "training",
               "{ nodes = [\"trainer\", \"broadcaster\"], device = \"cuda:0\" }");
    graph_.set("place", "inference",
               fmt::format("{{ nodes = [\"prefill\", \"decode\"], replicas = {}, devices = [{}] }}",
                           engines, fmt::join(devices, ", ")));
  }

  void write_model() {
    const Value* name = find("model.name");
    std::string folder = options_.model;
    if (folder.empty() && name != nullptr) {
      folder = std::filesystem::path(name->as_string()).filename().string();
      result_.notes.push_back(
          fmt::format("put the model '{}' into the folder '{}' beside the graph, or name its "
                      "folder with --model",
                      name->as_string(), folder));
    }
    if (folder.empty()) {
      folder = "model";
      result_.notes.push_back("the file names no model: put one into 'model' beside the graph");
    }
    graph_.set("model.policy", "path", detail::toml_text(folder));
  }

  std::string write() {
    write_graph_table();
    write_tenant();
    write_model();
    write_resources();
    write_rollout();
    write_places();
    return fmt::format(
               "# Written from {} (prime-rl) by `primerl-graph import`; the loop is implied.\n",
               options_.source) +
           graph_.text({"graph", "tenant.main", "model.policy", "resource.engine",
                        "resource.learner", "node.rollout", "place"});
  }

  int64_t seq_len() const { return integer("seq_len", kSeqLenDefault); }
  std::string environment() {
    if (!environment_.empty()) return environment_;
    return options_.environment.empty() ? std::string(kStandIn) : options_.environment;
  }

  const PrimeRlOptions& options_;
  Diagnostics& diagnostics_;
  PrimeRlImport result_;
  GraphText graph_;
  PrimeRlValues values_;                             // by the key in its own spelling
  std::set<std::string> of_part_;                    // keys that one part of the file states
  std::map<std::string, std::string> filter_types_;  // by item, "orchestrator.filters[0]"
  std::set<std::string> counting_filters_;           // items that are not enforced
  std::vector<std::string> environments_;            // items of `env`, "orchestrator.train.env[0]"
  std::map<std::string, std::string> names_;         // of environments of this program, by item
  std::map<std::string, std::string> own_names_;     // as prime-rl calls them, by item
  int64_t gibberish_from_ = 0, repetition_max_ = 0;
  std::string environment_, replaced_environment_;
  bool has_max_tokens_ = false;
};

}  // namespace

PrimeRlImport import_prime_rl(const Table& root, const PrimeRlOptions& options,
                              Diagnostics& diagnostics) {
  return Importer(options, diagnostics).run(root);
}

}  // namespace primerl
