/// Command and Arguments: describe a subcommand and declare its flags. Only command_line.cc uses
/// CLI11; commands bind flags to plain variables.
///
/// One declaration gives parser, `--help`, errors with near misses, and completion.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace primerl {

/// One declared flag or positional, for completion and the reference.
struct ArgumentFacts {
  std::string name;   // "--out", or "GRAPH" for a positional
  std::string value;  // "DIR"; empty: a switch
  std::string doc;
  std::vector<std::string> choices;  // for a positional: names that completion offers
  bool is_positional = false;
};

class Arguments {
 public:
  /// `app` null: nothing is parsed, only facts are collected.
  explicit Arguments(CLI::App* app) : app_(app) {}

  void positional(std::string& target, std::string name, std::string doc, bool required = true);
  /// The last positional: one value or more, in their order.
  void positionals(std::vector<std::string>& target, std::string name, std::string doc);
  /// Names that completion offers for the newest positional; other values are accepted too.
  void offer(const std::function<std::vector<std::string>()>& names);
  void flag(bool& target, std::string name, std::string doc);
  void text(std::string& target, std::string name, std::string value, std::string doc);
  /// May be given several times; order is kept.
  void texts(std::vector<std::string>& target, std::string name, std::string value,
             std::string doc);
  void choice(std::string& target, std::string name, std::vector<std::string> choices,
              std::string doc);
  /// A number in [min, max], both included.
  void integer(int64_t& target, std::string name, std::string value, std::string doc, int64_t min,
               int64_t max);
  void number(double& target, std::string name, std::string value, std::string doc, double min,
              double max);
  const std::vector<ArgumentFacts>& facts() const { return facts_; }

 private:
  void remember(std::string name, std::string value, std::string doc);

  CLI::App* app_;
  std::vector<ArgumentFacts> facts_;
};

/// One subcommand. `run` is called after its flags were parsed and returns an exit code. A command
/// with actions (`trace ls`, `trace cat`) has no flags and no `run` of its own.
struct Command {
  std::string name;
  std::string doc;      // one sentence, lower case
  std::string example;  // lines that can be pasted; runs/latest is a run of the demo
  std::function<void(Arguments&)> declare;
  std::function<int()> run;
  std::vector<Command> actions = {};
};

/// Parses the command line, runs the chosen command and returns its exit code. A wrong command line
/// is reported on stderr with the nearest name and gives kExitBadCommandLine.
int run_command_line(const std::string& program, const std::string& doc,
                     const std::vector<Command>& commands, int argc, const char* const* argv);

}  // namespace primerl
