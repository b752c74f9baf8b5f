# SPDX-License-Identifier: Apache-2.0
"""The build backend of the repository's top folder: scikit-build-core, run in this folder."""
import os
import pathlib

os.chdir(pathlib.Path(__file__).parent)

from scikit_build_core.build import *  # noqa: E402,F403
