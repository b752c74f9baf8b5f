# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, both libraries, the programs with manual pages and completion, the documents and examples, the
# CMake package clmgk and the pkg-config files clmgk, clmgk-static and clmgk-dist. The target `uninstall` removes what was installed.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/clmgk DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS clmgk_shared clmgk_static clmgk_dist_shared clmgk_dist_static EXPORT clmgkTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# The programs install themselves; they find the shared library beside them.
file(RELATIVE_PATH libdir_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
foreach(program clmgk-run clmgk-info clmgk-bench clmgk-tune)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH $ORIGIN/${libdir_from_bin})
  endif()
endforeach()
set_target_properties(clmgk_dist_shared PROPERTIES INSTALL_RPATH $ORIGIN)
file(RELATIVE_PATH libdir_from_libexec ${CMAKE_INSTALL_FULL_LIBEXECDIR}/clmgk ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(clmgk-analyze-rows PROPERTIES INSTALL_RPATH $ORIGIN/${libdir_from_libexec})

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
list(TRANSFORM CMAKE_DL_LIBS PREPEND " -l" OUTPUT_VARIABLE dl)
set(CLMGK_PC_NAME libclmgk)
set(CLMGK_PC_LIBS "-L\${libdir} -lclmgk")
set(CLMGK_PC_PRIVATE "-pthread -lm${dl}")
configure_file(cmake/clmgk.pc.in ${PROJECT_BINARY_DIR}/clmgk.pc @ONLY)
# -lclmgk is the shared library where there are both.
set(CLMGK_PC_NAME "libclmgk, static")
set(CLMGK_PC_LIBS "\${libdir}/libclmgk.a -pthread -lm${dl}")
set(CLMGK_PC_PRIVATE)
configure_file(cmake/clmgk.pc.in ${PROJECT_BINARY_DIR}/clmgk-static.pc @ONLY)
set(CLMGK_PC_NAME libclmgk-dist)
set(CLMGK_PC_LIBS "-L\${libdir} -lclmgk-dist -lclmgk")
set(CLMGK_PC_PRIVATE "-pthread -lm${dl}")
configure_file(cmake/clmgk.pc.in ${PROJECT_BINARY_DIR}/clmgk-dist.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/clmgk.pc ${PROJECT_BINARY_DIR}/clmgk-static.pc ${PROJECT_BINARY_DIR}/clmgk-dist.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(FILES benchmarks/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/benchmarks)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
        FILES_MATCHING REGEX "\\.(c|cpp|h|hpp|md)$" PATTERN Makefile PATTERN CMakeLists.txt)
# The documents link to these by their places in the source tree: check_install.sh follows every link.
install(DIRECTORY include/clmgk DESTINATION ${CMAKE_INSTALL_DOCDIR}/include FILES_MATCHING PATTERN "*.h")
install(DIRECTORY python/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}/python FILES_MATCHING PATTERN "*.py")
install(FILES tests/models/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/tests/models)
install(FILES tests/simulator/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/tests/simulator)

# Manual pages are the programs' --help, so a build for another machine has none. clmgk-analyze-rows prints clmgk-analyze's.
set(program_names clmgk-run clmgk-analyze clmgk-info clmgk-bench clmgk-tune)
foreach(program ${program_names})
  set(target ${program})
  if(program STREQUAL clmgk-analyze)
    set(target clmgk-analyze-rows)
  elseif(NOT TARGET ${program})
    continue()
  endif()
  install(FILES cmake/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${program})
  if(NOT CMAKE_CROSSCOMPILING AND NOT CLMGK_SANITIZE)
    set(manual ${PROJECT_BINARY_DIR}/man/${program}.1)
    add_custom_command(OUTPUT ${manual}
                       COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${target}> -DMANUAL=${manual}
                               -P ${PROJECT_SOURCE_DIR}/cmake/manual.cmake
                       DEPENDS ${target} cmake/manual.cmake VERBATIM)
    list(APPEND manuals ${manual})
  endif()
endforeach()
if(manuals)
  add_custom_target(manuals ALL DEPENDS ${manuals})
  install(FILES ${manuals} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()

add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt
                                    -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)

# cpack: a Debian package. dpkg finds the libraries that it needs; an OpenCL implementation is the user's choice.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libclmgk)
set(CPACK_PACKAGE_CONTACT "the libclmgk developers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON) # with it the package runs ldconfig
set(CPACK_DEBIAN_PACKAGE_DEPENDS "ocl-icd-opencl-dev | opencl-dev")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "pocl-opencl-icd | opencl-icd, libclblast1, gnuplot-nox | gnuplot, python3-numpy, python3-matplotlib")
install(FILES cmake/debian-copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libclmgk RENAME copyright
        COMPONENT debian EXCLUDE_FROM_ALL)
# Components by their names, of which all but Debian's file is the first: so cpack leaves install_manifest.txt as the last
# `cmake --install` wrote it, for the target uninstall.
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};${PROJECT_NAME};Unspecified;/"
                                 "${CMAKE_BINARY_DIR};${PROJECT_NAME};debian;/")
include(CPack)
