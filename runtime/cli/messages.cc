#include <fmt/format.h>

#include "graph/base/suggest.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/graph_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct MessagesArguments {
  std::string name;
  PluginArguments plugins;
  bool json = false;
};

/// The `fields()` of a type as it describes them: "version:version;engine:id32;".
std::vector<std::string> fields_of(const MessageType& type) {
  std::vector<std::string> fields;
  std::string field;
  int depth = 0;
  for (const char c : type.schema) {
    depth += c == '<' || c == '{' ? 1 : c == '>' || c == '}' ? -1 : 0;
    if (c == ';' && depth == 0)
      fields.push_back(std::exchange(field, {}));
    else
      field += c;
  }
  if (!field.empty()) fields.push_back(field);
  return fields;
}

std::vector<std::string> users(const Catalog& catalog, const MessageType& type, bool senders) {
  std::vector<std::string> ports;
  for (const auto& actor : catalog.actors) {
    if (senders)
      for (const auto& port : actor.outputs)
        if (port.type == &type) ports.push_back(actor.name + "." + port.name);
    if (!senders)
      for (const auto& port : actor.inputs)
        if (port.type == &type) ports.push_back(actor.name + "." + port.name);
  }
  return ports;
}

Json to_json(const Catalog& catalog, const MessageType& type) {
  return Json::object()
      .set("name", type.name)
      .set("version", type.version)
      .set("schema_hash", fmt::format("{:016x}", type.schema_hash))
      .set("fields", Json::list(fields_of(type)))
      .set("sent_by", Json::list(users(catalog, type, true)))
      .set("taken_by", Json::list(users(catalog, type, false)));
}

void describe(const Catalog& catalog, const MessageType& type) {
  print_text(fmt::format("{} (version {})\n", type.name, type.version));
  for (const auto& field : fields_of(type)) print_text(fmt::format("  {}\n", field));
  print_text(fmt::format("  sent by {}\n  taken by {}\n",
                         fmt::join(users(catalog, type, true), ", "),
                         fmt::join(users(catalog, type, false), ", ")));
}

int run_messages(const MessagesArguments& arguments) {
  const auto loaded = arguments.plugins.catalog();
  if (!loaded.ok()) return fail(loaded.error(), kExitBadConfiguration);
  const Catalog& catalog = **loaded;
  std::vector<const MessageType*> chosen;
  std::vector<std::string> names;
  for (const auto* type : catalog.messages) {
    names.emplace_back(type->name);
    if (arguments.name.empty() || arguments.name == type->name) chosen.push_back(type);
  }
  if (chosen.empty()) {
    const std::string near = nearest_name(arguments.name, names);
    return fail(error(Code::kNotFound, "no message '{}'", arguments.name)
                    .note(near.empty() ? "messages: " + join_names(names)
                                       : fmt::format("did you mean '{}'?", near)),
                kExitBadCommandLine);
  }
  if (arguments.json) {
    Json list = Json::array();
    for (const auto* type : chosen) list.push_back(to_json(catalog, *type));
    print_json(Json::object().set("schema", "primerl.messages/1").set("messages", std::move(list)));
  } else if (!arguments.name.empty()) {
    describe(catalog, *chosen.front());
  } else {
    for (const auto* type : chosen)
      print_text(fmt::format("{:<18} {} -> {}\n", type->name,
                             fmt::join(users(catalog, *type, true), ", "),
                             fmt::join(users(catalog, *type, false), ", ")));
  }
  return kExitDone;
}

}  // namespace

Command messages_command() {
  auto arguments = std::make_shared<MessagesArguments>();
  return {"messages", "lists the messages actors exchange, or all about one",
          "primerl-graph messages GenerateRequest",
          [arguments](Arguments& flags) {
            flags.positional(arguments->name, "MESSAGE", "shows its fields", false);
            arguments->plugins.declare(flags);
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_messages(*arguments); }};
}

}  // namespace primerl
