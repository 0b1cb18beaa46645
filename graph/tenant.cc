#include "graph/tenant.h"

#include "graph/base/suggest.h"

namespace primerl {

Error unknown_tenant(std::string_view name, const std::vector<std::string>& names,
                     std::string_view where) {
  return error(Code::kNotFound, "no tenant '{}' in {}", name, where)
      .note("its tenants: " + join_names(names));
}

}  // namespace primerl
