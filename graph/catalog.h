/// Catalog: everything a graph file may name. The composition roots fill it (actors/catalog.cc,
/// runtime/backends/resource_catalog.cc, actors/env/environments/catalog.cc,
/// actors/env/rewards/catalog.cc); the language only reads it. What a graph's plugins bring is
/// added to a copy that belongs to that graph's plan.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/memory_part.h"
#include "graph/contract.h"
#include "graph/options.h"

namespace primerl {

class Environment;  // actors/env/environment.h
class Reward;       // actors/env/reward.h

/// Facts of a model folder the checker needs; read by `read_model_facts` of the composition root so
/// that the language opens no model files itself.
struct ModelFacts {
  std::string model_type;
  int64_t max_position_embeddings = 0;  // 0 = not stated
  int64_t vocab_size = 0;
  /// Numbers of config.json that the shapes of weights follow from, as far as they are stated.
  std::vector<std::pair<std::string, int64_t>> shape = {};
};

/// Facts of the tokenizer of a model folder, read by `tokenizer_facts` of the composition root.
struct TokenizerFacts {
  std::string file;              // tokenizer.json
  int64_t vocab_size = 0;        // largest id + 1
  std::vector<int32_t> end_ids;  // that end a sequence
  std::string end_source;        // what says so: "'/models/x/config.json': 'eos_token_id'"
};

/// One (kind, backend) of `[resource.x]`, e.g. ("engine", "torch").
struct ResourceContract {
  std::string kind;
  std::string backend;
  std::string doc;
  OptionSet options;           // without kind, backend, model
  bool needs_model = false;    // takes `model = "<name>"`
  bool computes = false;       // has a thread pool of its own: counts for `threads`
  bool one_per_graph = false;  // a second copy elsewhere makes no sense (learner)
  /// Most tokens of one sequence, and the option that says so; empty = no limit of its own. `model`
  /// may be null.
  struct SequenceLimit {
    int64_t tokens = 0;
    std::string option;
  };
  std::function<SequenceLimit(const void* options, const ModelFacts* model)> sequence_limit;
  /// What each option's own range cannot say; empty = nothing more.
  std::function<Status(const void* options)> validate;
  /// Why it cannot compute the model of a folder: reads its config and the headers of its weights,
  /// no data. kNotFound: it needs weights, and the folder has none. Empty = nothing is known before
  /// it is made.
  std::function<Status(const void* options, const std::string& folder)> check_model = {};
  /// Why it cannot train the adapter of `tenant` on the model of `folder`: also reads the folder
  /// that the adapter starts from, if it has one. Empty = nothing is known before it is made.
  std::function<Status(const std::string& folder, const Tenant& tenant)> check_adapter = {};
  /// Where it is made.
  struct Setup {
    std::string folder;  // of its model; "" = none
    std::string device;  // "cpu", "cuda:0"
  };
  /// Why it cannot be made there, which neither validate() nor check_model() knows; reads
  /// config.json alone. The fault quotes the options that it is about. Empty = nothing is known
  /// before.
  std::function<Status(const void* options, const Setup& setup)> check_setup = {};
  /// What one copy of it keeps in the memory of its process, with the model of `folder`, for
  /// `tenants`: known before it is made. Empty = nobody can say.
  std::function<Result<std::vector<MemoryPart>>(const void* options, const std::string& folder,
                                                std::span<const Tenant> tenants)>
      memory = {};
};

/// One environment of `[tenant.x] environment = { name = ... }`; environment_contract() of
/// actors/env/environment.h makes it.
struct EnvironmentContract {
  std::string name;
  std::string doc;
  OptionSet options;
  struct SampleTask {
    std::string prompt;
    int64_t num_turns = 0;  // of its demonstration; 0 = it has none
  };
  /// The first `count` tasks of an environment that is made for this call: cheap. Empty = nobody
  /// can say.
  std::function<Result<std::vector<SampleTask>>(const void* options, uint64_t seed, size_t count)>
      first_tasks = {};
  /// The error that make() would end with; empty = none is known before.
  std::function<Status(const void* options)> validate = {};
  /// Null options mean the defaults.
  std::function<Result<std::unique_ptr<Environment>>(const void* options)> make = {};
};

/// One reward of `[tenant.x] reward = { name = ... }`; reward_contract() of actors/env/reward.h
/// makes it.
struct RewardContract {
  std::string name;
  std::string doc;
  OptionSet options;
  std::function<Status(const void* options)> validate = {};
  /// Null options mean the defaults.
  std::function<Result<std::unique_ptr<Reward>>(const void* options)> make = {};
};

struct Catalog;

/// Why a plugin cannot be used.
struct PluginFault {
  size_t file = 0;  // index into the list of files
  Error error;
};

/// One of `[graph] plugins`, as a record names it.
struct PluginIdentity {
  std::string name;
  std::string version;
  std::string file;       // absolute
  uint32_t checksum = 0;  // CRC-32C of the file
};

struct Catalog {
  std::vector<Contract> actors;
  std::vector<const MessageType*> messages;
  std::vector<ResourceContract> resources;
  std::vector<EnvironmentContract> environments;
  std::vector<RewardContract> rewards;
  std::vector<PluginIdentity> plugins;  // that brought some of these
  /// Reads config.json of a model folder; the error says what is missing or unreadable.
  std::function<Result<ModelFacts>(const std::string& folder)> model_facts;
  /// Reads the tokenizer of a model folder; the error says what a run would say. Empty = not known
  /// before it is made.
  std::function<Result<TokenizerFacts>(const std::string& folder)> tokenizer_facts;
  /// Loads the shared libraries of `[graph] plugins` and adds to `catalog` what they bring; says of
  /// each that cannot be used why. Empty = this program takes no plugins.
  std::function<std::vector<PluginFault>(const std::vector<std::string>& files, Catalog& catalog)>
      add_plugins;

  const Contract* find_actor(std::string_view name) const;
  const ResourceContract* find_resource(std::string_view kind, std::string_view backend) const;
};

}  // namespace primerl
