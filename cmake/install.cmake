# cmake --install: the programs, the examples, and what a plugin is built and tested with.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/primerl_graph)
set(CMAKE_INSTALL_MESSAGE LAZY)

foreach(program primerl-graph primerl-worker)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME COMPONENT programs)
  endif()
endforeach()
install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DATADIR}/primerl-graph/examples
        PATTERN build EXCLUDE PATTERN runs EXCLUDE)
install(FILES scripts/convert_data.py scripts/fetch_model.py
        DESTINATION ${CMAKE_INSTALL_DATADIR}/primerl-graph/scripts
        COMPONENT programs)
install(FILES LICENSE THIRD_PARTY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

foreach(header ${plugin_headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION include/primerl-graph/${folder})
endforeach()
install(FILES ${plugin_interface} DESTINATION include/primerl-graph/actors)
# For tests of a plugin's parts. The targets name this machine's PCRE2 and utf8proc by their paths.
install(TARGETS primerl_flags primerl_base primerl_graph primerl_kernels primerl_actors
        EXPORT primerl_graph ARCHIVE)
install(EXPORT primerl_graph DESTINATION ${package} NAMESPACE primerl::
        FILE primerl_graph_targets.cmake)
configure_package_config_file(cmake/primerl_graph_config.cmake.in
                              ${CMAKE_BINARY_DIR}/primerl_graphConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/primerl_graphConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/primerl_graphConfig.cmake
              ${CMAKE_BINARY_DIR}/primerl_graphConfigVersion.cmake
        DESTINATION ${package})
# The interface's hash is in a header that only the build writes.
add_dependencies(programs plugin_interface)
