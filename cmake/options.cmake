# SPDX-License-Identifier: Apache-2.0
# Choices of a build, and the warnings and sanitizers that apply to all of it.

option(CLMGK_BUILD_TESTS "build the tests (needs cmocka); the presets turn it on" OFF)
set(CLMGK_WITH_CLBLAST ON CACHE STRING "matrix products by CLBlast: ON, OFF or AUTO (where it is found)")
set(CLMGK_WITH_OPENBLAS AUTO CACHE STRING "matrix products by OpenBLAS on the host's CPU: ON, OFF or AUTO")
set(CLMGK_WITH_ONEDNN AUTO CACHE STRING "matrix products by oneDNN 2 on the host's CPU: ON, OFF or AUTO")
set(CLMGK_WITH_MPI AUTO CACHE STRING "ranks of MPI in libclmgk-dist: ON, OFF or AUTO")
set(CLMGK_STATIC_LIBRARY "" CACHE FILEPATH "a libclmgk.a of these sources, for the Python package in place of a build")
option(CLMGK_WERROR "warnings are errors" OFF)
set(CLMGK_SANITIZE "" CACHE STRING "sanitizers: empty, \"address,undefined\" or \"thread\"")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla)
add_compile_definitions(_POSIX_C_SOURCE=200809L CL_TARGET_OPENCL_VERSION=120)
if(CLMGK_WERROR)
  add_compile_options(-Werror)
endif()
if(CLMGK_SANITIZE)
  add_compile_options(-fsanitize=${CLMGK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${CLMGK_SANITIZE})
endif()
