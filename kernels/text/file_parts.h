/// Reads the parts of a tokenizer.json: objects with a `type`, and sequences of them. Errors name
/// the key, as in "'pre_tokenizer.pretokenizers[2].behavior' ...". Plain functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include "kernels/text/pattern.h"
#include "kernels/text/tokenizer_file.h"

namespace primerl {

inline constexpr size_t kFilePartsMax = 16;  // normalizers, pre-tokenizers or decoders of one file

inline constexpr size_t kContentBytesMax = 256;  // of a text that is put in
/// A text that is rewritten grows at most so much: bytes for each byte, and bytes in all.
inline constexpr size_t kGrowthMax = 32;
inline constexpr size_t kGrownBytesMin = 4096;

/// kExhausted if the parts of the file made `now` bytes of `before`.
Status check_growth(size_t before, size_t now);

/// `text` with `content` in place of each match.
Result<std::string> replace_all(std::string_view text, const Pattern& pattern,
                                std::string_view content, PatternScratch& scratch);

/// The member, or null if it is absent or null.
const Json* present_member(const Json& json, std::string_view key);

/// The part's `type`; empty if it has none.
std::string type_of(const Json& json);

Result<bool> bool_member(const TokenizerFile& file, const Json& json, const std::string& where,
                         std::string_view key, bool fallback);
Result<std::string> text_member(const TokenizerFile& file, const Json& json,
                                const std::string& where, std::string_view key);
/// Its `pattern`.
Result<Pattern> pattern_member(const TokenizerFile& file, const Json& json,
                               const std::string& where);

/// Calls `read` for each part of a Sequence; the parts are under `key`.
template <class Read>
Status each_part(const TokenizerFile& file, const Json& sequence, const std::string& where,
                 std::string_view key, const Read& read) {
  const Json* parts = sequence.find(key);
  if (parts == nullptr || !parts->is_array())
    return file.fault("'{}.{}' is not an array", where, key);
  for (size_t i = 0; i < parts->as_array().size(); ++i)
    RETURN_IF_ERROR(read(parts->as_array()[i], fmt::format("{}.{}[{}]", where, key, i)));
  return ok();
}

}  // namespace primerl
