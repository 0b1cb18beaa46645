#include "graph/base/device_name.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace primerl {

bool is_device_name(std::string_view text) {
  if (text == "cpu") return true;
  if (text.rfind("cuda:", 0) != 0) return false;
  const std::string_view number = text.substr(5);
  int index = 0;
  const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), index);
  return fault == std::errc() && end == number.data() + number.size() && index >= 0 && index < 64;
}

std::string meant_device(std::string_view text) {
  std::string low(text);
  std::ranges::transform(low, low.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  if (low == "cpu" || low.starts_with("cpu:")) return "cpu";
  if (!low.starts_with("gpu") && !low.starts_with("cuda")) return {};
  const size_t digits = low.find_first_of("0123456789");
  const std::string meant = "cuda:" + (digits == std::string::npos ? "0" : low.substr(digits));
  return is_device_name(meant) ? meant : "";
}

}  // namespace primerl
