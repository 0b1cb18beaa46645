#include "graph/base/xml_text.h"

#include "graph/base/terminal_text.h"

namespace primerl {

std::string xml_text(std::string_view text) {
  std::string clean;
  for (const char c : terminal_text(text, false)) {
    if (c == '<')
      clean += "&lt;";
    else if (c == '>')
      clean += "&gt;";
    else if (c == '&')
      clean += "&amp;";
    else if (c == '"')
      clean += "&quot;";
    else
      clean += c;
  }
  return clean;
}

}  // namespace primerl
