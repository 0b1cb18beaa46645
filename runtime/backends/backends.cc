#include "runtime/backends/backends.h"

#include <algorithm>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/real_clock.h"
#include "graph/base/suggest.h"
#include "graph/frozen.h"
#include "graph/plan_memory.h"
#include "graph/weight_backend.h"
#include "kernels/engine/observed_engine.h"
#include "kernels/scripted/scripted_engine.h"
#include "kernels/scripted/scripted_learner.h"
#include "kernels/text/tokenizer.h"
#include "kernels/train/objective.h"
#include "kernels/weights/channel.h"
#include "kernels/weights/memory_channel.h"
#include "kernels/weights/options.h"
#include "runtime/backends/devices.h"
#include "runtime/backends/outside_backend.h"
#include "runtime/backends/tenant_options.h"
#include "runtime/backends/torch_backends.h"
#include "runtime/outside/http_listener.h"
#include "runtime/outside/served_keys.h"
#include "runtime/outside/slot_outside.h"

namespace primerl {
namespace {

using Made = Result<std::shared_ptr<Resource>>;

template <class T>
Made as_resource(Result<std::unique_ptr<T>> made) {
  if (!made.ok()) return std::move(made).error();
  return std::shared_ptr<Resource>(std::move(made).value());
}

Made as_engine(Result<std::unique_ptr<Engine>> made) {
  if (!made.ok()) return std::move(made).error();
  return std::shared_ptr<Resource>(std::make_shared<ObservedEngine>(std::move(made).value()));
}

std::string model_folder(const Plan& plan, const PlanResource& resource) {
  return resource.model < 0 ? "" : plan.models[static_cast<size_t>(resource.model)].path;
}

/// The bound options, completed with values that only the plan has.
template <class S>
S options_of(const Plan& plan, const PlanResource& resource) {
  S options = *static_cast<const S*>(resource.options.get());
  options.threads = resource.threads;
  options.device = device_of(plan, static_cast<int32_t>(&resource - plan.resources.data()));
  if constexpr (requires { options.max_steps; }) options.max_steps = schedule_steps(plan);
  return options;
}

/// The options of an engine, with the tenants that it serves.
template <class S>
S engine_options_of(const Plan& plan, const PlanResource& engine) {
  S options = options_of<S>(plan, engine);
  const auto index = static_cast<int32_t>(&engine - plan.resources.data());
  static_cast<EngineOptions&>(options) = engine_for(options, tenants_of_engine(plan, index));
  return options;
}

const WeightChannelOptions& channel_options(const PlanResource& resource) {
  return *static_cast<const WeightChannelOptions*>(resource.options.get());
}

/// The folder of the learner's model, whose weights the channel carries.
std::string trained_model_folder(const Plan& plan) {
  for (const auto& resource : plan.resources)
    if (resource.kind == Learner::kResourceKind && resource.model >= 0)
      return model_folder(plan, resource);
  return {};
}

/// Asks the pools of one actor group. A server of verifiers uses the policy's tokenizer if its
/// environment names no other.
Result<std::shared_ptr<Resource>> outside_of_group(const Plan& plan, const PlanResource& resource,
                                                   const BackendSetup& setup) {
  const OutsideMaker make = [folder = trained_model_folder(plan),
                             log = setup.log_outside](OutsideSpec spec) {
    for (OutsidePool& pool : spec.pools)
      if (pool.kind == OutsidePoolKind::kVerifiers && pool.verifiers.renderer_model.empty())
        pool.verifiers.renderer_model = folder;
    return make_outside(spec, log);
  };
  const auto& spec = *static_cast<const OutsideSpec*>(resource.options.get());
  return std::shared_ptr<Resource>(resource.slot.is_none() ? make(spec)
                                                           : make_slot_outside(spec, make));
}

/// The device memory of the calling process; null if weights do not stay on devices.
std::shared_ptr<DeviceMemory> device_memory_for(const Plan& plan, const PlanResource& channel,
                                                ProcessId process) {
  const auto index = static_cast<int32_t>(&channel - plan.resources.data());
  if (torch_backends() == nullptr || process.is_none() || !is_among_devices(plan, index))
    return nullptr;
  return torch_backends()->device_memory(plan.process(process).device);
}

using MakeChannel = Result<std::shared_ptr<WeightChannel>> (*)(ChannelSetup setup);

Made process_channel(const Plan& plan, const PlanResource& resource, const BackendSetup& setup,
                     MakeChannel make) {
  if (setup.run_folder.empty())
    return error(Code::kInvalid, "weights cannot leave this process: it belongs to no run")
        .note("a backend other than memory needs a run folder");
  ChannelSetup channel;
  channel.run_folder = setup.run_folder;
  channel.run_id = setup.run_id;
  channel.resource = resource.name;
  channel.model_folder = trained_model_folder(plan);
  channel.versions_max = static_cast<size_t>(channel_options(resource).versions_max);
  channel.devices = device_memory_for(plan, resource, setup.process);
  channel.log = setup.log;
  ASSIGN_OR_RETURN(auto made, make(std::move(channel)));
  return std::shared_ptr<Resource>(std::move(made));
}

Made stream_channel(const Plan& plan, const PlanResource& resource, const BackendSetup& setup) {
  const auto index = static_cast<uint32_t>(&resource - plan.resources.data());
  StreamChannelSetup channel;
  channel.resource = resource.name;
  channel.versions_max = static_cast<size_t>(channel_options(resource).versions_max);
  for (const PlanProcess& process : plan.processes) channel.names.push_back(process.name);
  channel.has_news = setup.streams_have_news;
  channel.log = setup.log;
  auto made = make_stream_channel(std::move(channel));
  if (setup.join_streams != nullptr)
    setup.join_streams(index, processes_of(plan, static_cast<int32_t>(index)), made);
  return std::shared_ptr<Resource>(std::move(made));
}

/// Whether a request may have stop texts: one of a tenant that has some, or that may join later, or
/// a client's, which sends its own.
bool may_have_stop_texts(const Plan& plan) {
  const auto serves_clients = [](const PlanNode& each) {
    return each.contract->name == "gateway" || each.contract->name == "tinker";
  };
  return !plan.free_slots.empty() || std::ranges::any_of(plan.tenants, [](const Tenant& each) {
    return !each.sampling.stop.empty();
  }) || std::ranges::any_of(plan.nodes, serves_clients);
}

/// The tokenizer for stop texts: that of the engine's model, or that of the rollouts for an engine
/// without one (a scripted engine). Null when no request may have stop texts.
Result<std::shared_ptr<const Tokenizer>> stop_tokenizer(const Plan& plan,
                                                        const PlanResource& engine) {
  std::string folder = model_folder(plan, engine);
  for (const auto& resource : plan.resources)
    if (folder.empty() && resource.kind == Tokenizer::kResourceKind)
      folder = model_folder(plan, resource);
  if (!may_have_stop_texts(plan) || folder.empty()) return std::shared_ptr<const Tokenizer>();
  auto tokenizer = load_tokenizer(folder);
  if (!tokenizer.ok())
    return std::move(tokenizer).error().while_doing("the stop texts of a tenant need a tokenizer");
  return std::shared_ptr<const Tokenizer>(std::move(tokenizer).value());
}

/// Whether the plan reserves memory for the second set of weights of this engine.
bool has_memory_for_second_set(const Plan& plan, const PlanResource& engine) {
  const GroupId owner = owner_of(plan, static_cast<int32_t>(&engine - plan.resources.data()));
  return owner.is_none() ||
         has_memory_for_optional(plan, plan.process(plan.group(owner).process), memory_limit());
}

struct Backend {
  std::string kind;
  std::string backend;
  Made (*make)(const Plan& plan, const PlanResource& resource, const BackendSetup& setup);
};

/// A listener of clients. In a served run each tenant has a key of its own, as it joins.
Result<std::shared_ptr<HttpListener>> listener_of(const Plan& plan, const PlanResource& resource,
                                                  const BackendSetup& setup) {
  auto options = *static_cast<const HttpListenerOptions*>(resource.options.get());
  options.tenant_tokens &= setup.is_served;
  std::vector<std::string> tenants;
  for (const Tenant& tenant : plan.tenants) tenants.push_back(tenant.name);
  const auto log = [name = resource.name, log = setup.log](std::string_view line) {
    if (log) log(fmt::format("'{}' {}", name, line));
  };
  if (!options.tenant_tokens) return make_http_listener(options, log, tenants);
  ASSIGN_OR_RETURN(KeysFile file,
                   KeysFile::open(options.keys_file, std::move(tenants), options.key_prefix));
  HttpDoor door;
  door.holder_of = [keys = std::make_shared<ServedKeys>(std::move(file), options.key_prefix,
                                                        setup.run_folder, log)](
                       std::string_view key) { return keys->holder_of(key, steady_now()); };
  door.log = log;
  ASSIGN_OR_RETURN(auto listener, make_http_listener(options, std::move(door)));
  log(fmt::format("listens on {}", listener->url()));
  return listener;
}

Made make_torch_engine(const Plan& plan, const PlanResource& resource, const BackendSetup& setup) {
  ASSIGN_OR_RETURN(auto tokenizer, stop_tokenizer(plan, resource));
  auto options = engine_options_of<EngineOptions>(plan, resource);
  const auto index = static_cast<int32_t>(&resource - plan.resources.data());
  options.adapter_folder = setup.run_folder.string();
  options.has_second_set = !is_frozen(plan, index) && has_memory_for_second_set(plan, resource);
  return as_engine(torch_backends()->make_engine(options, model_folder(plan, resource),
                                                 std::move(tokenizer), setup.bases.get()));
}

/// A learner that several tenants share. A forward pass for several tenants is one micro-batch. A
/// larger one would not compute faster, and all tenants would wait until it ends.
Made shared_learner(const Plan& plan, const LearnerOptions& options,
                    Result<std::unique_ptr<Learner>> made) {
  if (!made.ok()) return made.error();
  std::vector<double> shares;
  for (const Tenant& tenant : plan.all_slots()) shares.push_back(tenant.share);
  (*made)->share_out(shares, options.micro_batch_tokens);
  return as_resource(std::move(made));
}

Made make_torch_learner(const Plan& plan, const PlanResource& resource, const BackendSetup& setup) {
  auto options = options_of<LearnerOptions>(plan, resource);
  // A replay must not write files of the run that it repeats.
  if (setup.run_folder.empty()) options.debug.batch_folder.clear();
  if (const auto adapters = adapters_of(plan, options); !adapters.empty())
    return shared_learner(plan, options,
                          torch_backends()->make_adapter_learner(
                              options, adapters, model_folder(plan, resource), setup.bases.get()));
  // Whole weights belong to the only tenant.
  const TrainingRules rules = rules_of(plan.tenants.front(), options);
  options.loss = rules.loss;
  options.optimizer = rules.optimizer;
  options.schedule = rules.schedule;
  if (objective_of(options.loss).needs_reference() && !plan.tenants.front().teacher.is_there())
    return error(Code::kInvalid, "the objective needs a reference model, and there is none")
        .note("name a teacher in [tenant.<name>] teacher, or train an adapter: its base is one");
  return as_resource(torch_backends()->make_learner(options, model_folder(plan, resource)));
}

std::vector<Backend> make_backends() {
  std::vector<Backend> all = {
      {"engine", "scripted",
       [](const Plan& plan, const PlanResource& resource, const BackendSetup&) -> Made {
         ASSIGN_OR_RETURN(auto tokenizer, stop_tokenizer(plan, resource));
         return as_engine(make_scripted_engine(
             engine_options_of<ScriptedEngineOptions>(plan, resource), std::move(tokenizer)));
       }},
      {"learner", "scripted",
       [](const Plan& plan, const PlanResource& resource, const BackendSetup&) {
         auto options = options_of<ScriptedLearnerOptions>(plan, resource);
         for (const Tenant& tenant : plan.tenants)
           options.rules_of_tenant.push_back(rules_of(tenant, options));
         for (const Tenant& tenant : plan.free_slots) options.free_slots.push_back(tenant.slot);
         auto scripted = options;
         const auto has_adapter = [](const Tenant& each) { return each.adapter.is_there(); };
         if (std::ranges::any_of(plan.tenants, has_adapter))
           scripted.micro_batch_tokens =
               std::min(options.micro_batch_tokens, options.adapter_batch_tokens);
         return shared_learner(plan, options, make_scripted_learner(scripted));
       }},
      {"weight_channel", "memory",
       [](const Plan&, const PlanResource& resource, const BackendSetup&) -> Made {
         return std::shared_ptr<Resource>(
             make_memory_channel(static_cast<size_t>(channel_options(resource).versions_max)));
       }},
      {"weight_channel", "shm",
       [](const Plan& plan, const PlanResource& resource, const BackendSetup& setup) -> Made {
         return process_channel(plan, resource, setup, &make_shm_channel);
       }},
      {"weight_channel", "files",
       [](const Plan& plan, const PlanResource& resource, const BackendSetup& setup) -> Made {
         return process_channel(plan, resource, setup, &make_files_channel);
       }},
      {"weight_channel", "stream", &stream_channel},
      {"outside", "", &outside_of_group},
      {"outside", "http",
       [](const Plan& plan, const PlanResource& resource,
          const BackendSetup& setup) -> Result<std::shared_ptr<Resource>> {
         ASSIGN_OR_RETURN(auto listener, listener_of(plan, resource, setup));
         return std::shared_ptr<Resource>(std::move(listener));
       }},
      {"tokenizer", "",
       [](const Plan& plan, const PlanResource& resource, const BackendSetup&) -> Made {
         auto tokenizer = load_tokenizer(model_folder(plan, resource));
         if (!tokenizer.ok()) return std::move(tokenizer).error();
         return std::shared_ptr<Resource>(std::move(tokenizer).value());
       }},
  };
  if (torch_backends() != nullptr) {
    all.push_back({"engine", "torch", &make_torch_engine});
    all.push_back({"learner", "torch", &make_torch_learner});
  }
  return all;
}

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = make_backends();
  return all;
}

}  // namespace

/// For programs that are linked without torch_backends.cc.
__attribute__((weak)) const TorchBackends* torch_backends() { return nullptr; }

GroupId owner_of(const Plan& plan, int32_t resource) {
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const auto& owned = plan.groups[i].resources;
    if (std::find(owned.begin(), owned.end(), resource) != owned.end()) return GroupId(i);
  }
  return GroupId::none();
}

int32_t schedule_steps(const Plan& plan) {
  int64_t longest = 0;
  for (const Tenant& tenant : plan.tenants)
    if (!tenant.is_client) longest = std::max(longest, tenant.max_steps);
  return static_cast<int32_t>(std::min<int64_t>(longest, INT32_MAX));
}

Result<BackendSetup> backend_setup(const std::filesystem::path& run_folder,
                                   std::function<void(std::string_view)> log) {
  const auto file = run_folder / "run.json";
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const Json facts, parse_json(text, file.string()));
  BackendSetup setup;
  setup.run_folder = run_folder;
  setup.log = std::move(log);
  ASSIGN_OR_RETURN(setup.run_id, facts.get_string("run_id"));
  const Json* const served = facts.find("served");
  setup.is_served = served != nullptr && served->is_bool() && served->as_bool();
  return setup;
}

std::string why_no_torch_on(const std::string& device, const std::string& kind) {
  if (torch_backends() != nullptr) return torch_backends()->why_not_on(device, kind);
  return fmt::format("this worker cannot use: it was built without libtorch{}",
                     device == "cpu" ? ", even for the CPU" : "");
}

std::string slow_torch_way_on(const std::string& device) {
  return torch_backends() == nullptr ? "" : torch_backends()->slow_way_on(device);
}

DeviceBudget torch_device_memory() {
  const auto without = [] { return error(Code::kUnavailable, "it was built without libtorch"); };
  DeviceBudget memory;
  memory.need = [without](const Plan& plan, int32_t index) -> Result<DeviceNeed> {
    if (torch_backends() == nullptr) return without();
    const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
    const std::string folder = model_folder(plan, resource);
    const auto need = [&](const DeviceBytes& bytes) {
      return DeviceNeed{bytes,
                        bytes.base > 0 ? fmt::format("{} of {}", bytes.base_type, folder) : ""};
    };
    if (resource.kind == Engine::kResourceKind) {
      const auto options = engine_options_of<EngineOptions>(plan, resource);
      ASSIGN_OR_RETURN(const auto bytes, torch_backends()->engine_bytes(options, folder));
      return need(bytes);
    }
    auto options = options_of<LearnerOptions>(plan, resource);
    const auto adapters = adapters_of(plan, options);
    if (adapters.empty()) options.optimizer = rules_of(plan.tenants.front(), options).optimizer;
    ASSIGN_OR_RETURN(const auto bytes, torch_backends()->learner_bytes(options, adapters, folder));
    return need(bytes);
  };
  memory.room = [without](const std::string& device) -> Result<DeviceMemoryInfo> {
    if (torch_backends() == nullptr) return without();
    return torch_backends()->free_memory_on(device);
  };
  return memory;
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const auto& backend : backends())
    names.push_back(backend.backend.empty() ? backend.kind : backend.kind + " " + backend.backend);
  return names;
}

ResourceFactory resource_factory(BackendSetup setup) {
  return [setup = std::move(setup)](const Plan& plan, int32_t index) -> Made {
    const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
    std::string name = resource.backend;
    if (resource.kind == WeightChannel::kResourceKind) {
      ASSIGN_OR_RETURN(name, weight_backend(plan, index));
    }
    for (const auto& backend : backends())
      if (backend.kind == resource.kind && backend.backend == name) {
        Made made = backend.make(plan, resource, setup);
        if (made.ok()) return made;
        return std::move(made).error().while_doing(
            fmt::format("{} '{}'", resource.kind, resource.name));
      }
    return error(Code::kUnavailable, "this primerl-worker has no {} with backend '{}'",
                 resource.kind, resource.backend)
        .note("it has: " + join_names(backend_names()));
  };
}

}  // namespace primerl
