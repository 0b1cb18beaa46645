/// The hosts file of `run --hosts FILE`: the agent of each machine that a graph's [place] names.
/// Its format is in docs/formats/hosts.md.
///
///   [host.gpu1]
///   agent = "10.0.0.5:7300"
///   key = "..."                  # of the agent; needed beyond loopback
///   listen = "10.0.0.5"          # where its processes listen for connections; default: as `agent`
///
/// Findings have the codes H001 to H007, besides those of any table (G001, G02x). Plain values; any
/// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/config/diagnostic.h"
#include "graph/plan.h"

namespace primerl {

struct HostEntry {
  std::string name;
  std::string agent;   // "10.0.0.5:7300"
  std::string key;     // Z85; "" without keys
  std::string listen;  // never empty
};

struct HostsFile {
  Sources sources;
  Diagnostics diagnostics;
  std::vector<HostEntry> hosts;  // those that the plan uses, in the order of the file
};

/// Reads the file and checks it against the graph. An Error: the file cannot be read. Every other
/// fault is a diagnostic.
Result<HostsFile> read_hosts(const std::string& path, const Plan& plan);
/// Checks the text of a hosts file; `name` is for the diagnostics.
HostsFile read_hosts_text(std::string text, const std::string& name, const Plan& plan);

/// Parses "host:port": a host name or an address (IPv6 in brackets), and a port of at least
/// `port_min`. Returns the host, or nothing when the text is no such address.
std::optional<std::string> host_of_address(const std::string& address, uint32_t port_min);

/// Whether other machines can reach a host: false for "127.0.0.1" and other loopback addresses.
bool is_reachable_from_outside(const std::string& host);

}  // namespace primerl
