/// MarkTokenizer: bytes as tokens, and the markers of a template as added tokens. For tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/text/added_tokens.h"
#include "kernels/text/tokenizer.h"
#include "kernels/text/unicode.h"

namespace primerl::chat {

class MarkTokenizer final : public Tokenizer {
 public:
  explicit MarkTokenizer(std::vector<AddedToken> added, std::vector<int32_t> eos_ids = {})
      : added_(std::move(added)),
        segmenter_(make_segmenter(added_)),
        eos_ids_(std::move(eos_ids)) {}

  /// The markers "<...>" of a template. Those with "|", "turn" or "s" alone are special.
  static MarkTokenizer of_template(
      const std::string& source,
      const std::vector<std::pair<std::string, std::string>>& tokens = {}) {
    std::vector<AddedToken> added;
    const auto add = [&](const std::string& content, bool special) {
      for (const auto& each : added)
        if (each.content == content) return;
      AddedToken token;
      token.id = 256 + static_cast<int32_t>(added.size());
      token.content = content;
      token.special = special;
      added.push_back(token);
    };
    for (const auto& [name, content] : tokens) add(content, true);
    for (size_t i = source.find('<'); i != std::string::npos; i = source.find('<', i + 1)) {
      const size_t end = source.find('>', i);
      const std::string marker = source.substr(i, end == std::string::npos ? 0 : end - i + 1);
      if (marker.size() < 3 || marker.size() > 48) continue;
      if (marker.find_first_of(" \n'\"{}=+~") != std::string::npos) continue;
      add(marker, marker.find('|') != std::string::npos || marker.ends_with("turn>") ||
                      marker.find("▁of▁") != std::string::npos);
    }
    return MarkTokenizer(std::move(added));
  }

  /// The ids of these tokens end a sequence.
  void set_eos(const std::vector<std::string>& contents) {
    eos_ids_.clear();
    for (const auto& content : contents) eos_ids_.push_back(id_of(content));
  }
  int32_t id_of(std::string_view content) const {
    for (const auto& token : added_)
      if (token.content == content) return token.id;
    return -1;
  }

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
    std::string text;
    for (const int32_t id : ids) {
      if (id < 256)
        text.push_back(static_cast<char>(id));
      else if (!skip_special || !at(id).special)
        text += at(id).content;
    }
    return to_valid_utf8(std::move(text));
  }
  std::string_view bytes_of(int32_t id) const override {
    static const std::string bytes = [] {
      std::string all;
      for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
      return all;
    }();
    if (id < 256) return std::string_view(bytes).substr(static_cast<size_t>(id), 1);
    return at(id).special ? std::string_view() : std::string_view(at(id).content);
  }
  int32_t vocab_size() const override { return 256 + static_cast<int32_t>(added_.size()); }
  const std::vector<int32_t>& eos_ids() const override { return eos_ids_; }
  int32_t pad_id() const override { return -1; }

 private:
  const AddedToken& at(int32_t id) const { return added_[static_cast<size_t>(id - 256)]; }
  static AddedTokens make_segmenter(const std::vector<AddedToken>& added) {
    return AddedTokens(added);
  }
  Result<std::vector<int32_t>> encode(std::string_view text, const AddedFilter& filter) const {
    std::vector<int32_t> ids;
    for (const auto& piece : segmenter_.split(text, filter)) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        continue;
      }
      for (size_t i = piece.begin; i < piece.end; ++i)
        ids.push_back(static_cast<unsigned char>(text[i]));
    }
    return ids;
  }

  const std::vector<AddedToken> added_;
  const AddedTokens segmenter_;
  std::vector<int32_t> eos_ids_;
};

}  // namespace primerl::chat
