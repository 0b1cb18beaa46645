#include "runtime/query/diff.h"

#include "runtime/cli/trace_actions.h"
#include "runtime/cli/trace_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct DiffArguments {
  std::string a, b;
  bool json = false;
};

int run_diff(const DiffArguments& arguments) {
  const auto a = open_for_command(arguments.a);
  if (a.trace == nullptr) return a.exit_code;
  const auto b = open_for_command(arguments.b);
  if (b.trace == nullptr) return b.exit_code;
  const TraceDiff diff = diff_traces(*a.trace, *b.trace);
  if (arguments.json)
    print_json(to_json(*a.trace, diff));
  else
    print_text(to_text(*a.trace, diff));
  return diff.is_equal() ? kExitDone : kExitDiverged;
}

}  // namespace

Command diff_action() {
  auto arguments = std::make_shared<DiffArguments>();
  return {"diff", "compares two runs step by step and tells the cause from its victims",
          "for seed in 1 2; do primerl-graph run examples/reverse_text/graph.toml --max-steps 2 "
          "--set graph.seed=$seed --out runs/seed_$seed; done\n"
          "primerl-graph trace diff runs/seed_1 runs/seed_2",
          [arguments](Arguments& flags) {
            flags.positional(arguments->a, "A", "a run folder");
            flags.positional(arguments->b, "B", "another one");
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_diff(*arguments); }};
}

}  // namespace primerl
