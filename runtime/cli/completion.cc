#include <fmt/format.h>

#include <algorithm>

#include "runtime/cli/commands.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

/// Every flag of a command, from the same declarations that the parser uses. For a command with
/// actions, every flag of any action.
std::vector<ArgumentFacts> facts_of(const Command& command) {
  Arguments arguments(nullptr);
  if (command.declare) command.declare(arguments);
  std::vector<ArgumentFacts> all = arguments.facts();
  for (const auto& action : command.actions)
    for (auto& facts : facts_of(action)) {
      const auto is_same = [&](const ArgumentFacts& known) { return known.name == facts.name; };
      if (facts.name != "--help" && std::none_of(all.begin(), all.end(), is_same))
        all.push_back(std::move(facts));
    }
  all.push_back({"--help", "", "shows what the command takes", {}, false});
  return all;
}

std::string flag_words(const Command& command) {
  std::string words;
  for (const auto& action : command.actions) words += (words.empty() ? "" : " ") + action.name;
  for (const auto& facts : facts_of(command))
    if (!facts.is_positional)
      words += (words.empty() ? "" : " ") + facts.name;
    else if (!facts.choices.empty())
      words += fmt::format(" {}", fmt::join(facts.choices, " "));
  return words;
}

std::string quoted(const std::string& text) {  // for single quotes of a shell
  std::string out;
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + out + "'";
}

std::string bash_script(const std::vector<Command>& commands) {
  std::string names, cases, choices;
  for (const auto& command : commands) {
    names += (names.empty() ? "" : " ") + command.name;
    cases += fmt::format("    {}) words='{}' ;;\n", command.name, flag_words(command));
    for (const auto& facts : facts_of(command))
      if (!facts.choices.empty() && !facts.is_positional)
        choices += fmt::format("    {}:{}) words='{}' ;;\n", command.name, facts.name,
                               fmt::join(facts.choices, " "));
  }
  return fmt::format(R"(# bash completion of primerl-graph: source <(primerl-graph completion bash)
_primerl_graph() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words=''
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{}  esac
  case "${{COMP_WORDS[1]}}:$previous" in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current"))
}}
complete -o filenames -F _primerl_graph primerl-graph
)",
                     names, cases, choices);
}

std::string zsh_script(const std::vector<Command>& commands) {
  std::string names, cases;
  for (const auto& command : commands) {
    names += fmt::format("    {}\n", quoted(command.name + ":" + command.doc));
    cases += fmt::format("    {})\n      _arguments", command.name);
    for (const auto& facts : facts_of(command)) {
      if (facts.is_positional) continue;
      std::string doc;
      for (const char c : facts.doc)  // brackets and colons would end a description
        doc += c == '[' || c == ']' || c == ':' ? std::string("\\") + c : std::string(1, c);
      std::string value;
      if (!facts.choices.empty())
        value = fmt::format(":{}:({})", facts.name.substr(2), fmt::join(facts.choices, " "));
      else if (!facts.value.empty())
        value = fmt::format(":{}:_files", facts.value);
      cases +=
          fmt::format(" \\\n        {}", quoted(fmt::format("{}[{}]{}", facts.name, doc, value)));
    }
    std::string actions;
    for (const auto& action : command.actions) actions += " " + action.name;
    for (const auto& facts : facts_of(command))
      if (facts.is_positional && !facts.choices.empty())
        cases += fmt::format(" \\\n        {}", quoted(fmt::format("1:{}:({})", facts.name,
                                                                   fmt::join(facts.choices, " "))));
    if (!actions.empty())
      cases += fmt::format(" \\\n        {}", quoted("1:action:(" + actions.substr(1) + ")"));
    cases += " \\\n        '*:file:_files' ;;\n";
  }
  return fmt::format(R"(#compdef primerl-graph
# zsh completion of primerl-graph: primerl-graph completion zsh > "${{fpath[1]}}/_primerl-graph"
_primerl_graph() {{
  local -a commands
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe 'command' commands
    return
  fi
  local command="${{words[2]}}"
  shift words
  (( CURRENT-- ))
  case "$command" in
{}  esac
}}
if [ "$funcstack[1]" = "_primerl_graph" ]; then
  _primerl_graph "$@"
else
  compdef _primerl_graph primerl-graph
fi
)",
                     names, cases);
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string text = "# fish completion of primerl-graph: primerl-graph completion fish | source\n";
  for (const auto& command : commands) {
    text += fmt::format("complete -c primerl-graph -n __fish_use_subcommand -f -a {} -d {}\n",
                        command.name, quoted(command.doc));
    for (const auto& action : command.actions)
      text += fmt::format(
          "complete -c primerl-graph -n '__fish_seen_subcommand_from {}' -f -a {} -d {}\n",
          command.name, action.name, quoted(action.doc));
    for (const auto& facts : facts_of(command)) {
      if (facts.is_positional && !facts.choices.empty())
        text += fmt::format(
            "complete -c primerl-graph -n '__fish_seen_subcommand_from {}' -f -a {} -d {}\n",
            command.name, quoted(fmt::format("{}", fmt::join(facts.choices, " "))),
            quoted(facts.doc));
      if (facts.is_positional) continue;
      text +=
          fmt::format("complete -c primerl-graph -n '__fish_seen_subcommand_from {}' -l {} -d {}",
                      command.name, facts.name.substr(2), quoted(facts.doc));
      if (!facts.value.empty()) text += " -r";
      if (!facts.choices.empty())
        text += fmt::format(" -f -a {}", quoted(fmt::format("{}", fmt::join(facts.choices, " "))));
      text += "\n";
    }
  }
  return text;
}

int run_completion(const std::string& shell) {
  const auto commands = graph_commands();
  if (shell == "bash")
    print_text(bash_script(commands));
  else if (shell == "zsh")
    print_text(zsh_script(commands));
  else if (shell == "fish")
    print_text(fish_script(commands));
  else
    return fail(
        error(Code::kInvalid, "no completion for '{}'", shell).note("shells: bash, zsh and fish"),
        kExitBadCommandLine);
  return kExitDone;
}

}  // namespace

Command completion_command() {
  auto shell = std::make_shared<std::string>();
  return {"completion", "prints the completion script of a shell",
          "source <(primerl-graph completion bash)",
          [shell](Arguments& flags) { flags.positional(*shell, "SHELL", "bash, zsh or fish"); },
          [shell] { return run_completion(*shell); }};
}

}  // namespace primerl
