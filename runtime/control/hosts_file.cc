#include "runtime/control/hosts_file.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "graph/base/files.h"
#include "graph/base/suggest.h"
#include "graph/config/toml_source.h"
#include "graph/options.h"
#include "graph/spec.h"
#include "runtime/transport/keys.h"
#include "runtime/transport/zmq_transport.h"

namespace primerl {
namespace {

struct HostOptions {
  std::string agent;
  std::string key;
  std::string listen;
};

const OptionSet& host_options() {
  static const OptionSet options =
      OptionsOf<HostOptions>()
          .field("agent", &HostOptions::agent, required(), "where its agent listens, host:port")
          .field("key", &HostOptions::key, any(), "the agent's public key")
          .field("listen", &HostOptions::listen, any(),
                 "the address of tcp connections on that machine")
          .take();
  return options;
}

Span value_span(const NamedTable& table, std::string_view key) {
  const Entry* entry = table.table->find(key);
  return entry != nullptr ? entry->value.span : table.name_span;
}

bool is_plain_group(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    const std::string numbers(host.substr(1, host.size() - 2));
    in6_addr address{};
    return ::inet_pton(AF_INET6, numbers.c_str(), &address) == 1;
  }
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

bool is_any_address(std::string_view host) {
  return host == "*" || host == "0.0.0.0" || host == "[::]";
}

class HostsReader {
 public:
  HostsReader(const Plan& plan, HostsFile& file) : file_(file) {
    for (const auto& process : plan.processes)
      if (!process.machine.empty()) used_.emplace(process.machine, process.name);
  }

  void read(Table& root) {
    for (auto& entry : root.entries) {
      if (entry.key == "host" && entry.value.is_table()) {
        for (auto& one : entry.value.as_table().entries) read_host(one);
      } else {
        auto& found =
            file_.diagnostics.error("H001", entry.key_span, "a hosts file has no '{}'", entry.key);
        found.note("it has one [host.NAME] for each machine, nothing else");
      }
    }
    check_used(root.span);
  }

 private:
  void read_host(Entry& entry) {
    names_.push_back(entry.key);
    if (!entry.value.is_table()) {
      file_.diagnostics.error("G021", entry.value.span, "host '{}' must be a table, not {}",
                              entry.key, entry.value.kind());
      return;
    }
    const NamedTable table{entry.key, entry.key_span, &entry.value.as_table()};
    HostOptions options;
    const size_t before = file_.diagnostics.num_errors();
    host_options().bind(*table.table, fmt::format("host '{}'", table.name), {}, &options,
                        file_.diagnostics);
    if (file_.diagnostics.num_errors() > before) return;
    check_group(table, options);
    if (!used_.contains(table.name)) {
      auto& found = file_.diagnostics.warning("H006", table.name_span,
                                              "no place of the graph is on host '{}'", table.name);
      found.note(used_.empty() ? "no [place] of the graph has a 'host'"
                               : fmt::format("hosts of the graph: {}", join_names(used_names())));
      return;
    }
    file_.hosts.push_back({table.name, options.agent, options.key, options.listen});
  }

  void check_group(const NamedTable& table, HostOptions& options) {
    auto& diagnostics = file_.diagnostics;
    const auto host = host_of_address(options.agent, 1);
    if (!host || is_any_address(*host)) {
      diagnostics
          .error("H002", value_span(table, "agent"), "'{}' is no address of an agent",
                 options.agent)
          .note(
              "it is host:port, the port from 1 to 65535, as in \"10.0.0.5:7300\" or "
              "\"[fd00::5]:7300\"");
      return;
    }
    const auto [other, is_first] = agents_.emplace(options.agent, table.name);
    if (!is_first)
      diagnostics
          .error("H004", value_span(table, "agent"), "hosts '{}' and '{}' have one agent, '{}'",
                 other->second, table.name, options.agent)
          .note("give both places the same 'host', or start an agent on another port");
    if (!options.key.empty() && !is_public_key(options.key))
      diagnostics.error("H003", value_span(table, "key"), "'{}' is no public key", options.key)
          .note("it is what `primerl-graph keys new` printed on that machine, 40 characters");
    if (options.key.empty() && is_reachable_from_outside(*host))
      diagnostics
          .error("H003", value_span(table, "agent"),
                 "host '{}' is beyond this machine and needs the agent's 'key'", table.name)
          .note("it is what `primerl-graph keys new` printed on that machine");
    check_listen(table, options, *host);
  }

  void check_listen(const NamedTable& table, HostOptions& options, const std::string& host) {
    const bool is_written = !options.listen.empty();
    if (!is_written) options.listen = host;
    if (is_any_address(options.listen) || !is_plain_group(options.listen)) {
      file_.diagnostics
          .error("H007", value_span(table, "listen"), "'{}' is no address to listen on",
                 options.listen)
          .note(
              "it is an address of that machine, without a port: free ones are taken; an IPv6 "
              "address stands in brackets, as in \"[fd00::5]\"");
    } else if (is_written && options.key.empty() && is_reachable_from_outside(options.listen)) {
      file_.diagnostics.error("H003", value_span(table, "listen"),
                              "'{}' is beyond that machine and needs the agent's 'key'",
                              options.listen);
    }
  }

  void check_used(Span whole) {
    for (const auto& [host, process] : used_) {
      if (std::find(names_.begin(), names_.end(), host) != names_.end()) continue;
      auto& found = file_.diagnostics.error("H005", whole, "no [host.{}]: process '{}' runs there",
                                            host, process);
      // A name that a place already uses is correct, so only unused ones are suggested.
      std::vector<std::string> unused;
      for (const auto& name : names_)
        if (!used_.contains(name)) unused.push_back(name);
      const std::string near = nearest_name(host, unused);
      if (!names_.empty()) found.note(fmt::format("hosts of this file: {}", join_names(names_)));
      if (!near.empty()) found.suggest(fmt::format("did you mean '{}'?", near));
    }
  }

  std::vector<std::string> used_names() const {
    std::vector<std::string> names;
    for (const auto& [host, process] : used_) names.push_back(host);
    return names;
  }

  HostsFile& file_;
  std::map<std::string, std::string> used_;    // host -> the first process there
  std::map<std::string, std::string> agents_;  // address -> host
  std::vector<std::string> names_;             // hosts of the file
};

}  // namespace

std::optional<std::string> host_of_address(const std::string& address, uint32_t port_min) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  const std::string_view digits = std::string_view(address).substr(colon + 1);
  uint32_t port = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (read.ptr != digits.data() + digits.size() || read.ec != std::errc() || port < port_min ||
      port > 65535)
    return std::nullopt;
  std::string host = address.substr(0, colon);
  if (!is_plain_group(host) && !is_any_address(host)) return std::nullopt;
  return host;
}

bool is_reachable_from_outside(const std::string& host) { return !is_loopback("tcp://" + host); }

HostsFile read_hosts_text(std::string text, const std::string& name, const Plan& plan) {
  HostsFile file;
  const SourceId source = file.sources.add(name, std::move(text));
  auto root = parse_toml(file.sources, source, file.diagnostics);
  if (root) HostsReader(plan, file).read(*root);
  file.diagnostics.sort();
  return file;
}

Result<HostsFile> read_hosts(const std::string& path, const Plan& plan) {
  auto text = read_text_file(path);
  if (!text.ok()) return std::move(text).error().while_doing("--hosts");
  return read_hosts_text(std::move(text).value(), path, plan);
}

}  // namespace primerl
