/// The options of `serve` for its control API (runtime/control/control_api.h), and `tenant token`.
#pragma once

#include <memory>
#include <string>

#include "runtime/control/control_api.h"
#include "runtime/program/command_line.h"
#include "runtime/store/run_folder.h"

namespace primerl {

struct ControlArguments {
  std::string address = "127.0.0.1:0";  // "off": no control API
  bool is_behind_proxy = false;
  std::string tls_cert, tls_key;  // files; empty: without TLS

  void declare(Arguments& flags);
  Status check() const;
};

/// Opens the API of a served run, prints its address, and the operator's token if it is new, and
/// notes the address in run.json. Null if it is off.
Result<std::unique_ptr<ControlApi>> open_control(const ControlArguments& arguments,
                                                 RunFolder& folder);

/// `tenant token`: prints a token that nothing else shows again. Returns an exit code.
struct TokenArguments {
  std::string run;
  std::string name;  // of a tenant; empty: see is_operator
  bool is_operator = false;
  bool rotates = false;
  std::string key_file;  // with the key that a person has chosen; empty: a random one
};
int make_token(const TokenArguments& arguments);

/// The key of clients in a file that a person wrote: its first word. Empty without a file.
/// kInvalid: it is not a key.
Result<std::string> read_client_key(const std::string& file);

/// The key of the clients of a tenant that has joined, `tenant` as the run answered; `chosen`: the
/// key, empty: a random one.
Result<std::string> make_client_key(const std::string& run, const Json& tenant,
                                    const std::string& chosen);

}  // namespace primerl
