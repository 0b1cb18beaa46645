#include "runtime/program/command_line.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "graph/base/suggest.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/version.h"

namespace primerl {
namespace {

/// Accepts what CLI11 accepts, also "1e3" or " 7"; the error names the limits.
template <class T>
std::function<std::string(std::string&)> in_range(T min, T max) {
  return [min, max](std::string& text) {
    T value{};
    // CLI11 replaces a number that is too large by the largest possible number.
    const bool is_beyond = std::from_chars(text.data(), text.data() + text.size(), value).ec ==
                           std::errc::result_out_of_range;
    const bool is_number = !is_beyond && CLI::detail::lexical_cast(text, value);
    if (is_number && value >= min && value <= max) return std::string();
    if constexpr (std::is_floating_point_v<T>)
      return std::isinf(max) ? fmt::format("'{}' is not a number >= {}", text, min)
                             : fmt::format("'{}' is not a number in [{}, {}]", text, min, max);
    return max == INT64_MAX ? fmt::format("'{}' is no whole number >= {}", text, min)
                            : fmt::format("'{}' is no whole number in [{}, {}]", text, min, max);
  };
}

/// The word that CLI11 did not know. Its message ends with all words that it could not assign. If a
/// flag is among them, the flag was mistyped and the other words are its values.
std::string unknown_word(const std::string& message) {
  const size_t at = message.rfind(": ");
  if (at == std::string::npos) return "";
  const std::string words = message.substr(at + 2);
  const size_t flag = words.starts_with("-") ? 0 : words.find(" -") + 1;
  return flag == 0 && !words.starts_with("-") ? words
                                              : words.substr(flag, words.find(' ', flag) - flag);
}

std::vector<std::string> flag_names(const Command& command) {
  Arguments arguments(nullptr);
  command.declare(arguments);
  std::vector<std::string> names{"--help"};
  for (const auto& facts : arguments.facts())
    if (!facts.is_positional) names.push_back(facts.name);
  return names;
}

/// Prints the error of a wrong command line: the fault, the nearest name, and how to get help.
void refuse_words(const std::string& program, const std::vector<Command>& commands,
                  const Command* chosen, const std::string& first_word,
                  const CLI::ParseError& fault) {
  std::string message = fault.what();
  std::string help;
  if (chosen == nullptr && !first_word.empty() && first_word[0] != '-') {
    std::vector<std::string> names;
    for (const auto& command : commands) names.push_back(command.name);
    message = fmt::format("no command '{}'", first_word);
    const std::string near = nearest_name(first_word, names);
    help = near.empty() ? fmt::format("commands: {}", join_names(names))
                        : fmt::format("did you mean '{}'?", near);
  } else if (chosen != nullptr && dynamic_cast<const CLI::ExtrasError*>(&fault) != nullptr) {
    const std::string word = unknown_word(message);
    const auto names = flag_names(*chosen);
    message = word.starts_with("-") ? fmt::format("'{}' has no flag '{}'", chosen->name, word)
                                    : fmt::format("'{}' takes no '{}'", chosen->name, word);
    const std::string near = nearest_name(word, names);
    if (!near.empty()) help = fmt::format("did you mean '{}'?", near);
  }
  complain("error: {}\n", message);
  if (!help.empty()) complain("  help: {}\n", help);
  complain("  see: {}{} --help\n", program, chosen == nullptr ? "" : " " + chosen->name);
}

}  // namespace

void Arguments::remember(std::string name, std::string value, std::string doc) {
  ArgumentFacts facts;
  facts.name = std::move(name);
  facts.value = std::move(value);
  facts.doc = std::move(doc);
  facts_.push_back(std::move(facts));
}

void Arguments::positional(std::string& target, std::string name, std::string doc, bool required) {
  if (app_ != nullptr) {
    CLI::Option* option = app_->add_option(name, target, doc)->type_name("");
    if (required) option->required();
  }
  remember(std::move(name), "", std::move(doc));
  facts_.back().is_positional = true;
}

void Arguments::positionals(std::vector<std::string>& target, std::string name, std::string doc) {
  if (app_ != nullptr) app_->add_option(name, target, doc)->type_name("")->required();
  remember(std::move(name), "", std::move(doc));
  facts_.back().is_positional = true;
}

void Arguments::offer(const std::function<std::vector<std::string>()>& names) {
  if (app_ == nullptr) facts_.back().choices = names();  // only completion needs it
}

void Arguments::flag(bool& target, std::string name, std::string doc) {
  if (app_ != nullptr) app_->add_flag(name, target, doc);
  remember(std::move(name), "", std::move(doc));
}

void Arguments::text(std::string& target, std::string name, std::string value, std::string doc) {
  if (app_ != nullptr) app_->add_option(name, target, doc)->type_name(value);
  remember(std::move(name), std::move(value), std::move(doc));
}

void Arguments::texts(std::vector<std::string>& target, std::string name, std::string value,
                      std::string doc) {
  if (app_ != nullptr) {
    app_->add_option(name, target, doc)
        ->type_name(value)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
  }
  remember(std::move(name), std::move(value), std::move(doc));
}

void Arguments::choice(std::string& target, std::string name, std::vector<std::string> choices,
                       std::string doc) {
  const std::string value = fmt::format("{}", fmt::join(choices, "|"));
  if (app_ != nullptr) {
    const auto check = [choices](std::string& text) {
      for (const auto& choice : choices)
        if (choice == text) return std::string();
      const std::string near = nearest_name(text, choices);
      return fmt::format("'{}' is none of {}{}", text, join_names(choices),
                         near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
    };
    app_->add_option(name, target, doc)->type_name(value)->check(CLI::Validator(check, ""));
  }
  remember(std::move(name), value, std::move(doc));
  facts_.back().choices = std::move(choices);
}

void Arguments::integer(int64_t& target, std::string name, std::string value, std::string doc,
                        int64_t min, int64_t max) {
  if (app_ != nullptr)
    app_->add_option(name, target, doc)
        ->type_name(value)
        ->check(CLI::Validator(in_range<int64_t>(min, max), ""));
  remember(std::move(name), std::move(value), std::move(doc));
}

void Arguments::number(double& target, std::string name, std::string value, std::string doc,
                       double min, double max) {
  if (app_ != nullptr)
    app_->add_option(name, target, doc)
        ->type_name(value)
        ->check(CLI::Validator(in_range<double>(min, max), ""));
  remember(std::move(name), std::move(value), std::move(doc));
}

namespace {

struct Parser {
  const Command* command;
  CLI::App* app;
};

/// Indents every line of `text` by two columns.
std::string indented(const std::string& text) {
  std::string lines = "  ";
  for (const char c : text) lines += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return lines;
}

/// Declares commands, and the actions of those that have some; leaves are the commands that can
/// run.
void add_parsers(CLI::App& parent, const std::vector<Command>& commands,
                 std::vector<Parser>& leaves) {
  parent.require_subcommand(1);
  for (const auto& command : commands) {
    CLI::App* app = parent.add_subcommand(command.name, command.doc);
    app->footer("Example:\n" + indented(command.example));
    if (!command.actions.empty()) {
      add_parsers(*app, command.actions, leaves);
      continue;
    }
    Arguments arguments(app);
    command.declare(arguments);
    leaves.push_back({&command, app});
  }
}

/// CLI11 uses the next word as the value of "--name=", so the meaning of that word would be lost.
void refuse_empty_values(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return;
    if (word.size() > 3 && word.starts_with("--") && word.find('=') == word.size() - 1)
      throw CLI::ArgumentMismatch(fmt::format("'{}' has no value", word));
  }
}

const Command* find_command(const std::vector<Command>& commands, const std::string& name) {
  for (const auto& command : commands)
    if (command.name == name) return &command;
  return nullptr;
}

}  // namespace

int run_command_line(const std::string& program, const std::string& doc,
                     const std::vector<Command>& commands, int argc, const char* const* argv) {
  open_closed_standard_files();
  CLI::App app(doc, program);
  app.set_version_flag("--version", fmt::format("{} {}", program, kProgramVersion));
  app.footer(fmt::format("Each command has --help with an example: {} {} --help", program,
                         commands.front().name));
  std::vector<Parser> leaves;
  add_parsers(app, commands, leaves);
  const std::string first_word = argc > 1 ? argv[1] : "";
  const std::string second_word = argc > 2 ? argv[2] : "";
  const Command* chosen = find_command(commands, first_word);
  try {
    refuse_empty_values(argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::Success& asked_for_help) {
    return app.exit(asked_for_help);
  } catch (const CLI::ParseError& fault) {
    if (chosen != nullptr && !chosen->actions.empty())
      refuse_words(program + " " + chosen->name, chosen->actions,
                   find_command(chosen->actions, second_word), second_word, fault);
    else
      refuse_words(program, commands, chosen, first_word, fault);
    return kExitBadCommandLine;
  }
  for (const auto& leaf : leaves)
    if (leaf.app->parsed()) {
      const int code = leaf.command->run();
      const Status printed = finish_output();
      return printed.ok() || code != kExitDone ? code : fail(printed.error(), kExitFailed);
    }
  return kExitBadCommandLine;
}

}  // namespace primerl
