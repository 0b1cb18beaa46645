#include "graph/config/schema.h"

#include "runtime/cli/commands.h"
#include "runtime/cli/graph_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {

Command schema_command() {
  auto as_json = std::make_shared<bool>(true);
  auto plugins = std::make_shared<PluginArguments>();
  return {"schema", "prints the JSON Schema of graph files, for editors",
          "primerl-graph schema > graph.schema.json",
          [as_json, plugins](Arguments& flags) {
            plugins->declare(flags);
            flags.flag(*as_json, "--json", "accepted for uniformity: a schema is JSON anyway");
          },
          [plugins] {
            const auto catalog = plugins->catalog();
            if (!catalog.ok()) return fail(catalog.error(), kExitBadConfiguration);
            print_json(graph_schema(**catalog));
            return static_cast<int>(kExitDone);
          }};
}

}  // namespace primerl
