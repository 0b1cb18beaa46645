#include "runtime/cli/run_facts.h"

#include <unistd.h>

#include "graph/base/files.h"
#include "graph/base/process.h"
#include "runtime/program/exit_code.h"

namespace primerl {

namespace fs = std::filesystem;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

Result<Json> read_run_facts(const fs::path& folder) {
  std::error_code fault;
  if (!fs::is_directory(folder, fault))
    return error(Code::kNotFound, "no run folder '{}'", folder.string());
  const fs::path file = folder / "run.json";
  if (!fs::exists(file, fault))
    return error(Code::kNotFound, "'{}' is no run folder: it has no run.json", folder.string());
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(Json facts, parse_json(text, file.string()));
  if (!facts.is_object()) return error(Code::kCorrupt, "'{}' holds no object", file.string());
  return facts;
}

Json member(const Json& facts, std::string_view key) {
  const Json* value = facts.find(key);
  return value == nullptr ? Json() : *value;
}

std::string text_member(const Json& facts, std::string_view key) {
  const Json value = member(facts, key);
  return value.is_string() ? value.as_string() : "";
}

bool is_alive(const Json& process) {
  const auto pid = process.get_int("pid"), ticks = process.get_int("start_ticks");
  return pid.ok() && ticks.ok() && *ticks != 0 && start_ticks(*pid) == *ticks;
}

fs::path run_path(const std::string& named) {
  std::error_code fault;
  const fs::path whole = fs::absolute(named, fault).lexically_normal();
  const fs::path path = fs::weakly_canonical(whole, fault);
  return fault ? whole : path;
}

int exit_code_of(const Error& no_answer) {
  const bool is_no_run = no_answer.code() == Code::kNotFound || no_answer.code() == Code::kInvalid;
  return is_no_run ? kExitBadConfiguration : kExitFailed;
}

}  // namespace primerl
