/// The characters that represent bytes in a byte-level vocabulary (GPT-2's table): 'Ġ' is a space.
/// One immutable table, safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace primerl {

class ByteAlphabet {
 public:
  ByteAlphabet();
  /// The character of a byte, in UTF-8.
  const std::string& character(uint8_t byte) const { return characters_[byte]; }
  /// The bytes that the characters of `text` represent; empty if one of them represents none.
  std::optional<std::string> bytes_of(std::string_view text) const;
  /// The characters of all bytes of `text`.
  std::string text_of(std::string_view bytes) const;

 private:
  std::array<std::string, 256> characters_;
  std::array<int16_t, 0x144> bytes_;  // by code point; -1: represents no byte
};

const ByteAlphabet& byte_alphabet();

}  // namespace primerl
