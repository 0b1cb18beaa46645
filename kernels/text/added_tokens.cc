#include "kernels/text/added_tokens.h"

#include <algorithm>

#include "kernels/text/unicode.h"

namespace primerl {
namespace {

bool is_word_at(std::string_view text, size_t offset) {
  return offset < text.size() && is_word_character(code_point_at(text, offset).value);
}

bool is_word_before(std::string_view text, size_t offset) {
  return offset > 0 && is_word_character(code_point_before(text, offset).value);
}

size_t skip_space_left(std::string_view text, size_t offset, size_t floor) {
  while (offset > floor) {
    const CodePoint character = code_point_before(text, offset);
    if (!is_white_space(character.value)) break;
    offset -= character.size;
  }
  return std::max(offset, floor);
}

size_t skip_space_right(std::string_view text, size_t offset) {
  while (offset < text.size()) {
    const CodePoint character = code_point_at(text, offset);
    if (!is_white_space(character.value)) break;
    offset += character.size;
  }
  return offset;
}

}  // namespace

AddedFilter AddedFilter::at(size_t offset, size_t size) const {
  AddedFilter moved = *this;
  moved.offset_ += offset;
  moved.size_ = size;
  return moved;
}

bool AddedFilter::finds(const AddedToken& token, size_t begin, size_t end) const {
  if (spans_ == nullptr) return !token.special || specials_ == Specials::kAreFound;
  // Offsets in a normalized text are not those of the given text: its whole piece counts.
  const size_t first = size_ > 0 ? offset_ : offset_ + begin;
  const size_t last = size_ > 0 ? offset_ + size_ : offset_ + end;
  const auto span =
      std::upper_bound(spans_->begin(), spans_->end(), first,
                       [](size_t offset, const TextSpan& each) { return offset < each.end; });
  if (span == spans_->end() || last > span->end) return false;
  if (span->is_trusted) return true;
  return !token.special && span->blocked.find(token.content) == std::string_view::npos;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) begins_[static_cast<uint8_t>(token.content[0])] = true;
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t begin) const {
  // Narrows the sorted tokens to those that share text[begin, begin + depth) with the text.
  auto low = tokens_.begin(), high = tokens_.end();
  const AddedToken* longest = nullptr;
  for (size_t depth = 0; begin + depth < text.size() && low != high; ++depth) {
    const auto byte = static_cast<uint8_t>(text[begin + depth]);
    const auto byte_of = [depth](const AddedToken& token) {
      return token.content.size() <= depth ? -1 : static_cast<uint8_t>(token.content[depth]);
    };
    low = std::lower_bound(low, high, byte, [&](const AddedToken& token, int value) {
      return byte_of(token) < value;
    });
    high = std::upper_bound(low, high, byte, [&](int value, const AddedToken& token) {
      return value < byte_of(token);
    });
    if (low != high && low->content.size() == depth + 1) longest = &*low;
  }
  return longest;
}

std::vector<AddedTokens::Piece> AddedTokens::split(std::string_view text,
                                                   const AddedFilter& filter) const {
  std::vector<Piece> pieces;
  size_t taken = 0;  // everything before it is in `pieces`
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token =
        begins_[static_cast<uint8_t>(text[at])] ? longest_at(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (!filter.finds(*token, begin, end)) {
      if (filter.looks_inside()) at = begin + 1;
      continue;
    }
    if (token->single_word && (is_word_before(text, begin) || is_word_at(text, end))) continue;
    if (token->lstrip) begin = skip_space_left(text, begin, taken);
    if (token->rstrip) at = end = skip_space_right(text, end);
    if (taken < begin) pieces.push_back({-1, taken, begin});
    pieces.push_back({token->id, begin, end});
    taken = end;
  }
  if (taken < text.size()) pieces.push_back({-1, taken, text.size()});
  return pieces;
}

Segmenter::Segmenter(const std::vector<AddedToken>& tokens, Normalizer normalizer)
    : normalizer_(std::move(normalizer)) {
  std::vector<AddedToken> raw, normalized;
  for (AddedToken token : tokens) {
    if (!token.normalized) {
      raw.push_back(std::move(token));
      continue;
    }
    if (auto content = normalizer_.apply(token.content); content.ok() && !content->empty())
      token.content = *std::move(content);
    normalized.push_back(std::move(token));
  }
  raw_ = AddedTokens(std::move(raw));
  normalized_ = AddedTokens(std::move(normalized));
}

Result<std::vector<Segment>> Segmenter::cut(std::string_view text,
                                            const AddedFilter& filter) const {
  RETURN_IF_ERROR(check_utf8(text));
  std::vector<Segment> segments;
  for (const auto& outer : raw_.split(text, filter)) {
    if (outer.id >= 0) {
      segments.push_back({outer.id, {}, outer.begin, false});
      continue;
    }
    std::string between(text.substr(outer.begin, outer.end - outer.begin));
    size_t inner_scale = 1;
    if (!normalizer_.is_empty()) {
      ASSIGN_OR_RETURN(std::string normal, normalizer_.apply(between));
      if (normal != between) inner_scale = 0;
      between = std::move(normal);
    }
    const AddedFilter inside =
        filter.at(outer.begin, inner_scale == 0 ? outer.end - outer.begin : 0);
    for (const auto& inner : normalized_.split(between, inside))
      segments.push_back(
          {inner.id, inner.id >= 0 ? "" : between.substr(inner.begin, inner.end - inner.begin),
           outer.begin + inner_scale * inner.begin, outer.begin == 0 && inner.begin == 0});
  }
  return segments;
}

}  // namespace primerl
