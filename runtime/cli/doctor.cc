#include <sys/statvfs.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "graph/base/files.h"
#include "graph/plan_memory.h"
#include "kernels/ops/ops.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/commands.h"
#include "runtime/program/allocator_settings.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/program_output.h"
#include "runtime/program/programs.h"

namespace primerl {
namespace {

constexpr double kDiskNeededGib = 0.5;  // a run with its checkpoints

/// The result of one check.
struct Finding {
  std::string name;
  bool is_ok = false;
  std::string text;    // the result in words
  std::string remedy;  // how to get what is missing
};

/// Runs `program` and returns its output. If it cannot be run: the reason, with the exit code -1.
ProgramOutput output_text_of(const std::filesystem::path& program,
                             const std::vector<std::string>& arguments) {
  auto output = output_of(program, arguments);
  return output.ok() ? std::move(output).value() : ProgramOutput{-1, "", output.error().message()};
}

/// The text for a worker that ended before it answered.
std::string no_answer_text(const ProgramOutput& ended) {
  const std::string& why = ended.why();
  return fmt::format("is unknown: the worker that was asked {}{}{}",
                     ended.exit_code < 0 ? "was ended by a signal"
                                         : fmt::format("exited with {}", ended.exit_code),
                     why.empty() ? "" : ": ", why);
}

Finding find_worker() {
  Finding finding{"worker", false, "", "make build"};
  const auto program = worker_program();
  if (!program.ok()) {
    finding.text = program.error().message();
    return finding;
  }
  const ProgramOutput version = output_text_of(*program, {"--version"});
  finding.is_ok = version.exit_code == 0;
  finding.text = finding.is_ok
                     ? program->string()
                     : fmt::format("{} does not start: {}", program->string(), version.why());
  return finding;
}

Finding find_torch() {
  Finding finding{"torch", false, "", "make build (it installs PyTorch into .venv)"};
  if (const Status valid = check_allocator_settings(); !valid.ok()) {
    finding.text = valid.error().message();  // a worker that is asked would end with it
    finding.remedy = fmt::format("{}", fmt::join(valid.error().notes(), "; "));
    return finding;
  }
  const auto program = worker_program();
  if (!program.ok()) {
    finding.text = "unknown without a worker";
    return finding;
  }
  const ProgramOutput backends = output_text_of(*program, {"backends"});
  finding.is_ok = backends.exit_code == 0 && backends.out.find("torch") != std::string::npos;
  finding.text = finding.is_ok ? backends.out : "this worker was built without libtorch";
  if (!finding.is_ok) return finding;
  const ProgramOutput slow = output_text_of(*program, {"device", "--name", "cuda:0", "--speed"});
  const std::string way = slow.out.empty() ? "" : fmt::format(" ({})", slow.out);
  for (const char* kind : {"engine", "learner"}) {
    const ProgramOutput cuda =
        output_text_of(*program, {"device", "--name", "cuda:0", "--for", kind});
    const bool can = cuda.exit_code == 0 && cuda.out.empty();
    const std::string why = cuda.exit_code == 0 ? cuda.out : no_answer_text(cuda);
    finding.text += can ? fmt::format("; {}s on cpu and cuda{}", kind, way)
                        : fmt::format("; {}s on cpu (cuda:0 {})", kind, why);
  }
  return finding;
}

Finding find_cores() {
  const unsigned cores = std::thread::hardware_concurrency();
  return {"cores", cores >= 2, fmt::format("{}; CPU operations: {}", cores, cpu_ops().name),
          "with one core generation and training take turns: runs work but are slow"};
}

/// Bytes of memory that the demo's plan counts; 0 if it cannot be read.
double demo_bytes() {
  const auto folder = examples_folder();
  if (!folder.ok()) return 0;
  const CheckedGraph checked =
      load_graph((*folder / "reverse_text/graph.toml").string(), {}, full_catalog());
  return checked.plan == nullptr ? 0 : memory_on(*checked.plan, "", false);
}

Finding find_memory() {
  const MemoryLimit limit = memory_limit();
  const double needed = demo_bytes();
  return {"memory", limit.bytes >= needed,
          fmt::format("{}; the demo needs {}", limit.text(), memory_text(needed)),
          "raise the limit of the control group, or use a machine with more memory; `primerl-graph "
          "show GRAPH --plan` says what a graph needs"};
}

Finding find_disk() {
  struct statvfs facts {};
  Finding finding{"disk", false, "", "free some space, or run with --out on another disk"};
  if (::statvfs(".", &facts) != 0) {
    finding.text = "the current folder cannot be read";
    return finding;
  }
  const double gib =
      static_cast<double>(facts.f_bavail) * static_cast<double>(facts.f_frsize) / (1 << 30);
  finding.is_ok = gib >= kDiskNeededGib && ::access(".", W_OK) == 0;
  finding.text = fmt::format("{:.1f} GiB free{} in the current folder", gib,
                             ::access(".", W_OK) == 0 ? "" : ", not writable");
  return finding;
}

Finding find_examples() {
  const auto folder = examples_folder();
  return {"examples", folder.ok(), folder.ok() ? folder->string() : folder.error().message(),
          "run from a checkout of the repository"};
}

int run_doctor(bool json) {
  const std::vector<Finding> findings = {find_worker(), find_torch(), find_cores(),
                                         find_memory(), find_disk(),  find_examples()};
  bool all_ok = true;
  Json list = Json::array();
  for (const auto& finding : findings) {
    all_ok = all_ok && finding.is_ok;
    Json entry = Json::object();
    entry.set("name", finding.name).set("ok", finding.is_ok).set("found", finding.text);
    if (!finding.is_ok) entry.set("remedy", finding.remedy);
    list.push_back(std::move(entry));
    if (json) continue;
    print_text(fmt::format("{:<9} {:<8} {}\n", finding.is_ok ? "ok" : "missing", finding.name,
                           finding.text));
    if (!finding.is_ok) print_text(fmt::format("{:<18} to fix: {}\n", "", finding.remedy));
  }
  if (json)
    print_json(Json::object()
                   .set("schema", "primerl.doctor/1")
                   .set("ok", all_ok)
                   .set("findings", std::move(list)));
  return all_ok ? kExitDone : kExitFailed;
}

}  // namespace

Command doctor_command() {
  auto json = std::make_shared<bool>(false);
  return {"doctor", "says what a run needs that is missing here, and how to get it",
          "primerl-graph doctor",
          [json](Arguments& flags) { flags.flag(*json, "--json", "prints JSON"); },
          [json] { return run_doctor(*json); }};
}

}  // namespace primerl
