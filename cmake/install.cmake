# SPDX-License-Identifier: Apache-2.0
# make install: headers, both libraries, the programs, the CMake package clmgk and the pkg-config file clmgk.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/clmgk DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS clmgk_shared clmgk_static EXPORT clmgkTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# The programs install themselves; they find the shared library beside them.
file(RELATIVE_PATH libdir_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
foreach(program clmgk-run clmgk-analyze clmgk-info clmgk-bench clmgk-tune)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH $ORIGIN/${libdir_from_bin})
  endif()
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/clmgk)
install(EXPORT clmgkTargets NAMESPACE clmgk:: DESTINATION ${package_dir})
configure_package_config_file(cmake/clmgkConfig.cmake.in ${PROJECT_BINARY_DIR}/clmgkConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a new minor version may change the interface; the SONAME includes it.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/clmgkConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/clmgkConfig.cmake ${PROJECT_BINARY_DIR}/clmgkConfigVersion.cmake
        DESTINATION ${package_dir})

# Paths relative to the .pc file: the tree may be installed to, or moved to, any prefix.
file(RELATIVE_PATH CLMGK_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH CLMGK_PC_INCLUDEDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
file(RELATIVE_PATH CLMGK_PC_LIBDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
list(TRANSFORM CMAKE_DL_LIBS PREPEND " -l" OUTPUT_VARIABLE CLMGK_PC_DL)
configure_file(cmake/clmgk.pc.in ${PROJECT_BINARY_DIR}/clmgk.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/clmgk.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
