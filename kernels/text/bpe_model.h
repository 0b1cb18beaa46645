/// The `model` of a byte-pair encoding: the ids of one piece of text.
///
/// Symbols are bytes, or characters; a character without a token becomes the tokens of its bytes
/// ("<0x0A>") or the unknown token. Immutable, safe from any thread; each call has a cache.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels/text/merges.h"
#include "kernels/text/tokenizer_file.h"

namespace primerl {

/// The ids of pieces that one call has met: texts repeat their words. At most kPiecesMax pieces.
class PieceCache {
 public:
  static constexpr size_t kPiecesMax = 1 << 16;
  static constexpr size_t kPieceBytesMax = 64;  // longer ones rarely repeat

  struct Entry {
    std::string_view piece;  // empty: free
    uint32_t first = 0;      // of its ids
    uint32_t count = 0;
  };
  /// The entry of the piece, or the free one for it. Valid until the next insert().
  Entry& find(std::string_view piece);
  /// Fills a free entry. `piece` must stay valid as long as the cache.
  void insert(Entry& entry, std::string_view piece, const int32_t* ids, size_t count);
  bool is_full() const { return num_pieces_ >= kPiecesMax; }
  const int32_t* ids_of(const Entry& entry) const { return ids_.data() + entry.first; }

 private:
  void grow();
  size_t slot_of(std::string_view piece) const;

  std::vector<Entry> entries_{std::vector<Entry>(64)};  // open addressing, at most half used
  std::vector<int32_t> ids_;
  size_t num_pieces_ = 0;
};

class BpeModel {
 public:
  /// Reads the file's `model`; errors name the key. `is_byte_level`: symbols are bytes.
  static Result<BpeModel> read(const TokenizerFile& file, bool is_byte_level);

  /// Appends the ids of one piece, bytes or valid UTF-8. `piece` stays valid as long as `cache`.
  Status encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const;

 private:
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  class Reader;
  class SymbolWriter;

  Status encode_word(std::string_view word, PieceCache& cache, std::vector<int32_t>& ids) const;
  Status compute(std::string_view word, std::vector<int32_t>& ids) const;
  Status byte_symbols(std::string_view word, SymbolWriter& to) const;
  Status character_symbols(std::string_view word, SymbolWriter& to) const;
  int32_t character_id(uint32_t character) const;
  bool may_join(uint32_t left, uint32_t right) const;

  bool is_byte_level_ = true;
  Merges merges_;
  std::array<int32_t, 256> byte_ids_{};      // -1: the vocabulary lacks that byte
  std::array<int32_t, 256> fallback_ids_{};  // of "<0x00>" ...; -1: missing, or not used
  std::array<int32_t, 128> ascii_ids_{};     // characters; -1: missing
  std::unordered_map<uint32_t, int32_t> character_ids_;  // the others
  /// For ignore_merges: whole pieces; else empty.
  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>> pieces_;
  int32_t unknown_id_ = -1;
  bool fuses_unknown_ = false;
  /// Pieces are cut between characters that no merge joins; each part is merged alone, with the
  /// same result.
  bool cuts_words_ = false;
  std::array<std::array<bool, 128>, 128> joins_ascii_{};
  std::unordered_set<uint64_t> joins_;
};

}  // namespace primerl
