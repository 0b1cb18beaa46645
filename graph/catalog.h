/// Catalog: everything a graph file may name. The composition roots fill it (actors/catalog.cc,
/// runtime/backends/resource_catalog.cc, actors/env/environments/catalog.cc); the language only
/// reads it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/contract.h"
#include "graph/options.h"

namespace primerl {

/// Facts of a model folder the checker needs; read by `read_model_facts` of the composition root so
/// that the language opens no model files itself.
struct ModelFacts {
  std::string model_type;
  int64_t max_position_embeddings = 0;  // 0 = not stated
  int64_t vocab_size = 0;
  /// Numbers of config.json that the shapes of weights follow from, as far as they are stated.
  std::vector<std::pair<std::string, int64_t>> shape = {};
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
};

/// One environment of `[tenant.x] environment = { name = ... }`.
struct EnvironmentContract {
  std::string name;
  std::string doc;
  OptionSet options;
  struct SampleTask {
    std::string prompt;
    int64_t num_turns = 0;  // of its demonstration; 0 = it has none
  };
  /// The first `count` tasks of an environment that is made for this call: cheap, and the error is
  /// the one that a run would start with. Empty = nobody can say.
  std::function<Result<std::vector<SampleTask>>(const void* options, uint64_t seed, size_t count)>
      first_tasks = {};
};

struct Catalog {
  std::vector<Contract> actors;
  std::vector<const MessageType*> messages;
  std::vector<ResourceContract> resources;
  std::vector<EnvironmentContract> environments;
  /// Reads config.json of a model folder; the error says what is missing or unreadable.
  std::function<Result<ModelFacts>(const std::string& folder)> model_facts;

  const Contract* find_actor(std::string_view name) const;
  const ResourceContract* find_resource(std::string_view kind, std::string_view backend) const;
  const EnvironmentContract* find_environment(std::string_view name) const;
};

}  // namespace primerl
