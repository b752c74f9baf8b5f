# SPDX-License-Identifier: Apache-2.0
# clmgk_layer(FOLDER SEES FOLDERS...): the target clmgk_<FOLDER> of the files in src/FOLDER. They can include only headers of
# their own folder and of FOLDERS, by their paths below src (drawing: docs/architecture.md). The compiler searches a folder of
# links to exactly these, so that an include against the drawing does not compile.
function(clmgk_layer folder)
  cmake_parse_arguments(PARSE_ARGV 1 layer "" "" SEES)
  string(REPLACE "/" "_" name ${folder})
  set(seen ${CMAKE_CURRENT_BINARY_DIR}/seen/${name})
  file(REMOVE_RECURSE ${seen})
  foreach(below IN ITEMS ${folder} LISTS layer_SEES)
    get_filename_component(parent ${seen}/${below} DIRECTORY)
    file(MAKE_DIRECTORY ${parent})
    file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${below} ${seen}/${below} SYMBOLIC)
  endforeach()

  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.c)
  add_library(clmgk_${name} OBJECT ${sources})
  set_target_properties(clmgk_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(clmgk_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${seen} ${PROJECT_SOURCE_DIR}/cl
                                                   ${CMAKE_CURRENT_BINARY_DIR}/generated ${XXHASH_INCLUDE_DIR})
  target_link_libraries(clmgk_${name} PRIVATE OpenCL::OpenCL Threads::Threads)
endfunction()
