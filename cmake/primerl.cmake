# Flags and helpers that every library uses.

add_library(primerl_flags INTERFACE)
# Libraries that plugins are compiled with are installed (cmake/install.cmake): then only the folder
# of their headers counts.
target_include_directories(primerl_flags INTERFACE
                           $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>
                           $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/generated>
                           $<INSTALL_INTERFACE:include/primerl-graph>)
target_compile_features(primerl_flags INTERFACE cxx_std_20)
foreach(warning all extra pedantic shadow)
  target_compile_options(primerl_flags INTERFACE $<BUILD_INTERFACE:-W${warning}>)
endforeach()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)  # an empty __VA_ARGS__ is no extension since C++20
  target_compile_options(primerl_flags
                         INTERFACE $<BUILD_INTERFACE:-Wno-gnu-zero-variadic-macro-arguments>)
endif()
if(PRIMERL_WERROR)
  target_compile_options(primerl_flags INTERFACE $<BUILD_INTERFACE:-Werror>)
endif()
if(PRIMERL_SANITIZE)
  # A fault ends the program, so that it fails its test.
  target_compile_options(primerl_flags INTERFACE -fsanitize=${PRIMERL_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # it misjudges instrumented code
    target_compile_options(primerl_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  if(PRIMERL_SANITIZE MATCHES undefined)
    # It reads memory through a pipe, so it fails in tests that take all file descriptors away.
    target_compile_options(primerl_flags INTERFACE -fno-sanitize=vptr)
  endif()
  target_link_options(primerl_flags INTERFACE -fsanitize=${PRIMERL_SANITIZE})
endif()

# Sources of a target are compiled eight at a time: headers are read, and what they instantiate is
# compiled, once for all of them, which halves a first build. So names in anonymous namespaces are
# unique in a library; where PRIMERL_UNITY is off each file, and so each header, compiles alone.
#
# primerl_write_batches() writes the files that include eight others. CMake's own UNITY_BUILD would
# include them by absolute paths, and ccache would find nothing in a copy of the tree.
function(primerl_unity name)
  if(PRIMERL_UNITY)
    set_property(GLOBAL APPEND PROPERTY PRIMERL_UNITY_TARGETS ${name})
    # It takes every file of a batch for a header.
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_compile_options(${name} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
endfunction()

# Where files are often added: a batch ends after one file in sixteen, by the hash of its path, or
# after twelve files. So a new file changes one batch, and the compiler's cache has the others.
function(primerl_unity_by_name name)
  set_target_properties(${name} PROPERTIES PRIMERL_BATCHES_BY_NAME ON)
endfunction()

# Whether `source` of `target` has compiler options of its own, is no C++, or must be alone.
function(primerl_compiles_alone result target source)
  set(${result} TRUE PARENT_SCOPE)
  if(NOT source MATCHES "^[^$<>]+\\.cc$")
    return()
  endif()
  foreach(property SKIP_UNITY_BUILD_INCLUSION COMPILE_OPTIONS COMPILE_DEFINITIONS GENERATED)
    get_source_file_property(value ${source} TARGET_DIRECTORY ${target} ${property})
    if(value)
      return()
    endif()
  endforeach()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# Called last: replaces the sources of each target of primerl_unity() by files that include them.
function(primerl_write_batches)
  get_property(targets GLOBAL PROPERTY PRIMERL_UNITY_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(sources ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    get_target_property(is_by_name ${target} PRIMERL_BATCHES_BY_NAME)
    set(compiled "")
    set(batches "")
    set(batch "")
    set(num_batches 0)
    foreach(source IN LISTS sources)
      if(NOT source MATCHES "[$]<")
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder})
      endif()
      primerl_compiles_alone(is_alone ${target} ${source})
      if(is_alone)
        list(APPEND compiled ${source})
        continue()
      endif()
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE path)
      if(batch STREQUAL "")
        set(batch ${num_batches})
        if(is_by_name)
          string(MAKE_C_IDENTIFIER ${path} batch)
        endif()
        math(EXPR num_batches "${num_batches} + 1")
        list(APPEND batches ${batch})
        set(text_${batch} "")
        set(count 0)
      endif()
      string(APPEND text_${batch} "#include \"${path}\"\n")
      math(EXPR count "${count} + 1")
      string(MD5 hash ${path})
      if(is_by_name)
        if(hash MATCHES "^6" OR count EQUAL 12)
          set(batch "")
        endif()
      elseif(count EQUAL 8)
        set(batch "")
      endif()
    endforeach()
    foreach(batch IN LISTS batches)
      set(file ${CMAKE_BINARY_DIR}/batches/${target}/${batch}.cc)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text_${batch}}" @ONLY)
      list(APPEND compiled ${file})
    endforeach()
    set_target_properties(${target} PROPERTIES SOURCES "${compiled}")
  endforeach()
endfunction()

# primerl_library(name SOURCES a.cc ... DEPENDS other libraries or packages): a static library.
function(primerl_library name)
  cmake_parse_arguments(LIBRARY "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${LIBRARY_SOURCES})
  target_link_libraries(${name} PUBLIC primerl_flags ${LIBRARY_DEPENDS})
  primerl_unity(${name})
endfunction()

# primerl_soak(name [CALLED test] FILTER tests VARIABLES NAME=VALUE ...): runs tests of a program
# again, with variables that ask for more seeds or shapes. They are one CTest test with the label
# `soak`, which `make soak` runs and `make test` does not.
function(primerl_soak name)
  if(PRIMERL_SANITIZE OR NOT TARGET ${name})
    return()
  endif()
  cmake_parse_arguments(SOAK "" "CALLED;FILTER" "VARIABLES" ${ARGN})
  if(NOT SOAK_CALLED)
    set(SOAK_CALLED ${name})
  endif()
  add_test(NAME soak_${SOAK_CALLED}
           COMMAND ${name} --gtest_brief=1 --gtest_filter=${SOAK_FILTER}
                   --gtest_output=xml:${CMAKE_BINARY_DIR}/gtest/soak_${SOAK_CALLED}.xml)
  set_tests_properties(soak_${SOAK_CALLED} PROPERTIES LABELS soak TIMEOUT 7200
                       ENVIRONMENT "${SOAK_VARIABLES}")
endfunction()

# primerl_test(name LABEL unit|sim|e2e|device SOURCES ... ALONE ... DEPENDS ...): one GoogleTest
# program, each TEST a CTest test of its own. Left out, and said so, where a library it needs is not
# built. ALONE are those of SOURCES with names that others have, too (primerl_unity). Suites that
# are run TOGETHER share what their SetUpTestSuite() makes: each is one CTest test, which reports as
# whole programs do. BESIDE_NO_RUN: the tests leave data of dead processes, which the start of any
# run removes. So no end-to-end test runs at the same time.
# Under a sanitizer the whole program is one CTest test, since there to start a program takes longer
# than most tests; it reports to gtest/NAME.xml, which scripts/judge_tests.py reads.
function(primerl_test name)
  cmake_parse_arguments(TEST "BESIDE_NO_RUN" "LABEL;TIMEOUT" "SOURCES;ALONE;TOGETHER;DEPENDS"
                        ${ARGN})
  if(NOT TEST_LABEL)
    set(TEST_LABEL unit)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  foreach(library ${TEST_DEPENDS})
    if(library MATCHES "^primerl_" AND NOT TARGET ${library})
      message(STATUS "test ${name} is left out: ${library} is not built here")
      return()
    endif()
  endforeach()
  add_executable(${name} ${TEST_SOURCES})
  if(TEST_ALONE)
    set_source_files_properties(${TEST_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  primerl_unity(${name})
  if(CMAKE_BUILD_TYPE STREQUAL RelWithDebInfo)  # what tests say runs once: -O2 would cost more
    target_compile_options(${name} PRIVATE -O1)
  endif()
  target_link_libraries(${name} PRIVATE primerl_flags ${TEST_DEPENDS} GTest::gmock
                        GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE PRIMERL_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                             PRIMERL_BINARY_DIR="${CMAKE_BINARY_DIR}")
  # A device is one GPU, so its tests run alone. End to end means whole runs of several processes:
  # one at a time, but beside other tests, because most of them wait for seconds. They begin first
  # (COST), so that the other cores are not idle at the end.
  set(schedule "")
  if(TEST_LABEL STREQUAL device)
    set(schedule RUN_SERIAL TRUE)
  elseif(TEST_LABEL STREQUAL e2e)
    set(schedule RESOURCE_LOCK whole_runs COST 1000)
  elseif(TEST_BESIDE_NO_RUN)
    set(schedule RESOURCE_LOCK whole_runs)
  endif()
  if(PRIMERL_SANITIZE)
    add_test(NAME ${name} COMMAND ${name} --gtest_brief=1
             --gtest_output=xml:${CMAKE_BINARY_DIR}/gtest/${name}.xml)
    # A tenth of the seeds: they look for other orders of messages, not for other memory.
    set(variables "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/tsan.supp"
        "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/lsan.supp"
        PRIMERL_SIM_SEEDS=100 PRIMERL_REPLAY_SEEDS=100 PRIMERL_RECOVERY_SEEDS=16)
    set_tests_properties(${name} PROPERTIES LABELS ${TEST_LABEL} TIMEOUT 1800 ${schedule}
                                            ENVIRONMENT "${variables}")
  else()
    set(filter "")
    foreach(suite ${TEST_TOGETHER})
      add_test(NAME ${suite} COMMAND ${name} --gtest_brief=1 --gtest_filter=${suite}.*
               --gtest_output=xml:${CMAKE_BINARY_DIR}/gtest/${suite}.xml)
      set_tests_properties(${suite} PROPERTIES LABELS ${TEST_LABEL} TIMEOUT ${TEST_TIMEOUT}
                                               ${schedule})
      string(APPEND filter ":${suite}.*")
    endforeach()
    if(filter)
      string(REGEX REPLACE "^:" "TEST_FILTER;-" filter "${filter}")
    endif()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 ${filter}
                         PROPERTIES LABELS ${TEST_LABEL} TIMEOUT ${TEST_TIMEOUT} ${schedule})
  endif()
endfunction()
