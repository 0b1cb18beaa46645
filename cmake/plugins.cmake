# What plugins are compiled with, and what a program needs that loads them.

# Headers of the libraries that a plugin may use, relative to the root; actors/plugin_interface.h
# holds a hash of them.
file(GLOB_RECURSE plugin_headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
     graph/*.h actors/*.h kernels/engine/*.h kernels/train/*.h kernels/weights/*.h kernels/text/*.h
     kernels/scripted/*.h)
list(SORT plugin_headers)
set(plugin_interface ${CMAKE_BINARY_DIR}/generated/actors/plugin_interface.h)
list(TRANSFORM plugin_headers PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE plugin_header_files)
add_custom_command(
  OUTPUT ${plugin_interface}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${plugin_interface} -DVERSION=${PROJECT_VERSION}
          -DROOT=${CMAKE_SOURCE_DIR} "-DHEADERS=${plugin_headers}"
          -P ${CMAKE_SOURCE_DIR}/cmake/interface_hash.cmake
  DEPENDS ${plugin_header_files} ${CMAKE_SOURCE_DIR}/cmake/interface_hash.cmake
  COMMENT "Hashing the headers of plugins" VERBATIM)
add_custom_target(plugin_interface DEPENDS ${plugin_interface})

# A program that loads plugins: it has all of the libraries that they use, and exports them. So a
# plugin has no copy of its own, and a message type has one address.
function(primerl_takes_plugins program)
  add_dependencies(${program} plugin_interface)
  target_link_libraries(${program} PRIVATE primerl_actors)
  set(archives "")
  foreach(library base graph kernels actors)
    string(APPEND archives ",$<TARGET_FILE:primerl_${library}>")
  endforeach()
  # Where the same archives come again, as libraries, nothing is left to take.
  target_link_options(${program} PRIVATE
                      "LINKER:--whole-archive${archives},--no-whole-archive"
                      "LINKER:--dynamic-list=${CMAKE_SOURCE_DIR}/cmake/plugin_symbols.txt")
  set_target_properties(${program} PROPERTIES LINK_DEPENDS
                        ${CMAKE_SOURCE_DIR}/cmake/plugin_symbols.txt)
endfunction()
