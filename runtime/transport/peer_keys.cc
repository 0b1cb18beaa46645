#include "runtime/transport/peer_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "graph/base/shell_word.h"
#include "runtime/transport/zmq_transport.h"

namespace primerl {
namespace {

/// "inference" allows every replica, "inference#1" only that one.
bool is_named(const PlanProcess& process, const std::string& name) {
  return process.name == name || process.name.substr(0, process.name.find('#')) == name;
}

Result<std::vector<TenantSlot>> slots_of(const AllowedName& entry, const Plan& plan) {
  std::vector<TenantSlot> slots;
  for (uint32_t slot = 0; slot < plan.tenants.size(); ++slot) {
    const auto& names = entry.tenants;
    if (std::find(names.begin(), names.end(), plan.tenants[slot].name) != names.end())
      slots.emplace_back(slot);
  }
  // An empty list would mean all tenants.
  if (slots.empty() && !entry.tenants.empty())
    return error(Code::kInvalid, "the key of '{}' is allowed for no tenant of this graph: {}",
                 entry.process, fmt::join(entry.tenants, ", "));
  return slots;
}

Result<std::vector<AllowedKey>> resolve(const std::vector<AllowedName>& entries, const Plan& plan) {
  std::vector<AllowedKey> allowed;
  for (const AllowedName& entry : entries)
    for (uint32_t i = 0; i < plan.processes.size(); ++i) {
      if (!is_named(plan.processes[i], entry.process)) continue;
      ASSIGN_OR_RETURN(auto slots, slots_of(entry, plan));
      allowed.push_back({entry.public_key, ProcessId(i), std::move(slots)});
    }
  return allowed;
}

/// A path from the file may be relative; workers get the absolute one.
std::string absolute(const std::string& file) {
  std::error_code fault;
  const auto path = std::filesystem::absolute(file, fault);
  return fault ? file : path.lexically_normal().string();
}

Status check_listen(const PeerKeyFiles& files, const Plan& plan) {
  if (files.listen.empty()) return ok();
  const bool has_tcp = std::any_of(plan.edges.begin(), plan.edges.end(), [](const PlanEdge& edge) {
    return edge.transport == EdgeTransport::kTcp;
  });
  if (!has_tcp)
    return error(Code::kInvalid,
                 "no process would connect to '{}': no edge of the graph travels by tcp",
                 files.listen)
        .note("leave out --listen, or give edges transport = \"tcp\"");
  if (files.listen == "*" || files.listen == "0.0.0.0" || files.listen == "[::]")
    return error(Code::kInvalid, "'{}' is every address of this machine; peers need one",
                 files.listen)
        .note("name the one that they reach it by");
  if (!is_loopback(files.tcp_address()) && files.keys.empty())
    return error(Code::kInvalid, "'{}' is beyond this machine and needs keys", files.listen)
        .note(
            "make them with `primerl-graph keys new`, let the peers' in with `primerl-graph keys "
            "allow`, and give both files: --keys FILE --allow FILE");
  return ok();
}

}  // namespace

std::vector<std::string> PeerKeyFiles::words() const {
  std::vector<std::string> words;
  const auto add = [&words](const char* flag, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {flag, value});
  };
  add("--keys", keys.empty() ? keys : absolute(keys));
  add("--allow", allow.empty() ? allow : absolute(allow));
  add("--listen", listen);
  return words;
}

Result<std::optional<PeerKeys>> read_peer_keys(const PeerKeyFiles& files, const Plan& plan,
                                               const std::string& machine) {
  RETURN_IF_ERROR(check_listen(files, plan));
  if (files.keys.empty() && files.allow.empty()) return std::optional<PeerKeys>();
  if (files.keys.empty())
    return error(Code::kInvalid, "--allow '{}' says whose keys are let in; --keys is missing",
                 files.allow)
        .note("make a pair with `primerl-graph keys new`");
  if (files.allow.empty())
    return error(Code::kInvalid, "--keys '{}' needs a list of those let in: --allow is missing",
                 files.keys)
        .note("write one with `primerl-graph keys allow`: without it any key would be accepted");
  PeerKeys keys;
  ASSIGN_OR_RETURN(keys.own, read_key_file(files.keys));
  ASSIGN_OR_RETURN(const auto entries, read_allow_list(files.allow));
  ASSIGN_OR_RETURN(keys.allowed, resolve(entries, plan));
  for (uint32_t i = 0; i < plan.processes.size(); ++i) {
    const PlanProcess& process = plan.processes[i];
    const bool is_in =
        std::any_of(keys.allowed.begin(), keys.allowed.end(), [&](const AllowedKey& each) {
          return each.process == ProcessId(i) &&
                 (process.machine != machine || each.public_key == keys.own.public_key);
        });
    if (is_in) continue;
    return error(Code::kInvalid, "'{}' does not list process '{}' with the public key of '{}'",
                 files.allow, process.name, files.keys)
        .note(fmt::format(
            "primerl-graph keys allow '{}' --process {} --list {}", keys.own.public_key,
            shell_word(process.name.substr(0, process.name.find('#'))), shell_word(files.allow)));
  }
  return std::optional<PeerKeys>(std::move(keys));
}

}  // namespace primerl
