# libtorch = the PyTorch wheel. Its own TorchConfig.cmake drags CUDA detection in, so the imported
# target is made here: headers, libraries, and the symbols that must not be dropped by the linker.
execute_process(
  COMMAND ${PRIMERL_PYTHON} -c
          "import torch, os; print(os.path.dirname(torch.__file__)); print(torch.__version__)"
  OUTPUT_VARIABLE torch_facts OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE torch_fault ERROR_VARIABLE torch_words)
if(torch_fault)
  message(FATAL_ERROR "no PyTorch in ${PRIMERL_PYTHON}: run `make setup`, or give "
                      "-DPRIMERL_PYTHON=path\n${torch_words}")
endif()
string(REPLACE "\n" ";" torch_facts "${torch_facts}")
list(GET torch_facts 0 TORCH_ROOT)
list(GET torch_facts 1 TORCH_VERSION)
if(TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "PyTorch ${TORCH_VERSION} is too old: 2.11 or newer is needed")
endif()
message(STATUS "libtorch ${TORCH_VERSION} at ${TORCH_ROOT}")
add_library(libtorch INTERFACE IMPORTED)
# After the system's headers: the wheel brings an fmt and a nlohmann of its own, without libraries.
target_compile_options(libtorch INTERFACE "SHELL:-idirafter ${TORCH_ROOT}/include")
# at::parallel_for is a loop on one thread where OpenMP is off. The runtime is the wheel's own: a
# second one would have threads of its own.
file(GLOB torch_openmp ${TORCH_ROOT}/lib/libgomp*.so* ${TORCH_ROOT}/../torch.libs/libgomp*.so*)
if(NOT torch_openmp)
  message(WARNING "the PyTorch at ${TORCH_ROOT} brings no libgomp: the compiler's is used, and two "
                  "runtimes on the same cores slow each other down")
  set(torch_openmp -fopenmp)
endif()
target_compile_options(libtorch INTERFACE -fopenmp)
target_link_libraries(libtorch INTERFACE ${torch_openmp})
target_link_directories(libtorch INTERFACE ${TORCH_ROOT}/lib)
target_link_options(libtorch INTERFACE -Wl,-rpath,${TORCH_ROOT}/lib)
# The C++ library first: the wheel's libraries export an older copy of std::filesystem of their own,
# and what is found first serves the whole program. With theirs, remove_all() may call a null
# pointer (PyTorch 2.11 for CUDA 13 on Ubuntu 24.04).
target_link_libraries(libtorch INTERFACE
                      -Wl,--no-as-needed stdc++ torch torch_cpu c10 -Wl,--as-needed
                      Threads::Threads)
if(EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
  target_compile_definitions(libtorch INTERFACE PRIMERL_LIBTORCH_CUDA)
  target_link_libraries(libtorch INTERFACE
                        -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed)
endif()
