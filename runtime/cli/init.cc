#include <algorithm>
#include <filesystem>

#include "graph/base/files.h"
#include "graph/base/shell_word.h"
#include "graph/base/suggest.h"
#include "runtime/cli/commands.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/programs.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

struct InitArguments {
  std::string folder;
  std::string name = "reverse_text";
  bool list = false;
  bool json = false;
};

/// Every example with a graph.toml, by name.
std::vector<std::string> templates_in(const fs::path& examples) {
  std::vector<std::string> names;
  std::error_code fault;
  for (fs::directory_iterator it(examples, fault), end; !fault && it != end; it.increment(fault))
    if (fs::exists(it->path() / "graph.toml", fault))
      names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// "reverse-text" is accepted for "reverse_text".
std::string template_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// The path of the copy of a file beside the template, relative to the copied template. A folder
/// keeps its name; "../NAME/graph.toml" becomes "NAME.toml".
std::string own_name(const fs::path& neighbour) {
  const std::string file = neighbour.filename().string();
  return file == "graph.toml" ? neighbour.parent_path().filename().string() + ".toml" : file;
}

Status copy_siblings(const fs::path& from, const fs::path& graph);

/// Copies a folder or a graph beside a template into the folder `to`, together with the files that
/// such a graph names in its own folder. Does nothing if the text names no file.
Result<std::string> copy_sibling(const fs::path& neighbour, const fs::path& to) {
  std::error_code fault;
  const fs::path own = to / own_name(neighbour);
  const bool is_graph = fs::is_regular_file(neighbour, fault);
  if (!is_graph && !fs::is_directory(neighbour, fault)) return std::string();
  const bool is_new = !fs::exists(own, fault);
  if (is_new) fs::copy(neighbour, own, fs::copy_options::recursive, fault);
  if (fault) return io_error("copying to", own, fault.value());
  if (is_graph && is_new) RETURN_IF_ERROR(copy_siblings(neighbour.parent_path(), own));
  return own.filename().string();
}

/// A graph may use files of the example beside it, "../NAME/model" or "../NAME/graph.toml"; the
/// copied template gets its own copies. For a graph from another folder, the files of that folder
/// are copied too.
Status copy_siblings(const fs::path& from, const fs::path& graph) {
  ASSIGN_OR_RETURN(std::string text, read_text_file(graph));
  const fs::path to = graph.parent_path();
  std::error_code fault;
  for (size_t at = text.find('"'); at != std::string::npos; at = text.find('"', at)) {
    const size_t end = text.find_first_of("\"\n", at + 1);
    if (end == std::string::npos) break;
    const std::string named = text.substr(at + 1, end - at - 1);
    const bool is_relative = text[end] == '"' && !named.empty() && named.front() != '/';
    const bool is_wanted = is_relative && fs::exists(from / named, fault) &&
                           (named.starts_with("../") || !fs::exists(to / named, fault));
    at = end + 1;
    if (!is_wanted) continue;
    ASSIGN_OR_RETURN(const std::string own, copy_sibling(from / named, to));
    if (own.empty()) continue;
    text.replace(end - named.size(), named.size(), own);
    at = end - named.size() + own.size() + 1;
  }
  return replace_file(system_files(), graph, text);
}

Status copy_template(const fs::path& from, const fs::path& to) {
  std::error_code fault;
  if (fs::exists(to, fault) && !fs::is_empty(to, fault))
    return error(Code::kExists, "'{}' exists and is not empty", to.string())
        .note("choose a folder that does not exist yet");
  RETURN_IF_ERROR(system_files().make_folder(to));
  fs::copy(from, to, fs::copy_options::recursive, fault);
  if (fault) return io_error("copying the template to", to, fault.value());
  return copy_siblings(from, to / "graph.toml");
}

/// A template whose model is too large for the repository.
struct FetchedModel {
  std::string_view name;    // of the template
  std::string_view model;   // as `model fetch` names it
  std::string_view folder;  // beside the graph
};
constexpr FetchedModel kFetchedModels[] = {
    {"chat", "smollm2-135m-instruct", "smollm2"},
    {"smollm2", "smollm2-135m-instruct", "model"},
    {"verifiers", "smollm2-135m-instruct", "../smollm2/model"}};

/// The command to run before `check`; empty if none is needed.
std::string first_step(const fs::path& folder, std::string_view name) {
  const auto fetched = std::ranges::find(kFetchedModels, name, &FetchedModel::name);
  if (fetched != std::end(kFetchedModels))
    return fmt::format("  primerl-graph model fetch {} {}\n", fetched->model,
                       shell_word((folder / fetched->folder).string()));
  std::error_code fault;
  if (!fs::exists(folder / "CMakeLists.txt", fault)) return {};
  return fmt::format("  build its plugin, as {} says\n", (folder / "README.md").string());
}

int run_init(const InitArguments& arguments) {
  const auto examples = examples_folder();
  if (!examples.ok()) return fail(examples.error(), kExitFailed);
  const auto names = templates_in(*examples);
  if (arguments.list) {
    if (arguments.json)
      print_json(
          Json::object().set("schema", "primerl.templates/1").set("templates", Json::list(names)));
    else
      for (const auto& name : names) print_text(name + "\n");
    return kExitDone;
  }
  if (arguments.folder.empty())
    return fail(error(Code::kInvalid, "a FOLDER to make is needed"), kExitBadCommandLine);
  const std::string name = template_name(arguments.name);
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    const std::string near = nearest_name(name, names);
    return fail(error(Code::kNotFound, "no template '{}'", arguments.name)
                    .note(near.empty() ? "templates: " + join_names(names)
                                       : fmt::format("did you mean '{}'?", near)),
                kExitBadCommandLine);
  }
  if (const Status copied = copy_template(*examples / name, arguments.folder); !copied.ok())
    return fail(copied.error(), kExitFailed);
  const std::string graph = (fs::path(arguments.folder) / "graph.toml").string();
  if (arguments.json)
    print_json(Json::object()
                   .set("schema", "primerl.init/1")
                   .set("folder", arguments.folder)
                   .set("template", name)
                   .set("graph", graph));
  else
    print_text(
        fmt::format("made {} from template {}; next:\n{}  primerl-graph check {}\n"
                    "  primerl-graph run {}\n",
                    arguments.folder, name, first_step(arguments.folder, name), shell_word(graph),
                    shell_word(graph)));
  return kExitDone;
}

}  // namespace

Command init_command() {
  auto arguments = std::make_shared<InitArguments>();
  return {"init", "makes a folder with a graph to start from",
          "primerl-graph init demo --template reverse_text",
          [arguments](Arguments& flags) {
            flags.positional(arguments->folder, "FOLDER", "the folder to make", false);
            flags.text(arguments->name, "--template", "NAME", "an example: see --list");
            flags.flag(arguments->list, "--list", "lists the templates");
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_init(*arguments); }};
}

}  // namespace primerl
