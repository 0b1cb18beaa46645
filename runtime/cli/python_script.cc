#include "runtime/cli/python_script.h"

#include <filesystem>
#include <system_error>

#include "runtime/cli/python_program.h"
#include "runtime/program/program_output.h"
#include "runtime/program/programs.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

Result<fs::path> find_script(const fs::path& tree, const std::string& name) {
  const auto script = tree / "scripts" / name;
  std::error_code fault;
  if (fs::exists(script, fault)) return script;
  return error(Code::kNotFound, "'{}' is missing", script.string())
      .note("this installation is incomplete; the source tree has the file");
}

Error error_of(const std::string& script, const ProgramOutput& output) {
  std::string text = output.why();
  const size_t begin = text.rfind("error: ");
  if (begin == std::string::npos) return error(Code::kInternal, "{} failed: {}", script, text);
  text.erase(0, begin + std::string_view("error: ").size());
  const size_t line = text.find('\n');
  Error made(Code::kInvalid, text.substr(0, line));
  if (line == std::string::npos) return made;
  return std::move(made).note(text.substr(text.find_first_not_of(" \n", line)));
}

}  // namespace

Result<std::string> run_python_script(const std::string& script,
                                      const std::vector<std::string>& arguments, Duration most) {
  ASSIGN_OR_RETURN(const fs::path examples, examples_folder());
  const fs::path tree = examples.parent_path();
  ASSIGN_OR_RETURN(const fs::path file, find_script(tree, script));
  ASSIGN_OR_RETURN(const fs::path python, find_python());
  std::vector<std::string> words{file.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  ASSIGN_OR_RETURN(auto output, output_of(python, words, most));
  if (output.exit_code != 0) return error_of(script, output);
  return std::move(output.out);
}

}  // namespace primerl
