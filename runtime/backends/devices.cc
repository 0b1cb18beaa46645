#include "runtime/backends/devices.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "graph/base/descriptor.h"
#include "graph/base/files.h"
#include "graph/plan_memory.h"
#include "graph/weight_backend.h"
#include "runtime/backends/backends.h"
#include "runtime/program/program_output.h"
#include "runtime/program/programs.h"

namespace primerl {
namespace {

/// A temporary file with the resolved graph, which the worker reads.
class GraphFile {
 public:
  explicit GraphFile(const std::string& text) {
    path_ = (std::filesystem::temp_directory_path() / "primerl-devices-XXXXXX").string();
    const Descriptor file(::mkstemp(path_.data()));
    if (file.get() < 0) path_.clear();
    if (file.get() >= 0 && !system_files().write_file(path_, text).ok()) remove();
  }
  GraphFile(const GraphFile&) = delete;
  GraphFile& operator=(const GraphFile&) = delete;
  ~GraphFile() { remove(); }
  const std::string& path() const { return path_; }  // "": it could not be written

 private:
  void remove() {
    if (!path_.empty()) ::unlink(path_.c_str());
    path_.clear();
  }
  std::string path_;
};

/// The complaint of `primerl-worker devices` about the plan; "": none.
Result<std::string> ask_worker(const Plan& plan) {
  ASSIGN_OR_RETURN(const auto program, worker_program());
  const GraphFile graph(plan.resolved_toml);
  if (graph.path().empty())
    return error(Code::kIo, "the resolved graph cannot be written to '{}'",
                 std::filesystem::temp_directory_path().string())
        .note(
            "the worker reads it there, to say whether its devices are enough; TMPDIR says "
            "another folder");
  ASSIGN_OR_RETURN(const ProgramOutput said,
                   output_of(program, {"devices", "--graph", graph.path()}));
  if (said.exit_code != 0)
    return error(Code::kUnavailable, "'{}' does not say what devices it has: {}", program.string(),
                 said.why());
  return said.out;
}

/// Whether the process's devices are the devices of this machine, under the same names. If the
/// process selects devices by an environment variable, only its own worker can tell, when it
/// starts.
bool is_here(const PlanProcess& process) {
  const auto chooses = [](const std::string& variable) {
    return variable.starts_with("CUDA_VISIBLE_DEVICES=");
  };
  return process.machine.empty() && std::ranges::none_of(process.variables, chooses);
}

/// The libtorch resources of a process.
std::vector<int32_t> torch_resources(const Plan& plan, const PlanProcess& process) {
  std::vector<int32_t> found;
  for (const GroupId group : process.groups)
    for (const int32_t index : plan.group(group).resources)
      if (plan.resources[static_cast<size_t>(index)].backend == "torch") found.push_back(index);
  return found;
}

/// Memory of a device that one resource needs.
struct Taken {
  std::string what;
  double bytes = 0;
};

double gigabytes(double bytes) { return bytes / 1e9; }

Status check_room(const std::string& device, const std::vector<Taken>& all,
                  const DeviceBudget& memory) {
  ASSIGN_OR_RETURN(const DeviceMemoryInfo room, memory.room(device));
  double bytes = 0;
  std::vector<std::string> parts;
  for (const Taken& taken : all) {
    bytes += taken.bytes;
    parts.push_back(fmt::format("{} {:.1f}", taken.what, gigabytes(taken.bytes)));
  }
  if (bytes <= room.free_bytes) return ok();
  return error(Code::kExhausted,
               "the graph needs {:.1f} GB of '{}', which has {:.1f} of {:.1f} GB "
               "free: {}",
               gigabytes(bytes), device, gigabytes(room.free_bytes), gigabytes(room.total_bytes),
               fmt::join(parts, ", "))
      .note(
          "lower 'kv_blocks' or 'max_batched_tokens' of an engine, 'micro_batch_tokens' of a "
          "learner, or place one of them on another device")
      .note("'nvidia-smi' shows who holds the rest");
}

}  // namespace

const std::string& device_of(const Plan& plan, int32_t resource) {
  static const std::string cpu = "cpu";
  const GroupId owner = owner_of(plan, resource);
  return owner.is_none() ? cpu : plan.process(plan.group(owner).process).device;
}

bool is_among_devices(const Plan& plan, int32_t channel) {
  for (const ProcessId id : processes_of(plan, channel)) {
    const PlanProcess& process = plan.process(id);
    for (const GroupId group : process.groups)
      for (const int32_t index : plan.group(group).resources) {
        const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
        const bool computes = resource.kind == "engine" || resource.kind == "learner";
        if (computes && (resource.backend != "torch" || process.device == "cpu")) return false;
      }
  }
  return true;
}

Status check_devices(const Plan& plan, ProcessId process, const WhyNotOn& why_not) {
  const PlanProcess& planned = plan.process(process);
  if (planned.device == "cpu")
    return planned.machine.empty() ? ok() : check_memory_on(plan, planned.machine, memory_limit());
  for (const int32_t index : torch_resources(plan, planned)) {
    const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
    const std::string why = why_not(planned.device, resource.kind);
    if (why.empty()) continue;
    return error(Code::kInvalid, "resource '{}' of process '{}' is placed on '{}', which {}",
                 resource.name, planned.name, planned.device, why)
        .note("'device' of its [place] says where; \"cpu\" is everywhere");
  }
  return ok();
}

Status check_devices(const Plan& plan, const WhyNotOn& why_not, const DeviceBudget& memory) {
  std::map<std::string, std::vector<Taken>> on;  // by device
  for (uint32_t i = 0; i < plan.processes.size(); ++i) {
    const PlanProcess& process = plan.processes[i];
    // The process's own worker checks it.
    if (!is_here(process) || process.device == "cpu") continue;
    RETURN_IF_ERROR(check_devices(plan, ProcessId(i), why_not));
    std::set<std::string> bases;
    for (const int32_t index : torch_resources(plan, process)) {
      ASSIGN_OR_RETURN(const DeviceNeed need, memory.need(plan, index));
      const bool has_base = !need.base.empty() && !bases.insert(need.base).second;
      on[process.device].push_back(
          {fmt::format("{} of '{}'{}", plan.resources[static_cast<size_t>(index)].kind,
                       process.name, has_base ? " (base weights held once)" : ""),
           need.bytes.all - (has_base ? need.bytes.base : 0.0)});
    }
  }
  for (const auto& [device, all] : on) RETURN_IF_ERROR(check_room(device, all, memory));
  return ok();
}

Status check_devices_here(const Plan& plan) {
  const bool is_wanted = std::ranges::any_of(plan.processes, [&](const PlanProcess& process) {
    return is_here(process) && process.device != "cpu" && !torch_resources(plan, process).empty();
  });
  if (!is_wanted) return ok();
  ASSIGN_OR_RETURN(const std::string said, ask_worker(plan));
  if (said.empty()) return ok();
  return Error(Code::kInvalid, said);
}

}  // namespace primerl
