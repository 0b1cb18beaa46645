#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "graph/base/counted.h"
#include "graph/base/files.h"
#include "graph/base/shell_word.h"
#include "graph/tenancies.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/eval_graph.h"
#include "runtime/cli/run.h"
#include "runtime/cli/run_facts.h"
#include "runtime/cli/summary.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

struct EvalArguments {
  RunArguments run;
  EvaluationChanges changes;
  std::string rollouts;  // the file for the rollouts; "" = they stay in the run folder
};

/// Whether `--out FILE` can be written; tried before anything is played.
Status check_output(const std::string& file) {
  if (file.empty()) return ok();
  std::error_code fault;
  if (fs::exists(file, fault))
    return error(Code::kExists, "--out '{}' exists", file).note("name a file that does not exist");
  const fs::path folder = fs::absolute(file, fault).parent_path();
  if (!fs::is_directory(folder, fault))
    return error(Code::kNotFound, "the folder of --out '{}' does not exist", file)
        .note(fmt::format("make '{}' first", folder.string()));
  return ok();
}

Status check_model(std::string& folder) {
  if (folder.empty()) return ok();
  std::error_code fault;
  folder = fs::absolute(folder, fault).lexically_normal().string();
  const auto facts = read_model_facts(folder);
  return facts.ok() ? ok() : Status(Error(facts.error()).while_doing("--model '" + folder + "'"));
}

Result<std::vector<Json>> read_lines(const fs::path& file) {
  std::vector<Json> lines;
  std::ifstream stream(file);
  for (std::string text; std::getline(stream, text) && !stream.eof();) {
    ASSIGN_OR_RETURN(Json line, parse_json(text, file.string()));
    lines.push_back(std::move(line));
  }
  return lines;
}

/// The last evaluation of each tenant: a line for each of its environments.
Result<std::vector<Json>> evaluations_in(const fs::path& folder, const Plan& plan) {
  std::vector<Json> all;
  for (const Tenant& tenant : plan.tenants) {
    ASSIGN_OR_RETURN(auto lines, read_lines(folder / evaluations_file_name(tenancy_name(tenant),
                                                                           plan.layout_tenants())));
    const size_t count = std::min(lines.size(), tenant.num_environments());
    std::move(lines.end() - static_cast<std::ptrdiff_t>(count), lines.end(),
              std::back_inserter(all));
  }
  return all;
}

Status copy_rollouts(const fs::path& folder, const Plan& plan, const std::string& file) {
  std::string all;
  for (const Tenant& tenant : plan.tenants) {
    ASSIGN_OR_RETURN(
        const std::string text,
        read_text_file(folder / rollouts_file_name(tenancy_name(tenant), plan.layout_tenants())));
    all += text;
  }
  return replace_file(system_files(), file, all);
}

double number_in(const Json& line, std::string_view key) {
  const auto found = line.get_double(key);
  return found.ok() ? *found : 0;
}

/// "main", or "main/words" for one of several environments.
std::string shown_tenant(const Json& line, const Plan& plan) {
  const std::string name = text_member(line, "tenant");
  const auto tenant = std::ranges::find(plan.tenants, name, &Tenant::name);
  if (tenant == plan.tenants.end() || tenant->mix.empty()) return name;
  return fmt::format("{}/{}", name, text_member(line, "environment"));
}

/// A row per tenant, or per environment of it; the columns follow from the values.
std::string table_text(const std::vector<Json>& evaluations, const Plan& plan) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> last_head;
  for (const Json& line : evaluations) {
    std::vector<std::string> head{"tenant", "rows", "samples", "mean"};
    std::vector<std::string> cells{
        shown_tenant(line, plan), fmt::format("{:.0f}", number_in(line, "rows")),
        fmt::format("{:.0f}", number_in(line, "samples")),
        line.find("reward")->is_null() ? std::string("-")
                                       : fmt::format("{:.4f}", number_in(line, "reward"))};
    for (const auto& [k, value] : line.find("pass")->as_object()) {
      head.push_back("pass@" + k);
      cells.push_back(fmt::format("{:.4f}", value.as_double()));
    }
    for (const auto& [label, value] : line.find("rewards")->as_object()) {
      head.push_back(label);
      cells.push_back(fmt::format("{:.4f}", value.as_double()));
    }
    for (const auto& [name, key] :
         {std::pair("tokens", "completion_len"), std::pair("turns", "turns"),
          std::pair("truncated", "truncated"), std::pair("failed", "failed")}) {
      head.emplace_back(name);
      cells.push_back(fmt::format("{:.4g}", number_in(line, key)));
    }
    if (std::exchange(last_head, head) != head) rows.push_back(head);
    rows.push_back(cells);
  }
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string row;
    for (size_t column = 0; column < rows[i].size(); ++column) {
      size_t width = 0;
      for (const auto& other : rows)
        if (column < other.size()) width = std::max(width, other[column].size());
      row += column == 0 ? fmt::format("{:<{}}", rows[i][column], width)
                         : fmt::format("  {:>{}}", rows[i][column], width);
    }
    text += row + "\n";
  }
  return text;
}

/// Replaces the summary of the run. Returns the exit code.
int report_evaluations(const EvalArguments& arguments, const Plan& plan, const RunFolder& folder,
                       const RunResult& result) {
  if (result.ending.how != RunEnding::How::kFinished) {
    complain("the evaluation is not complete: {}\n", result.end());
    return result.exit_code();
  }
  const auto evaluations = evaluations_in(folder.path(), plan);
  if (!evaluations.ok()) return fail(evaluations.error(), kExitFailed);
  if (!arguments.rollouts.empty())
    if (const Status copied = copy_rollouts(folder.path(), plan, arguments.rollouts); !copied.ok())
      return fail(copied.error(), kExitFailed);
  const std::string rollouts =
      arguments.rollouts.empty()
          ? (folder.path() /
             rollouts_file_name(tenancy_name(plan.tenants.front()), plan.layout_tenants()))
                .string()
          : arguments.rollouts;
  if (arguments.run.json) {
    Json all = Json::array();
    for (const Json& line : *evaluations) all.push_back(line);
    print_json(Json::object()
                   .set("schema", "primerl.eval/1")
                   .set("seconds", result.seconds)
                   .set("folder", folder.path().string())
                   .set("rollouts", rollouts)
                   .set("evaluations", std::move(all)));
  } else {
    print_text(table_text(*evaluations, plan) + fmt::format("rollouts    {}\nrun folder  {}\n",
                                                            shown_path(rollouts),
                                                            shown_path(folder.path())));
  }
  size_t num_expected = 0;
  for (const Tenant& tenant : plan.tenants) num_expected += tenant.num_environments();
  bool has_result = evaluations->size() == num_expected;
  for (const Json& line : *evaluations) {
    has_result = has_result && !line.find("reward")->is_null();
    if (const double failed = number_in(line, "failed"); failed > 0)
      complain(
          "warning: tenant '{}': {} failed; `primerl-graph rollouts {} --end failed` says "
          "why\n",
          shown_tenant(line, plan), counted(static_cast<uint64_t>(failed), "rollout"),
          shell_word(shown_path(folder.path())));
  }
  return has_result ? kExitDone : kExitFailed;
}

int run_eval(EvalArguments arguments) {
  if (const Status usable = check_output(arguments.rollouts); !usable.ok())
    return fail(usable.error(), kExitBadConfiguration);
  if (const Status usable = check_model(arguments.changes.model); !usable.ok())
    return fail(usable.error(), kExitBadConfiguration);
  GraphArguments training = arguments.run.graph;
  training.no_rehearsal = true;
  training.overrides.for_run = false;
  training.overrides.may_lack_weights = !arguments.changes.model.empty();
  // Its warnings are about training; those about playing are found in the graph of the evaluation.
  const CheckedGraph checked = load(training);
  if (checked.plan == nullptr) {
    complain_text(render(checked.diagnostics, checked.sources, wants_color(STDERR_FILENO)));
    return kExitBadConfiguration;
  }
  const auto text = evaluation_graph(*checked.plan, arguments.changes);
  if (!text.ok()) return fail(text.error(), kExitBadConfiguration);
  std::error_code fault;
  const fs::path file =
      fs::temp_directory_path(fault) / fmt::format("primerl-eval-{}.toml", ::getpid());
  if (const Status written = replace_file(system_files(), file, *text); !written.ok())
    return fail(written.error(), kExitFailed);
  RunArguments run = arguments.run;
  run.graph.file = file.string();
  run.graph.overrides.sets.clear();  // the text has them
  run.graph.overrides.overlays.clear();
  run.report = [&arguments](const Plan& played, const RunFolder& folder, const RunResult& result) {
    return report_evaluations(arguments, played, folder, result);
  };
  const int exit_code = run_graph(run);
  fs::remove(file, fault);
  return exit_code;
}

}  // namespace

Command eval_command() {
  auto arguments = std::make_shared<EvalArguments>();
  return {"eval", "measures a model on the tasks of a graph: mean and pass@k, without training",
          "primerl-graph eval examples/reverse_text/graph.toml --k 2 --rows 8 --out eval.jsonl",
          [arguments](Arguments& flags) {
            RunArguments& run = arguments->run;
            run.graph.declare_file(flags);
            run.graph.declare_rehearsal(flags);
            flags.text(arguments->changes.model, "--model", "DIR",
                       "a Hugging Face folder; default: the model of the graph");
            flags.text(arguments->changes.tenant, "--tenant", "NAME",
                       "plays the tasks of this tenant; default: of all");
            flags.integer(arguments->changes.samples, "--k", "N",
                          "rollouts of each row; default: eval.samples of the tenant", 1, 1 << 12);
            flags.integer(arguments->changes.rows, "--rows", "N",
                          "rows; default: eval.rows of the tenant, else the rows in the holdout of "
                          "its data set, else all its rows",
                          1, int64_t{1} << 30);
            flags.text(arguments->rollouts, "--out", "FILE",
                       "a new JSONL file for the rollouts; default: they stay in the run folder");
            flags.text(run.place.out, "--run-folder", "DIR",
                       "the run folder; default runs/<time>-<name>-eval");
            flags.flag(run.json, "--json", "prints the result as JSON");
          },
          [arguments] { return run_eval(*arguments); }};
}

}  // namespace primerl
