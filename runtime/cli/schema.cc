#include "graph/config/schema.h"

#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/commands.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {

Command schema_command() {
  auto as_json = std::make_shared<bool>(true);
  return {"schema", "prints the JSON Schema of graph files, for editors",
          "primerl-graph schema > graph.schema.json",
          [as_json](Arguments& flags) {
            flags.flag(*as_json, "--json", "taken for uniformity: a schema is JSON anyway");
          },
          [] {
            print_json(graph_schema(full_catalog()));
            return static_cast<int>(kExitDone);
          }};
}

}  // namespace primerl
