#include "runtime/cli/prime_rl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "graph/options.h"

namespace primerl {
namespace {

constexpr std::string_view kFirstEnvironment = "orchestrator.train.env[0].";
constexpr std::string_view kStandIn = "copy";  // the environment in place of an unknown one
constexpr int64_t kBlockTokens = 16;           // the engine's block_size
constexpr int64_t kFullSequences = 16;         // of seq_len, that the KV cache has space for
constexpr int64_t kSeqLenDefault = 2048;       // of prime-rl and of a tenant
constexpr int64_t kMicroBatchTokens = 16384;   // below 8,192, launches last longer than GEMMs
constexpr int64_t kReplicasMax = 64;           // engines of one machine

/// A value of the file with its key: a leaf, or a table without keys.
struct Leaf {
  std::string key;
  const Value* value = nullptr;
  Position position;
};

void collect(const Table& table, const std::string& prefix, std::vector<Leaf>& leaves);

void collect(const Value& value, const std::string& key, const Position& position,
             std::vector<Leaf>& leaves) {
  const bool is_list_of_tables = value.is_array() && !value.as_array().empty() &&
                                 std::ranges::all_of(value.as_array(), &Value::is_table);
  if (value.is_table() && !value.as_table().entries.empty()) {
    collect(value.as_table(), key + ".", leaves);
  } else if (is_list_of_tables) {
    size_t index = 0;
    for (const Value& item : value.as_array())
      collect(item, fmt::format("{}[{}]", key, index++), item.span.begin, leaves);
  } else {
    leaves.push_back({key, &value, position});
  }
}

void collect(const Table& table, const std::string& prefix, std::vector<Leaf>& leaves) {
  for (const Entry& entry : table.entries)
    collect(entry.value, prefix + entry.key, entry.key_span.begin, leaves);
}

std::string toml_of(const Value& value) {
  if (value.is_bool()) return value.as_bool() ? "true" : "false";
  if (value.is_integer()) return std::to_string(value.as_integer());
  if (value.is_number()) return detail::toml_text(value.as_number());
  if (value.is_string()) return detail::toml_text(value.as_string());
  std::vector<std::string> items;
  if (value.is_array())
    for (const Value& item : value.as_array()) items.push_back(toml_of(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

/// The tables of the graph in their order, each with its options in order.
class GraphText {
 public:
  /// `path` is "tenant.main.sampling.top_p"; a later value replaces an earlier one.
  void set(std::string_view table, std::string_view option, std::string value,
           std::string comment = "") {
    auto& lines = tables_[std::string(table)];
    const auto same = std::ranges::find(lines, option, &Line::option);
    if (same != lines.end()) lines.erase(same);
    lines.push_back({std::string(option), std::move(value), std::move(comment)});
  }
  std::string text(const std::vector<std::string>& order) const {
    std::string text;
    for (const auto& table : order)
      if (const auto found = tables_.find(table); found != tables_.end())
        text += fmt::format("\n[{}]\n{}", table, lines_of(found->second));
    return text;
  }

 private:
  struct Line {
    std::string option, value, comment;
  };

  /// "sampling.top_p" and "sampling.top_k" become one inline table.
  static std::string lines_of(const std::vector<Line>& lines) {
    std::string text;
    std::vector<std::string> written;
    for (const Line& line : lines) {
      const size_t dot = line.option.find('.');
      const std::string name = line.option.substr(0, dot);
      if (std::ranges::find(written, name) != written.end()) continue;
      written.push_back(name);
      std::string value = line.value;
      if (dot != std::string::npos) {
        std::vector<std::string> parts;
        for (const Line& other : lines)
          if (other.option.starts_with(name + "."))
            parts.push_back(fmt::format("{} = {}", other.option.substr(dot + 1), other.value));
        value = fmt::format("{{ {} }}", fmt::join(parts, ", "));
      }
      const std::string assignment = fmt::format("{} = {}", name, value);
      text += line.comment.empty() ? assignment + "\n"
                                   : fmt::format("{:<40} # {}\n", assignment, line.comment);
    }
    return text;
  }

  std::map<std::string, std::vector<Line>> tables_;
};

/// "reverse_text" for "primeintellect/reverse-text" and "reverse-text-v1".
std::string environment_name(std::string id) {
  if (const size_t slash = id.rfind('/'); slash != std::string::npos) id.erase(0, slash + 1);
  if (const size_t version = id.find('@'); version != std::string::npos) id.erase(version);
  std::ranges::replace(id, '-', '_');
  const size_t tail = id.rfind("_v");
  const bool is_version =
      tail != std::string::npos && tail + 2 < id.size() &&
      std::ranges::all_of(id.substr(tail + 2), [](char c) { return c >= '0' && c <= '9'; });
  return is_version ? id.substr(0, tail) : id;
}

/// A graph's name: it becomes part of a folder's name.
std::string file_name(std::string_view text) {
  std::string name;
  for (const char c : text.substr(0, 64)) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    name += is_plain ? c : '-';
  }
  if (!name.empty() && name[0] == '.') name[0] = '-';
  return name;
}

class Importer {
 public:
  Importer(const PrimeRlOptions& options, Diagnostics& diagnostics)
      : options_(options), diagnostics_(diagnostics) {}

  PrimeRlImport run(const Table& root) {
    std::vector<Leaf> leaves;
    collect(root, "", leaves);
    note_filters(leaves);
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
    if (key.starts_with("orchestrator.train.env[") && !key.starts_with(kFirstEnvironment))
      return add(leaf, KeyFate::kNotSupported,
                 "a tenant has one environment: write a [tenant.x] for each");
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
    if (rule->key.starts_with("orchestrator.filters[]")) return judge_filter(leaf);
    if (rule->fate == KeyFate::kNotSupported && !rule->off.empty() &&
        toml_of(*leaf.value) == rule->off)
      return add(leaf, KeyFate::kNotNeeded, "the value that this program has");
    if (rule->fate != KeyFate::kTaken) return add(leaf, rule->fate, std::string(rule->text));
    use_value(leaf, key, *rule);
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

  void judge_filter(const Leaf& leaf) {
    const std::string item = item_of(leaf.key);
    if (filter_types_[item] == "zero_advantage") {
      if (leaf.value->is_bool()) values_["orchestrator.filters"] = leaf.value;
      return add(leaf, KeyFate::kTaken, "tenant.main.filters.zero_advantage");
    }
    if (counting_filters_.contains(item))
      return add(leaf, KeyFate::kNotNeeded, "a filter that only counts");
    add(leaf, KeyFate::kNotSupported, "tenants have one filter, zero_advantage");
  }

  void use_value(const Leaf& leaf, const std::string& key, const KeyRule& rule) {
    if (key == "model.name" && !values_.contains(key)) {
      values_[key] = leaf.value;
    } else if (key == "model.name") {
      if (toml_of(*values_[key]) != toml_of(*leaf.value))
        return add(leaf, KeyFate::kNotSupported, "engine and learner have one model");
    } else if (rule.text == "tenant.main.environment") {
      return use_environment(leaf);
    } else if (key == "deployment.num_train_gpus" && leaf.value->as_integer() > 1) {
      return add(leaf, KeyFate::kNotSupported, "a learner computes on one device, cuda:0");
    } else if (key == "inference.parallel.dp" && values_.contains("deployment.num_infer_gpus")) {
      return add(leaf, KeyFate::kNotNeeded, "num_infer_gpus is the number of engines");
    } else {
      // A key of one part wins over the shared one, as in prime-rl.
      const bool is_shared = leaf.key == key;
      if (!is_shared || !of_part_.contains(key)) values_[key] = leaf.value;
      if (!is_shared) of_part_.insert(key);
    }
    add(leaf, KeyFate::kTaken, std::string(rule.text));
  }

  void use_environment(const Leaf& leaf) {
    const std::string id = leaf.value->as_string();
    const std::string name = environment_name(id);
    const bool is_known =
        std::ranges::find(options_.environments, name) != options_.environments.end();
    if (options_.environment.empty() && is_known) {
      environment_ = name;
      return add(leaf, KeyFate::kTaken, "tenant.main.environment");
    }
    environment_ = options_.environment.empty() ? std::string(kStandIn) : options_.environment;
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
      if (const Value* name = find(key))
        graph_.set("graph", "name", detail::toml_text(file_name(name->as_string())));
    copy("inference.seed", "graph", "seed");
  }

  void write_tenant() {
    constexpr std::string_view kTenant = "tenant.main";
    graph_.set(kTenant, "environment", fmt::format("{{ name = \"{}\" }}", environment()),
               replaced_environment_.empty()
                   ? ""
                   : fmt::format("in place of prime-rl's '{}'", replaced_environment_));
    copy("orchestrator.group_size", kTenant, "group_size");
    copy(std::string(kFirstEnvironment) + "group_size", kTenant, "group_size");
    copy("orchestrator.batch_size", kTenant, "batch_size");
    copy("orchestrator.max_off_policy_steps", kTenant, "max_off_policy_steps");
    copy("max_steps", kTenant, "max_steps");
    if (find("max_steps") == nullptr)
      result_.notes.push_back("the file has no max_steps: the graph ends after 100");
    graph_.set(kTenant, "seq_len", std::to_string(seq_len()));
    copy("ckpt.interval", kTenant, "checkpoint_every");
    copy("ckpt.keep_last", kTenant, "keep_last");
    if (const Value* kept = find("ckpt.keep_interval"))
      graph_.set(kTenant, "keep_every",
                 std::to_string(std::max<int64_t>(
                     1, kept->as_integer() / std::max<int64_t>(1, integer("ckpt.interval", 1)))));
    for (const char* key : {"timeout", "timeout.rollout"})
      if (const Value* timeout = find(std::string(kFirstEnvironment) + key))
        graph_.set(kTenant, "rollout_timeout", fmt::format("\"{}s\"", timeout->as_number()));
    write_sampling(kTenant);
    copy("orchestrator.filters", kTenant, "filters.zero_advantage");
    write_adapter(kTenant);
  }

  void write_sampling(std::string_view tenant) {
    for (const std::string& prefix :
         {std::string("orchestrator.train."), std::string(kFirstEnvironment)}) {
      for (const char* option : {"temperature", "top_p", "min_p"})
        copy(prefix + "sampling." + option, tenant, fmt::format("sampling.{}", option));
      // -1 is prime-rl's word for all tokens.
      if (const Value* top_k = find(prefix + "sampling.top_k"))
        graph_.set(tenant, "sampling.top_k",
                   std::to_string(std::max<int64_t>(0, top_k->as_integer())));
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
    graph_.set(kEngine, "numerics", "\"fast\"");
    copy("inference.model.dtype", kEngine, "dtype");
    graph_.set(kEngine, "max_sequence_tokens", std::to_string(length));
    graph_.set(kEngine, "kv_blocks",
               std::to_string(kFullSequences * ((length + kBlockTokens - 1) / kBlockTokens)),
               fmt::format("{} sequences of full length", kFullSequences));
    copy("inference.enable_prefix_caching", kEngine, "prefix_cache");
    graph_.set(kLearner, "numerics", "\"fast\"");
    graph_.set(
        kLearner, "micro_batch_tokens",
        std::to_string(std::max(integer("trainer.model.seq_len", kMicroBatchTokens), seq_len())));
    write_recompute(kLearner);
    if (const Value* fp8 = find("trainer.model.fp8"); fp8 != nullptr && fp8->as_bool())
      graph_.set(kLearner, "products", "\"fp8\"");
    const std::pair<const char*, const char*> options[] = {
        {"trainer.loss.dppo_mask_low", "loss.clip_low"},
        {"trainer.loss.dppo_mask_high", "loss.clip_high"},
        {"trainer.loss.adv_tau", "loss.advantage_weight"},
        {"trainer.loss.kl_tau", "loss.kl_weight"},
        {"trainer.optim.lr", "optimizer.lr"},
        {"trainer.optim.weight_decay", "optimizer.weight_decay"},
        {"trainer.optim.betas1", "optimizer.beta1"},
        {"trainer.optim.betas2", "optimizer.beta2"},
        {"trainer.optim.max_norm", "optimizer.max_norm"},
        {"trainer.scheduler.type", "schedule.kind"},
        {"trainer.scheduler.warmup_steps", "schedule.warmup_steps"},
        {"trainer.scheduler.decay_steps", "schedule.decay_steps"},
        {"trainer.scheduler.min_lr", "schedule.min_lr"}};
    for (const auto& [key, option] : options) copy(key, kLearner, option);
  }

  void write_recompute(std::string_view learner) {
    if (!has("trainer.model.ac") && !has("trainer.model.ac.mode")) return;
    const Value* mode = find("trainer.model.ac.mode");
    const bool is_selective = mode != nullptr && mode->as_string() == "selective";
    graph_.set(learner, "recompute", is_selective ? "\"keep_attention\"" : "\"full\"");
  }

  void write_rollout() {
    const int64_t batch = integer("orchestrator.batch_size", 64);
    const int64_t group = integer("orchestrator.group_size", 8);
    double inflight = static_cast<double>(batch);
    if (const Value* factor = find("orchestrator.oversampling_factor"))
      inflight = std::floor(inflight * factor->as_number());
    if (const Value* limit = find("orchestrator.max_inflight_rollouts"))
      inflight = static_cast<double>(limit->as_integer());
    graph_.set("node.rollout", "max_inflight",
               fmt::format("{:.0f}", std::max(inflight, static_cast<double>(group))));
  }

  void write_places() {
    const int64_t engines = std::clamp<int64_t>(
        integer("deployment.num_infer_gpus", integer("inference.parallel.dp", 1)), 1, kReplicasMax);
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
  std::map<std::string, const Value*> values_;       // by the key in its own spelling
  std::set<std::string> of_part_;                    // keys that one part of the file states
  std::map<std::string, std::string> filter_types_;  // by item, "orchestrator.filters[0]"
  std::set<std::string> counting_filters_;           // items that are not enforced
  std::string environment_, replaced_environment_;
  bool has_max_tokens_ = false;
};

}  // namespace

PrimeRlImport import_prime_rl(const Table& root, const PrimeRlOptions& options,
                              Diagnostics& diagnostics) {
  return Importer(options, diagnostics).run(root);
}

}  // namespace primerl
