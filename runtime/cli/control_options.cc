#include "runtime/cli/control_options.h"

#include <algorithm>
#include <utility>

#include "graph/base/files.h"
#include "runtime/cli/run_facts.h"
#include "runtime/control/tenant_control.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOff = "off";

ControlApiOptions options_of(const ControlArguments& arguments) {
  return {arguments.address, arguments.is_behind_proxy, arguments.tls_cert, arguments.tls_key};
}

}  // namespace

void ControlArguments::declare(Arguments& flags) {
  flags.text(address, "--control-address", "ADDRESS",
             "where the control API listens; default 127.0.0.1:0, any free port; or off");
  flags.flag(is_behind_proxy, "--behind-proxy",
             "lets the control API listen beyond this machine: a proxy there must add TLS");
  flags.text(tls_cert, "--tls-cert", "FILE",
             "the PEM file of a certificate with its chain: the control API speaks https");
  flags.text(tls_key, "--tls-key", "FILE", "the PEM file of its key, without a passphrase");
}

Status ControlArguments::check() const {
  if (address == kOff) return ok();
  const Status valid = validate(options_of(*this));
  return valid.ok() ? ok() : Status(Error(valid.error()).while_doing("--control-address"));
}

Result<std::unique_ptr<ControlApi>> open_control(const ControlArguments& arguments,
                                                 RunFolder& folder) {
  if (arguments.address == kOff) return std::unique_ptr<ControlApi>();
  ASSIGN_OR_RETURN(auto control, ControlApi::open(options_of(arguments), folder.path(),
                                                  [](const std::string& line) {
                                                    complain("warning: {}\n", line);
                                                  }));
  RETURN_IF_ERROR(folder.note(Json::object().set("control_api", control->url())));
  complain("control API: {}\n", control->url());
  const std::string token = control->take_new_token();
  if (!token.empty()) complain("the operator's token, shown only now: {}\n", token);
  return control;
}

Result<std::string> read_client_key(const std::string& file) {
  if (file.empty()) return std::string();
  auto text = read_text_file(file, ControlTokens::kTokenBytesMax * 4);
  if (!text.ok()) return std::move(text).error().while_doing("--key-file");
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = std::min(text->find_first_not_of(kSpace), text->size());
  std::string token = text->substr(begin, text->find_first_of(kSpace, begin) - begin);
  if (const Status valid = check_chosen_token(token, kClientKeyPrefix); !valid.ok())
    return Error(valid.error()).while_doing(fmt::format("reading '{}'", file));
  return token;
}

Result<std::string> make_client_key(const std::string& run, const Json& tenant,
                                    const std::string& chosen) {
  ASSIGN_OR_RETURN(const std::string name, tenant.get_string("name"));
  ASSIGN_OR_RETURN(const int64_t number, tenant.get_int("number"));
  auto key = new_tenant_token(run_path(run), {name, static_cast<uint32_t>(number)}, chosen);
  if (!key.ok())
    return std::move(key)
        .error()
        .while_doing(fmt::format("the key of tenant '{}'", name))
        .note("the tenant has joined: `primerl-graph tenant token NAME` makes its key");
  return key;
}

int make_token(const TokenArguments& arguments) {
  if (arguments.is_operator != arguments.name.empty())
    return fail(error(Code::kInvalid, "a token is for one tenant or for the operator")
                    .note("write NAME or --operator"),
                kExitBadCommandLine);
  const fs::path folder = run_path(arguments.run);
  if (const auto facts = read_run_facts(folder); !facts.ok())
    return fail(facts.error(), exit_code_of(facts.error()));
  const auto names = hosted_names(folder);
  TokenHolder holder;
  for (const std::string& name : names)
    if (const auto known = read_holder(name); known.tenant == arguments.name) holder = known;
  if (holder.tenant != arguments.name)
    return fail(unknown_tenant(arguments.name, names, "this run"), kExitBadCommandLine);
  const auto tokens = read_control_tokens(folder);
  if (!tokens.ok()) return fail(tokens.error(), kExitFailed);
  if (tokens->has(holder) && !arguments.rotates)
    return fail(
        error(Code::kExists, "the {} has a token already, and only its hash is known", holder.who())
            .note("--rotate replaces it: the old one ends within a second"),
        kExitBadCommandLine);
  const auto chosen = read_client_key(arguments.key_file);
  if (!chosen.ok()) return fail(chosen.error(), kExitBadCommandLine);
  const auto token = new_tenant_token(folder, holder, *chosen);
  if (!token.ok())
    return fail(token.error(),
                token.error().code() == Code::kInvalid ? kExitBadCommandLine : kExitFailed);
  print_text(*token + "\n");
  return kExitDone;
}

}  // namespace primerl
