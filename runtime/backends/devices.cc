#include "runtime/backends/devices.h"

#include <sys/wait.h>

#include <cstdio>
#include <map>
#include <utility>

#include "runtime/backends/backends.h"
#include "runtime/program/programs.h"

namespace primerl {
namespace {

/// What `primerl-worker device` says; an error when it cannot be asked.
Result<std::string> ask_worker(const std::string& device, const std::string& kind) {
  ASSIGN_OR_RETURN(const auto program, worker_program());
  // A device's name is letters, digits and a colon (G052); a kind is letters.
  const std::string command =
      fmt::format("'{}' device --name '{}' --for '{}' 2>&1", program.string(), device, kind);
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return error(Code::kIo, "'{}' cannot be started", program.string());
  std::string text;
  char block[512];
  while (std::fgets(block, sizeof block, pipe) != nullptr) text += block;
  const int status = ::pclose(pipe);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return error(Code::kUnavailable, "'{}' does not say what devices it has: {}", program.string(),
                 text);
  return text;
}

}  // namespace

const std::string& device_of(const Plan& plan, int32_t resource) {
  static const std::string cpu = "cpu";
  const GroupId owner = owner_of(plan, resource);
  return owner.is_none() ? cpu : plan.process(plan.group(owner).process).device;
}

Status check_devices(const Plan& plan, ProcessId process, const WhyNotOn& why_not) {
  const PlanProcess& planned = plan.process(process);
  if (planned.device == "cpu") return ok();
  for (const GroupId group : planned.groups)
    for (const int32_t index : plan.group(group).resources) {
      const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
      if (resource.backend != "torch") continue;
      const std::string why = why_not(planned.device, resource.kind);
      if (why.empty()) continue;
      return error(Code::kInvalid, "resource '{}' of process '{}' is placed on '{}', which {}",
                   resource.name, planned.name, planned.device, why)
          .note("'device' of its [place] says where; \"cpu\" is everywhere");
    }
  return ok();
}

Status check_devices_here(const Plan& plan) {
  std::map<std::pair<std::string, std::string>, std::string> known;
  Status asked;
  const WhyNotOn why_not = [&](const std::string& device, const std::string& kind) {
    const auto found = known.find({device, kind});
    if (found != known.end()) return found->second;
    auto said = ask_worker(device, kind);
    if (!said.ok() && asked.ok()) asked = said.error();
    return known[{device, kind}] = said.ok() ? *said : std::string();
  };
  for (uint32_t i = 0; i < plan.processes.size(); ++i) {
    if (!plan.processes[i].machine.empty()) continue;  // its own machine checks it
    const Status checked = check_devices(plan, ProcessId(i), why_not);
    RETURN_IF_ERROR(asked);
    RETURN_IF_ERROR(checked);
  }
  return ok();
}

}  // namespace primerl
