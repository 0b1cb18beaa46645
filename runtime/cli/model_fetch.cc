#include "runtime/cli/model_fetch.h"

#include <system_error>

#include "runtime/cli/python_program.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/program_output.h"
#include "runtime/program/programs.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr Duration kFetchMax = Duration::seconds(1800);  // a wheel of 93 MB, then unpacking

Result<fs::path> find_script(const fs::path& tree) {
  const auto script = tree / "scripts" / "fetch_model.py";
  std::error_code fault;
  if (fs::exists(script, fault)) return script;
  return error(Code::kNotFound, "'{}' is missing", script.string())
      .note("this installation cannot fetch models; the source tree can");
}

/// The script writes "error: SENTENCE" and lines that say what to do.
Error error_of(const ProgramOutput& output) {
  std::string text = output.why();
  const size_t begin = text.rfind("error: ");
  if (begin == std::string::npos) return error(Code::kInternal, "fetching failed: {}", text);
  text.erase(0, begin + std::string_view("error: ").size());
  const size_t line = text.find('\n');
  Error made(Code::kInvalid, text.substr(0, line));
  if (line == std::string::npos) return made;
  return std::move(made).note(text.substr(text.find_first_not_of(" \n", line)));
}

Status fetch(const std::string& name, const std::string& folder) {
  ASSIGN_OR_RETURN(const fs::path examples, examples_folder());
  const fs::path tree = examples.parent_path();
  ASSIGN_OR_RETURN(const fs::path script, find_script(tree));
  ASSIGN_OR_RETURN(const fs::path python, find_python());
  ASSIGN_OR_RETURN(const auto output,
                   output_of(python, {script.string(), name, folder}, kFetchMax));
  return output.exit_code == 0 ? ok() : Status(error_of(output));
}

}  // namespace

int run_model_fetch(const std::string& name, const std::string& folder) {
  if (name.empty() || folder.empty())
    return fail(error(Code::kInvalid, "'model fetch' needs a model and a folder")
                    .note("primerl-graph model fetch smollm2-135m-instruct DIR"),
                kExitBadCommandLine);
  if (const Status fetched = fetch(name, folder); !fetched.ok())
    return fail(fetched.error(), kExitFailed);
  print_text(fmt::format("the model is in '{}'\n", folder));
  return kExitDone;
}

}  // namespace primerl
