#include "actors/env/python/workers.h"

#include <utility>

#include "actors/env/environment.h"
#include "actors/env/python/python_source.h"
#include "actors/env/reward.h"
#include "graph/base/file_digest.h"

namespace primerl {
namespace {

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
                 "files that it reads; the record has their SHA-256")
          .field("files_sha256", &O::files_sha256, any(), "SHA-256 of each of files"));
}

OptionSet python_options(std::string_view what) {
  using O = PythonOptions;
  return worker_options(python_program(
      OptionsOf<O>()
          .field("file", &O::file, refers_to("file") | required(),
                 fmt::format("Python file with {}", what))
          .field("file_sha256", &O::file_sha256, any(),
                 "SHA-256 of the file; another content is refused; if it is not written, the "
                 "file's")));
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

OutsidePool python_pool(const void* bound) {
  const auto& options = options_at<PythonOptions>(bound);
  return pool_of(options, {options.python, "-c", std::string(python_worker()), options.file},
                 {options.file});
}

Status check_python(const void* bound) {
  const auto& options = options_at<PythonOptions>(bound);
  return options.file_sha256.empty() ? ok() : check_file_sha256(options.file, options.file_sha256);
}

Status check_process(const void* bound) {
  const auto& options = options_at<ProcessOptions>(bound);
  if (options.command.empty() || options.command.front().empty())
    return error(Code::kInvalid, "'command' names no program");
  if (!options.files_sha256.empty() && options.files_sha256.size() != options.files.size())
    return error(Code::kInvalid, "'files_sha256' has {} texts for {} files",
                 options.files_sha256.size(), options.files.size());
  for (size_t i = 0; i < options.files_sha256.size(); ++i)
    RETURN_IF_ERROR(check_file_sha256(options.files[i], options.files_sha256[i]));
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
        return pool_of(options,
                       {options.python, "-c", std::string(python_worker()),
                        "source:" + std::string(python_math_reward())},
                       {});
      },
      [](const void*) { return ok(); });
}

}  // namespace primerl
