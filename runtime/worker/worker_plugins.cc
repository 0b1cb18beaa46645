#include "runtime/worker/worker_plugins.h"

#include "graph/base/crc32c.h"
#include "graph/base/files.h"
#include "graph/base/json.h"

namespace primerl {

Status check_plugins(const std::string& run_folder) {
  const auto text = read_text_file(run_folder + "/run.json");
  if (!text.ok() && text.error().code() == Code::kNotFound) return ok();
  if (!text.ok()) return text.error();
  ASSIGN_OR_RETURN(const Json facts, parse_json(*text, "run.json"));
  const Json* plugins = facts.find("plugins");
  if (plugins == nullptr) return ok();
  for (const Json& plugin : plugins->as_array()) {
    ASSIGN_OR_RETURN(const std::string file, plugin.get_string("file"));
    ASSIGN_OR_RETURN(const std::string began, plugin.get_string("crc32c"));
    ASSIGN_OR_RETURN(const MappedFile mapped, map_file(file));
    const std::string now = fmt::format("{:08x}", crc32c(mapped.bytes));
    if (now != began)
      return error(Code::kInvalid,
                   "plugin '{}' is not the file that the run began with (CRC-32C {}, now {})", file,
                   began, now)
          .note("put that file back, or resume the run: it takes the new one");
  }
  return ok();
}

}  // namespace primerl
