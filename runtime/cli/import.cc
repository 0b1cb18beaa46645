#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "graph/base/files.h"
#include "graph/base/shell_word.h"
#include "graph/base/suggest.h"
#include "graph/config/toml_source.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/graph_options.h"
#include "runtime/cli/prime_rl.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFileBytesMax = int64_t{1} << 20;

struct ImportArguments {
  std::string file;
  std::string out;
  std::string model;
  std::string environment;
  bool json = false;
};

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (const auto& environment : full_catalog().environments) names.push_back(environment.name);
  return names;
}

std::string_view list_name(KeyFate fate) {
  return fate == KeyFate::kTaken       ? "taken"
         : fate == KeyFate::kNotNeeded ? "not needed"
                                       : "not supported";
}

std::string list_of(const PrimeRlImport& import, KeyFate fate) {
  std::string lines;
  size_t count = 0;
  for (const auto& key : import.keys) {
    if (key.fate != fate) continue;
    ++count;
    lines +=
        fmt::format("  {:<48} {}{}\n", key.key, fate == KeyFate::kTaken ? "-> " : "", key.text);
  }
  return fmt::format("{} ({})\n{}", list_name(fate), count, lines);
}

Json json_of(const PrimeRlImport& import, const std::string& out) {
  Json lists = Json::object();
  for (const auto& [fate, name] :
       {std::pair(KeyFate::kTaken, "taken"), std::pair(KeyFate::kNotNeeded, "not_needed"),
        std::pair(KeyFate::kNotSupported, "not_supported")}) {
    Json list = Json::array();
    for (const auto& key : import.keys)
      if (key.fate == fate)
        list.push_back(Json::object()
                           .set("key", key.key)
                           .set("line", static_cast<int64_t>(key.position.line))
                           .set(fate == KeyFate::kTaken ? "option" : "reason", key.text));
    lists.set(name, std::move(list));
  }
  Json document = Json::object().set("schema", "primerl.import/1").set("graph", out);
  for (const auto& [name, list] : lists.as_object()) document.set(name, list);
  return document.set("notes", Json::list(import.notes));
}

int refuse_environment(const std::string& name, const std::vector<std::string>& known) {
  const std::string near = nearest_name(name, known);
  return fail(error(Code::kNotFound, "there is no environment '{}'", name)
                  .note(near.empty() ? "environments: " + join_names(known)
                                     : fmt::format("did you mean '{}'?", near)),
              kExitBadCommandLine);
}

Status write_new(const fs::path& out, const std::string& text) {
  std::error_code fault;
  if (fs::exists(out, fault))
    return error(Code::kExists, "'{}' exists", out.string()).note("name another file with --out");
  const fs::path folder = out.parent_path();
  if (!folder.empty()) RETURN_IF_ERROR(system_files().make_folder(folder));
  return replace_file(system_files(), out, text);
}

/// A path as the graph has it: relative to the graph's folder, as a person would write it.
std::string beside(const std::string& path, const fs::path& graph) {
  if (path.empty()) return path;
  const fs::path folder = fs::absolute(graph).lexically_normal().parent_path();
  return fs::absolute(path).lexically_normal().lexically_relative(folder).string();
}

int run_import(const ImportArguments& arguments) {
  if (arguments.out.empty())
    return fail(error(Code::kInvalid, "--out FILE is needed").note("the graph to write"),
                kExitBadCommandLine);
  const auto known = environment_names();
  const bool is_chosen = !arguments.environment.empty();
  if (is_chosen && std::ranges::find(known, arguments.environment) == known.end())
    return refuse_environment(arguments.environment, known);
  std::error_code fault;
  if (fs::exists(arguments.out, fault))
    return fail(
        error(Code::kExists, "'{}' exists", arguments.out).note("name another file with --out"),
        kExitFailed);
  auto text = read_text_file(arguments.file, kFileBytesMax);
  if (!text.ok()) return fail(text.error(), kExitBadConfiguration);
  Sources sources;
  Diagnostics diagnostics;
  const SourceId source = sources.add(arguments.file, std::move(*text));
  const auto root = parse_toml(sources, source, diagnostics);
  PrimeRlImport import;
  if (root)
    import = import_prime_rl(*root,
                             {.source = fs::path(arguments.file).filename().string(),
                              .model = beside(arguments.model, arguments.out),
                              .environment = arguments.environment,
                              .environments = known},
                             diagnostics);
  if (diagnostics.has_errors()) {
    complain_text(render(diagnostics, sources, wants_color(STDERR_FILENO)));
    return kExitBadConfiguration;
  }
  if (const Status written = write_new(arguments.out, import.graph); !written.ok())
    return fail(written.error(), kExitFailed);
  if (arguments.json) {
    print_json(json_of(import, arguments.out));
    return kExitDone;
  }
  for (const KeyFate fate : {KeyFate::kTaken, KeyFate::kNotNeeded, KeyFate::kNotSupported})
    print_text(list_of(import, fate) + "\n");
  for (const auto& note : import.notes) complain("note: {}\n", note);
  print_text(fmt::format("wrote {}; next:\n  primerl-graph check {}\n", arguments.out,
                         shell_word(arguments.out)));
  return kExitDone;
}

}  // namespace

Command import_command() {
  auto arguments = std::make_shared<ImportArguments>();
  return {"import", "makes a graph of a prime-rl configuration",
          "echo 'orchestrator = { batch_size = 64, group_size = 8 }' > rl.toml\n"
          "primerl-graph import rl.toml --out imported.toml",
          [arguments](Arguments& flags) {
            flags.positional(arguments->file, "FILE", "prime-rl's rl.toml");
            flags.text(arguments->out, "--out", "GRAPH", "the graph file to write");
            flags.text(arguments->model, "--model", "DIR",
                       "the model's folder; without it, one beside the graph");
            flags.text(arguments->environment, "--environment", "NAME",
                       "an environment of this program, in place of the file's");
            flags.flag(arguments->json, "--json", "prints the lists as JSON");
          },
          [arguments] { return run_import(*arguments); }};
}

}  // namespace primerl
