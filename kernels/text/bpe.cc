#include "kernels/text/bpe.h"

#include <utility>

#include "kernels/text/added_tokens.h"
#include "kernels/text/bpe_model.h"
#include "kernels/text/decoder.h"
#include "kernels/text/post_processor.h"
#include "kernels/text/pre_tokenizer.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

/// Everything that the tokenizer needs from its file.
struct Parts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  TextDecoder decoder;
  TextEnds ends;
  std::vector<std::string> token_bytes;  // by id
};

class Bpe final : public Tokenizer {
 public:
  Bpe(TokenizerFile file, Parts parts)
      : parts_(std::move(parts)),
        segmenter_(file.added_tokens, parts_.normalizer),
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
    if (parts_.decoder.is_concatenation()) {
      ASSIGN_OR_RETURN(std::string bytes, vocabulary_.join(ids, skip_special, [this](int32_t id) {
        return std::string_view(parts_.token_bytes[static_cast<size_t>(id)]);
      }));
      return to_valid_utf8(std::move(bytes));
    }
    std::vector<std::string> tokens;
    for (const int32_t id : ids) {
      if (id < 0) return error(Code::kInvalid, "id {} is no token", id);
      if (skip_special ? vocabulary_.is_text(id) : vocabulary_.has(id))
        tokens.push_back(vocabulary_.token(id));
    }
    return parts_.decoder.decode(std::move(tokens));
  }

  std::string_view bytes_of(int32_t id) const override {
    if (!vocabulary_.is_text(id)) return {};
    return parts_.token_bytes[static_cast<size_t>(id)];
  }

  int32_t vocab_size() const override { return vocabulary_.size(); }
  const std::vector<int32_t>& eos_ids() const override { return end_and_pad_.eos_ids; }
  int32_t pad_id() const override { return end_and_pad_.pad_id; }
  int32_t turn_end_id() const override { return end_and_pad_.turn_end_id; }
  const std::vector<int32_t>& prefix_ids() const override { return parts_.ends.prefix; }
  const std::vector<int32_t>& suffix_ids() const override { return parts_.ends.suffix; }

 private:
  Result<std::vector<int32_t>> encode(std::string_view text, const AddedFilter& filter) const {
    ASSIGN_OR_RETURN(const auto segments, segmenter_.cut(text, filter));
    PatternScratch scratch;
    Pieces pieces;
    PieceCache cache;
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 3 + 1);
    for (const Segment& segment : segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else if (auto status = encode_plain(segment, scratch, pieces, cache, ids); !status.ok()) {
        return Error(status.error())
            .while_doing(fmt::format("text at byte offset {}", segment.offset));
      }
    }
    return ids;
  }

  /// `pieces` keeps the texts of all segments, which the cache refers to.
  Status encode_plain(const Segment& segment, PatternScratch& scratch, Pieces& pieces,
                      PieceCache& cache, std::vector<int32_t>& ids) const {
    RETURN_IF_ERROR(parts_.pre_tokenizer.cut(segment.text, segment.is_start, scratch, pieces));
    for (const std::string_view piece : pieces.views)
      RETURN_IF_ERROR(parts_.model.encode(piece, cache, ids));
    return ok();
  }

  const Parts parts_;
  const Segmenter segmenter_;
  const Vocabulary vocabulary_;
  const EndAndPad end_and_pad_;
};

Result<std::vector<std::string>> bytes_of_tokens(const TokenizerFile& file,
                                                 const TextDecoder& decoder) {
  std::vector<std::string> all;
  all.reserve(static_cast<size_t>(file.vocabulary.size()));
  for (int32_t id = 0; id < file.vocabulary.size(); ++id) {
    all.emplace_back();
    if (!file.vocabulary.has(id)) continue;
    ASSIGN_OR_RETURN(all.back(), decoder.bytes_of(file.vocabulary.token(id)));
  }
  return all;
}

}  // namespace

Result<std::shared_ptr<Tokenizer>> make_bpe(TokenizerFile file) {
  Parts parts;
  ASSIGN_OR_RETURN(parts.normalizer, Normalizer::read(file));
  ASSIGN_OR_RETURN(parts.pre_tokenizer, PreTokenizer::read(file));
  ASSIGN_OR_RETURN(parts.model, BpeModel::read(file, parts.pre_tokenizer.is_byte_level()));
  ASSIGN_OR_RETURN(parts.decoder, TextDecoder::read(file));
  ASSIGN_OR_RETURN(parts.ends, read_text_ends(file));
  ASSIGN_OR_RETURN(parts.token_bytes, bytes_of_tokens(file, parts.decoder));
  file.root = Json();
  return std::shared_ptr<Tokenizer>(std::make_shared<Bpe>(std::move(file), std::move(parts)));
}

}  // namespace primerl
