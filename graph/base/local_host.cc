#include "graph/base/local_host.h"

#include <cctype>
#include <string>

namespace primerl {

bool names_this_machine(std::string_view host) {
  const size_t name_end = host.find(':', host.starts_with('[') ? host.find(']') : 0);
  std::string name(host.substr(0, name_end));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name != "localhost" && name != "127.0.0.1" && name != "[::1]") return false;
  return name_end == std::string_view::npos ||
         host.find_first_not_of("0123456789", name_end + 1) == std::string_view::npos;
}

}  // namespace primerl
