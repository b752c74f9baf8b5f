# SPDX-License-Identifier: Apache-2.0
# OpenBLAS with the routines of LAPACK. Only clmgk-analyze is linked with it, not the library.
#   CLMGK_LAPACK_LIBRARY   empty: no clmgk-analyze
set(CLMGK_LAPACK_LIBRARY)
if(NOT CLMGK_WITH_ANALYZE MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "CLMGK_WITH_ANALYZE is \"${CLMGK_WITH_ANALYZE}\": expected ON, OFF or AUTO")
endif()
if(NOT CLMGK_WITH_ANALYZE STREQUAL "OFF")
  include(CheckLibraryExists)
  find_library(LAPACK_OPENBLAS_LIBRARY openblas)
  mark_as_advanced(LAPACK_OPENBLAS_LIBRARY)
  if(LAPACK_OPENBLAS_LIBRARY)
    check_library_exists(${LAPACK_OPENBLAS_LIBRARY} dsyevd_2stage_ "" CLMGK_LAPACK_FOUND)
  endif()
  if(CLMGK_LAPACK_FOUND)
    set(CLMGK_LAPACK_LIBRARY ${LAPACK_OPENBLAS_LIBRARY})
  elseif(CLMGK_WITH_ANALYZE STREQUAL "ON")
    message(FATAL_ERROR "clmgk-analyze needs OpenBLAS with LAPACK (Debian: libopenblas-dev); -DCLMGK_WITH_ANALYZE=OFF "
                        "builds all but this program")
  endif()
endif()
