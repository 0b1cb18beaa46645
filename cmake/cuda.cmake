# Whether kernels/cuda/ops is built, and with what. AUTO asks for nvcc only where
# the PyTorch that was found is a CUDA build: without one the library has no caller. Where no nvcc
# works, or PRIMERL_CUDA_OPS is ATEN, engines and learners on a device use PyTorch's own operations
# (kernels/cuda/aten).
set(cuda_wanted ${PRIMERL_CUDA})
if(NOT PRIMERL_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "PRIMERL_CUDA is '${PRIMERL_CUDA}': AUTO, ON or OFF")
endif()
if(NOT PRIMERL_CUDA_OPS MATCHES "^(AUTO|ATEN)$")
  message(FATAL_ERROR "PRIMERL_CUDA_OPS is '${PRIMERL_CUDA_OPS}': AUTO or ATEN")
endif()
set(torch_is_cuda OFF)
if(PRIMERL_TORCH)
  get_directory_property(torch_root DIRECTORY kernels DEFINITION TORCH_ROOT)
  if(EXISTS ${torch_root}/lib/libtorch_cuda.so)
    set(torch_is_cuda ON)
  endif()
endif()
if(PRIMERL_CUDA STREQUAL AUTO)
  set(cuda_wanted ${torch_is_cuda})
endif()

# cuda_runtime: headers and the shared library of the CUDA runtime, as PyTorch's wheels bring them
# or a toolkit does. CUDA 13 has some of the headers in a wheel that comes with nvcc alone.
function(find_cuda_runtime found)
  file(GLOB wheels ${torch_root}/../nvidia/cu* ${torch_root}/../nvidia/cuda_runtime
       ${torch_root}/../nvidia/cuda_nvcc ${torch_root}/../nvidia/cuda_crt)
  list(TRANSFORM wheels APPEND /include OUTPUT_VARIABLE folders)
  find_path(CUDA_RUNTIME_INCLUDE cuda_runtime_api.h HINTS ${folders} /usr/local/cuda/include)
  find_path(CUDA_CRT_INCLUDE crt/host_defines.h HINTS ${folders} /usr/local/cuda/include)
  set(names "")
  foreach(wheel ${wheels})
    file(GLOB more ${wheel}/lib/libcudart.so.*)
    list(APPEND names ${more})
  endforeach()
  if(names)
    list(GET names 0 library)
  else()
    find_library(CUDA_RUNTIME_LIBRARY cudart HINTS /usr/local/cuda/lib64)
    set(library ${CUDA_RUNTIME_LIBRARY})
  endif()
  set(${found} OFF PARENT_SCOPE)
  if(CUDA_RUNTIME_INCLUDE AND CUDA_CRT_INCLUDE AND library)
    add_library(cuda_runtime INTERFACE)
    target_include_directories(cuda_runtime SYSTEM INTERFACE ${CUDA_RUNTIME_INCLUDE}
                               ${CUDA_CRT_INCLUDE})
    target_link_libraries(cuda_runtime INTERFACE ${library})
    set(${found} ON PARENT_SCOPE)
  endif()
endfunction()

# Whether engines and learners on CUDA devices are built: the operations, and a libtorch for the
# rest. And whether those by ATen are made for devices, not for the host.
set(PRIMERL_CUDA_ENGINE OFF)
set(PRIMERL_ATEN_ON_CUDA OFF)
if(cuda_wanted)
  # Real code for what is common; PTX of the last, which later devices compile for themselves.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  if(PRIMERL_CUDA_OPS STREQUAL AUTO)
    include(CheckLanguage)
    check_language(CUDA)
  endif()
  if(PRIMERL_CUDA_OPS STREQUAL AUTO AND CMAKE_CUDA_COMPILER)
    if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    enable_language(CUDA)
    # The runtime comes by its path, with the library that calls it.
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
    find_package(CUDAToolkit QUIET REQUIRED)
    add_subdirectory(kernels/cuda/ops)
    set(PRIMERL_CUDA_ENGINE ${torch_is_cuda})
    set(cuda_runtime_target CUDA::cudart)
    set(cuda_ops_target primerl_ops_cuda)
  elseif(torch_is_cuda)
    find_cuda_runtime(PRIMERL_CUDA_ENGINE)
    set(cuda_runtime_target cuda_runtime)
    set(cuda_ops_target primerl_ops_aten)
    if(PRIMERL_CUDA_ENGINE)
      message(STATUS "CUDA devices compute with PyTorch's own operations, which are slower: there "
                     "is no nvcc, or PRIMERL_CUDA_OPS is ATEN")
    else()
      message(STATUS "CUDA devices are left out: PyTorch is a CUDA build, but there is neither an "
                     "nvcc nor the CUDA runtime's headers (pip install nvidia-cuda-crt)")
    endif()
  elseif(PRIMERL_CUDA STREQUAL ON)
    message(FATAL_ERROR "PRIMERL_CUDA is ON, but no nvcc works: put it on PATH, or give "
                        "-DCMAKE_CUDA_COMPILER=path")
  endif()
  if(PRIMERL_CUDA_ENGINE)
    set(PRIMERL_ATEN_ON_CUDA ON)
    target_compile_definitions(primerl_ops_aten PRIVATE PRIMERL_ATEN_ON_CUDA)
    target_link_libraries(primerl_ops_aten PUBLIC ${cuda_runtime_target})
    add_subdirectory(kernels/cuda)
  endif()
endif()

# primerl_with_aten(name): a program of primerl_torch that uses the operations by ATen, whatever
# others use. All of them come first, so that none is looked for among the kernels.
function(primerl_with_aten name)
  target_link_options(${name} PRIVATE
    "LINKER:--whole-archive,$<TARGET_FILE:primerl_ops_aten>,--no-whole-archive")
  add_dependencies(${name} primerl_ops_aten)
endfunction()
