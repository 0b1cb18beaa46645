# The Python that the tests, and libtorch's discovery, use: PRIMERL_PYTHON.
if(NOT PRIMERL_PYTHON)
  if(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
    set(PRIMERL_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  else()
    find_program(PRIMERL_PYTHON python3 REQUIRED)
  endif()
endif()
