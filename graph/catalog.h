/// Catalog: everything that a graph file may name. The programs fill it (actors/catalog.cc,
/// runtime/backends/resource_catalog.cc, actors/env/environments/catalog.cc,
/// actors/env/rewards/catalog.cc); the code of `graph` only reads it. The entries of a graph's
/// plugins are added to a copy that belongs to that graph's plan.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/memory_part.h"
#include "graph/contract.h"
#include "graph/options.h"

namespace primerl {

class Environment;   // actors/env/environment.h
class Reward;        // actors/env/reward.h
struct OutsidePool;  // graph/outside.h

/// Facts of a model folder that the checker needs. The program reads them with `read_model_facts`,
/// so the code of `graph` opens no model files itself.
struct ModelFacts {
  std::string model_type;
  int64_t max_position_embeddings = 0;  // 0 = not stated
  int64_t vocab_size = 0;
  /// Numbers of config.json that determine the shapes of weights, if config.json has them.
  std::vector<std::pair<std::string, int64_t>> shape = {};
  /// "'mup' of config.json is not known for ..."; empty: all keys are known.
  std::string unknown_keys = {};
  /// Parts of the folder that are passed over, one sentence each.
  std::vector<std::string> warnings = {};
};

/// Facts of the tokenizer of a model folder, which the program reads with `tokenizer_facts`.
struct TokenizerFacts {
  std::string file;              // tokenizer.json
  int64_t vocab_size = 0;        // largest id + 1
  std::vector<int32_t> end_ids;  // these tokens end a sequence
  std::string end_source;        // where they are stated: "'/models/x/config.json': 'eos_token_id'"
  std::string warning = {};      // why a supervised turn ends differently than a file says
};

/// One (kind, backend) of `[resource.x]`, e.g. ("engine", "torch").
struct ResourceContract {
  std::string kind;
  std::string backend;
  std::string doc;
  OptionSet options;           // without kind, backend, model
  bool needs_model = false;    // needs `model = "<name>"`
  bool computes = false;       // has a thread pool of its own: counts for `threads`
  bool one_per_graph = false;  // a second copy makes no sense (learner)
  /// Most tokens of one sequence, and the option that limits it; empty = no limit of its own.
  /// `model` may be null.
  struct SequenceLimit {
    int64_t tokens = 0;
    std::string option;
  };
  std::function<SequenceLimit(const void* options, const ModelFacts* model)> sequence_limit;
  /// Checks that the options fit together, beyond the range of each one; empty = no such check.
  std::function<Status(const void* options)> validate;
  /// An error if the resource cannot compute the model of a folder. Reads the config and the
  /// headers of the weights, no data. kNotFound: it needs weights, and the folder has none. Empty =
  /// this is known only when the resource is created.
  std::function<Status(const void* options, const std::string& folder)> check_model = {};
  /// An error if the resource cannot train the adapter of `tenant` on the model of `folder`. Also
  /// reads the folder that the adapter starts from, if it has one. Empty = known only when it is
  /// created.
  std::function<Status(const std::string& folder, const Tenant& tenant)> check_adapter = {};
  /// An error if it cannot train `tenant` by its rules and those of `options` together. The error
  /// quotes the options concerned. Empty = known only when it is created.
  std::function<Status(const void* options, const Tenant& tenant)> check_tenant = {};
  /// The model and device of a resource, and the tenants that it computes for.
  struct Setup {
    std::string folder;  // of its model; "" = no model
    std::string device;  // "cpu", "cuda:0"
    std::span<const Tenant> tenants = {};
  };
  /// An error if it cannot be created there, for reasons that neither validate() nor check_model()
  /// can know. Reads only config.json. The error quotes the options concerned. Empty = known only
  /// when it is created.
  std::function<Status(const void* options, const Setup& setup)> check_setup = {};
  /// The memory that one copy of it keeps in its process, with the model of `folder`, for
  /// `tenants`, before it is created. Empty = unknown.
  std::function<Result<std::vector<MemoryPart>>(const void* options, const std::string& folder,
                                                std::span<const Tenant> tenants)>
      memory = {};
  /// An option that changes nothing in some setups.
  struct IdleOption {
    std::string option;  // "debug.batches_max"
    std::string reason;
    std::string help;  // what to do
  };
  /// The options of the bound struct that change nothing on any of `devices` ("cpu", "cuda:0") for
  /// `tenants`. A value that says what happens anyway is not among them. Empty = each option always
  /// has an effect.
  std::function<std::vector<IdleOption>(const void* options, const std::set<std::string>& devices,
                                        std::span<const Tenant> tenants)>
      idle_options = {};
};

/// One environment of `[tenant.x] environment = { name = ... }`, made by environment_contract()
/// (actors/env/environment.h).
struct EnvironmentContract {
  std::string name;
  std::string doc;
  OptionSet options;
  struct SampleTask {
    std::string prompt;
    int64_t num_turns = 0;  // of its demonstration; 0 = there is none
  };
  /// The first `count` tasks of an environment that this call creates: cheap. Empty = unknown.
  std::function<Result<std::vector<SampleTask>>(const void* options, uint64_t seed, size_t count)>
      first_tasks = {};
  /// The error that make() would return; empty = it is not known before.
  std::function<Status(const void* options)> validate = {};
  /// Null options mean the defaults.
  std::function<Result<std::unique_ptr<Environment>>(const void* options)> make = {};
  struct Rows {
    int64_t num_training = 0;    // of one epoch
    int64_t num_evaluation = 0;  // the rows that do not train, or all rows
  };
  /// How many rows its data set has; empty = its tasks are not rows.
  std::function<Result<Rows>(const void* options)> rows = {};
  /// An error that names the first row whose field is not a number; empty = rows have no fields.
  std::function<Status(const void* options, const std::string& field)> check_field = {};
  /// The workers that make its tasks and steps instead of make(); empty = it is code of the
  /// process.
  std::function<OutsidePool(const void* options)> outside = {};
  /// Its server calls the policy itself, over HTTP (docs/design/verifiers.md).
  bool drives_rollouts = false;
};

/// One reward of `[tenant.x] reward = { name = ... }`, made by reward_contract()
/// (actors/env/reward.h).
struct RewardContract {
  std::string name;
  std::string doc;
  OptionSet options;
  std::function<Status(const void* options)> validate = {};
  /// Null options mean the defaults.
  std::function<Result<std::unique_ptr<Reward>>(const void* options)> make = {};
  /// The workers that score instead of make(); empty = it is code of the process.
  std::function<OutsidePool(const void* options)> outside = {};
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
  std::vector<PluginIdentity> plugins;  // the plugins that added entries
  /// Reads config.json of a model folder; the error says what is missing or unreadable.
  std::function<Result<ModelFacts>(const std::string& folder)> model_facts;
  /// Reads the tokenizer of a model folder; the error is the one that a run would report. Empty =
  /// known only when the tokenizer is created.
  std::function<Result<TokenizerFacts>(const std::string& folder)> tokenizer_facts;
  /// An error if a token id of the first folder's tokenizer is another token, or none, in the
  /// second's. Empty = not checked.
  std::function<Status(const std::string& policy, const std::string& teacher)> check_same_tokens;
  /// Loads the shared libraries of `[graph] plugins` and adds their entries to `catalog`; returns
  /// why each unusable plugin cannot be used. Empty = this program has no plugins.
  std::function<std::vector<PluginFault>(const std::vector<std::string>& files, Catalog& catalog)>
      add_plugins;

  const Contract* find_actor(std::string_view name) const;
  const ResourceContract* find_resource(std::string_view kind, std::string_view backend) const;
};

}  // namespace primerl
