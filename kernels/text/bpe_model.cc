#include "kernels/text/bpe_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/text/byte_alphabet.h"
#include "kernels/text/file_parts.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

uint64_t pair_key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

std::string fallback_token(size_t byte) { return fmt::format("<0x{:02X}>", byte); }

/// The two symbols of a merge: "a b" or ["a", "b"].
std::optional<std::pair<std::string, std::string>> pair_of(const Json& merge) {
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

}  // namespace

size_t PieceCache::slot_of(std::string_view piece) const {
  const size_t mask = entries_.size() - 1;
  size_t slot = std::hash<std::string_view>()(piece) & mask;
  while (!entries_[slot].piece.empty() && entries_[slot].piece != piece) slot = (slot + 1) & mask;
  return slot;
}

PieceCache::Entry& PieceCache::find(std::string_view piece) {
  if (2 * (num_pieces_ + 1) > entries_.size()) grow();
  return entries_[slot_of(piece)];
}

void PieceCache::grow() {
  std::vector<Entry> old(2 * entries_.size());
  old.swap(entries_);
  for (const Entry& entry : old)
    if (!entry.piece.empty()) entries_[slot_of(entry.piece)] = entry;
}

void PieceCache::insert(Entry& entry, std::string_view piece, const int32_t* ids, size_t count) {
  entry = {piece, static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(count)};
  ids_.insert(ids_.end(), ids, ids + count);
  ++num_pieces_;
}

/// Appends symbols. Unknown ones wait, because several may become one token.
class BpeModel::SymbolWriter {
 public:
  SymbolWriter(const BpeModel& model, std::vector<int32_t>& ids) : model_(model), ids_(ids) {}

  void known(int32_t id) {
    flush();
    ids_.push_back(id);
  }
  /// Tokens of the bytes of a character that has none. As in the `tokenizers` package they do not
  /// end a run of unknown characters.
  bool fall_back(std::string_view character) {
    for (const char byte : character)
      if (model_.fallback_ids_[static_cast<uint8_t>(byte)] < 0) return false;
    for (const char byte : character)
      ids_.push_back(model_.fallback_ids_[static_cast<uint8_t>(byte)]);
    return true;
  }
  /// False if there is no unknown token.
  bool unknown() {
    if (model_.unknown_id_ < 0) return false;
    if (!model_.fuses_unknown_) flush();
    is_waiting_ = true;
    return true;
  }
  void flush() {
    if (is_waiting_) ids_.push_back(model_.unknown_id_);
    is_waiting_ = false;
  }

 private:
  const BpeModel& model_;
  std::vector<int32_t>& ids_;
  bool is_waiting_ = false;
};

class BpeModel::Reader {
 public:
  Reader(const TokenizerFile& file, BpeModel& made)
      : file_(file), json_(*file.root.find("model")), made_(made) {}

  Status read() {
    RETURN_IF_ERROR(check_options());
    RETURN_IF_ERROR(read_unknown());
    read_symbols();
    RETURN_IF_ERROR(read_merges());
    return read_pieces();
  }

 private:
  Status check_options() const {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* value = json_.find(key);
      if (value != nullptr && !value->is_null() && *value != Json(""))
        return file_.fault("'model.{}' must be null or empty", key);
    }
    const Json* dropout = json_.find("dropout");
    if (dropout != nullptr && !dropout->is_null() &&
        !(dropout->is_number() && dropout->as_double() == 0))
      return file_.fault("'model.dropout' must be null: encoding is deterministic");
    return ok();
  }

  int32_t token(const std::string& content) const {
    const int32_t id = file_.vocabulary.find(content);
    return id >= 0 && (file_.vocabulary.kind(id) & Vocabulary::kModel) != 0 ? id : -1;
  }

  /// An unknown token that pads or ends a sequence does not count: text must not turn into it.
  Status read_unknown() {
    ASSIGN_OR_RETURN(made_.fuses_unknown_, bool_member(file_, json_, "model", "fuse_unk", false));
    const Json* unknown = present_member(json_, "unk_token");
    if (unknown == nullptr) return ok();
    if (!unknown->is_string())
      return file_.fault("'model.unk_token' is {}, not a string", unknown->kind());
    const int32_t id = token(unknown->as_string());
    if (id < 0)
      return file_.fault("'model.unk_token' '{}' is not in 'model.vocab'", unknown->as_string());
    const auto& ends = file_.end_and_pad;
    const bool is_end = std::ranges::find(ends.eos_ids, id) != ends.eos_ids.end();
    if (!is_end && id != ends.pad_id) made_.unknown_id_ = id;
    return ok();
  }

  void read_symbols() {
    const Json* falls_back = json_.find("byte_fallback");
    const bool has_fallback = falls_back != nullptr && *falls_back == Json(true);
    for (size_t byte = 0; byte < 256; ++byte) {
      made_.fallback_ids_[byte] = has_fallback ? token(fallback_token(byte)) : -1;
      made_.byte_ids_[byte] = token(byte_alphabet().character(static_cast<uint8_t>(byte)));
    }
    made_.ascii_ids_.fill(-1);
    for (int32_t id = 0; id < file_.vocabulary.size(); ++id) {
      if (!file_.vocabulary.has(id)) continue;
      const std::string& content = file_.vocabulary.token(id);
      const CodePoint first = content.empty() ? CodePoint() : code_point_at(content, 0);
      if (first.size == 0 || first.size != content.size() || token(content) < 0) continue;
      if (first.value < 128)
        made_.ascii_ids_[first.value] = id;
      else
        made_.character_ids_.emplace(first.value, id);
    }
  }

  Status read_merges() {
    const Json* merges = json_.find("merges");
    if (merges == nullptr || !merges->is_array())
      return file_.fault("'model.merges' is not an array");
    // Cutting is exact if every character has a symbol, and no merge uses a byte's token.
    const auto has_all = [](const auto& ids) {
      return std::ranges::all_of(ids, [](int32_t id) { return id >= 0; });
    };
    made_.cuts_words_ = !made_.is_byte_level_ && has_all(made_.fallback_ids_);
    for (size_t rank = 0; rank < merges->as_array().size(); ++rank) {
      const auto pair = pair_of(merges->as_array()[rank]);
      if (!pair) return file_.fault("'model.merges[{}]' is not a pair of tokens", rank);
      const int32_t left = token(pair->first), right = token(pair->second);
      const int32_t merged = token(pair->first + pair->second);
      for (const auto& [id, content] : {std::pair(left, pair->first),
                                        {right, pair->second},
                                        {merged, pair->first + pair->second}})
        if (id < 0)
          return file_.fault("'model.merges[{}]': token '{}' is not in 'model.vocab'", rank,
                             content);
      made_.merges_.add(left, right, static_cast<uint32_t>(rank), merged);
      if (made_.cuts_words_) note_join(*pair, left, right);
    }
    return ok();
  }

  void note_join(const std::pair<std::string, std::string>& pair, int32_t left, int32_t right) {
    for (const int32_t id : {left, right})
      if (std::ranges::find(made_.fallback_ids_, id) != made_.fallback_ids_.end())
        made_.cuts_words_ = false;
    if (pair.first.empty() || pair.second.empty()) return;
    const uint32_t last = code_point_before(pair.first, pair.first.size()).value;
    const uint32_t first = code_point_at(pair.second, 0).value;
    if (last < 128 && first < 128)
      made_.joins_ascii_[last][first] = true;
    else
      made_.joins_.insert(pair_key(last, first));
  }

  Status read_pieces() {
    ASSIGN_OR_RETURN(const bool ignores_merges,
                     bool_member(file_, json_, "model", "ignore_merges", false));
    if (!ignores_merges) return ok();
    for (int32_t id = 0; id < file_.vocabulary.size(); ++id) {
      if (!file_.vocabulary.has(id)) continue;
      const std::string& content = file_.vocabulary.token(id);
      // A special token is not text, even if the vocabulary has it too.
      if (token(content) < 0 || (file_.vocabulary.kind(id) & Vocabulary::kSpecial) != 0) continue;
      if (!made_.is_byte_level_)
        made_.pieces_.emplace(content, id);
      else if (auto bytes = byte_alphabet().bytes_of(content))
        made_.pieces_.emplace(*std::move(bytes), id);
    }
    return ok();
  }

  const TokenizerFile& file_;
  const Json& json_;
  BpeModel& made_;
};

Result<BpeModel> BpeModel::read(const TokenizerFile& file, bool is_byte_level) {
  BpeModel made;
  made.is_byte_level_ = is_byte_level;
  RETURN_IF_ERROR(Reader(file, made).read());
  return made;
}

int32_t BpeModel::character_id(uint32_t character) const {
  if (character < 128) return ascii_ids_[character];
  const auto found = character_ids_.find(character);
  return found == character_ids_.end() ? -1 : found->second;
}

bool BpeModel::may_join(uint32_t left, uint32_t right) const {
  if (left < 128 && right < 128) return joins_ascii_[left][right];
  return joins_.contains(pair_key(left, right));
}

Status BpeModel::encode(std::string_view piece, PieceCache& cache,
                        std::vector<int32_t>& ids) const {
  if (!cuts_words_) return encode_word(piece, cache, ids);
  if (!pieces_.empty())
    if (const auto whole = pieces_.find(piece); whole != pieces_.end()) {
      ids.push_back(whole->second);
      return ok();
    }
  size_t begin = 0;
  CodePoint left = code_point_at(piece, 0);
  for (size_t at = left.size; at < piece.size();) {
    const CodePoint right = code_point_at(piece, at);
    if (!may_join(left.value, right.value)) {
      RETURN_IF_ERROR(encode_word(piece.substr(begin, at - begin), cache, ids));
      begin = at;
    }
    left = right;
    at += right.size;
  }
  return encode_word(piece.substr(begin), cache, ids);
}

Status BpeModel::encode_word(std::string_view word, PieceCache& cache,
                             std::vector<int32_t>& ids) const {
  const size_t first = ids.size();
  if (word.size() > PieceCache::kPieceBytesMax) {
    std::vector<int32_t> symbols;
    RETURN_IF_ERROR(compute(word, symbols));
    ids.insert(ids.end(), symbols.begin(), symbols.end());
    return ok();
  }
  PieceCache::Entry& entry = cache.find(word);
  if (!entry.piece.empty()) {
    const int32_t* known = cache.ids_of(entry);
    ids.insert(ids.end(), known, known + entry.count);
    return ok();
  }
  std::vector<int32_t> symbols;
  RETURN_IF_ERROR(compute(word, symbols));
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (!cache.is_full()) cache.insert(entry, word, ids.data() + first, symbols.size());
  return ok();
}

Status BpeModel::compute(std::string_view word, std::vector<int32_t>& ids) const {
  if (!pieces_.empty() && !cuts_words_)
    if (const auto whole = pieces_.find(word); whole != pieces_.end()) {
      ids.push_back(whole->second);
      return ok();
    }
  ids.reserve(word.size());
  SymbolWriter symbols(*this, ids);
  RETURN_IF_ERROR(is_byte_level_ ? byte_symbols(word, symbols) : character_symbols(word, symbols));
  symbols.flush();
  merges_.apply(ids);
  return ok();
}

Status BpeModel::byte_symbols(std::string_view word, SymbolWriter& to) const {
  for (const char letter : word) {
    const auto byte = static_cast<uint8_t>(letter);
    if (byte_ids_[byte] >= 0) {
      to.known(byte_ids_[byte]);
      continue;
    }
    if (to.fall_back(byte_alphabet().character(byte)) || to.unknown()) continue;
    return error(Code::kInvalid, "byte 0x{:02X} of '{}' has no token", byte, word);
  }
  return ok();
}

Status BpeModel::character_symbols(std::string_view word, SymbolWriter& to) const {
  for (size_t at = 0; at < word.size();) {
    const CodePoint character = code_point_at(word, at);
    const int32_t id = character_id(character.value);
    if (id >= 0)
      to.known(id);
    else if (!to.fall_back(word.substr(at, character.size)) && !to.unknown())
      return error(Code::kInvalid, "character {} has no token",
                   describe_code_point(character.value));
    at += character.size;
  }
  return ok();
}

}  // namespace primerl
