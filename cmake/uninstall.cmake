# SPDX-License-Identifier: Apache-2.0
# Removes the files that the last `cmake --install` of this build wrote (MANIFEST), and folders of its own that it leaves
# empty.
if(NOT EXISTS ${MANIFEST})
  message(FATAL_ERROR "${MANIFEST} does not exist: nothing was installed from this build")
endif()
file(STRINGS ${MANIFEST} files)
foreach(file ${files})
  set(path $ENV{DESTDIR}${file})
  if(EXISTS ${path} OR IS_SYMLINK ${path})
    message(STATUS "Removing ${path}")
    file(REMOVE ${path})
  endif()
  get_filename_component(folder ${path} DIRECTORY)
  set(status 0)
  while(folder MATCHES clmgk AND status EQUAL 0) # never a folder that others share; rmdir leaves one that is not empty
    execute_process(COMMAND rmdir ${folder} RESULT_VARIABLE status ERROR_QUIET)
    get_filename_component(folder ${folder} DIRECTORY)
  endwhile()
endforeach()
