#include "actors/env/python/verifiers.h"

#include <charconv>
#include <utility>

#include "actors/env/environment.h"
#include "actors/env/python/python_source.h"
#include "graph/base/json.h"

namespace primerl {
namespace {

constexpr std::string_view kTcp = "tcp://";

OptionSet verifiers_options() {
  using O = VerifiersOptions;
  return OptionsOf<O>()
      .field("id", &O::id, required() | at_least(1),
             "the environment: the name of its module or package, as verifiers loads it")
      .field("args", &O::args, any(), "JSON object of arguments for the environment")
      .field("python", &O::python, at_least(1),
             "the Python program in which verifiers is installed, a path or a name in PATH")
      .field("env_dir", &O::env_dir, refers_to("folder"),
             "folder with the module, if it is not installed")
      .field("shuffle", &O::shuffle, any(), "each epoch has an order of its own")
      .field("num_tasks", &O::num_tasks, count_from(0) | unit("tasks"),
             "tasks of one epoch, which `epochs` of the tenant needs: the run ends if the "
             "environment has another number. 0 = not said")
      .field("num_workers", &O::num_workers, between(1, static_cast<double>(kOutsideWorkersMax)),
             "servers that are started; 1 with 'address'")
      .field("address", &O::address, any(),
             "tcp://host:port of a server that runs already; without it servers are started")
      .field("protocol", &O::protocol, one_of({"auto", "w0", "w1a", "w1b", "w1c", "w2"}),
             "the dialect of the server; auto asks it")
      .field(
          "client", &O::client, one_of({"train", "eval"}),
          "the client that the server uses: train sends token ids; eval is a chat, whose samples "
          "follow from the requests")
      .field("renderer", &O::renderer, any(),
             "JSON object, the configuration of a renderer of the package renderers; {} = the one "
             "that "
             "it has for 'renderer_model'")
      .field("renderer_model", &O::renderer_model, any(),
             "folder or name of the tokenizer with which the server makes token ids of messages; "
             "empty = the folder of the policy's model")
      .field("api_key_var", &O::api_key_var, at_least(1),
             "environment variable of the server with the key for the gateway; a gateway on a "
             "loopback address needs none")
      .field("run_timeout", &O::run_timeout, above(0),
             "of one run; then it is cancelled, and the rollout fails")
      .field("concurrency", &O::concurrency,
             between(1, static_cast<double>(kOutsideConcurrencyMax)),
             "runs at once in one server; more wait")
      .field("answer_bytes_max", &O::answer_bytes_max, between(1024, 1 << 30) | unit("bytes"),
             "longest answer of a server; a run with a longer one fails")
      .field("health_timeout", &O::health_timeout, above(0),
             "how long a server may be silent; then its runs are lost, and a server that was "
             "started here is started again")
      .field("start_timeout", &O::start_timeout, above(0),
             "from the start of a server to its first answer");
}

const VerifiersOptions& options_at(const void* bound) {
  static const VerifiersOptions defaults;
  return bound == nullptr ? defaults : *static_cast<const VerifiersOptions*>(bound);
}

OutsidePool verifiers_pool(const void* bound) {
  const VerifiersOptions& options = options_at(bound);
  const bool starts_servers = options.address.empty();
  Json json = Json::object();
  json.set("id", options.id).set("path", options.env_dir).set("shuffle", options.shuffle);
  // `check` refuses other texts before.
  auto args = parse_json(options.args, "'args'");
  json.set("args", args.ok() ? std::move(*args) : Json::object());
  json.set("serves", starts_servers).set("num_workers", 1);
  json.set("address", starts_servers ? "tcp://127.0.0.1:0" : "");
  OutsidePool pool;
  pool.kind = OutsidePoolKind::kVerifiers;
  pool.command = {options.python, "-c", std::string(python_verifiers_server()), json.dump()};
  pool.num_workers = options.num_workers;
  pool.start_timeout = options.start_timeout;
  pool.answer_bytes_max = options.answer_bytes_max;
  pool.run_timeout = options.run_timeout;
  pool.verifiers.address = options.address;
  pool.verifiers.protocol = options.protocol;
  pool.verifiers.concurrency = options.concurrency;
  pool.verifiers.health_timeout = options.health_timeout;
  pool.verifiers.client = options.client;
  pool.verifiers.renderer = options.renderer == "{}" ? "" : options.renderer;
  pool.verifiers.renderer_model = options.renderer_model;
  pool.verifiers.api_key_var = options.api_key_var;
  return pool;
}

Status check_json_object(std::string_view option, const std::string& text) {
  const auto json = parse_json(text, fmt::format("'{}'", option));
  if (!json.ok()) return json.error();
  if (json->is_object()) return ok();
  return error(Code::kInvalid, "'{}' is {}, not a JSON object", option, json->kind());
}

Status check_address(const std::string& address) {
  if (address.empty()) return ok();
  const size_t colon = address.rfind(':');
  int port = 0;
  if (address.starts_with(kTcp) && colon > kTcp.size()) {
    const char* const end = address.data() + address.size();
    const auto [rest, fault] = std::from_chars(address.data() + colon + 1, end, port);
    if (fault == std::errc() && rest == end && port > 0 && port < 65536) return ok();
  }
  return error(Code::kInvalid, "'address' is '{}', not tcp://host:port", address)
      .note("for example tcp://127.0.0.1:5000");
}

Status check_verifiers(const void* bound) {
  const VerifiersOptions& options = options_at(bound);
  RETURN_IF_ERROR(check_json_object("args", options.args));
  RETURN_IF_ERROR(check_json_object("renderer", options.renderer));
  RETURN_IF_ERROR(check_address(options.address));
  if (!options.address.empty() && options.num_workers > 1)
    return error(Code::kInvalid, "'num_workers' is {}, but 'address' names one server",
                 options.num_workers)
        .note("leave one of them out");
  return ok();
}

}  // namespace

EnvironmentContract verifiers_environment() {
  EnvironmentContract contract;
  contract.name = "verifiers";
  contract.doc = "an environment of the package verifiers, whose server plays whole rollouts";
  contract.options = verifiers_options();
  contract.validate = &check_verifiers;
  contract.make = [](const void*) -> Result<std::unique_ptr<Environment>> {
    return error(Code::kUnavailable, "it runs outside of the process, so it has no code here")
        .note("only the node 'env' asks it");
  };
  contract.outside = &verifiers_pool;
  contract.drives_rollouts = true;
  contract.rows = [](const void* options) -> Result<EnvironmentContract::Rows> {
    return EnvironmentContract::Rows{options_at(options).num_tasks, 0};
  };
  return contract;
}

}  // namespace primerl
