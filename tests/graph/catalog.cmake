# A catalog and large graphs of our own, for tests/graph and bench/graph: whichever comes first.
include_guard(GLOBAL)
add_library(graph_test_catalog STATIC ${CMAKE_CURRENT_LIST_DIR}/test_catalog.cc
            ${CMAKE_CURRENT_LIST_DIR}/large_graph.cc)
target_link_libraries(graph_test_catalog PUBLIC primerl_flags primerl_graph)
target_compile_definitions(graph_test_catalog PRIVATE PRIMERL_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
