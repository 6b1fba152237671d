#!/usr/bin/env python3
"""A build for several GPUs, as images are: CI builds for one. Usage: architectures_test.py ROOT NORMD

Kernels take minutes for each; what is built here is what knows the list.
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

import deploy_case
from deploy_case import ROOT

LIST = "80-real;90-real;120"
OBJECTS = ("server/CMakeFiles/normd.dir/main.cc.o", "client/normctl/CMakeFiles/norm_normctl_commands.dir/doctor.cc.o")


class SeveralArchitectures(unittest.TestCase):
    def test_programs_are_compiled_with_the_list(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "NORM_CUDA_ARCHITECTURES": LIST, "NORM_CUDA": "ON"}
            built = subprocess.run([ROOT / "deploy/build.sh", folder, "-DNORM_BUILD_TESTS=OFF", "--", *OBJECTS], env=environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(built.returncode, 0, built.stdout[-4000:])
            self.assertIn("architectures " + LIST, built.stdout)
            for one in OBJECTS:
                # Nothing links them here: the text lies in the object as the program will tell it.
                self.assertIn(LIST.replace(";", " ").encode(), (pathlib.Path(folder) / one).read_bytes())


if __name__ == "__main__":
    deploy_case.main()
