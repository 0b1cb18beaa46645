#include <fmt/format.h>

#include "graph/base/suggest.h"
#include "graph/check/codes.h"
#include "runtime/cli/commands.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct ExplainArguments {
  std::string code;
  bool json = false;
};

Json to_json(const ErrorCode& code) {
  return Json::object().set("code", code.code).set("title", code.title).set("text", code.text);
}

int run_explain(const ExplainArguments& arguments) {
  if (arguments.code.empty()) {
    Json list = Json::array();
    for (const auto& code : error_codes()) {
      if (arguments.json)
        list.push_back(to_json(code));
      else
        print_text(fmt::format("{}  {}\n", code.code, code.title));
    }
    if (arguments.json)
      print_json(Json::object().set("schema", "primerl.codes/1").set("codes", std::move(list)));
    return kExitDone;
  }
  const ErrorCode* found = find_error_code(arguments.code);
  if (found == nullptr) {
    std::vector<std::string> names;
    for (const auto& code : error_codes()) names.emplace_back(code.code);
    const std::string near = nearest_name(arguments.code, names);
    return fail(error(Code::kNotFound, "no code '{}'", arguments.code)
                    .note(near.empty() ? "`primerl-graph explain` lists every code"
                                       : fmt::format("did you mean '{}'?", near)),
                kExitBadCommandLine);
  }
  if (arguments.json)
    print_json(
        Json::object().set("schema", "primerl.codes/1").set("codes", Json::Array{to_json(*found)}));
  else
    print_text(explain(*found));
  return kExitDone;
}

}  // namespace

Command explain_command() {
  auto arguments = std::make_shared<ExplainArguments>();
  return {"explain", "explains the code of a finding, or lists every code",
          "primerl-graph explain G012",
          [arguments](Arguments& flags) {
            flags.positional(arguments->code, "CODE", "as `check` printed it", false);
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_explain(*arguments); }};
}

}  // namespace primerl
