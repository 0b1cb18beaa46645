#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/cli/commands.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/transport/keys.h"

namespace primerl {
namespace {

constexpr const char* kKeyFile = "primerl.key";
constexpr const char* kAllowFile = "primerl.allow";

struct NewArguments {
  std::string out = kKeyFile;
};

int run_new(const NewArguments& arguments) {
  const KeyPair keys = make_key_pair();
  if (const Status written = write_key_file(arguments.out, keys); !written.ok())
    return fail(written.error(), kExitFailed);
  complain("wrote '{}'; its public key:\n", arguments.out);
  print_text(keys.public_key + "\n");
  return kExitDone;
}

struct AllowArguments {
  std::string key;
  std::string process;
  std::vector<std::string> tenants;
  std::string list = kAllowFile;
};

int run_allow(const AllowArguments& arguments) {
  if (arguments.process.empty())
    return fail(error(Code::kInvalid, "--process is missing: whose key it is, by [place]")
                    .note("as in --process training, or --process inference for all its replicas"),
                kExitBadCommandLine);
  const Status added =
      append_to_allow_list(arguments.list, {arguments.key, arguments.process, arguments.tenants});
  if (added.ok()) return kExitDone;
  const bool is_word = added.error().code() == Code::kInvalid;
  return fail(added.error(), is_word ? kExitBadCommandLine : kExitFailed);
}

struct ListArguments {
  std::string list = kAllowFile;
  bool json = false;
};

int run_list(const ListArguments& arguments) {
  const auto entries = read_allow_list(arguments.list);
  if (!entries.ok()) return fail(entries.error(), kExitFailed);
  if (arguments.json) {
    Json all = Json::array();
    for (const AllowedName& entry : *entries)
      all.push_back(Json::object()
                        .set("public_key", entry.public_key)
                        .set("process", entry.process)
                        .set("tenants", Json::list(entry.tenants)));
    print_json(all);
    return kExitDone;
  }
  size_t width = 0;
  for (const AllowedName& entry : *entries) width = std::max(width, entry.process.size());
  for (const AllowedName& entry : *entries)
    print_text(fmt::format(
        "{}  {:<{}}  {}\n", entry.public_key, entry.process, width,
        entry.tenants.empty() ? "all tenants" : fmt::format("{}", fmt::join(entry.tenants, ", "))));
  return kExitDone;
}

Command new_action() {
  auto arguments = std::make_shared<NewArguments>();
  return {"new", "makes a pair of keys and prints the public one",
          "primerl-graph keys new --out primerl.key",
          [arguments](Arguments& flags) {
            flags.text(arguments->out, "--out", "FILE",
                       "mode 0600, never overwritten; default primerl.key");
          },
          [arguments] { return run_new(*arguments); }};
}

Command allow_action() {
  auto arguments = std::make_shared<AllowArguments>();
  return {"allow", "lets a public key in, for the processes of a place",
          "primerl-graph keys allow 'rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7' --process training",
          [arguments](Arguments& flags) {
            flags.positional(arguments->key, "PUBLIC_KEY", "40 characters, of `keys new`");
            flags.text(
                arguments->process, "--process", "NAME",
                "a process of the graph: training, inference#1, inference for every replica; or "
                "control, who may drive an agent");
            flags.texts(arguments->tenants, "--tenant", "NAME",
                        "a tenant it may speak for; unwritten, all");
            flags.text(arguments->list, "--list", "FILE", "default primerl.allow");
          },
          [arguments] { return run_allow(*arguments); }};
}

Command list_action() {
  auto arguments = std::make_shared<ListArguments>();
  return {"ls", "lists who is let in, and for which tenants",
          "primerl-graph keys ls --list primerl.allow",
          [arguments](Arguments& flags) {
            flags.text(arguments->list, "--list", "FILE", "default primerl.allow");
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_list(*arguments); }};
}

}  // namespace

Command keys_command() {
  Command command;
  command.name = "keys";
  command.doc = "makes keys for connections beyond this machine, and lists whose are let in";
  command.example = "primerl-graph keys new --out primerl.key";
  command.actions = {new_action(), allow_action(), list_action()};
  return command;
}

}  // namespace primerl
