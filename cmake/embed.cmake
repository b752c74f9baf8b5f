# SPDX-License-Identifier: Apache-2.0
# clmgk_embed(OUTPUT SYMBOL FOLDER FILES...): writes the C file OUTPUT with a table SYMBOL of mgk_embedded_file, which has the
# texts of FILES by their paths below FOLDER. embed_files.cmake makes it at build time, again whenever a file changes.
set(CLMGK_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/embed_files.cmake)
function(clmgk_embed output symbol folder)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D OUTPUT=${output} -D SYMBOL=${symbol} -D FOLDER=${folder} "-D FILES=${ARGN}" -P ${CLMGK_EMBED_SCRIPT}
    DEPENDS ${ARGN} ${CLMGK_EMBED_SCRIPT}
    COMMENT "Embedding kernels"
    VERBATIM)
endfunction()
