#include "graph/catalog.h"

namespace primerl {

const Contract* Catalog::find_actor(std::string_view name) const {
  for (const auto& actor : actors)
    if (actor.name == name) return &actor;
  return nullptr;
}

const ResourceContract* Catalog::find_resource(std::string_view kind,
                                               std::string_view backend) const {
  for (const auto& resource : resources)
    if (resource.kind == kind && resource.backend == backend) return &resource;
  return nullptr;
}

}  // namespace primerl
