#include "graph/contract.h"

#include <algorithm>

namespace primerl {
namespace {

PortAttribute routed(Routing routing) {
  PortAttribute attribute;
  attribute.on_output = [routing](OutputPort& port) { port.routing = routing; };
  return attribute;
}

template <class Port>
const Port* find_port(const std::vector<Port>& ports, std::string_view name) {
  for (const auto& port : ports)
    if (port.name == name) return &port;
  return nullptr;
}

template <class Port>
std::vector<std::string> names_of(const std::vector<Port>& ports) {
  std::vector<std::string> names;
  names.reserve(ports.size());
  for (const auto& port : ports) names.push_back(port.name);
  return names;
}

}  // namespace

std::string_view to_string(Routing routing) {
  switch (routing) {
    case Routing::kToOne:
      return "to_one";
    case Routing::kBroadcast:
      return "broadcast";
    case Routing::kAddressed:
      return "addressed";
    case Routing::kKeyed:
      return "keyed";
    case Routing::kToOrigin:
      return "to_origin";
  }
  return "unknown";
}

Amount exactly(int64_t count) {
  return {[count](const void*, std::span<const Tenant>) { return count; }, std::to_string(count)};
}

Amount tenant_max(int64_t Tenant::*field, std::string text) {
  return {[field](const void*, std::span<const Tenant> tenants) {
            int64_t largest = 0;
            for (const auto& tenant : tenants) largest = std::max(largest, tenant.*field);
            return largest;
          },
          std::move(text)};
}

const InputPort* Contract::find_input(std::string_view port) const {
  return find_port(inputs, port);
}
const OutputPort* Contract::find_output(std::string_view port) const {
  return find_port(outputs, port);
}
std::vector<std::string> Contract::input_names() const { return names_of(inputs); }
std::vector<std::string> Contract::output_names() const { return names_of(outputs); }

PortAttribute optional_port() {
  PortAttribute attribute;
  attribute.on_input = [](InputPort& port) { port.is_optional = true; };
  attribute.on_output = [](OutputPort& port) { port.is_optional = true; };
  return attribute;
}

PortAttribute serves_runs() {
  PortAttribute attribute;
  attribute.on_input = [](InputPort& port) { port.is_optional = port.serves_runs = true; };
  attribute.on_output = [](OutputPort& port) { port.is_optional = port.serves_runs = true; };
  return attribute;
}

PortAttribute handles_of(std::string use) {
  PortAttribute attribute;
  attribute.on_input = [use](InputPort& port) { port.handles_of = use; };
  attribute.on_output = [use](OutputPort& port) { port.handles_of = use; };
  return attribute;
}

PortAttribute broadcast() { return routed(Routing::kBroadcast); }
PortAttribute addressed() { return routed(Routing::kAddressed); }
PortAttribute to_origin() { return routed(Routing::kToOrigin); }

PortAttribute burst(Amount amount) {
  PortAttribute attribute;
  attribute.on_output = [amount = std::move(amount)](OutputPort& port) { port.burst = amount; };
  return attribute;
}
PortAttribute burst(int64_t amount) { return burst(exactly(amount)); }

PortAttribute work_burst(Amount amount) {
  PortAttribute attribute;
  attribute.on_output = [amount = std::move(amount)](OutputPort& port) {
    port.work_burst = amount;
  };
  return attribute;
}
PortAttribute work_burst(int64_t amount) { return work_burst(exactly(amount)); }

PortAttribute at_most(Amount amount) {
  PortAttribute attribute;
  attribute.on_input = [amount](InputPort& port) { port.at_most = amount; };
  attribute.on_output = [amount](OutputPort& port) { port.at_most = amount; };
  return attribute;
}
PortAttribute at_most(int64_t amount) { return at_most(exactly(amount)); }

PortAttribute message_bytes(Amount amount) {
  PortAttribute attribute;
  attribute.on_output = [amount = std::move(amount)](OutputPort& port) { port.bytes_max = amount; };
  return attribute;
}

PortAttribute latest_wins() {
  PortAttribute attribute;
  attribute.on_input = [](InputPort& port) { port.latest_wins = true; };
  return attribute;
}

PortAttribute recorded() {
  PortAttribute attribute;
  attribute.on_output = [](OutputPort& port) { port.is_recorded = true; };
  return attribute;
}

}  // namespace primerl
