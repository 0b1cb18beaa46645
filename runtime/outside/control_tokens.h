/// ControlTokens: who may use the control API of a served run, and whose clients may use its
/// listeners (docs/design/hosted.md).
///
/// The operator has one token, and each tenant may have one. A token is "pg_" and 64 hexadecimal
/// digits: 256 random bits. The token of a tenant that clients train begins with "tml-", because it
/// is their API key too. Only its SHA-256 is kept, in `control_tokens.json` of the run folder,
/// which only the owner can read. A token of a tenant is for one use of its slot: the next tenant
/// of that name has another number. A value; the functions below read and replace its file.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "runtime/outside/file_facts.h"
#include "runtime/outside/http_keys.h"

namespace primerl {

/// For whom a token is.
struct TokenHolder {
  std::string tenant;    // empty: the operator
  uint32_t tenancy = 0;  // which use of its slot
  bool is_operator() const { return tenant.empty(); }
  /// "alice" or "alice~2", as tenancy_name() of the tenant; "" for the operator.
  std::string name() const;
  /// "operator" or "tenant alice~2": for messages and the audit log.
  std::string who() const;
  friend auto operator<=>(const TokenHolder&, const TokenHolder&) = default;
};

/// The holder that TokenHolder::name() names.
TokenHolder read_holder(const std::string& name);

inline constexpr std::string_view kControlTokenPrefix = "pg_";
inline constexpr std::string_view kClientKeyPrefix = "tml-";

/// A new token, from the system's random numbers.
std::string new_control_token(std::string_view prefix = kControlTokenPrefix);

/// A token that a person has chosen: 16 to 256 letters, digits, '.', '_' and '-' after `prefix`.
Status check_chosen_token(std::string_view token, std::string_view prefix);

/// Whether two texts are equal. The time depends on their lengths alone.
bool is_equal_text(std::string_view one, std::string_view other);

class ControlTokens {
 public:
  static constexpr size_t kTokensMax = 4096;
  static constexpr size_t kTokenBytesMin = kHttpKeyBytesMin, kTokenBytesMax = kHttpKeyBytesMax;

  /// kCorrupt: the text is not one of json().
  static Result<ControlTokens> read(const Json& json);
  Json json() const;

  /// From now on this token is the only one of the holder, and of every earlier tenant with its
  /// name. kExhausted: kTokensMax holders have one. kExists: it is another holder's.
  Status set(const TokenHolder& holder, std::string_view token);
  /// Forgets tokens of tenants for which `is_there` is false.
  void keep_only(const std::function<bool(const TokenHolder&)>& is_there);

  bool has(const TokenHolder& holder) const { return hashes_.contains(holder); }
  size_t count() const { return hashes_.size(); }
  /// Compares with every token, so the time does not depend on which one it is.
  std::optional<TokenHolder> holder_of(std::string_view token) const;

 private:
  std::map<TokenHolder, std::string> hashes_;  // SHA-256, as 64 digits
};

/// `control_tokens.json` of a run folder.
std::filesystem::path control_tokens_file(const std::filesystem::path& run_folder);

/// The tokens in that file; none if there is no file. kInvalid: it is a link, or others may read or
/// write it. kCorrupt: it is damaged.
Result<ControlTokens> read_control_tokens(const std::filesystem::path& run_folder);

/// Gives the holder a new token, writes the file and returns the token, which is nowhere else.
/// `token`: the new one; empty: new_control_token(). Others that do the same at this time wait.
/// Tokens of tenants for which `is_there` is false are forgotten.
Result<std::string> rotate_control_token(const std::filesystem::path& run_folder,
                                         const TokenHolder& holder,
                                         const std::function<bool(const TokenHolder&)>& is_there,
                                         std::string token = {});

/// The tokens that count now: they are read again when their file has changed. Any thread.
class TokensFile {
 public:
  explicit TokensFile(std::filesystem::path run_folder) : run_folder_(std::move(run_folder)) {}

  /// Reads the file if it has changed. If it cannot be read, the tokens before stay.
  Status look();
  /// Looks at the file if the token is not known: it may be a moment old.
  std::optional<TokenHolder> find(std::string_view token);

 private:
  Status look_locked();

  const std::filesystem::path run_folder_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::optional<FileFacts> read_;  // of the file when it was last tried; none: never
  ControlTokens tokens_;
};

}  // namespace primerl
