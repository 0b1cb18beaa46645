#include "runtime/trace/catalog.h"

#include <map>

namespace primerl {
namespace {

constexpr std::string_view kCatalogSchema = "primerl.trace.catalog/1";

/// Hashes are written as 16 hexadecimal digits, because some programs read JSON numbers as doubles.
Json hex(uint64_t value) { return fmt::format("{:016x}", value); }

Json number_or_null(uint32_t value) { return value == UINT32_MAX ? Json() : Json(value); }

/// Typed reads of one object. The first fault is kept and names the member by its full path.
class Members {
 public:
  Members(const Json& object, std::string path, Status& fault)
      : object_(object), path_(std::move(path)), fault_(fault) {
    if (!object.is_object()) fail("", "must be an object");
  }

  std::string text(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (value->is_string()) return value->as_string();
    fail(key, fmt::format("must be text, but is {}", value->kind()));
    return {};
  }
  bool boolean(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return false;
    if (value->is_bool()) return value->as_bool();
    fail(key, fmt::format("must be a boolean, but is {}", value->kind()));
    return false;
  }
  int64_t integer(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return 0;
    const auto found = object_.get_int(key);
    if (found.ok()) return *found;
    fail(key, "must be a 64-bit integer");
    return 0;
  }
  double number(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return 0;
    if (value->is_number()) return value->as_double();
    fail(key, fmt::format("must be a number, but is {}", value->kind()));
    return 0;
  }
  uint64_t hex(std::string_view key) {
    const std::string digits = text(key);
    if (!fault_.ok()) return 0;
    uint64_t value = 0;
    bool fits = digits.size() == 16;
    for (const char c : digits) {
      const bool is_digit = c >= '0' && c <= '9';
      if (!is_digit && (c < 'a' || c > 'f')) fits = false;
      value = value << 4 | static_cast<uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
    }
    if (!fits) fail(key, fmt::format("is '{}', not 16 hexadecimal digits", digits));
    return fits ? value : 0;
  }
  uint32_t number32(std::string_view key) {
    const int64_t value = integer(key);
    if (value >= 0 && value < int64_t{UINT32_MAX}) return static_cast<uint32_t>(value);
    fail(key, fmt::format("is {}, not in [0, {})", value, UINT32_MAX));
    return 0;
  }
  /// A number that is an index into a table of `size` entries.
  uint32_t index(std::string_view key, size_t size) {
    const int64_t value = integer(key);
    if (value >= 0 && static_cast<uint64_t>(value) < size) return static_cast<uint32_t>(value);
    if (fault_.ok()) fail(key, fmt::format("is {}, its table has {}", value, size));
    return 0;
  }
  uint32_t index_or_null(std::string_view key, size_t size) {
    const Json* value = object_.find(key);
    return value != nullptr && value->is_null() ? UINT32_MAX : index(key, size);
  }
  std::vector<std::string> texts(std::string_view key) {
    std::vector<std::string> list;
    for (const auto& item : array(key)) {
      if (!item.is_string()) fail(key, "has an element that is not text");
      list.push_back(item.is_string() ? item.as_string() : "");
    }
    return list;
  }
  const Json::Array& array(std::string_view key) {
    static const Json::Array kNothing;
    const Json* value = find(key);
    if (value == nullptr) return kNothing;
    if (value->is_array()) return value->as_array();
    fail(key, fmt::format("must be an array, but is {}", value->kind()));
    return kNothing;
  }
  void fail(std::string_view key, std::string_view what) {
    if (!fault_.ok()) return;
    fault_ = error(Code::kCorrupt, "the catalog of a trace: '{}{}' {}", path_, key, what);
  }

 private:
  const Json* find(std::string_view key) {
    const Json* value = object_.find(key);
    if (value == nullptr) fail(key, "is missing");
    return value;
  }

  const Json& object_;
  const std::string path_;
  Status& fault_;
};

using Each = std::function<void(Members&)>;

void read_table(Members& members, std::string_view key, Status& fault, const Each& each) {
  size_t i = 0;
  for (const auto& item : members.array(key)) {
    Members row(item, fmt::format("{}[{}].", key, i++), fault);
    each(row);
    if (!fault.ok()) return;
  }
}

/// Reads the tables that refer to each other by index; their sizes are known before they are read.
void read_tables(Members& members, TraceCatalog& catalog, Status& fault) {
  const size_t num_groups = members.array("groups").size();
  const size_t num_instances = members.array("instances").size();
  const size_t num_types = members.array("types").size();
  read_table(members, "groups", fault, [&](Members& row) {
    TraceCatalog::TraceGroup group{
        row.text("name"), row.index("process", catalog.processes.size()), {}};
    for (const auto& item : row.array("instances")) {
      const bool fits = item.is_integer() && item.as_int() >= 0 &&
                        static_cast<uint64_t>(item.as_int()) < num_instances;
      if (!fits) return row.fail("instances", "points outside the table of instances");
      group.instances.push_back(static_cast<uint32_t>(item.as_int()));
    }
    catalog.groups.push_back(std::move(group));
  });
  read_table(members, "instances", fault, [&](Members& row) {
    catalog.instances.push_back(
        {row.text("name"), row.text("node"), row.text("actor"), row.index("group", num_groups),
         row.index_or_null("tenant", catalog.tenants.size()), row.texts("timers")});
  });
  read_table(members, "links", fault, [&](Members& row) {
    TraceCatalog::TraceLink link;
    link.edge = row.text("edge");
    link.sender = row.index("sender", num_instances);
    link.target = row.index("target", num_instances);
    link.output = row.text("output");
    link.input = row.text("input");
    link.type = row.index("type", num_types);
    link.is_feedback = row.boolean("is_feedback");
    link.latest_wins = row.boolean("latest_wins");
    link.record = row.text("record");
    if (link.record != "none" && link.record != "header" && link.record != "input" &&
        link.record != "payload")
      row.fail("record", fmt::format("is '{}', not none, header, input or payload", link.record));
    catalog.links.push_back(std::move(link));
  });
  read_table(members, "types", fault, [&](Members& row) {
    catalog.types.push_back(
        {row.text("name"), row.number32("version"), row.text("schema"), row.hex("schema_hash")});
  });
}

}  // namespace

Json TraceCatalog::to_json() const {
  Json group_list = Json::array(), instance_list = Json::array();
  for (const auto& group : groups)
    group_list.push_back(Json::object()
                             .set("name", group.name)
                             .set("process", group.process)
                             .set("instances", Json::list(group.instances)));
  for (const auto& instance : instances)
    instance_list.push_back(Json::object()
                                .set("name", instance.name)
                                .set("node", instance.node)
                                .set("actor", instance.actor)
                                .set("group", instance.group)
                                .set("tenant", number_or_null(instance.tenant))
                                .set("timers", Json::list(instance.timers)));
  Json link_list = Json::array(), type_list = Json::array();
  for (const auto& link : links)
    link_list.push_back(Json::object()
                            .set("edge", link.edge)
                            .set("sender", link.sender)
                            .set("target", link.target)
                            .set("output", link.output)
                            .set("input", link.input)
                            .set("type", link.type)
                            .set("is_feedback", link.is_feedback)
                            .set("latest_wins", link.latest_wins)
                            .set("record", link.record));
  for (const auto& type : types)
    type_list.push_back(Json::object()
                            .set("name", type.name)
                            .set("version", type.version)
                            .set("schema", type.schema)
                            .set("schema_hash", hex(type.schema_hash)));
  Json bytes_list = Json::object();
  for (const auto& [name, bytes] : bytes_before) bytes_list.set(name, bytes);
  return Json::object()
      .set("schema", kCatalogSchema)
      .set("program_version", program_version)
      .set("graph_text", graph_text)
      .set("resumed_from", Json::list(resumed_from))
      .set("recovers", recovers)
      .set("bytes_before", std::move(bytes_list))
      .set("graph_name", graph_name)
      .set("graph_hash", hex(graph_hash))
      .set("run_id", hex(run_id))
      .set("seed", seed)
      .set("is_virtual", is_virtual)
      .set("wall_zero_seconds", wall_zero_seconds)
      .set("zero_ns", zero_ns)
      .set("tenants", Json::list(tenants))
      .set("processes", Json::list(processes))
      .set("groups", std::move(group_list))
      .set("instances", std::move(instance_list))
      .set("links", std::move(link_list))
      .set("types", std::move(type_list));
}

Result<TraceCatalog> TraceCatalog::from_json(const Json& json) {
  TraceCatalog catalog;
  Status fault;
  Members members(json, "", fault);
  const std::string schema = members.text("schema");
  if (fault.ok() && schema != kCatalogSchema)
    return error(Code::kCorrupt, "the catalog of a trace is a '{}', this program reads '{}'",
                 schema, kCatalogSchema)
        .note("read it with the program that wrote it");
  catalog.program_version = members.text("program_version");
  catalog.graph_text = members.text("graph_text");
  catalog.resumed_from = members.texts("resumed_from");
  if (json.find("recovers") != nullptr) catalog.recovers = members.text("recovers");
  if (const Json* bytes = json.find("bytes_before"); bytes != nullptr && bytes->is_object())
    for (const auto& [name, value] : bytes->as_object())
      if (value.is_integer() && value.as_int() >= 0)
        catalog.bytes_before.emplace_back(name, static_cast<uint64_t>(value.as_int()));
  catalog.graph_name = members.text("graph_name");
  catalog.graph_hash = members.hex("graph_hash");
  catalog.run_id = members.hex("run_id");
  catalog.seed = members.integer("seed");
  catalog.is_virtual = members.boolean("is_virtual");
  catalog.wall_zero_seconds = members.number("wall_zero_seconds");
  catalog.zero_ns = members.integer("zero_ns");
  catalog.tenants = members.texts("tenants");
  catalog.processes = members.texts("processes");
  if (fault.ok()) read_tables(members, catalog, fault);
  if (!fault.ok()) return fault.error();
  return catalog;
}

TraceCatalog make_trace_catalog(const Plan& plan, const Wiring& wiring) {
  TraceCatalog catalog;
  catalog.graph_name = plan.settings.name;
  catalog.graph_hash = plan.graph_hash;
  catalog.graph_text = plan.resolved_toml;
  catalog.seed = plan.settings.seed;
  for (const auto& tenant : plan.all_slots()) catalog.tenants.push_back(tenant.name);
  for (const auto& process : plan.processes) catalog.processes.push_back(process.name);
  for (const auto& group : plan.groups) {
    TraceCatalog::TraceGroup entry{group.name, group.process.value, {}};
    for (const InstanceId id : group.instances) entry.instances.push_back(id.value);
    catalog.groups.push_back(std::move(entry));
  }
  for (const auto& instance : plan.instances) {
    const PlanNode& node = plan.node(instance.node);
    TraceCatalog::Instance entry{instance.name,        node.name,  node.contract->name,
                                 instance.group.value, UINT32_MAX, {}};
    if (!instance.tenant.is_none()) entry.tenant = instance.tenant.value;
    for (const auto& timer : node.contract->timers) entry.timers.push_back(timer.name);
    catalog.instances.push_back(std::move(entry));
  }
  std::map<const MessageType*, uint32_t> numbers;
  for (const auto& link : wiring.links) {
    const PlanEdge& edge = plan.edge(link.edge);
    const OutputPort& output = plan.contract_of(link.sender).outputs[link.output];
    const InputPort& input = plan.contract_of(link.target).inputs[link.input];
    const auto [known, is_new] =
        numbers.try_emplace(output.type, static_cast<uint32_t>(catalog.types.size()));
    if (is_new)
      catalog.types.push_back({std::string(output.type->name), output.type->version,
                               output.type->schema, output.type->schema_hash});
    catalog.links.push_back({edge.name, link.sender.value, link.target.value, output.name,
                             input.name, known->second, link.is_feedback, link.latest_wins,
                             std::string(to_string(edge.record))});
  }
  return catalog;
}

}  // namespace primerl
