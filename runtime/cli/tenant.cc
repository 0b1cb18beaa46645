// `tenant`: the tenants of a run that is served. Each action is one request to its control plane
// (runtime/control/tenant_control.h). `ls` of a run that has ended reads tenants.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <thread>

#include "graph/base/files.h"
#include "graph/base/real_clock.h"
#include "graph/tenant_values.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/control_options.h"
#include "runtime/cli/run_asker.h"
#include "runtime/cli/run_facts.h"
#include "runtime/control/tenant_control.h"
#include "runtime/monitor/text_table.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

// A join reads the tenant's data and tokenizes it once.
constexpr Duration kAnswerMax = Duration::seconds(60);
constexpr Duration kJoinMax = Duration::seconds(600);  // of --wait
// Each look writes two files and wakes the run, so a long join is looked at less and less often.
constexpr auto kFirstLook = std::chrono::milliseconds(20);
constexpr auto kLookMax = std::chrono::milliseconds(500);

struct TenantArguments {
  std::string run = "runs/latest";
  std::string name;  // or the file of `add`
  bool waits = false;
  bool keeps_checkpoints = false;
  bool purges = false;
  bool json = false;
  bool is_operator = false, rotates = false;  // of `token`
  std::vector<std::string> values;            // of `set`: "key=value"
  std::string key_file;                       // of `add`, `token`: the key that a person has chosen
};

Json request(std::string_view verb, const std::string& name) {
  return Json::object().set("tenant_verb", verb).set("name", name);
}

/// The answer of the run, or the exit code of a failure, which has been reported.
struct Answered {
  Json answer;
  int exit_code = kExitDone;
};

Answered ask(const TenantArguments& arguments, Json content) {
  auto answer = ask_running(run_path(arguments.run), std::move(content), kAnswerMax,
                            "its tenants are gone, `tenant ls` shows how they ended");
  if (!answer.ok()) return {Json(), fail(answer.error(), exit_code_of(answer.error()))};
  const std::string why = text_member(*answer, "error");
  complain_text(text_member(*answer, "findings"));
  if (why.empty()) return {std::move(answer).value()};
  const bool is_bad = answer->find("is_bad") != nullptr;
  // A file with errors is a bad configuration, like a graph file with errors.
  const int code = answer->find("findings") != nullptr ? kExitBadConfiguration
                   : is_bad                            ? kExitBadCommandLine
                                                       : kExitFailed;
  return {Json(), fail(error(Code::kUnavailable, "{}", why), code)};
}

std::string number_text(const Json& tenant, std::string_view key, int digits) {
  const Json value = member(tenant, key);
  return value.is_number() ? fmt::format("{:.{}f}", value.as_double(), digits) : "-";
}

std::string percent_text(const Json& tenant, std::string_view key) {
  const Json value = member(tenant, key);
  return value.is_number() ? fmt::format("{:.0f}%", value.as_double() * 100) : "-";
}

/// "3/100", "3" of a tenant without an end, "-" where a run that has ended does not know the step.
std::string step_text(const Json& tenant) {
  const Json step = member(tenant, "step"), most = member(tenant, "max_steps");
  if (!most.is_number()) return "-";
  const int64_t done = step.is_number() ? step.as_int() : 0;
  return most.as_int() > 0 ? fmt::format("{}/{}", done, most.as_int()) : fmt::format("{}", done);
}

std::string waits_text(const Json& tenant) {
  std::vector<std::string> names;
  const Json late = member(tenant, "waits_for");
  if (late.is_array())
    for (const Json& name : late.as_array())
      if (name.is_string()) names.push_back(name.as_string());
  return names.empty() ? "" : fmt::format("waits for {}", fmt::join(names, ", "));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void print_tenants(const Json& answer) {
  TextTable table({"tenant", "state", "slot", "number", "step", "reward", "staleness", "tokens/s",
                   "engine", "learner", "promised"},
                  2);
  std::string notes;
  const Json tenants = member(answer, "tenants");
  if (!tenants.is_array() || tenants.as_array().empty()) {
    print_text("no tenant\n");
  } else {
    for (const Json& tenant : tenants.as_array()) {
      const std::string name = text_member(tenant, "name");
      table.add({name, text_member(tenant, "state"), number_text(tenant, "slot", 0),
                 number_text(tenant, "number", 0), step_text(tenant),
                 number_text(tenant, "reward", 3), number_text(tenant, "staleness", 1),
                 number_text(tenant, "tokens_per_second", 0), percent_text(tenant, "engine_share"),
                 percent_text(tenant, "learner_share"), percent_text(tenant, "share")});
      if (const std::string why = text_member(tenant, "why"); !why.empty())
        notes += fmt::format("{}: {}\n", name, first_line(why));
      if (const std::string late = waits_text(tenant); !late.empty())
        notes += fmt::format("{}: {}\n", name, late);
    }
    print_text(table.text() + notes);
  }
  const auto free = answer.get_int("free"), slots = answer.get_int("slots");
  if (free.ok() && slots.ok()) print_text(fmt::format("{} of {} slots are free\n", *free, *slots));
}

/// The tenants of a run that has ended, as its table says.
int list_ended(const TenantArguments& arguments, const fs::path& folder) {
  const auto text = read_text_file(tenants_file(folder));
  if (!text.ok())
    return fail(error(Code::kNotFound, "the run in '{}' has no table of tenants", folder.string())
                    .note("`primerl-graph serve` starts a run whose tenants come and go"),
                kExitBadConfiguration);
  const auto table = parse_json(*text, tenants_file(folder).string());
  if (!table.ok()) return fail(table.error(), kExitFailed);
  Json tenants = Json::array();
  const Json saved = member(*table, "tenants");
  if (saved.is_array())
    for (const Json& one : saved.as_array()) {
      Json tenant = Json::object();
      for (const char* key : {"name", "state", "slot", "number", "why"})
        tenant.set(key, member(one, key));
      tenants.push_back(std::move(tenant));
    }
  const Json answer = Json::object().set("tenants", std::move(tenants));
  if (arguments.json)
    print_json(answer);
  else
    print_tenants(answer);
  return kExitDone;
}

int list_tenants(const TenantArguments& arguments) {
  const fs::path folder = run_path(arguments.run);
  const auto facts = read_run_facts(folder);
  if (!facts.ok()) return fail(facts.error(), exit_code_of(facts.error()));
  if (text_member(*facts, "end") != "running") return list_ended(arguments, folder);
  const Answered answered = ask(arguments, request("ls", ""));
  if (answered.exit_code != kExitDone) return answered.exit_code;
  if (arguments.json)
    print_json(answered.answer);
  else
    print_tenants(answered.answer);
  return kExitDone;
}

int show_tenant(const TenantArguments& arguments) {
  const Answered answered = ask(arguments, request("show", arguments.name));
  if (answered.exit_code != kExitDone) return answered.exit_code;
  const Json tenant = member(answered.answer, "tenant");
  if (arguments.json) {
    print_json(tenant);
    return kExitDone;
  }
  std::string text = fmt::format("{}: {}, slot {}, number {}, step {}, reward {}\n{}\n",
                                 text_member(tenant, "name"), text_member(tenant, "state"),
                                 number_text(tenant, "slot", 0), number_text(tenant, "number", 0),
                                 step_text(tenant), number_text(tenant, "reward", 3),
                                 text_member(tenant, "folder"));
  for (const std::string& line : {text_member(tenant, "why"), waits_text(tenant)})
    if (!line.empty()) text += line + "\n";
  print_text(text + "\n" + text_member(tenant, "table"));
  return kExitDone;
}

/// Prints "alice is paused", or the tenant as JSON.
int show_changed(const TenantArguments& arguments, const Json& answer) {
  const Json tenant = member(answer, "tenant");
  if (arguments.json)
    print_json(tenant);
  else
    print_text(
        fmt::format("{} is {}\n", text_member(tenant, "name"), text_member(tenant, "state")));
  return kExitDone;
}

int change_tenant(const TenantArguments& arguments, std::string_view verb) {
  const Answered answered = ask(arguments, request(verb, arguments.name));
  return answered.exit_code == kExitDone ? show_changed(arguments, answered.answer)
                                         : answered.exit_code;
}

/// The numbers of "max_off_policy_steps=1 share=0.5". The run says what is valid.
Result<Json> numbers_of(const std::vector<std::string>& values) {
  Json numbers = Json::object();
  for (const std::string& each : values) {
    const size_t equals = each.find('=');
    const std::string key = each.substr(0, equals);
    double number = 0;
    const char* const end = each.data() + each.size();
    const char* const begin = equals == std::string::npos ? end : each.data() + equals + 1;
    const auto [stop, fault] = std::from_chars(begin, end, number);
    if (key.empty() || fault != std::errc() || stop != end)
      return error(Code::kInvalid, "'{}' is not KEY=NUMBER", each)
          .note(fmt::format("keys: {}", fmt::join(TenantValues::keys(), ", ")));
    if (numbers.find(key) != nullptr) return error(Code::kInvalid, "'{}' comes twice", key);
    numbers.set(key, number);
  }
  RETURN_IF_ERROR(TenantValues::of(numbers));
  return numbers;
}

int set_tenant(const TenantArguments& arguments) {
  auto numbers = numbers_of(arguments.values);
  if (!numbers.ok()) return fail(numbers.error(), kExitBadCommandLine);
  const Answered answered =
      ask(arguments, request("set", arguments.name).set("values", std::move(numbers).value()));
  if (answered.exit_code != kExitDone) return answered.exit_code;
  const Json tenant = member(answered.answer, "tenant");
  if (arguments.json)
    print_json(tenant);
  else
    print_text(
        fmt::format("{} has {}\n", text_member(tenant, "name"), fmt::join(arguments.values, " ")));
  return kExitDone;
}

int remove_tenant(const TenantArguments& arguments) {
  if (arguments.keeps_checkpoints && arguments.purges)
    return fail(error(Code::kInvalid, "--keep-checkpoints and --purge exclude each other")
                    .note("--purge removes all files of the tenant; without both all stay"),
                kExitBadCommandLine);
  const Answered answered =
      ask(arguments, request("remove", arguments.name)
                         .set("files", arguments.purges              ? "purge"
                                       : arguments.keeps_checkpoints ? "keep_checkpoints"
                                                                     : "keep"));
  return answered.exit_code == kExitDone ? show_changed(arguments, answered.answer)
                                         : answered.exit_code;
}

/// Waits until the tenant trains, or has made its last step. The tenant as it then is.
Answered wait_for_start(const TenantArguments& arguments, Json tenant) {
  const std::string name = text_member(tenant, "name");
  const Time give_up = steady_now() + kJoinMax;
  auto pause = kFirstLook;
  while (true) {
    const std::string state = text_member(tenant, "state");
    if (state == "training" || state == "paused") return {std::move(tenant)};
    const bool has_ended = state == "draining" || state == "ended";
    if (has_ended && text_member(tenant, "why").empty()) return {std::move(tenant)};
    if (state != "admitted" && state != "starting")
      return {std::move(tenant),
              fail(error(Code::kUnavailable, "tenant '{}' does not train: it is {}", name, state)
                       .note(text_member(tenant, "why")),
                   kExitFailed)};
    if (steady_now() >= give_up)
      return {std::move(tenant),
              fail(error(Code::kDeadline, "tenant '{}' has not started within {}", name,
                         to_string(kJoinMax))
                       .note(waits_text(tenant)),
                   kExitFailed)};
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLookMax);
    const Answered answered = ask(arguments, request("show", name));
    if (answered.exit_code != kExitDone) return {std::move(tenant), answered.exit_code};
    tenant = member(answered.answer, "tenant");
  }
}

int add_tenant(const TenantArguments& arguments) {
  const auto chosen = read_client_key(arguments.key_file);
  if (!chosen.ok()) return fail(chosen.error(), kExitBadCommandLine);
  std::error_code fault;
  const fs::path file = fs::absolute(arguments.name, fault).lexically_normal();
  const Answered answered =
      ask(arguments, Json::object().set("tenant_verb", "add").set("file", file.string()));
  if (answered.exit_code != kExitDone) return answered.exit_code;
  Json tenant = member(answered.answer, "tenant");
  if (arguments.waits) {
    Answered started = wait_for_start(arguments, std::move(tenant));
    if (started.exit_code != kExitDone) return started.exit_code;
    tenant = std::move(started.answer);
  }
  const Json is_client = member(tenant, "client");
  const bool has_clients = is_client.is_bool() && is_client.as_bool();
  if (!arguments.key_file.empty() && !has_clients)
    return fail(error(Code::kInvalid, "tenant '{}' has joined, and --key-file has no effect",
                      text_member(tenant, "name"))
                    .note("only a tenant with client = true has a key"),
                kExitBadCommandLine);
  std::string key;
  if (has_clients) {
    const auto made = make_client_key(arguments.run, tenant, *chosen);
    if (!made.ok()) return fail(made.error(), exit_code_of(made.error()));
    key = *made;
    tenant.set("token", key);
  }
  if (arguments.json)
    print_json(tenant);
  else
    print_text(fmt::format("{} is {}: {}\n{}", text_member(tenant, "name"),
                           text_member(tenant, "state"), text_member(tenant, "folder"),
                           key.empty() ? "" : fmt::format("its key, shown only now: {}\n", key)));
  return kExitDone;
}

constexpr const char* kKeyFileDoc =
    "a file with the key of the tenant's clients, \"tml-...\"; default: a random key";

/// The flags of every action.
void declare_common(Arguments& flags, TenantArguments& arguments) {
  flags.text(arguments.run, "--serve", "RUN", "the run folder; default runs/latest");
  flags.flag(arguments.json, "--json", "prints JSON");
}

Command action(const std::string& name, const std::string& doc, const std::string& example,
               const std::function<void(Arguments&, TenantArguments&)>& declare,
               const std::function<int(const TenantArguments&)>& run) {
  auto arguments = std::make_shared<TenantArguments>();
  return {name, doc, example,
          [arguments, declare](Arguments& flags) {
            declare(flags, *arguments);
            declare_common(flags, *arguments);
          },
          [arguments, run] { return run(*arguments); }};
}

void takes_name(Arguments& flags, TenantArguments& arguments) {
  flags.positional(arguments.name, "NAME", "a tenant of the run");
}

}  // namespace

Command tenant_command() {
  Command command;
  command.name = "tenant";
  command.doc = "adds, shows, changes and removes tenants of a run that is served";
  command.example = "primerl-graph tenant ls --serve runs/latest";
  command.actions = {
      action(
          "add", "lets the tenant of a file join while others train",
          "primerl-graph tenant add examples/hosted/alice.toml",
          [](Arguments& flags, TenantArguments& arguments) {
            flags.positional(arguments.name, "FILE", "a file with one [tenant.<name>] table");
            flags.flag(arguments.waits, "--wait", "returns when the tenant trains");
            flags.text(arguments.key_file, "--key-file", "FILE", kKeyFileDoc);
          },
          add_tenant),
      action(
          "ls", "lists the tenants: state, step, reward, share", "primerl-graph tenant ls",
          [](Arguments&, TenantArguments&) {}, list_tenants),
      action("show", "shows one tenant and its table with all values",
             "primerl-graph tenant show alice", takes_name, show_tenant),
      action("pause", "stops the tenant's source; rollouts in flight end",
             "primerl-graph tenant pause alice", takes_name,
             [](const TenantArguments& arguments) { return change_tenant(arguments, "pause"); }),
      action("resume", "lets a paused tenant continue", "primerl-graph tenant resume alice",
             takes_name,
             [](const TenantArguments& arguments) { return change_tenant(arguments, "resume"); }),
      action(
          "set", "sets values of a tenant while it trains",
          "primerl-graph tenant set alice max_off_policy_steps=1",
          [](Arguments& flags, TenantArguments& arguments) {
            takes_name(flags, arguments);
            flags.positionals(arguments.values, "KEY=NUMBER",
                              fmt::format("values: {}", fmt::join(TenantValues::keys(), ", ")));
          },
          set_tenant),
      action(
          "remove", "ends the tenant and frees its slot; its files stay",
          "primerl-graph tenant remove alice --purge",
          [](Arguments& flags, TenantArguments& arguments) {
            takes_name(flags, arguments);
            flags.flag(arguments.keeps_checkpoints, "--keep-checkpoints",
                       "removes its rollouts and evaluations");
            flags.flag(arguments.purges, "--purge",
                       "removes its checkpoints, saved weights, rollouts and evaluations");
          },
          remove_tenant),
      action(
          "token", "prints a new token for the control API, the key of clients too",
          "primerl-graph tenant token alice",
          [](Arguments& flags, TenantArguments& arguments) {
            flags.positional(arguments.name, "NAME", "a tenant of the run", false);
            flags.flag(arguments.is_operator, "--operator", "the operator's token instead");
            flags.flag(arguments.rotates, "--rotate", "replaces the token that there is");
            flags.text(arguments.key_file, "--key-file", "FILE", kKeyFileDoc);
          },
          [](const TenantArguments& from) {
            return make_token({from.run, from.name, from.is_operator, from.rotates, from.key_file});
          })};
  return command;
}

}  // namespace primerl
