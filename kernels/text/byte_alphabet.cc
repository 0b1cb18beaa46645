#include "kernels/text/byte_alphabet.h"

#include "kernels/text/unicode.h"

namespace primerl {

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_itself =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const uint32_t character = is_itself ? byte : next++;
    append_utf8(characters_[byte], character);
    bytes_[character] = static_cast<int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view text) const {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint character = code_point_at(text, at);
    if (character.size == 0 || character.value >= bytes_.size() || bytes_[character.value] < 0)
      return std::nullopt;
    out += static_cast<char>(bytes_[character.value]);
    at += character.size;
  }
  return out;
}

std::string ByteAlphabet::text_of(std::string_view bytes) const {
  std::string out;
  for (const char byte : bytes) out += characters_[static_cast<uint8_t>(byte)];
  return out;
}

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace primerl
