/// Keys of processes: CURVE pairs in files that only their owner can read, and the list of keys
/// that may connect. A secret key is not written anywhere else: not into logs, traces or resolved
/// graphs.
///
/// A key file (mode 0600, anything wider is refused):    An allow-list:
///   public = "Z85, 40 characters"                         # key, process, tenants ("*": all)
///   secret = "Z85, 40 characters"                         Z85... training *
///                                                         Z85... inference main,other
///
/// Plain functions and values; any thread.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/ids.h"
#include "graph/base/result.h"

namespace primerl {

inline constexpr size_t kKeyTextBytes = 40;  // Z85 of 32 bytes

/// Holds the secret key's text and overwrites it in its destructor. Cannot be formatted or
/// compared.
class SecretKey {
 public:
  SecretKey() = default;
  explicit SecretKey(std::string z85) : z85_(std::move(z85)) {}
  SecretKey(const SecretKey&) = default;
  SecretKey(SecretKey&&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  SecretKey& operator=(SecretKey&&) = default;
  ~SecretKey();
  const std::string& reveal() const { return z85_; }

 private:
  std::string z85_;
};

struct KeyPair {
  std::string public_key;  // Z85
  SecretKey secret_key;
};

/// A key that may connect, with its process and tenants as numbers of the plan.
struct AllowedKey {
  std::string public_key;  // Z85
  ProcessId process;
  std::vector<TenantSlot> tenants;  // empty: all
};

/// An AllowedKey with names, as in the file.
struct AllowedName {
  std::string public_key;
  std::string process;
  std::vector<std::string> tenants;  // empty: all
};

/// 40 characters of Z85.
bool is_public_key(std::string_view text);

/// 32 random characters (128 bits), for secrets that cannot be guessed.
std::string draw_word();
/// The public key never begins with '-'.
KeyPair make_key_pair();
/// kExists when the file is there: keys are never overwritten.
Status write_key_file(const std::filesystem::path& file, const KeyPair& keys);
/// kInvalid when other users can read it, when it is not a regular file, or when it is not a key
/// file.
Result<KeyPair> read_key_file(const std::filesystem::path& file);

/// The users who may write a file: its owner, and others if its mode allows it.
struct FileOwner {
  uid_t user = 0;
  uint32_t mode = 0;  // the lowest 12 bits
};
/// kInvalid when a user other than `reader` or root could add keys to this file.
Status check_allow_list(const FileOwner& file, uid_t reader, const std::filesystem::path& path);

/// kInvalid when another user could have written it, when it is not a regular file, or when it is
/// not such a list.
Result<std::vector<AllowedName>> read_allow_list(const std::filesystem::path& file);
/// Adds a line, and makes the file (0600) if it does not exist. A reader sees either the old list
/// or the new one. Two concurrent additions both succeed. kExists: this process already has the
/// key.
Status append_to_allow_list(const std::filesystem::path& file, const AllowedName& entry);

}  // namespace primerl
