#!/usr/bin/env python3
"""The status page in headless Chromium, over a real normd under load.

Usage: status_page_test.py NORMD NORMCTL FOLDER [--picture]
  FOLDER     for screenshots
  --picture  instead of testing, draws FOLDER/status_page.png after a minute of load (README.md shows it)
Exit status 77 when Chromium, its driver or Selenium is not here (deploy/install-deps.sh --test installs them).
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

try:
    import grpc
    import matplotlib.image
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.wait import WebDriverWait
except ImportError as missing:
    print(f"status_page_test.py: SKIPPED: {missing}")
    sys.exit(77)

NORMD, NORMCTL, FOLDER = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    print("status_page_test.py: SKIPPED: no chromium or no chromedriver")
    sys.exit(77)

TOKEN = "an-entirely-secret-word"
HOSTILE = '/<script>document.title="owned"</script><img src=x onerror=document.title="owned">'
PATIENCE = 60  # seconds; a page that is right takes two


class Normd:
    def __init__(self, folder, metrics="127.0.0.1:0", *flags):
        self.folder = pathlib.Path(folder)
        self.tokens = self.folder / "tokens"
        self.tokens.write_text(TOKEN + "\n")
        self.tokens.chmod(0o600)
        ports = self.folder / "ports"
        ports.unlink(missing_ok=True)
        self.process = subprocess.Popen([NORMD, "--device=cpu", "--listen=127.0.0.1:0", f"--metrics_listen={metrics}", "--log_level=error",
                                         f"--data_tokens={self.tokens}", f"--admin_tokens={self.tokens}", f"--port_file={ports}", *flags], stdout=subprocess.DEVNULL)
        while not ports.exists():
            if self.process.poll() is not None:
                raise RuntimeError("normd ended before it was ready")
            time.sleep(0.01)
        self.address = dict(line.split("=", 1) for line in ports.read_text().split())

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait()

    def load(self, seconds, *options):
        return subprocess.Popen([NORMCTL, "bench", "--server", self.address["grpc"], "--token-file", self.tokens, "--shape=64x1024",
                                 "--dtype=f32", "--connections=2", "--in-flight=2", "--warm-up=0", f"--duration={seconds}", "--json=-",
                                 *options], stdout=subprocess.DEVNULL)

    def fail(self, method, token):
        """One call that is refused, of an empty message; the code of its status."""
        metadata = [("authorization", f"Bearer {token}")] if token else []
        with grpc.insecure_channel(self.address["grpc"]) as channel:
            try:
                channel.unary_unary(method)(b"", metadata=metadata, timeout=PATIENCE)
            except grpc.RpcError as error:
                return error.code()
        return None

    def status(self):
        with urllib.request.urlopen(f"http://{self.address['metrics']}/status.json", timeout=PATIENCE) as reply:
            return reply.read().decode()


def open_browser(width, height):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # Its sandbox wants no root and what containers do not give; it opens nothing but this server here.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                     f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(DRIVER), options=options)


def colours(picture, wanted):
    """How many pixels have about that colour, and how many colours there are."""
    pixels = (matplotlib.image.imread(picture)[:, :, :3] * 255).round().astype(int)
    near = (abs(pixels - list(wanted)).max(axis=2) <= 8).sum()
    return int(near), len({tuple(pixel) for row in pixels[::4] for pixel in row[::4]})


class StatusPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = open_browser(1180, 900)
        cls.addClassCleanup(cls.browser.quit)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.start()

    def start(self, *arguments):
        self.normd = Normd(self.folder, *arguments)
        self.addCleanup(self.normd.end, signal.SIGKILL)

    def open(self):
        self.browser.get_log("browser")
        self.browser.get(f"http://{self.normd.address['metrics']}/")

    def text(self, element):
        return self.browser.execute_script("return document.getElementById(arguments[0]).innerText", element)

    def await_that(self, what, condition):
        WebDriverWait(self.browser, PATIENCE, poll_frequency=0.1).until(lambda _: condition(), message=what)

    def emulate(self, scheme):
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def screenshot(self, name):
        path = FOLDER / name
        self.assertTrue(self.browser.save_screenshot(str(path)))
        return path

    def test_shows_the_server_under_load(self):
        load = self.normd.load(PATIENCE)
        self.addCleanup(load.wait)
        self.addCleanup(load.terminate)
        self.open()
        self.await_that("throughput", lambda: self.text("rate") not in ("\u2013", "0 per second"))
        self.await_that("latency", lambda: "\u00b5s" in self.text("latency") or "ms" in self.text("latency"))
        self.await_that("times of stages", lambda: all(f"{stage}\t" in self.text("stages") for stage in ("decode", "kernel", "send")))
        version = subprocess.run([NORMD, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
        self.assertEqual(self.text("version"), version)
        self.assertEqual(self.text("state"), "serving")
        self.assertIn("cpu backend", self.text("facts"))
        self.assertRegex(self.text("devices"), r"cpu \u00b7 .+\n?\s*healthy")
        self.assertIn("B/s in, ", self.text("ways"))
        self.assertEqual(self.text("no-errors"), "none since the start")
        self.assertIn("normd on ", self.browser.title)
        # What the page counts is what the server counts.
        total = int(self.text("failing").split()[0])
        self.assertGreater(total, 0)
        self.assertLessEqual(total, json.loads(self.normd.status())["requests"]["ok"])
        self.assertEqual(self.browser.get_log("browser"), [])
        # A line of each chart is drawn: more than a legend's letters have of its colour.
        for scheme, back, line in (("light", "rgb(244, 245, 247)", (0x1F, 0x6F, 0xEB)), ("dark", "rgb(16, 19, 23)", (0x5A, 0xA2, 0xFF))):
            self.emulate(scheme)
            self.assertEqual(self.browser.execute_script("return getComputedStyle(document.body).backgroundColor"), back)
            near, different = colours(self.screenshot(f"status_page_{scheme}.png"), line)
            self.assertGreater(near, 60, scheme)
            self.assertGreater(different, 30, scheme)
        self.emulate("light")

    def test_nothing_is_wider_than_a_phone(self):
        self.assertEqual(self.normd.fail("/norm.v1.NormalizationService/" + "Normalize" * 20, ""), grpc.StatusCode.UNAUTHENTICATED)
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 360, "height": 780, "deviceScaleFactor": 1, "mobile": True})
        self.addCleanup(self.browser.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})
        self.open()
        self.await_that("the error", lambda: "UNAUTHENTICATED" in self.text("errors"))
        self.screenshot("status_page_phone.png")
        width, card = self.browser.execute_script(
            "return [document.documentElement.scrollWidth, Math.max(...[...document.querySelectorAll('.card')].map(c => c.scrollWidth - c.clientWidth))]")
        self.assertEqual(width, 360)
        self.assertEqual(card, 0)

    def test_texts_of_callers_stay_texts(self):
        self.assertEqual(self.normd.fail(HOSTILE, ""), grpc.StatusCode.UNAUTHENTICATED)
        self.assertEqual(self.normd.fail("/norm.v1.NormalizationService/Normalize", TOKEN), grpc.StatusCode.INVALID_ARGUMENT)
        self.open()
        self.await_that("both errors", lambda: "INVALID_ARGUMENT" in self.text("errors") and HOSTILE in self.text("errors"))
        self.assertRegex(self.text("errors"), r"INVALID_ARGUMENT\s+Normalize\s")
        self.assertEqual(self.browser.execute_script("return document.querySelectorAll('script, img').length"), 1)
        self.assertNotIn("owned", self.browser.title)
        # And if one of them became markup, it would not run.
        self.browser.execute_script("""
            const script = document.createElement("script");
            script.textContent = "document.body.dataset.owned = 1";
            document.body.append(script);""")
        self.assertIsNone(self.browser.execute_script("return document.body.dataset.owned || null"))
        refused = [line["message"] for line in self.browser.get_log("browser")]
        self.assertTrue(any("Content Security Policy" in message for message in refused), refused)
        for text in (self.browser.page_source, self.normd.status()):
            self.assertNotIn(TOKEN, text)

    def test_says_when_the_server_drains_is_gone_and_is_back(self):
        self.normd.end()
        self.start("127.0.0.1:0", "--drain_delay=1h")
        self.open()
        self.await_that("serving", lambda: self.text("state") == "serving")
        self.normd.process.send_signal(signal.SIGTERM)
        self.await_that("draining", lambda: self.text("state") == "draining")
        self.assertIn("draining: normd", self.browser.title)
        address = self.normd.address["metrics"]
        self.normd.end(signal.SIGKILL)
        self.await_that("the loss", lambda: self.text("state") == "unreachable")
        self.assertIn("The server cannot be reached: last answer ", self.text("alert"))
        self.assertIn("unreachable", self.browser.title)
        self.screenshot("status_page_unreachable.png")
        self.start(address)
        self.await_that("the return", lambda: self.text("state") == "serving")
        self.assertTrue(self.browser.execute_script("return document.getElementById('alert').hidden"))
        self.assertEqual(self.text("state"), "serving")


def draw_picture():
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as exits:
        normd = Normd(folder)
        exits.callback(normd.end)
        browser = open_browser(1180, 900)
        exits.callback(browser.quit)
        load = normd.load(90)
        exits.callback(load.wait)
        exits.callback(load.terminate)
        browser.get(f"http://{normd.address['metrics']}/")
        time.sleep(25)
        normd.fail("/norm.v1.NormalizationService/Normalize", "")
        time.sleep(15)
        normd.fail("/norm.v1.NormalizationService/Normalize", TOKEN)
        time.sleep(20)
        height = browser.execute_script("return Math.ceil(document.body.getBoundingClientRect().height)")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 1180, "height": height, "deviceScaleFactor": 1, "mobile": False})
        browser.save_screenshot(str(FOLDER / "status_page.png"))


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    os.environ["SE_AVOID_STATS"] = "true"
    if "--picture" in sys.argv:
        draw_picture()
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
