#include "actors/common/run_salt.h"

#include <charconv>

#include "graph/base/file_digest.h"

namespace primerl {
namespace {

constexpr size_t kSealChars = 16;

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, number);
  return fault == std::errc() && rest == end;
}

/// Removes the part of `text` after its last `mark`, and returns it.
std::optional<std::string_view> cut_last(std::string_view& text, char mark) {
  const size_t at = text.rfind(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view part = text.substr(at + 1);
  text = text.substr(0, at);
  return part;
}

template <class Number>
bool cut_number(std::string_view& text, char mark, Number& number) {
  const auto part = cut_last(text, mark);
  return part && read_number(*part, number);
}

std::string name_text(const RunSalt& salt) {
  return fmt::format("{}.{}.{}.{}.{}@{}", salt.tenant, salt.name.ordinal, salt.name.attempt,
                     salt.name.member, salt.num_members, salt.version.value);
}

}  // namespace

std::string to_text(const RunSalt& salt) {
  return fmt::format("{}|{}~{}", salt.salt, name_text(salt), salt.seal);
}

std::string seal_of(const RunSalt& salt, uint64_t key) {
  return text_sha256(fmt::format("{:016x} {}", key, name_text(salt))).substr(0, kSealChars);
}

Result<std::optional<RunSalt>> read_run_salt(std::string_view text) {
  std::string_view rest = text;
  auto name = cut_last(rest, '|');
  if (!name) return std::optional<RunSalt>();
  RunSalt salt;
  salt.salt = rest;
  const auto seal = cut_last(*name, '~');
  const bool is_name =
      seal && seal->size() == kSealChars && cut_number(*name, '@', salt.version.value) &&
      cut_number(*name, '.', salt.num_members) && cut_number(*name, '.', salt.name.member) &&
      cut_number(*name, '.', salt.name.attempt) && cut_number(*name, '.', salt.name.ordinal) &&
      !name->empty();
  if (!is_name || salt.version < PolicyVersion() || salt.num_members < 1)
    return error(Code::kInvalid, "'cache_salt' ends with '{}', which names no rollout",
                 text.substr(rest.size() + 1).substr(0, 64))
        .note(
            "it is <tenant>.<group>.<attempt>.<member>.<members>@<version>~<seal>, as the run gave "
            "it; a salt without '|' is that of an ordinary client");
  salt.tenant = *name;
  salt.seal = *seal;
  return std::optional<RunSalt>(std::move(salt));
}

}  // namespace primerl
