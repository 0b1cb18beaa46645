#include "actors/env/python/workers.h"

#include <utility>

#include "actors/env/environment.h"
#include "actors/env/python/python_source.h"
#include "actors/env/reward.h"
#include "graph/base/file_digest.h"
#include "graph/base/json.h"

namespace primerl {
namespace {

constexpr std::string_view kFileDigest =
    "SHA-256 of the file; another content is refused; if it is not written, the file's";
constexpr std::string_view kFileBytes = "size of the file, in the same way; -1: any";

/// The options NAME_sha256 and NAME_bytes of a file, which `check` fills in.
template <class O>
OptionsOf<O> with_digest(OptionsOf<O> options, const std::string& name, std::string O::*sha256,
                         int64_t O::*bytes) {
  return std::move(options)
      .field(name + "_sha256", sha256, any(), std::string(kFileDigest))
      .field(name + "_bytes", bytes, at_least(-1) | unit("bytes"), std::string(kFileBytes));
}

template <class O>
OptionsOf<O> worker_options(OptionsOf<O> options) {
  constexpr int64_t O::*num_workers = &WorkersOptions::num_workers;
  constexpr Duration O::*start_timeout = &WorkersOptions::start_timeout;
  constexpr int64_t O::*answer_bytes_max = &WorkersOptions::answer_bytes_max;
  return std::move(options)
      .field("num_workers", num_workers, between(1, static_cast<double>(kOutsideWorkersMax)),
             "processes that answer the calls of all rollouts")
      .field("start_timeout", start_timeout, above(0),
             "from the start of a process to its first line")
      .field("answer_bytes_max", answer_bytes_max, between(1024, 1 << 30) | unit("bytes"),
             "longest answer; a process that writes a longer one is killed");
}

template <class O>
OptionsOf<O> python_program(OptionsOf<O> options) {
  return std::move(options).field("python", &O::python, at_least(1),
                                  "the Python program, a path or a name in PATH");
}

OptionSet process_options() {
  using O = ProcessOptions;
  return worker_options(
      OptionsOf<O>()
          .field("command", &O::command, required() | between(1, 64),
                 "program and arguments; it speaks the protocol of docs/formats/outside.md")
          .field("files", &O::files, refers_to("file"),
                 "files that it reads; the record has their sizes and SHA-256")
          .field("files_sha256", &O::files_sha256, any(), "SHA-256 of each of files")
          .field("files_bytes", &O::files_bytes, any(), "size of each of files"));
}

OptionSet python_options(std::string_view what) {
  using O = PythonOptions;
  return worker_options(python_program(
      with_digest(OptionsOf<O>().field("file", &O::file, refers_to("file") | required(),
                                       fmt::format("Python file with {}", what)),
                  "file", &O::file_sha256, &O::file_bytes)));
}

OptionSet gymnasium_options() {
  using O = GymnasiumOptions;
  return worker_options(python_program(with_digest(
      OptionsOf<O>()
          .field("id", &O::id, required() | at_least(1),
                 "name for gymnasium.make; \"module:name\" imports a module first")
          .field("kwargs", &O::kwargs, any(), "JSON object of arguments for gymnasium.make")
          .field("prompt", &O::prompt, any(), "text before the first observation")
          .field("adapter", &O::adapter, refers_to("file"),
                 "Python file with observe(), act() or hint(), for observations and actions that "
                 "are not read as text or JSON"),
      "adapter", &O::adapter_sha256, &O::adapter_bytes)));
}

OptionSet skyrl_options() {
  using O = SkyrlOptions;
  auto options =
      OptionsOf<O>()
          .field("file", &O::file, refers_to("file") | required(),
                 "JSONL, one task a row, as SkyRL has them: prompt, env_class, reward_spec, ...")
          .field("eval_file", &O::eval_file, refers_to("file"),
                 "rows of evaluations; if it is not written, those of file")
          .field("id", &O::id, any(), "name for skyrl_gym.make, for rows without env_class")
          .field("config", &O::config, any(), "JSON object, the env_config of the environment")
          .field("max_turns", &O::max_turns, at_least(0),
                 "max_turns of each environment; 0 = as the row or the environment says")
          .field("environments", &O::environments, refers_to("file"),
                 "Python file that registers environments of your own")
          .field("shuffle", &O::shuffle, any(), "each epoch has an order of its own");
  options = with_digest(std::move(options), "file", &O::file_sha256, &O::file_bytes);
  options = with_digest(std::move(options), "eval_file", &O::eval_file_sha256, &O::eval_file_bytes);
  options = with_digest(std::move(options), "environments", &O::environments_sha256,
                        &O::environments_bytes);
  return worker_options(python_program(std::move(options)));
}

OptionSet mcp_options() {
  using O = McpOptions;
  constexpr std::string O::*file = &PythonOptions::file;
  constexpr std::string O::*file_sha256 = &PythonOptions::file_sha256;
  constexpr int64_t O::*file_bytes = &PythonOptions::file_bytes;
  constexpr std::string O::*python = &PythonOptions::python;
  auto options =
      OptionsOf<O>()
          .field("file", file, refers_to("file") | required(),
                 "Python file with a class Environment: the tasks, and what judges turns without "
                 "a tool call")
          .field("servers", &O::servers, refers_to("file") | required(),
                 "JSON file with the key mcpServers: commands of servers that speak MCP over "
                 "stdio, and URLs of those that speak it over HTTP")
          .field("state", &O::state, one_of({"shared", "trajectory"}),
                 "shared = the trajectories of a worker use one process of each server; "
                 "trajectory = each has its own")
          .field("tool_timeout", &O::tool_timeout, above(0),
                 "of all calls of one turn; later ones are answered by an error. Keep "
                 "environment_timeout above twice this value")
          .field("result_bytes_max", &O::result_bytes_max, between(16, 16 << 20) | unit("bytes"),
                 "longest text of a result; the rest is cut")
          .field("calls_max", &O::calls_max, between(1, 256), "tool calls of one turn")
          .field("processes_max", &O::processes_max, between(1, 4096),
                 "servers of the trajectories of one worker, with state = \"trajectory\"; a "
                 "rollout that needs one more fails")
          .field("python", python, at_least(1), "the Python program, a path or a name in PATH");
  options = with_digest(std::move(options), "file", file_sha256, file_bytes);
  options = with_digest(std::move(options), "servers", &O::servers_sha256, &O::servers_bytes);
  return worker_options(std::move(options));
}

OptionSet math_options() { return worker_options(python_program(OptionsOf<MathOptions>())); }

template <class O>
const O& options_at(const void* bound) {
  static const O defaults;
  return bound == nullptr ? defaults : *static_cast<const O*>(bound);
}

OutsidePool pool_of(const WorkersOptions& options, std::vector<std::string> command,
                    std::vector<std::string> files) {
  OutsidePool pool;
  pool.command = std::move(command);
  pool.files = std::move(files);
  pool.num_workers = options.num_workers;
  pool.start_timeout = options.start_timeout;
  pool.answer_bytes_max = options.answer_bytes_max;
  return pool;
}

/// `file` is a path, or "source:" with a name and the text. Its `options` are a JSON object.
std::vector<std::string> worker_command(const std::string& python, std::string file,
                                        const Json& options = Json::object()) {
  return {python, "-c", std::string(python_worker()), std::move(file), options.dump()};
}

std::string source(std::string_view named_text) { return "source:" + std::string(named_text); }

/// Those that are set.
std::vector<std::string> files_of(std::vector<std::string> names) {
  std::erase(names, "");
  return names;
}

Status check_file(const std::string& file, const std::string& sha256, int64_t bytes) {
  return file.empty() ? ok() : check_file_digest(file, {sha256, bytes});
}

Status check_object(std::string_view option, const std::string& text) {
  const auto json = parse_json(text, fmt::format("'{}'", option));
  if (!json.ok()) return json.error();
  if (json->is_object()) return ok();
  return error(Code::kInvalid, "'{}' is {}, not a JSON object", option, json->kind());
}

OutsidePool python_pool(const void* bound) {
  const auto& options = options_at<PythonOptions>(bound);
  return pool_of(options, worker_command(options.python, options.file), {options.file});
}

OutsidePool gymnasium_pool(const void* bound) {
  const auto& options = options_at<GymnasiumOptions>(bound);
  Json json = Json::object();
  json.set("id", options.id).set("kwargs", options.kwargs).set("prompt", options.prompt);
  json.set("adapter", options.adapter);
  return pool_of(options,
                 worker_command(options.python, source(python_gymnasium_environment()), json),
                 files_of({options.adapter}));
}

OutsidePool skyrl_pool(const void* bound) {
  const auto& options = options_at<SkyrlOptions>(bound);
  Json json = Json::object();
  json.set("id", options.id).set("file", options.file).set("config", options.config);
  json.set("max_turns", options.max_turns).set("environments", options.environments);
  json.set("shuffle", options.shuffle).set("eval_file", options.eval_file);
  return pool_of(options, worker_command(options.python, source(python_skyrl_environment()), json),
                 files_of({options.file, options.eval_file, options.environments}));
}

OutsidePool mcp_pool(const void* bound) {
  const auto& options = options_at<McpOptions>(bound);
  Json json = Json::object();
  json.set("file", options.file).set("servers", options.servers).set("state", options.state);
  json.set("start_timeout", options.start_timeout.to_seconds());
  json.set("tool_timeout", options.tool_timeout.to_seconds());
  json.set("result_bytes_max", options.result_bytes_max).set("calls_max", options.calls_max);
  json.set("processes_max", options.processes_max).set("http", source(python_mcp_http()));
  return pool_of(options, worker_command(options.python, source(python_mcp_environment()), json),
                 {options.file, options.servers});
}

Status check_python(const void* bound) {
  const auto& options = options_at<PythonOptions>(bound);
  return check_file(options.file, options.file_sha256, options.file_bytes);
}

Status check_gymnasium(const void* bound) {
  const auto& options = options_at<GymnasiumOptions>(bound);
  RETURN_IF_ERROR(check_object("kwargs", options.kwargs));
  return check_file(options.adapter, options.adapter_sha256, options.adapter_bytes);
}

Status check_skyrl(const void* bound) {
  const auto& options = options_at<SkyrlOptions>(bound);
  RETURN_IF_ERROR(check_object("config", options.config));
  RETURN_IF_ERROR(check_file(options.file, options.file_sha256, options.file_bytes));
  RETURN_IF_ERROR(check_file(options.eval_file, options.eval_file_sha256, options.eval_file_bytes));
  return check_file(options.environments, options.environments_sha256, options.environments_bytes);
}

Status check_mcp(const void* bound) {
  const auto& options = options_at<McpOptions>(bound);
  RETURN_IF_ERROR(check_file(options.file, options.file_sha256, options.file_bytes));
  return check_file(options.servers, options.servers_sha256, options.servers_bytes);
}

Status check_process(const void* bound) {
  const auto& options = options_at<ProcessOptions>(bound);
  if (options.command.empty() || options.command.front().empty())
    return error(Code::kInvalid, "'command' names no program");
  if (!options.files_sha256.empty() && options.files_sha256.size() != options.files.size())
    return error(Code::kInvalid, "'files_sha256' has {} texts for {} files",
                 options.files_sha256.size(), options.files.size());
  if (!options.files_bytes.empty() && options.files_bytes.size() != options.files.size())
    return error(Code::kInvalid, "'files_bytes' has {} sizes for {} files",
                 options.files_bytes.size(), options.files.size());
  for (size_t i = 0; i < options.files.size(); ++i)
    RETURN_IF_ERROR(check_file_digest(
        options.files[i], {options.files_sha256.empty() ? std::string() : options.files_sha256[i],
                           options.files_bytes.empty() ? -1 : options.files_bytes[i]}));
  return ok();
}

/// For callers that need an Environment or a Reward of this process, such as `sft`.
template <class Interface>
Result<std::unique_ptr<Interface>> made_outside(const void*) {
  return error(Code::kUnavailable, "it runs outside of the process, so it has no code here")
      .note("only the node 'env' asks it");
}

template <class Contract, class Interface>
Contract contract_outside(std::string name, std::string doc, OptionSet options,
                          OutsidePool (*outside)(const void*), Status (*validate)(const void*)) {
  Contract contract;
  contract.name = std::move(name);
  contract.doc = std::move(doc);
  contract.options = std::move(options);
  contract.validate = validate;
  contract.make = &made_outside<Interface>;
  contract.outside = outside;
  return contract;
}

}  // namespace

EnvironmentContract process_environment() {
  return contract_outside<EnvironmentContract, Environment>(
      "process", "processes of your own give tasks and judge answers", process_options(),
      [](const void* bound) {
        const auto& options = options_at<ProcessOptions>(bound);
        return pool_of(options, options.command, options.files);
      },
      &check_process);
}

EnvironmentContract python_environment() {
  return contract_outside<EnvironmentContract, Environment>(
      "python", "the class Environment of a Python file gives tasks and judges answers",
      python_options("a class Environment"), &python_pool, &check_python);
}

EnvironmentContract gymnasium_environment() {
  return contract_outside<EnvironmentContract, Environment>(
      "gymnasium", "an environment of Gymnasium, its observations and actions as text",
      gymnasium_options(), &gymnasium_pool, &check_gymnasium);
}

EnvironmentContract skyrl_gym_environment() {
  return contract_outside<EnvironmentContract, Environment>(
      "skyrl_gym", "the rows of a file, in environments of SkyRL-Gym", skyrl_options(), &skyrl_pool,
      &check_skyrl);
}

EnvironmentContract mcp_environment() {
  return contract_outside<EnvironmentContract, Environment>(
      "mcp", "the class Environment of a Python file, with the tools of MCP servers", mcp_options(),
      &mcp_pool, &check_mcp);
}

RewardContract python_reward() {
  return contract_outside<RewardContract, Reward>("python", "the function reward of a Python file",
                                                  python_options("a function reward"), &python_pool,
                                                  &check_python);
}

RewardContract math_reward() {
  return contract_outside<RewardContract, Reward>(
      "math", "1 if math-verify finds the last turn equal to the task's answer, else 0",
      math_options(),
      [](const void* bound) {
        const auto& options = options_at<MathOptions>(bound);
        return pool_of(options, worker_command(options.python, source(python_math_reward())), {});
      },
      [](const void*) { return ok(); });
}

}  // namespace primerl
