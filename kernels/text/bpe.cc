#include "kernels/text/bpe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <optional>
#include <unordered_map>

#include "kernels/text/added_tokens.h"
#include "kernels/text/merges.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Expands \s and \S: PCRE2 counts U+180E as white space, Unicode and Oniguruma do not.
std::string with_exact_space(std::string_view pattern) {
  static constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
  std::string out;
  bool in_class = false;
  size_t class_begin = 0;  // position where a ']' is still literal
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char letter = pattern[i];
    if (letter == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's')
        out += in_class ? std::string(kSpace) : fmt::format("[{}]", kSpace);
      else if (escaped == 'S' && !in_class)
        out += fmt::format("[^{}]", kSpace);
      else
        out.append({letter, escaped});
      continue;
    }
    out += letter;
    if (!in_class && letter == '[') {
      in_class = true;
      class_begin = i + 1;
      if (class_begin < pattern.size() && pattern[class_begin] == '^') ++class_begin;
    } else if (in_class && letter == ']' && i > class_begin) {
      in_class = false;
    }
  }
  return out;
}

/// A compiled regular expression. Immutable, safe from any thread.
class Regex {
 public:
  static Result<Regex> compile(std::string_view pattern);

  /// The leftmost match at or after `from`, as [begin, end); empty if there is none.
  Result<std::optional<std::pair<size_t, size_t>>> find(std::string_view text, size_t from,
                                                        pcre2_match_data* match) const;

  using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
  static MatchData make_match_data() {
    return MatchData(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  }

 private:
  std::shared_ptr<pcre2_code> code_;
  std::shared_ptr<pcre2_match_context> limits_;
};

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax)
    return error(Code::kInvalid, "the pattern has {} bytes; at most {} are accepted",
                 pattern.size(), kPatternBytesMax);
  const std::string exact = with_exact_space(pattern);
  int fault = 0;
  PCRE2_SIZE where = 0;
  Regex regex;
  regex.code_.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(exact.data()), exact.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &fault, &where, nullptr),
      pcre2_code_free);
  if (regex.code_ == nullptr) {
    std::array<PCRE2_UCHAR, 160> text{};
    pcre2_get_error_message(fault, text.data(), text.size());
    return error(Code::kInvalid, "the pattern is wrong at {}: {}", where,
                 reinterpret_cast<const char*>(text.data()));
  }
  // Without just-in-time compilation the interpreter gives the same result, slower.
  (void)pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE);
  regex.limits_.reset(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(regex.limits_.get(), kMatchStepsMax);
  pcre2_set_heap_limit(regex.limits_.get(), 64 << 10);  // KiB
  return regex;
}

Result<std::optional<std::pair<size_t, size_t>>> Regex::find(std::string_view text, size_t from,
                                                             pcre2_match_data* match) const {
  const auto run = [&](uint32_t options) {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       options | PCRE2_NO_UTF_CHECK, match, limits_.get());
  };
  int found = run(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return std::optional<std::pair<size_t, size_t>>();
  if (found < 0) {
    std::array<PCRE2_UCHAR, 160> words{};
    pcre2_get_error_message(found, words.data(), words.size());
    return error(Code::kExhausted, "the tokenizer's pattern failed on the text: {}",
                 reinterpret_cast<const char*>(words.data()));
  }
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match);
  return std::optional(std::pair<size_t, size_t>(span[0], span[1]));
}

/// One step of cutting text into pieces.
struct Stage {
  std::optional<Regex> regex;
  bool keep_matches = true;       // else matches are dropped
  bool keep_others = true;        // else text between matches is dropped
  bool add_prefix_space = false;  // before text that does not start with a space
};

/// Appends the pieces of `text` that `stage` keeps.
Status cut(const Stage& stage, std::string_view text, pcre2_match_data* match,
           std::vector<std::string_view>& pieces) {
  if (!stage.regex) {
    pieces.push_back(text);
    return ok();
  }
  const auto keep = [&](size_t begin, size_t end, bool wanted) {
    if (wanted && begin < end) pieces.push_back(text.substr(begin, end - begin));
  };
  size_t taken = 0, from = 0;
  while (from <= text.size()) {
    ASSIGN_OR_RETURN(const auto found, stage.regex->find(text, from, match));
    if (!found) break;
    const auto [begin, end] = *found;
    if (begin < taken || end < begin)
      return error(Code::kInvalid, "the tokenizer's pattern goes backwards");
    keep(taken, begin, stage.keep_others);
    keep(begin, end, stage.keep_matches);
    taken = end;
    if (end > begin)
      from = end;
    else
      from = end + (end < text.size() ? code_point_at(text, end).size : 1);
  }
  keep(taken, text.size(), stage.keep_others);
  return ok();
}

/// The characters that represent bytes in a byte-level vocabulary (GPT-2's table).
struct ByteAlphabet {
  std::array<std::string, 256> characters;  // UTF-8, by byte
  std::array<int16_t, 0x144> bytes;         // by code point; -1: represents no byte

  ByteAlphabet() {
    bytes.fill(-1);
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool is_itself =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const uint32_t character = is_itself ? byte : next++;
      append_utf8(characters[byte], character);
      bytes[character] = static_cast<int16_t>(byte);
    }
  }
  /// The bytes of a token; empty if one of its characters represents no byte.
  std::optional<std::string> bytes_of(std::string_view token) const {
    std::string out;
    for (size_t at = 0; at < token.size();) {
      const CodePoint character = code_point_at(token, at);
      if (character.size == 0 || character.value >= bytes.size() || bytes[character.value] < 0)
        return std::nullopt;
      out += static_cast<char>(bytes[character.value]);
      at += character.size;
    }
    return out;
  }
};

/// Everything the tokenizer needs from its file.
struct Parts {
  std::vector<Stage> stages;
  Merges merges;
  std::array<int32_t, 256> byte_ids;                // -1: the vocabulary lacks that byte
  std::unordered_map<std::string, int32_t> pieces;  // whole pieces, for ignore_merges; else empty
  std::vector<std::string> token_bytes;             // by id
  bool to_nfc = false;
};

class ByteLevelBpe final : public Tokenizer {
 public:
  ByteLevelBpe(TokenizerFile file, Parts parts)
      : parts_(std::move(parts)),
        segmenter_(file.added_tokens, parts_.to_nfc),
        vocabulary_(std::move(file.vocabulary)),
        end_and_pad_(std::move(file.end_and_pad)) {}

  Result<std::vector<int32_t>> encode_text(std::string_view text) const override {
    return encode(text, Specials::kStayText);
  }
  Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const override {
    return encode(text, Specials::kAreFound);
  }
  Result<std::vector<int32_t>> encode_spans(std::string_view text,
                                            const std::vector<TextSpan>& spans) const override {
    return encode(text, AddedFilter(spans));
  }

  Result<std::string> decode(const std::vector<int32_t>& ids, bool skip_special) const override {
    ASSIGN_OR_RETURN(std::string bytes, vocabulary_.join(ids, skip_special, [this](int32_t id) {
      return std::string_view(parts_.token_bytes[static_cast<size_t>(id)]);
    }));
    return to_valid_utf8(std::move(bytes));
  }

  std::string_view bytes_of(int32_t id) const override {
    if (!vocabulary_.is_text(id)) return {};
    return parts_.token_bytes[static_cast<size_t>(id)];
  }

  int32_t vocab_size() const override { return vocabulary_.size(); }
  const std::vector<int32_t>& eos_ids() const override { return end_and_pad_.eos_ids; }
  int32_t pad_id() const override { return end_and_pad_.pad_id; }

 private:
  Result<std::vector<int32_t>> encode(std::string_view text, const AddedFilter& filter) const {
    ASSIGN_OR_RETURN(const auto segments, segmenter_.cut(text, filter));
    const auto match = Regex::make_match_data();
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 3 + 1);
    for (const Segment& segment : segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else if (auto status = encode_plain(segment.text, match.get(), ids); !status.ok()) {
        return Error(status.error())
            .while_doing(fmt::format("text at byte offset {}", segment.offset));
      }
    }
    return ids;
  }

  Status encode_plain(const std::string& text, pcre2_match_data* match,
                      std::vector<int32_t>& ids) const {
    std::vector<std::string_view> pieces = {text}, next;
    std::vector<std::unique_ptr<std::string>> prefixed;  // owns pieces with an added space
    for (const Stage& stage : parts_.stages) {
      next.clear();
      for (std::string_view piece : pieces) {
        if (stage.add_prefix_space && piece.front() != ' ') {
          prefixed.push_back(std::make_unique<std::string>(" " + std::string(piece)));
          piece = *prefixed.back();
        }
        RETURN_IF_ERROR(cut(stage, piece, match, next));
      }
      pieces.swap(next);
    }
    for (const std::string_view piece : pieces) RETURN_IF_ERROR(encode_piece(piece, ids));
    return ok();
  }

  Status encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
    if (!parts_.pieces.empty()) {
      if (const auto whole = parts_.pieces.find(std::string(piece)); whole != parts_.pieces.end()) {
        ids.push_back(whole->second);
        return ok();
      }
    }
    std::vector<int32_t> symbols;
    symbols.reserve(piece.size());
    for (const char byte : piece) {
      const int32_t id = parts_.byte_ids[static_cast<uint8_t>(byte)];
      if (id < 0)
        return error(Code::kInvalid, "byte 0x{:02X} of '{}' has no token",
                     static_cast<uint8_t>(byte), piece);
      symbols.push_back(id);
    }
    parts_.merges.apply(symbols);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
    return ok();
  }

  const Parts parts_;
  const Segmenter segmenter_;
  const Vocabulary vocabulary_;
  const EndAndPad end_and_pad_;
};

/// Reads the parts from a file; errors name the key.
class Reader {
 public:
  explicit Reader(const TokenizerFile& file) : file_(file), model_(*file.root.find("model")) {}

  Result<Parts> read() {
    if (const Json* normalizer = member("normalizer"))
      RETURN_IF_ERROR(read_normalizer(*normalizer, "normalizer"));
    const Json* pre = member("pre_tokenizer");
    if (pre == nullptr)
      return file_.fault("'pre_tokenizer' is missing; a byte-level BPE needs ByteLevel");
    RETURN_IF_ERROR(read_pre_tokenizer(*pre, "pre_tokenizer"));
    if (!has_byte_level_)
      return file_.fault("'pre_tokenizer' has no ByteLevel; only byte-level BPE is supported");
    RETURN_IF_ERROR(check_decoder());
    RETURN_IF_ERROR(check_model());
    RETURN_IF_ERROR(read_merges());
    RETURN_IF_ERROR(read_tokens());
    return std::move(parts_);
  }

 private:
  /// A member of the file, or null if it is absent or null.
  const Json* member(std::string_view key) const {
    const Json* value = file_.root.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::string type_of(const Json& json) const {
    const Json* type = json.find("type");
    return type != nullptr && type->is_string() ? type->as_string() : "";
  }
  /// Calls `read` for each part of a Sequence; the parts are under `key`.
  template <class Read>
  Status each(const Json& sequence, const std::string& where, std::string_view key, Read read) {
    const Json* parts = sequence.find(key);
    if (parts == nullptr || !parts->is_array())
      return file_.fault("'{}.{}' is not an array", where, key);
    for (size_t i = 0; i < parts->as_array().size(); ++i)
      RETURN_IF_ERROR(read(parts->as_array()[i], fmt::format("{}.{}[{}]", where, key, i)));
    return ok();
  }

  Status read_normalizer(const Json& json, const std::string& where) {
    const std::string type = type_of(json);
    if (type == "NFC") {
      parts_.to_nfc = true;
      return ok();
    }
    if (type != "Sequence") return file_.fault("'{}' is '{}'; only NFC is supported", where, type);
    return each(json, where, "normalizers", [this](const Json& part, const std::string& place) {
      return read_normalizer(part, place);
    });
  }

  Status read_pre_tokenizer(const Json& json, const std::string& where) {
    const std::string type = type_of(json);
    if (type == "Sequence")
      return each(json, where, "pretokenizers", [this](const Json& part, const std::string& place) {
        return read_pre_tokenizer(part, place);
      });
    if (has_byte_level_)
      return file_.fault("'{}' comes after ByteLevel, which must be last", where);
    if (parts_.stages.size() >= kPreTokenizersMax)
      return file_.fault("'{}' is one pre-tokenizer too many; at most {} are supported", where,
                         kPreTokenizersMax);
    if (type == "Split") return read_split(json, where);
    if (type == "ByteLevel") return read_byte_level(json, where);
    return file_.fault("'{}' is '{}'; only Split, ByteLevel and Sequence are supported", where,
                       type);
  }

  Status read_split(const Json& json, const std::string& where) {
    const Json* pattern = json.find("pattern");
    const Json* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
    if (regex == nullptr || !regex->is_string())
      return file_.fault("'{}.pattern' is no {{\"Regex\": text}}", where);
    const Json* behavior = json.find("behavior");
    const bool is_removed = behavior != nullptr && *behavior == Json("Removed");
    if (!is_removed && (behavior == nullptr || *behavior != Json("Isolated")))
      return file_.fault("'{}.behavior' must be \"Isolated\" or \"Removed\"", where);
    const auto invert = optional_bool(json, "invert", false);
    if (!invert.ok()) return file_.fault("'{}': {}", where, invert.error().message());
    auto compiled = Regex::compile(regex->as_string());
    if (!compiled.ok()) return file_.fault("'{}.pattern': {}", where, compiled.error().message());
    Stage stage;
    stage.regex = *std::move(compiled);
    stage.keep_matches = !is_removed || *invert;
    stage.keep_others = !is_removed || !*invert;
    parts_.stages.push_back(std::move(stage));
    return ok();
  }

  Status read_byte_level(const Json& json, const std::string& where) {
    const auto prefix = optional_bool(json, "add_prefix_space", true);
    if (!prefix.ok()) return file_.fault("'{}': {}", where, prefix.error().message());
    const auto use_regex = optional_bool(json, "use_regex", true);
    if (!use_regex.ok()) return file_.fault("'{}': {}", where, use_regex.error().message());
    has_byte_level_ = true;
    Stage stage;
    stage.add_prefix_space = *prefix;
    if (*use_regex) {
      ASSIGN_OR_RETURN(stage.regex, Regex::compile(kGpt2Pattern));
    }
    parts_.stages.push_back(std::move(stage));
    return ok();
  }

  Status check_decoder() const {
    const Json* decoder = member("decoder");
    if (decoder != nullptr && type_of(*decoder) == "ByteLevel") return ok();
    return file_.fault("'decoder' is '{}'; a byte-level BPE needs ByteLevel",
                       decoder == nullptr ? "null" : type_of(*decoder));
  }

  Status check_model() const {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* value = model_.find(key);
      if (value != nullptr && !value->is_null() && *value != Json(""))
        return file_.fault("'model.{}' must be null or empty", key);
    }
    const Json* dropout = model_.find("dropout");
    if (dropout != nullptr && !dropout->is_null() &&
        !(dropout->is_number() && dropout->as_double() == 0))
      return file_.fault("'model.dropout' must be null: encoding is deterministic");
    const auto fallback = optional_bool(model_, "byte_fallback", false);
    if (!fallback.ok() || *fallback)
      return file_.fault("'model.byte_fallback' must be false for a byte-level BPE");
    return ok();
  }

  /// The two symbols of a merge: "a b" or ["a", "b"].
  static std::optional<std::pair<std::string, std::string>> pair_of(const Json& merge) {
    if (merge.is_array() && merge.as_array().size() == 2 && merge.as_array()[0].is_string() &&
        merge.as_array()[1].is_string())
      return std::pair(merge.as_array()[0].as_string(), merge.as_array()[1].as_string());
    if (!merge.is_string()) return std::nullopt;
    const std::string& text = merge.as_string();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      return std::nullopt;
    return std::pair(text.substr(0, space), text.substr(space + 1));
  }

  int32_t model_token(const std::string& token) const {
    const int32_t id = file_.vocabulary.find(token);
    return id >= 0 && (file_.vocabulary.kind(id) & Vocabulary::kModel) != 0 ? id : -1;
  }

  Status read_merges() {
    const Json* merges = model_.find("merges");
    if (merges == nullptr || !merges->is_array())
      return file_.fault("'model.merges' is not an array");
    for (size_t rank = 0; rank < merges->as_array().size(); ++rank) {
      const auto pair = pair_of(merges->as_array()[rank]);
      if (!pair) return file_.fault("'model.merges[{}]' is not a pair of tokens", rank);
      const std::string merged = pair->first + pair->second;
      for (const std::string& token : {pair->first, pair->second, merged})
        if (model_token(token) < 0)
          return file_.fault("'model.merges[{}]': token '{}' is not in 'model.vocab'", rank, token);
      parts_.merges.add(model_token(pair->first), model_token(pair->second),
                        static_cast<uint32_t>(rank), model_token(merged));
    }
    return ok();
  }

  Status read_tokens() {
    const auto ignore_merges = optional_bool(model_, "ignore_merges", false);
    if (!ignore_merges.ok()) return file_.fault("'model': {}", ignore_merges.error().message());
    const ByteAlphabet alphabet;
    for (size_t byte = 0; byte < 256; ++byte)
      parts_.byte_ids[byte] = model_token(alphabet.characters[byte]);
    for (int32_t id = 0; id < file_.vocabulary.size(); ++id) {
      parts_.token_bytes.emplace_back();
      if (!file_.vocabulary.has(id)) continue;
      const std::string& token = file_.vocabulary.token(id);
      auto bytes = alphabet.bytes_of(token);
      // A special token is not text, even if the vocabulary has it too.
      const bool is_special = (file_.vocabulary.kind(id) & Vocabulary::kSpecial) != 0;
      if (*ignore_merges && bytes && model_token(token) >= 0 && !is_special)
        parts_.pieces.emplace(*bytes, id);
      parts_.token_bytes.back() = bytes ? *std::move(bytes) : token;
    }
    return ok();
  }

  const TokenizerFile& file_;
  const Json& model_;
  bool has_byte_level_ = false;
  Parts parts_;
};

}  // namespace

Result<std::shared_ptr<Tokenizer>> make_byte_level_bpe(TokenizerFile file) {
  ASSIGN_OR_RETURN(Parts parts, Reader(file).read());
  file.root = Json();
  return std::shared_ptr<Tokenizer>(
      std::make_shared<ByteLevelBpe>(std::move(file), std::move(parts)));
}

}  // namespace primerl
