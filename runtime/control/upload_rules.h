/// The rules for a tenant's file that comes over HTTP (docs/design/hosted.md).
///
/// The file may have values of a tenant, an environment and rewards that are code of this program
/// or services of the graph, and nothing that runs a program or names a file: neither `command`,
/// `python`, `plugins`, `address` nor `include`, and no path. Every key must be known exactly, so
/// no misspelt key passes as another one. The usual check of a tenant's file comes after these
/// rules.
///
/// A data file is named as it was uploaded (upload_folders.h), without a folder. Pure, any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/catalog.h"
#include "runtime/control/control_fault.h"

namespace primerl {

inline constexpr size_t kUploadBytesMax = size_t{256} << 10;

/// The names of the files that were uploaded for a tenant. Null: none can be.
using UploadedFiles = std::function<std::vector<std::string>(const std::string& tenant)>;

/// Why the text must not be used; no value: it may be checked as a tenant's file. `catalog`: that
/// of the run, with its plugins.
std::optional<ControlFault> check_upload(std::string_view text, const Catalog& catalog,
                                         const UploadedFiles& uploaded = nullptr);

}  // namespace primerl
