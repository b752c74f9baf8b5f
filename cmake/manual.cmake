# SPDX-License-Identifier: Apache-2.0
# Writes MANUAL, the manual page of PROGRAM: its --help, with the lines as they are.
get_filename_component(name ${MANUAL} NAME_WE)
execute_process(COMMAND ${PROGRAM} --help OUTPUT_VARIABLE help RESULT_VARIABLE status)
execute_process(COMMAND ${PROGRAM} --version OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} --help: status ${status}")
endif()

# The first phrase after the usage.
string(REGEX REPLACE "(^|\n)(Usage:|  +clmgk)[^\n]*" "" description "${help}")
string(REGEX MATCH "[A-Z][^\n.,:]*" summary "${description}")
foreach(text help summary)
  string(REPLACE "\\" "\\\\" ${text} "${${text}}")
  string(REPLACE "-" "\\-" ${text} "${${text}}")
  string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" ${text} "${${text}}")
endforeach()
string(TOUPPER ${name} title)
file(WRITE ${MANUAL} ".TH ${title} 1 \"\" \"${version}\"\n.SH NAME\n${name} \\- ${summary}\n.SH DESCRIPTION\n.nf\n${help}.fi\n")
