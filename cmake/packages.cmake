# Finding what others made. What is missing is said by the name that apt knows.

function(primerl_missing what apt)
  message(FATAL_ERROR "${what} is missing: run `make setup`, or `apt-get install ${apt}`")
endfunction()

# primerl_find_package(name apt-package ...): find_package, further arguments passed on.
macro(primerl_find_package name apt)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    primerl_missing("package ${name}" ${apt})
  endif()
endmacro()

# primerl_find_library(VARIABLE library apt-package)
macro(primerl_find_library variable library apt)
  find_library(${variable} ${library})
  if(NOT ${variable})
    primerl_missing("library ${library}" ${apt})
  endif()
endmacro()

# primerl_find_header(VARIABLE header apt-package): the folder the header's path starts from.
macro(primerl_find_header variable header apt)
  find_path(${variable} ${header})
  if(NOT ${variable})
    primerl_missing("header ${header}" ${apt})
  endif()
endmacro()
