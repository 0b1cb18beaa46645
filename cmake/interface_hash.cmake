# cmake -DOUTPUT=FILE -DVERSION=V -DROOT=FOLDER "-DHEADERS=a.h;b.h" -P interface_hash.cmake
# Writes a header that names the version and a hash of all headers that plugins are compiled with.
cmake_minimum_required(VERSION 3.25)
set(all "")
foreach(header ${HEADERS})
  file(SHA256 ${ROOT}/${header} hash)
  string(APPEND all "${header} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 16 hash)
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT
"/// What plugins are compiled against; written by the build from all installed headers.
#pragma once

#include <string_view>

namespace primerl {

inline constexpr std::string_view kInterfaceVersion = \"@VERSION@\";
inline constexpr std::string_view kInterfaceHash = \"@hash@\";

}  // namespace primerl
" @ONLY)
