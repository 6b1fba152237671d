# Decides whether the CUDA backend is built: NORM_HAVE_CUDA, the language, the architectures.

set(NORM_HAVE_CUDA FALSE)
if(NOT NORM_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      # Turing to Blackwell as machine code, and PTX of the newest for later cards.
      set(CMAKE_CUDA_ARCHITECTURES "75-real;80-real;86-real;89-real;90-real;100-real;120")
    endif()
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      # CMake 3.25 does not know that nvcc takes it since 12.0.
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    # One runtime in a process, which knows the kernels of every library in it.
    if(NORM_STATIC_CUDA)
      set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
      # FindCUDAToolkit leaves a target alone that is there: whoever links the runtime gets the archive.
      add_library(CUDA::cudart INTERFACE IMPORTED)
      target_link_libraries(CUDA::cudart INTERFACE CUDA::cudart_static)
    else()
      set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    endif()
    # row_norm_backward_f32.cu for sm_90: 144 KB of object file instead of 629 KB, same compile time (nvcc 13.0, 2026-11-29).
    add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
    # a * b + c is fused only where the source says fma: instances of one kernel must round alike.
    add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
    if(CMAKE_VERSION VERSION_LESS 3.26 AND NOT TARGET CUDA::nvToolsExt)
      # CMake 3.25 marks it as deprecated without asking whether it is there, and CUDA 13 has it no more.
      add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(NORM_HAVE_CUDA TRUE)
  elseif(NORM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "NORM_CUDA=ON, but no CUDA compiler was found (put nvcc on PATH or set CMAKE_CUDA_COMPILER)")
  endif()
endif()
# For the programs to tell, with spaces: a list would end a definition at its first semicolon. Empty without CUDA.
set(NORM_CUDA_ARCHITECTURE_NAMES "")
if(NORM_HAVE_CUDA)
  string(REPLACE ";" " " NORM_CUDA_ARCHITECTURE_NAMES "${CMAKE_CUDA_ARCHITECTURES}")
  message(STATUS "normd: CUDA backend on, nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "normd: CUDA backend off (CPU only)")
endif()
