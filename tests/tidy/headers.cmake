# Every header compiles alone. A header with a .cc beside it does so there, since its own file
# includes it first (text_test.cc holds that); the others get a generated file of one line here.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
     ${CMAKE_SOURCE_DIR}/graph/*.h ${CMAKE_SOURCE_DIR}/kernels/*.h ${CMAKE_SOURCE_DIR}/actors/*.h
     ${CMAKE_SOURCE_DIR}/runtime/*.h)
set(alone "")
set(alone_torch "")
foreach(header ${headers})
  string(REGEX REPLACE "\\.h$" ".cc" source ${header})
  if(EXISTS ${CMAKE_SOURCE_DIR}/${source})
    continue()
  endif()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/headers/${source})
  file(CONFIGURE OUTPUT ${generated} CONTENT "#include \"${header}\"\n")
  if(header MATCHES "^kernels/(ops|cuda/ops)/")
    # Bodies that cpu_*.cc compiles once per instruction set, with its flags.
    set_source_files_properties(${generated} PROPERTIES
                                COMPILE_OPTIONS "-Wno-psabi;-Wno-unused-function")
  endif()
  if(header MATCHES "^kernels/(common|cpu|cuda|devices)/" AND
     NOT header MATCHES "^kernels/cuda/ops/")
    list(APPEND alone_torch ${generated})
  else()
    list(APPEND alone ${generated})
  endif()
endforeach()

add_library(headers_alone OBJECT ${alone})
target_link_libraries(headers_alone PRIVATE primerl_flags fmt::fmt)
target_compile_options(headers_alone PRIVATE -O0 -g0)
if(alone_torch AND TARGET primerl_torch)
  add_library(headers_alone_torch OBJECT ${alone_torch})
  target_link_libraries(headers_alone_torch PRIVATE primerl_torch)
  target_compile_options(headers_alone_torch PRIVATE -O0 -g0)
endif()
