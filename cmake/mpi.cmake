# SPDX-License-Identifier: Apache-2.0
# MPI, for one of libclmgk-dist's transports. FindMPI compiles, which a sanitizer's build may not be able to run.
if(CLMGK_WITH_MPI STREQUAL "ON")
  find_package(MPI REQUIRED COMPONENTS C)
elseif(CLMGK_WITH_MPI STREQUAL "AUTO" AND NOT CLMGK_SANITIZE)
  find_package(MPI QUIET COMPONENTS C)
endif()
