# The Python that the tests, and libtorch's discovery, use: PRIMERL_PYTHON.
if(NOT PRIMERL_PYTHON)
  if(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
    set(PRIMERL_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  else()
    # Into a name of its own: CMake 4 takes an empty PRIMERL_PYTHON of the cache for an answer.
    find_program(PRIMERL_PYTHON3 python3)
    if(NOT PRIMERL_PYTHON3)
      primerl_missing("python3" python3)
    endif()
    set(PRIMERL_PYTHON ${PRIMERL_PYTHON3})
  endif()
endif()
