#include "runtime/outside/control_tokens.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "graph/base/descriptor.h"
#include "graph/base/file_digest.h"
#include "graph/base/file_lock.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileBytesMax = size_t{4} << 20;
constexpr size_t kHashDigits = 64;
constexpr mode_t kOthers = 077;

bool is_hash(std::string_view text) {
  return text.size() == kHashDigits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

Error damaged(std::string_view why) {
  return error(Code::kCorrupt, "the tokens of the control API are damaged: {}", why)
      .note("remove control_tokens.json; the next start prints a new token of the operator");
}

/// A regular file that only its owner can use.
Status check_private(const fs::path& file) {
  struct stat facts {};
  if (::lstat(file.c_str(), &facts) != 0) {
    if (errno == ENOENT) return ok();
    return io_error("reading", file, errno);
  }
  if (!S_ISREG(facts.st_mode))
    return error(Code::kInvalid, "'{}' is not a regular file", file.string())
        .note("a link could show the tokens elsewhere; remove it");
  if ((facts.st_mode & kOthers) != 0)
    return error(Code::kInvalid, "'{}' has mode {:o}, so others may use it", file.string(),
                 facts.st_mode & 0777)
        .note(fmt::format("chmod 600 {}, and rotate its tokens", file.string()));
  return ok();
}

}  // namespace

std::string TokenHolder::name() const {
  return tenancy == 0 ? tenant : fmt::format("{}~{}", tenant, tenancy);
}

std::string TokenHolder::who() const { return is_operator() ? "operator" : "tenant " + name(); }

TokenHolder read_holder(const std::string& name) {
  const size_t mark = std::min(name.find('~'), name.size());
  TokenHolder holder{name.substr(0, mark)};
  if (mark < name.size())
    (void)std::from_chars(name.data() + mark + 1, name.data() + name.size(), holder.tenancy);
  return holder;
}

std::string new_control_token(std::string_view prefix) {
  std::array<unsigned char, 32> drawn{};
  CHECK(::getrandom(drawn.data(), drawn.size(), 0) == static_cast<ssize_t>(drawn.size()),
        "the system gives no random bytes");
  std::string token(prefix);
  for (const unsigned char byte : drawn) token += fmt::format("{:02x}", byte);
  return token;
}

Status check_chosen_token(std::string_view token, std::string_view prefix) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (!token.starts_with(prefix) || !std::ranges::all_of(token, fits))
    return error(Code::kInvalid, "the key does not begin with '{}', or has other characters",
                 prefix)
        .note("letters, digits, '.', '_' and '-' are valid after it");
  if (token.size() >= ControlTokens::kTokenBytesMin &&
      token.size() <= ControlTokens::kTokenBytesMax)
    return ok();
  return error(Code::kInvalid, "the key has {} bytes, not {} to {}", token.size(),
               ControlTokens::kTokenBytesMin, ControlTokens::kTokenBytesMax);
}

bool is_equal_text(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < one.size(); ++i)
    difference |= static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i]);
  return difference == 0;
}

Result<ControlTokens> ControlTokens::read(const Json& json) {
  ControlTokens tokens;
  const Json* list = json.find("tokens");
  if (list == nullptr || !list->is_array()) return damaged("there is no array 'tokens'");
  if (list->as_array().size() > kTokensMax)
    return damaged(fmt::format("there are more than {} tokens", kTokensMax));
  for (const Json& one : list->as_array()) {
    const auto tenant = one.get_string("tenant");
    const auto number = one.get_int("number");
    const auto hash = one.get_string("sha256");
    if (!tenant.ok() || !number.ok() || !hash.ok() || *number < 0 || *number > INT32_MAX)
      return damaged("a token has no tenant, number or sha256");
    if (!is_hash(*hash)) return damaged("a sha256 has other than 64 hexadecimal digits");
    const TokenHolder holder{*tenant, static_cast<uint32_t>(*number)};
    if (!tokens.hashes_.emplace(holder, *hash).second)
      return damaged(fmt::format("{} has two tokens", holder.who()));
  }
  return tokens;
}

Json ControlTokens::json() const {
  Json list = Json::array();
  for (const auto& [holder, hash] : hashes_)
    list.push_back(Json::object()
                       .set("tenant", holder.tenant)
                       .set("number", holder.tenancy)
                       .set("sha256", hash));
  return Json::object().set("tokens", std::move(list));
}

Status ControlTokens::set(const TokenHolder& holder, std::string_view token) {
  const auto is_of_name = [&](const auto& each) { return each.first.tenant == holder.tenant; };
  const auto num_of_name = static_cast<size_t>(std::ranges::count_if(hashes_, is_of_name));
  if (hashes_.size() - num_of_name >= kTokensMax)
    return error(Code::kExhausted, "{} holders have a token of the control API, at most {} may",
                 hashes_.size(), kTokensMax)
        .note("remove tenants that have ended: primerl-graph tenant remove NAME");
  std::string hash = text_sha256(token);
  for (const auto& [other, known] : hashes_)
    if (known == hash && other.tenant != holder.tenant)
      return error(Code::kExists, "the key is that of {} already", other.who())
          .note("choose another one");
  std::erase_if(hashes_, is_of_name);
  hashes_.emplace(holder, std::move(hash));
  return ok();
}

void ControlTokens::keep_only(const std::function<bool(const TokenHolder&)>& is_there) {
  std::erase_if(hashes_, [&](const auto& each) {
    return !each.first.is_operator() && !is_there(each.first);
  });
}

std::optional<TokenHolder> ControlTokens::holder_of(std::string_view token) const {
  // A longer text is not hashed: its length is chosen by whoever asks.
  if (token.size() < kTokenBytesMin || token.size() > kTokenBytesMax) return std::nullopt;
  const std::string hash = text_sha256(token);
  std::optional<TokenHolder> found;
  for (const auto& [holder, known] : hashes_)
    if (is_equal_text(hash, known)) found = holder;
  return found;
}

fs::path control_tokens_file(const fs::path& run_folder) {
  return run_folder / "control_tokens.json";
}

Result<ControlTokens> read_control_tokens(const fs::path& run_folder) {
  const fs::path file = control_tokens_file(run_folder);
  RETURN_IF_ERROR(check_private(file));
  const auto text = read_text_file(file, kFileBytesMax);
  if (!text.ok() && text.error().code() == Code::kNotFound) return ControlTokens();
  if (!text.ok()) return text.error();
  const auto json = parse_json(*text, file.string());
  if (!json.ok()) return damaged(json.error().message());
  return ControlTokens::read(*json);
}

Result<std::string> rotate_control_token(const fs::path& run_folder, const TokenHolder& holder,
                                         const std::function<bool(const TokenHolder&)>& is_there,
                                         std::string token) {
  const fs::path lock_file = run_folder / "control_tokens.lock";
  const Descriptor made(
      ::open(lock_file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (made.get() < 0) return io_error("creating", lock_file, errno);
  const FileLock lock(lock_file, FileLock::When::kFree);
  ASSIGN_OR_RETURN(ControlTokens tokens, read_control_tokens(run_folder));
  tokens.keep_only(is_there);
  if (token.empty()) token = new_control_token();
  RETURN_IF_ERROR(tokens.set(holder, token));
  RETURN_IF_ERROR(
      replace_file(system_files(), control_tokens_file(run_folder), tokens.json().dump() + "\n"));
  return token;
}

Status TokensFile::look() {
  const std::lock_guard lock(mutex_);
  return look_locked();
}

Status TokensFile::look_locked() {
  // Before it is read: a write meanwhile is seen by the next look.
  const FileFacts facts = file_facts(control_tokens_file(run_folder_));
  if (facts == read_) return ok();
  auto tokens = read_control_tokens(run_folder_);
  // A fault of the system may pass, and the file may have ended a token: the next look tries again.
  if (tokens.ok() || tokens.error().code() != Code::kIo) read_ = facts;
  if (!tokens.ok()) return tokens.error();
  tokens_ = *std::move(tokens);
  return ok();
}

std::optional<TokenHolder> TokensFile::find(std::string_view token) {
  const std::lock_guard lock(mutex_);
  auto found = tokens_.holder_of(token);
  if (!found && look_locked().ok()) found = tokens_.holder_of(token);
  return found;
}

}  // namespace primerl
