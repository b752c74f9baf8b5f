# SPDX-License-Identifier: Apache-2.0
"""clmgk-info: listing, self-test, program cache."""
import json
import unittest

from program_test import QUICK, ProgramTest

DEVICE_KEYS = {
    "selector": str,
    "default": bool,
    "platform": str,
    "name": str,
    "vendor": str,
    "driver": str,
    "class": str,
    "engine": str,
    "matrix_units": type(None),
    "tuned": bool,
    "compute_units": int,
    "clock_mhz": int,
    "native_float_lanes": int,
    "global_memory_bytes": int,
    "local_memory_bytes": int,
    "max_allocation_bytes": int,
    "max_work_group": int,
}


class InfoTest(ProgramTest):
    program = "clmgk-info"

    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"

    def environment(self, **changes):
        return {**QUICK, "CLMGK_CACHE_DIR": str(self.cache), **changes}

    def info(self, *args, **changes):
        return json.loads(self.accept("--json", *args, env=self.environment(**changes)).stdout)


class Listing(InfoTest):
    def test_json(self):
        found = self.info()
        self.assertEqual(list(found), ["clmgk", "devices", "cache"])
        self.assertGreater(len(found["devices"]), 0)
        for device in found["devices"]:
            self.assertEqual(set(device), set(DEVICE_KEYS))
            for key, kind in DEVICE_KEYS.items():
                self.assertIsInstance(device[key], kind, key)
        self.assertEqual(sum(device["default"] for device in found["devices"]), 1)
        self.assertEqual(found["cache"], {"path": str(self.cache / "programs"), "entries": 0, "bytes": 0})

    def test_text(self):
        device = self.info()["devices"][0]
        text = self.accept(env=self.environment()).stdout
        for word in (device["selector"], device["name"], device["driver"], f"engine {device['engine']}", "program cache"):
            self.assertIn(word, text)

    def test_one_device(self):
        device = self.info()["devices"][-1]
        for selector in (device["selector"], device["name"].upper()):
            found = self.info("--device", selector)
            self.assertEqual([one["selector"] for one in found["devices"]], [device["selector"]])

    def test_no_files(self):
        self.assertEqual(self.info(CLMGK_CACHE_DIR="")["cache"], {"path": None, "entries": 0, "bytes": 0})
        self.assertIn("no files are used", self.accept(env=self.environment(CLMGK_CACHE_DIR="")).stdout)

    def test_no_device(self):
        self.refuse(3, env=self.environment(OCL_ICD_VENDORS=str(self.folder)), words=["no OpenCL device"])
        self.refuse(3, "--device", "no such device", words=["no such device"])

    def test_bad_usage(self):
        self.refuse(2, "--cache-clear", "--selftest", words=["--cache-clear", "--selftest"])
        self.refuse(2, "--cache-clear", "--device", "0:0", words=["--cache-clear", "--device"])
        self.refuse(2, "--nothing", words=["--nothing"])
        self.refuse(2, "word", words=["word"])


class SelfTestAndCache(InfoTest):
    def test_selftest_then_clear(self):
        device = self.info()["devices"][0]["selector"]
        text = self.accept("--selftest", "--device", device, env=self.environment()).stdout
        for variant in ("softmax", "gaussian", "mgk", "smgk"):
            self.assertRegex(text, rf"(?m)^    {variant} +(lane|simt) +right: error ")
        found = self.info("--selftest", "--device", device)
        results = found["devices"][0]["selftest"]
        self.assertEqual(len(results), 8)
        for result in results:
            self.assertTrue(result["ok"], result)
            self.assertLessEqual(result["error"], result["bound"])
        self.assertGreater(found["cache"]["entries"], 0)
        self.assertGreater(found["cache"]["bytes"], 0)

        (self.cache / "tuning").mkdir()
        (self.cache / "tuning" / "kept").write_text("kept")
        removed = self.info("--cache-clear")["removed"]
        self.assertEqual(removed, found["cache"])
        self.assertEqual(self.info()["cache"]["entries"], 0)
        self.assertEqual((self.cache / "tuning" / "kept").read_text(), "kept")
        self.assertIn("removed 0 programs", self.accept("--cache-clear", env=self.environment()).stdout)


if __name__ == "__main__":
    unittest.main()
