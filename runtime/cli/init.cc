#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "graph/base/files.h"
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

/// A graph may start from the model of the example beside it, "../NAME/FOLDER": the copy gets one
/// of its own and says "FOLDER".
Status bring_neighbours(const fs::path& from, const fs::path& graph) {
  std::ifstream in(graph);
  std::stringstream read;
  read << in.rdbuf();
  std::string text = read.str();
  constexpr std::string_view kBeside = "\"../";
  for (size_t at = text.find(kBeside); at != std::string::npos; at = text.find(kBeside, at + 1)) {
    const size_t end = text.find('"', at + 1);
    if (end == std::string::npos) break;
    const fs::path named = text.substr(at + 1, end - at - 1);
    const fs::path own = graph.parent_path() / named.filename();
    std::error_code fault;
    if (!fs::is_directory(from / named, fault)) continue;
    if (!fs::exists(own, fault)) fs::copy(from / named, own, fs::copy_options::recursive, fault);
    if (fault) return io_error("copying a model to", own, fault.value());
    text.replace(at + 1, end - at - 1, named.filename().string());
  }
  std::ofstream out(graph, std::ios::trunc);
  out << text;
  out.close();
  return out ? ok() : io_error("writing", graph, errno);
}

Status copy_template(const fs::path& from, const fs::path& to) {
  std::error_code fault;
  if (fs::exists(to, fault) && !fs::is_empty(to, fault))
    return error(Code::kExists, "'{}' exists and is not empty", to.string())
        .note("choose a folder that does not exist yet");
  RETURN_IF_ERROR(system_files().make_folder(to));
  fs::copy(from, to, fs::copy_options::recursive, fault);
  if (fault) return io_error("copying the template to", to, fault.value());
  return bring_neighbours(from, to / "graph.toml");
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
        fmt::format("made {} from template {}; next:\n  primerl-graph check {}\n"
                    "  primerl-graph run {}\n",
                    arguments.folder, name, graph, graph));
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
